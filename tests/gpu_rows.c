/* Elementwise and row-wise ops on the GPU against the CPU: fill, copy, add, mix, random weights, pixels,
 * norms, rotary positions, GELU and SwiGLU. */
#include "gpulab.h"

/* Odd widths and those that a vector path takes; rows few and many. */
typedef struct Size { int64_t T, D; } Size;
static const Size sizes[] = { { 0, 64 },    { 1, 5 },      { 3, 17 },     { 70, 8 },   { 33, 100 },
                              { 129, 257 }, { 65, 1152 },  { 40, 2048 },  { 9, 2100 }, { 5, 4304 },
                              { 3, 9000 },  { 4096, 128 }, { 1000, 2048 } };
enum { SIZES = sizeof sizes / sizeof *sizes };

/* The large ones are for the paths they take, not for every mixture of types. */
static int cases(int i, int most) { return sizes[i].T * sizes[i].D < 1 << 18 ? most : 2; }

static void fills(void)
{
    static const DType kinds[] = { F32, BF16, I32, F64 };
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 4); k++) {
            fresh();
            Tensor y = out2(kinds[k], sizes[i].T, sizes[i].D, kinds[k] == I32 ? DENSE : any_layout());
            float  v = k == 2 ? (float)num_below(1000) - 500 : rng_normal(num_.seed, 7, num_.draws++);
            if (!num_below(4)) v = 0;
            exact(y);
            CALL(fill, y, v);
        }
    for (int rank = 1; rank <= 3; rank += 2) {
        int64_t n[] = { any_size(1, 9), any_size(1, 9), any_size(1, 40) };
        fresh();
        Tensor y = output(gpu_new(any_float(), rank, rank == 1 ? n + 2 : n, any_layout(), 0xff));
        exact(y);
        CALL(fill, y, -2.5f);
    }
}

static void copies(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 4); k++) {
            fresh();
            Tensor x = in2(floats[k / 2], sizes[i].T, sizes[i].D, any_layout());
            Tensor y = out2(floats[k % 2], sizes[i].T, sizes[i].D, any_layout());
            exact(y);
            CALL(copy, y, x);
        }
    fresh();
    Tensor x3 = in3(any_float(), 4, 5, 33, LOOSE), y3 = out3(any_float(), 4, 5, 33, any_layout());
    exact(y3);
    CALL(copy, y3, x3);
    Tensor ids = int_below(1001, -5, 5000), to = output(int1(1001));
    CALL(copy, to, ids);
}

static void sums(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 8); k++) {
            fresh();
            int64_t T = sizes[i].T, D = sizes[i].D;
            Tensor  a = in2(floats[k & 1], T, D, any_layout());
            Tensor  b = in2(floats[k >> 1 & 1], T, D, any_layout());
            Tensor  y = out2(floats[k >> 2], T, D, any_layout());
            exact(y);
            CALL(add, y, a, b);
            exact(output(a));                                           /* in place, on either side */
            CALL(add, a, a, b);
            exact(output(b));
            CALL(add, b, a, b);
        }
}

static void mixes(void)
{
    static const float c[][2] = { { 0.5f, -1.25f }, { 0, 2 }, { 3, 0 }, { 0, 0 } };
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 4); k++) {
            fresh();
            Tensor a = in2(F32, sizes[i].T, sizes[i].D, DENSE), b = in2(F32, sizes[i].T, sizes[i].D, DENSE);
            Tensor y = out2(F32, sizes[i].T, sizes[i].D, DENSE);
            if (c[k][0] == 0 && t_count(a)) memset(a.data, 0xff, (size_t)t_bytes(a));      /* left unread */
            CALL(mix, y, a, b, factor(c[k][0]), factor(c[k][1]));
            output(b);
            Factor quarter = any_factor(0.25f);
            CALL(mix, b, y, b, quarter, factor(c[k][1]));
        }
}

static void random_weights(void)
{
    static const int64_t counts[] = { 0, 1, 3, 5, 1000, 4099, 1 << 20, 3000001 };
    for (int i = 0; i < 8; i++)
        for (int d = 0; d < 2; d++) {
            uint64_t stream = rng_stream("a weight") + num_.draws++;
            fresh();
            Tensor y = out2(floats[d], 1, counts[i], DENSE);
            CALL(normal, y, num_.seed, stream, 0, 0, 0.02f);
            fresh();
            y = out2(floats[d], 1, counts[i], DENSE);
            CALL(uniform, y, num_.seed, stream, 0, 0, 0.02f);
        }
    fresh();
    Tensor y = out3(any_float(), 3, 17, 40, DENSE);
    CALL(normal, y, num_.seed, 5, 0, 40, 1.5f);
    for (int i = 1; i < 9; i++) {                            /* parts of a wider matrix, begun anywhere */
        fresh();
        y = out2(any_float(), 50, i, DENSE);
        CALL(normal, y, num_.seed, 6, (uint64_t)i * 1001, 10 + i, 1.5f);
        fresh();
        y = out2(any_float(), 50, i, DENSE);
        CALL(uniform, y, num_.seed, 6, (uint64_t)i * 1001, 10 + i, 1.5f);
    }
}

