/* Attention on the GPU against the CPU: segments of every length, head widths, shared keys, caches. */
#include "gpulab.h"

enum { MOST_SEGMENTS = 64 };

/* Segments of the lengths given; `lead` rows come before the first, `tail` after the last. */
typedef struct Plan { int64_t len[MOST_SEGMENTS], n, lead, tail; bool causal; } Plan;

static Segments segments(const Plan *p, int64_t *T)
{
    int32_t  at[MOST_SEGMENTS + 1] = { (int32_t)p->lead };
    Segments s = { .n = p->n, .causal = p->causal };
    for (int64_t i = 0; i < p->n; i++) {
        double n = (double)p->len[i];
        at[i + 1] = at[i] + (int32_t)p->len[i];
        s.longest = p->len[i] > s.longest ? p->len[i] : s.longest;
        s.pairs  += p->causal ? n * (n + 1) / 2 : n * n;
    }
    *T = at[p->n] + p->tail;
    s.starts = int_list(p->n + 1, at);
    return s;
}

/* bf16: the GPU rounds probabilities (and their gradients) before its second product. */
static const Tolerance forward16 = { 6e-3, 1.0 / 64, 4e-2, 0 }, backward16 = { 1.2e-2, 1.0 / 32, 6e-2, 0 },
                       backward32 = { 2e-5, 2e-4, 2e-4, 0 };

typedef struct Heads { int64_t q, kv, width; } Heads;

/* Queries, keys and values as a model has them: columns of one matrix; or each on its own, one element
 * off. */
typedef struct Views { Tensor q, k, v; } Views;

static Views views(DType d, int64_t T, Heads h, bool packed)
{
    if (!packed)
        return (Views){ in3(d, T, h.q, h.width, LOOSE), in3(d, T, h.kv, h.width, LOOSE),
                        in3(d, T, h.kv, h.width, LOOSE) };
    Tensor all = in2(d, T, (h.q + 2 * h.kv) * h.width, DENSE);
    return (Views){ t_heads(all, 0, h.q, h.width), t_heads(all, h.q * h.width, h.kv, h.width),
                    t_heads(all, (h.q + h.kv) * h.width, h.kv, h.width) };
}

static void backward(DType d, Views x, Tensor o, Tensor lse, Segments s, Heads h, float scale, bool packed)
{
    int64_t T = o.n[0];
    Views   g = views(d, T, h, packed);                         /* gradients lie as their tensors do */
    Tensor  dout = in3(d, T, h.q, h.width, packed ? DENSE : LOOSE), delta = out2(F32, h.q, T, DENSE);
    Tensor  outs[] = { g.q, g.k, g.v };
    for (int i = 0; i < 3; i++) {
        for (int64_t r = 0; r < gpu_rows(outs[i]); r++)
            memset(gpu_row(outs[i], r), 0xff, (size_t)h.width * dtype_size(d));
        output(outs[i]);
        within(outs[i], d == F32 ? backward32 : backward16);
        at_least(outs[i], 0.02);                                /* where all cancels: segments of one token */
    }
    scratch(delta);
    any_order(g.q);
    CALL(attention_bwd, g.q, g.k, g.v, delta, dout, o, lse, x.q, x.k, x.v, s, scale);
}

static void both_ways(DType d, const Plan *p, Heads h, bool packed)
{
    int64_t T;
    fresh();
    Segments s = segments(p, &T);
    Views    x = views(d, T, h, packed);
    Tensor   o = out3(d, T, h.q, h.width, packed ? DENSE : LOOSE), lse = out2(F32, h.q, T, DENSE);
    float    scale = 1.0f / sqrtf((float)h.width);
    if (d == BF16) within(o, forward16);
    within(lse, (Tolerance){ 2e-5, 1e-4, 1e-4, 1 });
    CALL(attention_fwd, o, lse, x.q, x.k, x.v, s, scale);
    backward(d, x, o, lse, s, h, scale, packed);
}

static Plan any_plan(int64_t most, bool gaps)
{
    Plan p = { .n = any_size(1, 9), .causal = maybe() };
    for (int64_t i = 0; i < p.n; i++) p.len[i] = num_below(4) ? any_size(1, most) : 1;
    if (gaps) p.lead = num_below(2) * any_size(1, 40), p.tail = num_below(3) * any_size(1, 40);
    return p;
}

