/* tests/test_attention.c -- attention within segments: causal and full, shared heads, views, gradients, keys
 * in a cache. */
#include "numlab.h"

#include <omp.h>

static Tensor heads(Tensor t, int64_t H) { return t_as3(t, t.n[0], H, t.n[1] / H); }
static Tensor randn3(DType d, int64_t T, int64_t H, int64_t C) { return heads(num_randn(d, T, H * C), H); }
static Tensor poison3(DType d, int64_t T, int64_t H, int64_t C) { return heads(num_poison(d, T, H * C), H); }

static Segments segments(const int32_t *starts, int64_t n, bool causal)
{
    Segments s = { .starts = num_i32(n + 1, starts), .n = n, .causal = causal };
    for (int64_t i = 0; i < n; i++) {
        double len = starts[i + 1] - starts[i];
        s.pairs += causal ? len * (len + 1) / 2 : len * len;
        if (len > (double)s.longest) s.longest = (int64_t)len;
    }
    return s;
}

static double at(Tensor x, int64_t t, int64_t h, int64_t c) { return get(x, (t * x.n[1] + h) * x.n[2] + c); }

/* One row by the definition, in double: its output and log-sum-exp. */
static double reference_row(double *o, Tensor q, Tensor k, Tensor v, int64_t t, int64_t h, int64_t from,
                            int64_t to, double scale)
{
    int64_t C = q.n[2], g = h / (q.n[1] / k.n[1]);
    double *s = malloc((size_t)(to - from) * sizeof *s), top = -INFINITY, sum = 0;
    for (int64_t j = from; j < to; j++) {
        s[j - from] = 0;
        for (int64_t c = 0; c < C; c++) s[j - from] += scale * at(q, t, h, c) * at(k, j, g, c);
        top = fmax(top, s[j - from]);
    }
    for (int64_t j = from; j < to; j++) sum += s[j - from] = exp(s[j - from] - top);
    for (int64_t c = 0; c < C; c++) o[c] = 0;
    for (int64_t j = from; j < to; j++)
        for (int64_t c = 0; c < C; c++) o[c] += s[j - from] / sum * at(v, j, g, c);
    free(s);
    return top + log(sum);
}

static void reference(Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Segments seg, double scale)
{
    const int32_t *st = seg.starts.data;
    int64_t T = q.n[0], H = q.n[1], C = q.n[2];
    double  row[512];
    for (int64_t i = 0; i < t_count(o); i++) put(o, i, 0);
    for (int64_t i = 0; i < t_count(lse); i++) put(lse, i, 0);
    const int32_t *kv = t_has(seg.kv_starts) ? seg.kv_starts.data : st, *used = seg.kv_used.data;
    for (int64_t i = 0; i < seg.n; i++)
        for (int64_t t = st[i]; t < st[i + 1]; t++)
            for (int64_t h = 0; h < H; h++) {
                int64_t end = used ? kv[i] + used[i] : kv[i + 1], later = st[i + 1] - 1 - t;
                double l = reference_row(row, q, k, v, t, h, kv[i], seg.causal ? end - later : end, scale);
                put(lse, h * T + t, (float)l);
                for (int64_t c = 0; c < C; c++) put(o, (t * H + h) * C + c, (float)row[c]);
            }
}

static void known_values(void)
{
    Tensor q = heads(num_vals(F32, 2, 1, (float[]){ 1, 1 }), 1);
    Tensor v = heads(num_vals(F32, 2, 1, (float[]){ 8, 4 }), 1);
    Tensor k = heads(num_vals(F32, 2, 1, (float[]){ 0, logf(3) }), 1);
    Tensor o = poison3(F32, 2, 1, 1), lse = num_poison(F32, 1, 2);
    op_attention_fwd(BE, o, lse, q, k, v, segments((int32_t[]){ 0, 2 }, 1, true), 1.0f);
    EXPECT_CLOSE(t_as2(o, 1, 2), num_vals(F32, 1, 2, (float[]){ 8, 5 }), 1e-6);      /* weights 1; 1/4, 3/4 */
    EXPECT_CLOSE(lse, num_vals(F32, 1, 2, (float[]){ 0, logf(4) }), 1e-6);
    op_attention_fwd(BE, o, lse, q, k, v, segments((int32_t[]){ 0, 2 }, 1, false), 1.0f);
    EXPECT_CLOSE(t_as2(o, 1, 2), num_vals(F32, 1, 2, (float[]){ 5, 5 }), 1e-6);
    op_attention_fwd(BE, o, lse, q, k, v, segments((int32_t[]){ 0, 1, 2 }, 2, false), 1.0f);
    EXPECT_CLOSE(t_as2(o, 1, 2), num_vals(F32, 1, 2, (float[]){ 8, 4 }), 1e-6);      /* each row alone */
    num_clear();
}