static void normalized_pixels(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int d = 0; d < 2; d++) {
            fresh();
            Tensor x = gpu_new(U8, 2, (int64_t[]){ sizes[i].T, sizes[i].D }, DENSE, 0);
            for (int64_t k = 0; k < t_count(x); k++)
                ((uint8_t *)x.data)[k] = (uint8_t)rng_u32(num_.seed, 99, (uint64_t)k);
            Tensor y = out2(floats[d], sizes[i].T, sizes[i].D, DENSE);
            times(y, 0.1);                                              /* 256 values, each rounded once */
            CALL(normalize_pixels, y, x);
        }
}

static void root_mean_square(Size s, Layout l)
{
    int64_t T = s.T, D = s.D;
    bool    res = maybe();
    fresh();
    Tensor x = in2(any_float(), T, D, l), add = res ? in2(any_float(), T, D, l) : none,
           w = in_weight(any_float(), D);
    Tensor y = out2(any_float(), T, D, any_layout()), rstd = out2(F32, T, 1, DENSE);
    Tensor sum = res ? out2(any_float(), T, D, any_layout()) : none;
    if (y.dtype == BF16) times(y, 2);                                   /* rounded twice */
    CALL(rmsnorm_fwd, y, rstd, sum, x, add, w, 1e-6f);
    Tensor u = res ? sum : x, dy = in2(any_float(), T, D, any_layout()),
           dres = maybe() ? in2(any_float(), T, D, l) : none;
    bool   want_dx = num_below(4), want_dw = !want_dx || num_below(4);
    Tensor dx = want_dx ? out2(any_float(), T, D, any_layout()) : none,
           dw = want_dw ? add2(F32, 1, D, DENSE) : none;
    if (want_dx) at_least(dx, 1);
    if (want_dw) at_least(dw, sqrt((double)T));
    CALL(rmsnorm_bwd, dx, dw, dy, u, w, rstd, dres);
}

static void rmsnorm(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 6); k++) root_mean_square(sizes[i], (Layout)(k % LAYOUTS));
}

/* sum over x or over res, y over x; dx over dy or over dres. */
static void rmsnorm_in_place(void)
{
    for (int k = 0; k < 12; k++) {
        int64_t T = any_size(1, 70), D = k % 3 ? 8 * any_size(1, 300) : any_size(5, 900);
        DType   d = floats[k & 1];
        Layout  l = any_layout();
        fresh();
        Tensor x = output(in2(d, T, D, l)), res = in2(d, T, D, l), w = in_weight(any_float(), D);
        Tensor y = out2(d, T, D, l), rstd = out2(F32, T, 1, DENSE);
        times(y, 2);
        CALL(rmsnorm_fwd, y, rstd, x, x, res, w, 1e-6f);
        output(res), times(output(y), 2), output(rstd);
        CALL(rmsnorm_fwd, y, rstd, res, x, res, w, 1e-6f);
        Tensor u = in2(d, T, D, l);
        output(rstd), times(output(u), 2);
        CALL(rmsnorm_fwd, u, rstd, none, u, none, w, 1e-6f);
        Tensor dy = output(in2(d, T, D, l)), dres = in2(d, T, D, l), dw = add2(F32, 1, D, DENSE);
        at_least(dy, 1), at_least(dw, sqrt((double)T));
        CALL(rmsnorm_bwd, dy, dw, dy, x, w, rstd, dres);
        output(dres), at_least(dres, 1);
        CALL(rmsnorm_bwd, dres, none, dy, x, w, rstd, dres);
    }
}

static void layer_norm(Size s, Layout l)
{
    int64_t T = s.T, D = s.D;
    fresh();
    Tensor x = gpu_normal(in2(any_float(), T, D, l), 3, 1), w = in_weight(any_float(), D),
           b = in2(any_float(), 1, D, DENSE);
    Tensor y = out2(any_float(), T, D, any_layout()), stat = out2(F32, T, 2, DENSE);
    at_least(y, 1);
    CALL(layernorm_fwd, y, stat, x, w, b, 1e-6f);
    Tensor dy = in2(any_float(), T, D, any_layout()), dres = maybe() ? in2(any_float(), T, D, l) : none;
    bool   want_dx = num_below(4), want_dw = num_below(4), want_db = !want_dx || num_below(4);
    Tensor dx = want_dx ? out2(any_float(), T, D, any_layout()) : none;
    Tensor dw = want_dw ? add2(F32, 1, D, DENSE) : none, db = want_db ? add2(F32, 1, D, DENSE) : none;
    if (want_dx) at_least(dx, D < 32 ? 10 : 1); /* a short row may have a large 1 / deviation */
    if (want_dw) at_least(dw, sqrt((double)T));
    if (want_db) at_least(db, sqrt((double)T));
    CALL(layernorm_bwd, dx, dw, db, dy, x, w, stat, dres);
}