static void every_head_width(void)
{
    static const int64_t width[] = { 32, 64, 72, 80, 128 };
    for (int i = 0; i < 5; i++)
        for (int d = 0; d < 2; d++)
            for (int causal = 0; causal < 2; causal++) {
                Plan p = any_plan(90, true);
                p.causal = causal;
                both_ways(floats[d], &p, (Heads){ 4, 2, width[i] }, true);
            }
}

static void odd_head_widths(void)
{
    static const int64_t width[] = { 1, 6, 12, 20, 33, 100, 136, 256 };
    for (int i = 0; i < 8; i++) {
        Plan p = any_plan(40, true);
        both_ways(any_float(), &p, (Heads){ 3, 3, width[i] }, maybe());
    }
}

static void shared_keys(void)
{
    static const Heads heads[] = { { 1, 1, 64 },  { 8, 1, 64 },   { 6, 3, 32 },
                                   { 16, 4, 64 }, { 32, 4, 128 }, { 7, 7, 72 } };
    for (int i = 0; i < 6; i++)
        for (int d = 0; d < 2; d++) {
            Plan p = any_plan(70, true);
            both_ways(floats[d], &p, heads[i], maybe());
        }
}

/* Segments of one token, of none, and of the lengths at which tiles end. */
static void lengths_at_the_edges(void)
{
    Plan ones  = { .n = 40, .causal = true },
         edges = { { 1, 63, 64, 65, 0, 127, 128, 129, 255, 257, 1 }, 11, 0, 3, true };
    for (int i = 0; i < 40; i++) ones.len[i] = 1;
    for (int d = 0; d < 2; d++) {
        for (int causal = 0; causal < 2; causal++) {
            ones.causal = edges.causal = causal;
            both_ways(floats[d], &ones, (Heads){ 4, 2, 64 }, true);
            both_ways(floats[d], &edges, (Heads){ 4, 2, causal ? 128 : 72 }, true);
        }
    }
}

static void nothing_to_attend(void)
{
    static const Plan none_at_all = { .n = 0 }, only_gap = { .n = 0, .lead = 5, .tail = 12 },
                      of_none = { { 0, 0 }, 2, 0, 4, true };
    for (int d = 0; d < 2; d++) {
        both_ways(floats[d], &none_at_all, (Heads){ 2, 2, 64 }, true);
        both_ways(floats[d], &only_gap, (Heads){ 2, 1, 64 }, true);
        both_ways(floats[d], &of_none, (Heads){ 2, 1, 64 }, true);
    }
}

static void sizes_of_a_model(void)
{
    Plan text = { { 1500, 300, 7, 241 }, 4, 0, 0, true }, patches = { { 576, 1024, 64 }, 3, 0, 128, false };
    both_ways(BF16, &text, (Heads){ 8, 2, 128 }, true);
    both_ways(BF16, &patches, (Heads){ 4, 4, 72 }, true);
    both_ways(F32, &text, (Heads){ 4, 1, 128 }, true);
}

/* Vision heads: lengths around the tiles of their kernels, and one longer than any image. */
static void images(void)
{
    static const int64_t width[] = { 64, 72, 80 };
    static const Plan edges = { { 1, 63, 64, 65, 0, 79, 80, 81, 95, 97, 127, 128, 129, 160, 191, 192, 193, 1,
                                  257, 385 }, 20, 0, 0, false },
                      gaps = { { 1, 200, 33, 1 }, 4, 217, 140, false }, one = { { 1 }, 1, 0, 0, false };
    const Plan longest = { { gpu_size(4219, 1219), 1, 130 }, 3, 0, 7, false };
    Plan many = { .n = MOST_SEGMENTS, .lead = 2 };
    for (int i = 0; i < MOST_SEGMENTS; i++) many.len[i] = any_size(1, 40);
    for (int i = 0; i < 3; i++) {
        both_ways(BF16, &edges, (Heads){ 3, 3, width[i] }, true);
        both_ways(BF16, &gaps, (Heads){ 2, 2, width[i] }, true);
        both_ways(BF16, &one, (Heads){ 1, 1, width[i] }, true);
        both_ways(BF16, &many, (Heads){ 4, 4, width[i] }, true);
    }
    both_ways(BF16, &longest, (Heads){ 1, 1, 72 }, true);
}