/* Odd head widths, shared heads, segments of 1, crossed tiles, rows outside; q, k, v in one wide buffer. */
static void agrees_with_definition(void)
{
    static const struct { int64_t H, G, C, n; int32_t starts[6]; int64_t T; } cases[] = {
        { 2, 1, 12, 3, { 0, 1, 40, 70 }, 70 },      { 4, 2, 16, 2, { 3, 150, 151 }, 155 },
        { 3, 3, 5, 1, { 0, 290 }, 290 },            { 2, 2, 72, 4, { 0, 1, 2, 3, 33 }, 33 },
        { 6, 2, 1, 2, { 0, 17, 17 }, 20 },          { 2, 1, 64, 2, { 0, 129, 260 }, 261 },
        { 1, 1, 128, 1, { 0, 7 }, 7 },              { 2, 1, 3, 0, { 4 }, 9 },
    };
    for (int i = 0; i < 16; i++) {
        int     which = i % 8;
        int64_t H = cases[which].H, G = cases[which].G, C = cases[which].C, T = cases[which].T;
        DType   d = (i + i / 8) % 2 ? BF16 : F32;
        float   scale = 1.0f / sqrtf((float)C);
        Segments seg = segments(cases[which].starts, cases[which].n, i / 8);
        Tensor  qkv = num_randn(d, T, (H + 2 * G) * C + 3), frame = num_poison(d, T + 2, H * C + 5);
        Tensor  q = t_heads(qkv, 0, H, C), k = t_heads(qkv, H * C + 1, G, C);
        Tensor  v = t_heads(qkv, (H + G) * C + 2, G, C);
        Tensor  o = t_heads(t_rows(frame, 1, T), 2, H, C), lse = num_poison(F32, H, T);
        Tensor  want = poison3(F32, T, H, C), want_lse = num_poison(F32, H, T);
        op_attention_fwd(BE, o, lse, q, k, v, seg, scale);
        reference(want, want_lse, q, k, v, seg, scale);
        EXPECT_CLOSE(o, want, d == F32 ? 1e-5 : 5e-3);
        EXPECT_CLOSE(lse, want_lse, 1e-5);
        for (int64_t j = 0, W = H * C + 5; j < (T + 2) * W; j++)
            if (j / W < 1 || j / W > T || j % W < 2 || j % W >= H * C + 2)
                EXPECT(isnan(get(frame, j)), "case %d: frame element %d was written", i, (int)j);
        num_clear();
    }
}

/* Queries that are the last rows of longer lists of keys, with and without gaps between these. */
static void keys_elsewhere(void)
{
    static const struct { int64_t H, G, C, n; int32_t starts[6], kv[6], used[5]; int64_t T, S; } cases[] = {
        { 4, 2, 16, 3, { 0, 1, 2, 3 }, { 0, 40, 80, 500 }, { 7, 40, 401 }, 3, 500 },      /* a token each */
        { 8, 1, 64, 2, { 1, 1, 6 }, { 3, 10, 300 }, { 7, 290 }, 8, 310 },                 /* one has ended */
        { 2, 2, 12, 2, { 0, 70, 270 }, { 0, 270, 500 }, { 270, 201 }, 270, 500 },         /* crossed tiles */
        { 3, 1, 5, 5, { 0, 1, 2, 3, 4, 5 }, { 0, 1, 3, 6, 206, 406 }, { 1, 2, 3, 193, 200 }, 5, 406 },
    };
    for (int i = 0; i < 16; i++) {
        int     which = i % 4;
        int64_t H = cases[which].H, G = cases[which].G, C = cases[which].C, T = cases[which].T;
        int64_t S = cases[which].S, n = cases[which].n;
        bool    causal = i / 4 % 2, gaps = i / 8;
        DType   d = (i + i / 4) % 2 ? BF16 : F32;
        float   scale = 1.0f / sqrtf((float)C);
        Segments seg = segments(cases[which].starts, n, causal);
        seg.kv_starts = num_i32(n + 1, cases[which].kv);
        if (gaps) seg.kv_used = num_i32(n, cases[which].used);
        Tensor  q = randn3(d, T, H, C), kv = num_randn(d, S, 2 * G * C), o = poison3(d, T, H, C);
        Tensor  k = t_heads(kv, 0, G, C), v = t_heads(kv, G * C, G, C), lse = num_poison(F32, H, T);
        Tensor  want = poison3(F32, T, H, C), want_lse = num_poison(F32, H, T);
        op_attention_fwd(BE, o, lse, q, k, v, seg, scale);
        reference(want, want_lse, q, k, v, seg, scale);
        EXPECT_CLOSE(o, want, d == F32 ? 1e-5 : 5e-3);
        EXPECT_CLOSE(lse, want_lse, 1e-5);
        num_clear();
    }
}