static void layernorm(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 6); k++) layer_norm(sizes[i], (Layout)(k % LAYOUTS));
}

static void layernorm_in_place(void)
{
    for (int k = 0; k < 8; k++) {
        int64_t T = any_size(1, 70), D = k % 3 ? 8 * any_size(4, 300) : any_size(32, 900);
        DType   d = floats[k & 1];
        Layout  l = any_layout();
        fresh();
        Tensor x = output(in2(d, T, D, l)), w = in_weight(d, D), b = in2(d, 1, D, DENSE),
               stat = out2(F32, T, 2, DENSE);
        CALL(layernorm_fwd, x, stat, x, w, b, 1e-6f);
        gpu_normal(x, 0, 1);
        Tensor dy = output(in2(d, T, D, l)), dres = in2(d, T, D, l), dw = add2(F32, 1, D, DENSE),
               db = add2(F32, 1, D, DENSE);
        at_least(dy, 1), at_least(dw, sqrt((double)T)), at_least(db, sqrt((double)T));
        CALL(layernorm_bwd, dy, dw, db, dy, x, w, stat, dres);
        output(dres), at_least(dres, 1);
        CALL(layernorm_bwd, dres, none, none, dy, x, w, stat, dres);
    }
}

/* Backward of both norms, all tensors of one type and aligned; with dw alone, with dx alone, with both. */
static void norms_back(DType d, int64_t T, int64_t D, Layout l, int wants)
{
    fresh();
    Tensor x = in2(d, T, D, l), w = in_weight(d, D), dy = in2(d, T, D, DENSE);
    Tensor dres = maybe() ? in2(d, T, D, l) : none;
    Tensor rstd = in2(F32, T, 1, DENSE), stat = in2(F32, T, 2, DENSE);
    gpu_normal(rstd, 1, 0.1f), gpu_normal(stat, 1, 0.1f);
    for (int mean = 0; mean < 2; mean++) {
        Tensor dx = wants & 1 ? out2(d, T, D, l) : none, dw = wants & 2 ? add2(F32, 1, D, DENSE) : none;
        Tensor db = mean && wants & 2 ? add2(F32, 1, D, DENSE) : none;
        if (t_has(dx)) at_least(dx, 1);
        if (t_has(dw)) at_least(dw, sqrt((double)T));
        if (t_has(db)) at_least(db, sqrt((double)T));
        if (mean) CALL(layernorm_bwd, dx, dw, db, dy, x, w, stat, dres);
        else      CALL(rmsnorm_bwd, dx, dw, dy, x, w, rstd, dres);
    }
}

/* Rows that a warp holds in 1, 2, 3, 5 and 8 registers of 16 bytes, full and not, and those of a block. */
static void norm_gradients(void)
{
    static const int64_t width[] = { 8, 256, 264, 520, 768, 1152, 1280, 1288, 2048, 2056, 4096, 8192 };
    static const int64_t rows[] = { 1, 9, 300 };
    for (int i = 0; i < 12; i++)
        for (int k = 0; k < 6; k++)
            norms_back(floats[k & 1], rows[k % 3], width[i] / (2 - (k & 1)), k < 3 ? DENSE : STRIDED,
                       1 + (i + k) % 3);
    norms_back(BF16, 20000, 128, DENSE, 3), norms_back(BF16, 4001, 1152, DENSE, 3);
}

static Tensor frequencies(int64_t h)
{
    Tensor inv = gpu_new(F32, 1, &h, DENSE, 0);
    for (int64_t j = 0; j < h; j++) ((float *)inv.data)[j] = powf(10000.0f, -(float)j / (float)h);
    return inv;
}

static Tensor rotation(int64_t T, int64_t C, int64_t furthest)
{
    int64_t axes = any_size(1, 3);
    Tensor  flat = int_below(axes * T, 0, furthest), cs = out2(F32, T, C, DENSE);
    Tensor  pos = t_as2(flat, axes, T), inv = frequencies(C / 2), axis = int_below(C / 2, 0, axes);
    CALL(rope_table, cs, pos, inv, axis);
    return cs;
}

