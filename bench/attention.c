/* bench/attention.c -- see bench/attention.h. */
#include "bench/attention.h"

#include <math.h>

/* Segments that end at the rows given. */
static void segments(Case *c, int64_t n, const int32_t *at, bool causal)
{
    c->seg = (Segments){ .starts = t1(c->s->a, "bench", I32, n + 1), .n = n, .causal = causal };
    backend_upload(c->s->be, c->seg.starts, at);
    for (int64_t i = 0; i < n; i++) {
        int64_t len = at[i + 1] - at[i];
        c->seg.longest = len > c->seg.longest ? len : c->seg.longest;
        c->seg.pairs  += (double)len * (double)(causal ? len + 1 : 2 * len) / 2;
    }
}
static void even_segments(Case *c, int64_t rows, int64_t n, bool causal)
{
    int32_t at[65];
    for (int64_t i = 0; i <= n; i++) at[i] = (int32_t)(i * (rows / n));
    segments(c, n, at, causal);
}
void bench_documents(Case *c, int64_t rows, int64_t n) { even_segments(c, rows, n, true); }
/* Documents of unequal lengths, up to a quarter of the rows. */
static void uneven_segments(Case *c, int64_t rows)
{
    int64_t n = 0;
    int32_t at[65] = { 0 };
    for (uint32_t x = 1; at[n] < rows; n++) {
        x = x * 1664525 + 1013904223;
        int64_t end = at[n] + 1 + (int64_t)(x >> 8) % (rows / 4);
        at[n + 1] = (int32_t)(n == 63 || end > rows ? rows : end);
    }
    segments(c, n, at, true);
}
Tensor bench_heads(Case *c, int64_t rows, int64_t n)
{
    return t_heads(randn(c->s, c->s->d, rows, n * c->width), 0, n, c->width);
}

static void make_attention_of(Case *c, int64_t rows, int64_t H, int64_t G, int64_t width, int64_t n,
                              bool causal)
{
    c->width = width;
    for (int i = 0; i < 8; i++) c->t[i] = bench_heads(c, rows, i == 1 || i == 2 || i == 6 || i == 7 ? G : H);
    c->t[8] = blank(c->s, F32, H, rows), c->t[9] = blank(c->s, F32, H, rows);
    even_segments(c, rows, n, causal);
}
void run_attention(void *p)
{
    Case *c = p;                                     /* q k v | o do dq | dk dv | lse delta */
    op_attention_fwd(c->s->be, c->t[3], c->t[8], c->t[0], c->t[1], c->t[2], c->seg,
                     1.0f / sqrtf((float)c->width));
}
void make_attention(Case *c)
{
    make_attention_of(c, c->s->T, c->s->H, c->s->G, c->s->C, c->s->docs, true);
}
void make_vision(Case *c)
{
    make_attention_of(c, c->s->P, c->s->VH, c->s->VH, c->s->VC, c->s->images, false);
}
/* Latent attention: heads of 192, their values of 128. */
static void make_latent(Case *c, bool even)
{
    static const int values[] = { 2, 3, 4, 7 };
    make_attention_of(c, c->s->T, c->s->H / 2, c->s->H / 2, 192, c->s->docs, true);
    for (int i = 0; i < 4; i++) {
        Tensor *t = &c->t[values[i]];
        *t = t_heads(randn(c->s, c->s->d, c->s->T, t->n[1] * 128), 0, t->n[1], 128);
    }
    if (!even) uneven_segments(c, c->s->T);
}
/* Heads of gpt-oss: 64 wide, eight to a key head, and a window of 128 tokens. */
void make_attention_window(Case *c)
{
    make_attention_of(c, c->s->T, 2 * c->s->H, c->s->H / 4, 64, c->s->docs, true);
    c->seg.window = 128, c->seg.pairs = fmin(c->seg.pairs, 128.0 * (double)c->s->T);
}
/* Heads of Qwen3-Next: 256 wide. */
void make_attention_wide(Case *c)
{
    make_attention_of(c, c->s->T, c->s->H / 2, c->s->H / 16 ? c->s->H / 16 : 1, 256, c->s->docs, true);
}
void make_attention_latent(Case *c) { make_latent(c, true); }
void make_latent_bwd(Case *c)       { make_latent(c, true), run_attention(c); }
void make_latent_ragged(Case *c)    { make_latent(c, false); }
void make_latent_ragged_bwd(Case *c) { make_latent(c, false), run_attention(c); }
void make_window_bwd(Case *c)       { make_attention_window(c), run_attention(c); }
void make_wide_bwd(Case *c)         { make_attention_wide(c), run_attention(c); }
void make_ragged(Case *c) { make_attention(c), uneven_segments(c, c->s->T); }
void make_long(Case *c)   { make_attention(c), even_segments(c, c->s->T, 1, true); }
void make_attention_bwd(Case *c) { make_attention(c), run_attention(c); }
void make_ragged_bwd(Case *c)    { make_ragged(c), run_attention(c); }
void make_long_bwd(Case *c)      { make_long(c), run_attention(c); }
void make_vision_bwd(Case *c)    { make_vision(c), run_attention(c); }
void run_attention_bwd(void *p)
{
    Case *c = p;
    op_attention_bwd(c->s->be, c->t[5], c->t[6], c->t[7], c->t[9], c->t[4], c->t[3], c->t[8], c->t[0],
                     c->t[1], c->t[2], c->seg, 1.0f / sqrtf((float)c->width));
}