/* One query a segment gives the row that a pass over all queries gives. */
static void many_segments(void)
{
    enum { N = 300, LEN = 37 };
    static int32_t starts[N + 1], kv[N + 1], used[N];
    for (int i = 0; i <= N; i++) starts[i] = i, kv[i] = i * LEN;
    for (int i = 0; i < N; i++) used[i] = 1 + i * 7 % LEN;
    Segments all = segments(kv, N, true), one = segments(starts, N, true);
    one.kv_starts = num_i32(N + 1, kv), one.kv_used = num_i32(N, used);
    Tensor Q = randn3(F32, N * LEN, 4, 8), k = randn3(F32, N * LEN, 2, 8), v = randn3(F32, N * LEN, 2, 8);
    Tensor O = poison3(F32, N * LEN, 4, 8), L = num_poison(F32, 4, N * LEN);
    Tensor q = poison3(F32, N, 4, 8), o = poison3(F32, N, 4, 8), lse = num_poison(F32, 4, N);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < 32; j++) put(q, i * 32 + j, get(Q, (i * LEN + used[i] - 1) * 32 + j));
    op_attention_fwd(BE, O, L, Q, k, v, all, 0.5f);
    op_attention_fwd(BE, o, lse, q, k, v, one, 0.5f);
    for (int i = 0; i < N; i++) {
        int row = i * LEN + used[i] - 1;
        EXPECT(fabsf(get(lse, i) - get(L, row)) < 1e-5f, "log-sum-exp of segment %d", i);
        for (int j = 0; j < 32; j++)
            EXPECT(fabsf(get(o, i * 32 + j) - get(O, row * 32 + j)) < 1e-5f, "segment %d element %d", i, j);
    }
    num_clear();
}

/* Scores in the thousands: no row may overflow, nor may those that see little be lost. */
static void big_scores(void)
{
    for (int sign = -1; sign <= 1; sign += 2) {
        Segments seg = segments((int32_t[]){ 0, 300 }, 1, true);
        Tensor   q = randn3(F32, 300, 2, 8), k = randn3(F32, 300, 1, 8), v = randn3(F32, 300, 1, 8);
        Tensor   o = poison3(F32, 300, 2, 8), lse = num_poison(F32, 2, 300), want = poison3(F32, 300, 2, 8);
        Tensor   want_lse = num_poison(F32, 2, 300), delta = num_poison(F32, 2, 300);
        Tensor   d = randn3(F32, 300, 2, 8);
        Tensor   dq = poison3(F32, 300, 2, 8), dk = poison3(F32, 300, 1, 8), dv = poison3(F32, 300, 1, 8);
        for (int64_t i = 0; i < t_count(q); i++) put(q, i, fabsf(get(q, i)) * 64.0f);
        for (int64_t i = 0; i < t_count(k); i++) put(k, i, (float)sign * fabsf(get(k, i)) * 16.0f);
        op_attention_fwd(BE, o, lse, q, k, v, seg, 1.0f);
        reference(want, want_lse, q, k, v, seg, 1.0);
        EXPECT_CLOSE(o, want, 2e-2);                        /* scores near 1e4 carry an error near 1e-3 */
        EXPECT_CLOSE(lse, want_lse, 1e-6);
        op_attention_bwd(BE, dq, dk, dv, delta, d, o, lse, q, k, v, seg, 1.0f);
        EXPECT(isfinite(num_dot(dq, dq) + num_dot(dk, dk) + num_dot(dv, dv)), "gradients not finite");
        num_clear();
    }
}

typedef struct Case { Tensor o, lse, q, k, v, dout, dq, dk, dv, delta; Segments seg; float scale; } Case;