static Tensor heads(DType d, int64_t T, int64_t H, int64_t C, Layout l, bool apart)
{
    if (!apart) return in3(d, T, H, C, l);
    return t_heads(in2(d, T, (H + 2) * C, DENSE), C, H, C);             /* columns of a wider matrix */
}

static void turn(int64_t T, int64_t H, int64_t C, bool norm, int64_t furthest)
{
    bool apart = maybe();
    fresh();
    Tensor cs = rotation(T, C, furthest), x = heads(any_float(), T, H, C, any_layout(), apart);
    Tensor w = norm ? in_weight(any_float(), C) : none, y = out3(any_float(), T, H, C, any_layout());
    Tensor rstd = norm ? out2(F32, T, H, DENSE) : none, dw = none;
    CALL(rope_fwd, y, rstd, x, w, cs, 1e-6f);
    Tensor dy = heads(any_float(), T, H, C, any_layout(), apart),
           dx = out3(any_float(), T, H, C, any_layout());
    if (norm && num_below(4)) dw = add2(F32, 1, C, DENSE), at_least(dw, sqrt((double)(T * H)));
    if (norm) at_least(dx, 1);
    Tensor u = norm ? x : none;
    CALL(rope_bwd, dx, dw, dy, u, w, rstd, cs);
    if (norm) return;
    output(x);
    CALL(rope_fwd, x, none, x, none, cs, 1e-6f);                        /* in place */
    output(dy);
    CALL(rope_bwd, dy, none, dy, none, none, none, cs);
}

static void rotary_positions(void)
{
    static const int64_t width[] = { 8, 12, 32, 64, 72, 80, 128, 256 };
    for (int i = 0; i < 8; i++)
        for (int norm = 0; norm < 2; norm++) {
            turn(any_size(1, 150), any_size(1, 9), width[i], norm, 4096);
            turn(any_size(1, 40), any_size(1, 5), width[i], norm, 262144);
            turn(0, 4, width[i], norm, 10);
        }
    turn(2048, 16, 128, true, 32768);
    turn(1024, 16, 72, false, 64);
}

static void gelu(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 4); k++) {
            int64_t T = sizes[i].T, D = sizes[i].D;
            Gelu    kind = k & 1 ? GELU_ERF : GELU_TANH;
            DType   d = any_float();
            Layout  l = any_layout();
            fresh();
            Tensor x = gpu_normal(in2(d, T, D, l), 0, 3), y = out2(any_float(), T, D, any_layout());
            CALL(gelu_fwd, y, x, kind);
            Tensor dy = in2(any_float(), T, D, any_layout()), dx = out2(any_float(), T, D, any_layout());
            CALL(gelu_bwd, dx, dy, x, kind);
            output(dy);
            CALL(gelu_bwd, dy, dy, x, kind);
            output(x);
            CALL(gelu_bwd, x, dy, x, kind);
            output(x);
            CALL(gelu_fwd, x, x, kind);
        }
}

static void swiglu(void)
{
    for (int i = 0; i < SIZES; i++)
        for (int k = 0; k < cases(i, 4); k++) {
            int64_t R = sizes[i].T, F = sizes[i].D;
            bool    gated = k & 1;
            fresh();
            Tensor gu   = gpu_normal(in2(any_float(), R, 2 * F, any_layout()), 0, 2),
                   gate = gated ? in2(F32, R, 1, DENSE) : none;
            Tensor h = out2(any_float(), R, F, any_layout());
            CALL(swiglu_fwd, h, gu, gate, none);
            Tensor dh = in2(any_float(), R, F, any_layout()), dgu = out2(any_float(), R, 2 * F, any_layout());
            Tensor dgate = gated && num_below(4) ? out2(F32, R, 1, DENSE) : none;
            if (t_has(dgate)) at_least(dgate, sqrt((double)F));
            CALL(swiglu_bwd, dgu, dgate, dh, gu, gate);
            output(gu);
            CALL(swiglu_bwd, gu, none, dh, gu, gate);
        }
}

int main(void)
{
    gpulab_open();
    GPU_RUN(fills);
    GPU_RUN(copies);
    GPU_RUN(sums);
    GPU_RUN(mixes);
    GPU_RUN(random_weights);
    GPU_RUN(normalized_pixels);
    GPU_RUN(rmsnorm);
    GPU_RUN(rmsnorm_in_place);
    GPU_RUN(layernorm);
    GPU_RUN(layernorm_in_place);
    GPU_RUN(norm_gradients);
    GPU_RUN(rotary_positions);
    GPU_RUN(gelu);
    GPU_RUN(swiglu);
    return gpulab_report();
}