/* The backward pass that adds to dq in any order; every length of a last tile, many small images. */
static void images_in_any_order(void)
{
    GPU->repeat = false;
    images();
    for (int i = 0; i < 12; i++) {
        Plan p = { .n = any_size(1, MOST_SEGMENTS), .lead = num_below(200), .tail = num_below(200) };
        for (int64_t k = 0; k < p.n; k++) p.len[k] = any_size(i % 3 ? 0 : 1, i % 3 ? 30 : 500);
        both_ways(BF16, &p, (Heads){ 2, 2, i % 2 ? 72 : 64 + 16 * num_below(2) }, true);
    }
    GPU->repeat = true;
}

static void longest_image(void)
{
    const Plan p = { { gpu_size(24571, 2571) }, 1, 0, 5, false };
    if (GPU->device->host_memory) return;                       /* slow where the CPU stands in for the GPU */
    GPU->repeat = false;
    both_ways(BF16, &p, (Heads){ 1, 1, 72 }, true);
    GPU->repeat = true;
}

/* Every tensor with another dtype. */
static void mixed_types(void)
{
    for (int i = 0; i < 12; i++) {
        int64_t  T, C = i % 2 ? 64 : 20;
        Plan     p = any_plan(50, true);
        fresh();
        Segments s = segments(&p, &T);
        Tensor   q = in3(any_float(), T, 4, C, any_layout()), k = in3(any_float(), T, 2, C, any_layout());
        Tensor   v = in3(any_float(), T, 2, C, any_layout()), o = out3(any_float(), T, 4, C, any_layout());
        Tensor   lse = out2(F32, 4, T, DENSE);
        within(o, forward16);
        within(lse, (Tolerance){ 2e-5, 1e-4, 1e-4, 1 });
        CALL(attention_fwd, o, lse, q, k, v, s, 0.2f);
        Tensor dout = in3(any_float(), T, 4, C, any_layout()), delta = out2(F32, 4, T, DENSE);
        Tensor dq = out3(any_float(), T, 4, C, any_layout()), dk = out3(any_float(), T, 2, C, any_layout());
        Tensor dv = out3(any_float(), T, 2, C, any_layout()), outs[] = { dq, dk, dv };
        for (int k_ = 0; k_ < 3; k_++) within(outs[k_], backward16), at_least(outs[k_], 0.02);
        scratch(delta);
        CALL(attention_bwd, dq, dk, dv, delta, dout, o, lse, q, k, v, s, 0.2f);
    }
}

/* Large scores: the maximum must be subtracted. */
static void peaked_scores(void)
{
    for (int d = 0; d < 2; d++) {
        int64_t  T;
        Plan     p = any_plan(60, false);
        fresh();
        Segments s = segments(&p, &T);
        Views    x = views(floats[d], T, (Heads){ 2, 1, 64 }, true);
        Tensor   o = out3(floats[d], T, 2, 64, DENSE), lse = out2(F32, 2, T, DENSE);
        gpu_normal(x.q, 0, 12);
        within(o, floats[d] == BF16 ? (Tolerance){ 1e-2, 1.0 / 32, 4e-2, 0 }
                                    : (Tolerance){ 5e-5, 5e-4, 5e-4, 0 });
        CALL(attention_fwd, o, lse, x.q, x.k, x.v, s, 1.0f);
    }
}

/* Each segment's keys in a KV cache with spare rows: queries are the last of the used rows. Some segments
 * share the beginning of their keys with the next. */