static Case make_case(DType d, int64_t T, int64_t H, int64_t G, int64_t C, Segments seg)
{
    return (Case){ .o = poison3(d, T, H, C), .lse = num_poison(F32, H, T), .q = randn3(d, T, H, C),
                   .k = randn3(d, T, G, C), .v = randn3(d, T, G, C), .dout = randn3(d, T, H, C),
                   .dq = poison3(d, T, H, C), .dk = poison3(d, T, G, C), .dv = poison3(d, T, G, C),
                   .delta = num_poison(F32, H, T), .seg = seg, .scale = 1.0f / sqrtf((float)C) };
}

static void run_forward(Case *x) { op_attention_fwd(BE, x->o, x->lse, x->q, x->k, x->v, x->seg, x->scale); }
static void run_backward(Case *x)
{
    op_attention_bwd(BE, x->dq, x->dk, x->dv, x->delta, x->dout, x->o, x->lse, x->q, x->k, x->v, x->seg,
                     x->scale);
}

static double loss(void *arg)
{
    Case *x = arg;
    run_forward(x);
    return num_dot(x->o, x->dout);
}

static void gradients(void)
{
    static const struct { int64_t H, G, C; int32_t starts[5]; } cases[] = {
        { 4, 2, 8, { 0, 1, 20, 33, 40 } },    { 2, 2, 12, { 0, 3, 4, 150, 151 } },
        { 3, 1, 5, { 2, 9, 10, 30, 160 } },   { 2, 1, 16, { 0, 210, 210, 220, 221 } },
    };
    for (int i = 0; i < 8; i++) {
        int64_t  T = cases[i % 4].starts[4] + i % 3;
        Segments seg = segments(cases[i % 4].starts, 4, i / 4);
        Case     x = make_case(F32, T, cases[i % 4].H, cases[i % 4].G, cases[i % 4].C, seg);
        run_forward(&x), run_backward(&x);
        EXPECT_GRADIENT(loss, &x, x.q, x.dq, 3e-2f, 5e-3);
        EXPECT_GRADIENT(loss, &x, x.k, x.dk, 3e-2f, 5e-3);
        EXPECT_GRADIENT(loss, &x, x.v, x.dv, 3e-2f, 5e-3);
        for (int64_t t = cases[i % 4].starts[4]; t < T; t++)
            EXPECT(at(x.dq, t, 0, 0) == 0 && at(x.dk, t, 0, 0) == 0 && at(x.dv, t, 0, 0) == 0,
                   "row %d is outside", (int)t);
        num_clear();
    }
}

/* Keys elsewhere: a rectangle without a mask, the ends of longer lists, pieces of one list, lists of which
 * only a part is in use; some keys have no query. */
static void gradients_of_keys_elsewhere(void)
{
    static const struct { int64_t H, G, C, n; int32_t starts[6], kv[6], used[5]; int64_t T, S; bool causal; }
    cases[] = {
        { 4, 2, 8, 1, { 0, 30 }, { 0, 50 }, { 50 }, 30, 50, 0 },
        { 2, 1, 12, 1, { 2, 210 }, { 3, 260 }, { 230 }, 215, 260, 0 },
        { 2, 2, 5, 3, { 0, 7, 20, 21 }, { 0, 9, 9, 60 }, { 9, 20, 41 }, 21, 60, 1 },
        { 3, 1, 9, 4, { 1, 40, 45, 250, 260 }, { 0, 60, 60, 420, 500 }, { 50, 150, 355, 30 }, 262, 500, 1 },
        { 2, 1, 6, 5, { 0, 1, 1, 3, 200, 205 }, { 0, 4, 4, 4, 10, 400 }, { 1, 3, 3, 6, 80 }, 206, 420, 0 },
    };
    for (int i = 0; i < 5; i++) {
        int64_t  H = cases[i].H, G = cases[i].G, C = cases[i].C, S = cases[i].S, n = cases[i].n;
        Segments seg = segments(cases[i].starts, n, cases[i].causal);
        Case     x = make_case(F32, cases[i].T, H, G, C, seg);
        x.seg.kv_starts = num_i32(n + 1, cases[i].kv), x.seg.kv_used = num_i32(n, cases[i].used);
        x.k = randn3(F32, S, G, C), x.v = randn3(F32, S, G, C);
        x.dk = poison3(F32, S, G, C), x.dv = poison3(F32, S, G, C);
        run_forward(&x), run_backward(&x);
        EXPECT_GRADIENT(loss, &x, x.q, x.dq, 3e-2f, 5e-3);
        EXPECT_GRADIENT(loss, &x, x.k, x.dk, 3e-2f, 5e-3);
        EXPECT_GRADIENT(loss, &x, x.v, x.dv, 3e-2f, 5e-3);
        num_clear();
    }
}

/* Keys in three parts and merged are the keys in one, forward and backward. */
static void parts_merge(void)
{
    static const int32_t cut[] = { 0, 100, 101, 330 };
    for (int i = 0; i < 2; i++) {
        int64_t T = 70, S = 330, H = 4, G = 2, C = 20;
        DType   d = i ? BF16 : F32;
        Case    x = make_case(F32, T, H, G, C, segments((int32_t[]){ 0, 70 }, 1, false)), p = x;
        x.k = randn3(F32, S, G, C), x.v = randn3(F32, S, G, C);
        x.dk = poison3(F32, S, G, C), x.dv = poison3(F32, S, G, C);
        x.seg.kv_starts = num_i32(2, (int32_t[]){ 0, 330 });
        Tensor  part = poison3(d, T, H, C), lse = num_poison(F32, H, T + 3), dq = poison3(F32, T, H, C);
        Tensor  dk = poison3(F32, S, G, C), dv = poison3(F32, S, G, C);
        run_forward(&x), run_backward(&x);
        p.lse = t_cols(num_poison(F32, H, T + 5), 1, T), p.o = poison3(F32, T, H, C), lse = t_cols(lse, 2, T);
        for (int j = 0; j < 3; j++) {
            int64_t n = cut[j + 1] - cut[j];
            p.seg.kv_starts = num_i32(2, (int32_t[]){ 0, (int32_t)n });
            op_attention_fwd(BE, j ? part : p.o, j ? lse : p.lse, x.q, t_rows(x.k, cut[j], n),
                             t_rows(x.v, cut[j], n), p.seg, x.scale);
            if (j) op_attention_merge(BE, p.o, p.lse, part, lse);
        }
        EXPECT_CLOSE(p.o, x.o, d == F32 ? 1e-5 : 1e-2);      /* other order of sums; two roundings */
        EXPECT_CLOSE(p.lse, x.lse, 1e-6);
        for (int j = 0; j < 3; j++) {
            int64_t n = cut[j + 1] - cut[j];
            p.seg.kv_starts = num_i32(2, (int32_t[]){ 0, (int32_t)n });
            op_attention_bwd(BE, j ? dq : p.dq, t_rows(dk, cut[j], n), t_rows(dv, cut[j], n), p.delta, x.dout,
                             x.o, x.lse, x.q, t_rows(x.k, cut[j], n), t_rows(x.v, cut[j], n), p.seg, x.scale);
            if (j) op_add(BE, p.dq, p.dq, dq);
        }
        EXPECT_CLOSE(p.dq, x.dq, 1e-5);
        EXPECT_CLOSE(dk, x.dk, 1e-5);
        EXPECT_CLOSE(dv, x.dv, 1e-5);
        num_clear();
    }
}

/* Against f32 on the same (rounded) inputs, through views of one wide gradient buffer. */
static void bf16_and_views(void)
{
    for (int causal = 0; causal < 2; causal++) {
        int64_t  T = 400, H = 4, G = 2, C = 24;
        Segments seg = segments((int32_t[]){ 0, 1, 350, 399 }, 3, causal);
        Case     h = make_case(BF16, T, H, G, C, seg), f = h;
        f.q = num_copy(h.q, F32), f.k = num_copy(h.k, F32), f.v = num_copy(h.v, F32);
        f.dout = num_copy(h.dout, F32), f.o = poison3(F32, T, H, C);
        Tensor wide = num_poison(F32, T, (H + 2 * G) * C + 2);
        f.dq = t_heads(wide, 0, H, C);
        f.dk = t_heads(wide, H * C + 1, G, C), f.dv = t_heads(wide, (H + G) * C + 1, G, C);
        run_forward(&h), run_backward(&h);
        run_forward(&f), run_backward(&f);
        EXPECT_CLOSE(h.o, f.o, 5e-3);
        EXPECT_CLOSE(h.dq, f.dq, 1e-2);
        EXPECT_CLOSE(h.dk, f.dk, 1e-2);
        EXPECT_CLOSE(h.dv, f.dv, 1e-2);
        for (int64_t t = 0; t < T; t++)
            EXPECT(isnan(((float *)wide.data)[t * wide.s[0] + H * C]) &&
                   isnan(((float *)wide.data)[(t + 1) * wide.s[0] - 1]), "row %d: a gap was written", (int)t);
        num_clear();
    }
}