static void over_a_cache(DType d, Heads h, bool causal, int64_t most_queries)
{
    int64_t  n = any_size(1, 6), T, end = 0;
    int32_t  at[8] = { (int32_t)num_below(5) }, used[8];
    float    scale = 1.0f / sqrtf((float)h.width);
    Plan     p = { .n = n, .causal = causal, .tail = num_below(4) };
    for (int64_t i = 0; i < n; i++) p.len[i] = num_below(5) ? any_size(1, most_queries) : i > 0 ? 0 : 1;
    fresh();
    Segments s = segments(&p, &T);
    s.pairs = 0;
    for (int64_t i = 0; i < n; i++) {
        used[i]   = (int32_t)(p.len[i] + (num_below(4) ? any_size(0, 150) : 0));
        if (!causal && p.len[i] && !used[i]) used[i] = 1;
        end       = at[i] + used[i] > end ? at[i] + used[i] : end;
        at[i + 1] = i + 1 < n && !num_below(3) ? at[i] : (int32_t)(end + num_below(30));
        s.pairs  += (double)p.len[i] * used[i];
        s.keys   += used[i];
    }
    int64_t S = at[n] + num_below(9);
    s.kv_starts = int_list(n + 1, at), s.kv_used = int_list(n, used);
    Tensor q = in3(d, T, h.q, h.width, DENSE), k = in3(d, S, h.kv, h.width, DENSE),
           v = in3(d, S, h.kv, h.width, DENSE);
    Tensor o = out3(d, T, h.q, h.width, DENSE), lse = out2(F32, h.q, T, DENSE);
    if (d == BF16) within(o, forward16);
    within(lse, (Tolerance){ 2e-5, 1e-4, 1e-4, 1 });
    CALL(attention_fwd, o, lse, q, k, v, s, scale);
    Tensor dq = out3(d, T, h.q, h.width, any_layout()), dk = out3(d, S, h.kv, h.width, any_layout());
    Tensor dv = out3(d, S, h.kv, h.width, any_layout()), outs[] = { dq, dk, dv };
    Tensor dout = in3(d, T, h.q, h.width, any_layout()), delta = out2(F32, h.q, T, DENSE);
    for (int i = 0; i < 3; i++) within(outs[i], d == F32 ? backward32 : backward16), at_least(outs[i], 0.02);
    scratch(delta);
    CALL(attention_bwd, dq, dk, dv, delta, dout, o, lse, q, k, v, s, scale);
}

static void merging(void)
{
    for (int i = 0; i < 12; i++) {
        int64_t T = any_size(1, 90), H = any_size(1, 6), C = any_size(1, 140);
        fresh();
        Tensor  o = output(in3(F32, T, H, C, any_layout())), lse = output(in2(F32, H, T, any_layout()));
        Tensor  part = in3(any_float(), T, H, C, any_layout()), part_lse = in2(F32, H, T, any_layout());
        gpu_normal(lse, 0, 20), gpu_normal(part_lse, 0, 20);
        at_least(lse, 1);
        CALL(attention_merge, o, lse, part, part_lse);
    }
}

static void caches(void)
{
    static const Heads heads[] = { { 4, 2, 64 }, { 8, 1, 128 }, { 3, 3, 12 }, { 4, 4, 72 } };
    for (int i = 0; i < 4; i++)
        for (int d = 0; d < 2; d++)
            for (int causal = 0; causal < 2; causal++) {
                over_a_cache(floats[d], heads[i], causal, 1);
                over_a_cache(floats[d], heads[i], causal, 50);
            }
}

static void beside_a_kernel(void)
{
    static const int held[] = { 16, 100, 0 }, reserved[] = { 0, 0, 40 };
    for (int i = 0; i < gpu_size(3, 1); i++) {
        gpu_share(held[i], reserved[i]);
        GPU->repeat = held[i] != 100;
        images();
        GPU->repeat = true;
        lengths_at_the_edges();
    }
    gpu_share(0, 0);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(every_head_width);
    GPU_RUN(odd_head_widths);
    GPU_RUN(shared_keys);
    GPU_RUN(lengths_at_the_edges);
    GPU_RUN(nothing_to_attend);
    GPU_RUN(sizes_of_a_model);
    GPU_RUN(images);
    GPU_RUN(images_in_any_order);
    GPU_RUN(longest_image);
    GPU_RUN(mixed_types);
    GPU_RUN(peaked_scores);
    GPU_RUN(caches);
    GPU_RUN(merging);
    GPU_RUN(beside_a_kernel);
    return gpulab_report();
}