/* One thread takes long segments whole, several cut them: the bits must not show it. */
static void equal_bits(void)
{
    int threads = omp_get_max_threads();
    for (int i = 0; i < 12; i++) {
        int32_t  cut = i / 4 == 1 ? 900 : 30;
        Segments seg = segments((int32_t[]){ 0, cut, 900 }, 2, i % 2);
        if (i / 4 == 2) {                                           /* both begin with the same key */
            seg.kv_starts = num_i32(3, (int32_t[]){ 0, 0, 900 });
            seg.kv_used   = num_i32(2, (int32_t[]){ 390, 870 });
        }
        Case     x = make_case(i / 2 % 2 ? BF16 : F32, 900, 2, 1, 20, seg), y = x;
        size_t   bytes = (size_t)t_bytes(x.q), kv = (size_t)t_bytes(x.k);
        y.o = poison3((DType)x.q.dtype, 900, 2, 20), y.dq = poison3((DType)x.q.dtype, 900, 2, 20);
        y.dk = poison3((DType)x.q.dtype, 900, 1, 20), y.dv = poison3((DType)x.q.dtype, 900, 1, 20);
        run_forward(&x), run_backward(&x);
        omp_set_num_threads(1);
        run_forward(&y), run_backward(&y);
        omp_set_num_threads(threads);
        EXPECT(!memcmp(x.o.data, y.o.data, bytes), "o of case %d", i);
        EXPECT(!memcmp(x.dq.data, y.dq.data, bytes), "dq of case %d", i);
        EXPECT(!memcmp(x.dk.data, y.dk.data, kv), "dk of case %d", i);
        EXPECT(!memcmp(x.dv.data, y.dv.data, kv), "dv of case %d", i);
        num_clear();
    }
}

static void priced(void)
{
    Segments seg = segments((int32_t[]){ 0, 4 }, 1, true);                  /* 10 pairs */
    Case     x = make_case(F32, 4, 2, 1, 8, seg);
    Cost     f = attention_fwd_cost(BE, x.o, x.lse, x.q, x.k, x.v, seg, 1.0f);
    Cost     b = attention_bwd_cost(BE, x.dq, x.dk, x.dv, x.delta, x.dout, x.o, x.lse, x.q, x.k, x.v, seg,
                                    1.0f);
    EXPECT(f.flops == 4 * 8 * 2 * 10 && f.extra == 0, "forward %g", f.flops);
    EXPECT(f.rd == 4 * (64 + 32 + 32), "forward reads %d", (int)f.rd);
    Segments far = seg;                                                     /* 7 rows of 100 in use */
    far.kv_starts = num_i32(2, (int32_t[]){ 0, 100 }), far.kv_used = num_i32(1, (int32_t[]){ 7 }),
    far.keys = 7;
    f = attention_fwd_cost(BE, x.o, x.lse, x.q, randn3(F32, 100, 1, 8), randn3(F32, 100, 1, 8), far, 1.0f);
    EXPECT(f.rd == 4 * (64 + 56 + 56), "reads of a cache %d", (int)f.rd);
    EXPECT(b.flops == 8 * 8 * 2 * 10 && b.extra == 2 * 8 * 2 * 10, "backward %g + %g", b.flops, b.extra);
    num_clear();
}

/* Heads of 128: f32 sums of dq, copies of v and dv; under `repeat` a matrix of scores, at most 2 GiB. */
static void workspace(void)
{
    AttentionWork w = { .T = 64, .docs = 1, .longest = 64, .H = 2, .G = 1, .C = 128, .causal = true };
    int64_t heads = 64 * 3 * 128 * 4, matrix = (int64_t)2 << 30;
    EXPECT(attention_bwd_workspace(&w) == heads + 64 * 2 * 128 * 4, "sums");
    w.repeat = true;
    EXPECT(attention_bwd_workspace(&w) == heads + matrix, "a matrix of scores");
    w.longest = 0;
    EXPECT(attention_bwd_workspace(&w) == heads + matrix, "documents without tokens");
    w.longest = 1 << 20;
    EXPECT(attention_bwd_workspace(&w) == 0, "scores above the matrix");
}

int main(void)
{
    numlab_open();
    RUN(known_values);
    RUN(agrees_with_definition);
    RUN(keys_elsewhere);
    RUN(many_segments);
    RUN(big_scores);
    RUN(gradients);
    RUN(gradients_of_keys_elsewhere);
    RUN(parts_merge);
    RUN(bf16_and_views);
    RUN(equal_bits);
    RUN(priced);
    RUN(workspace);
    return numlab_report();
}
