/* Ops of gated delta nets on the GPU against the CPU: short convolution, gates, norms, the delta rule. */
#include "gpulab.h"

/* Documents of T rows, some of them empty, with rows outside before and after. */
static Segments documents(int64_t T, bool from_0)
{
    int32_t at[6];
    for (int i = 0; i < 6; i++) at[i] = (int32_t)num_below(T + 1);
    for (int i = 0; i < 6; i++)
        for (int j = i + 1; j < 6; j++)
            if (at[j] < at[i]) { int32_t x = at[i]; at[i] = at[j], at[j] = x; }
    if (from_0) at[0] = 0;
    return (Segments){ .starts = int_list(6, at), .n = 5, .longest = T, .causal = true, .pairs = 1000 };
}

static void convolution(void)
{
    static const int64_t width[] = { 1, 5, 64, 129, 300 };
    for (int i = 0; i < 10; i++) {
        int64_t T = any_size(1, 300), H = any_size(1, 4), C = width[i % 5], K = i == 3 ? 1 : any_size(2, 6);
        fresh();
        bool     more = K > 1 && maybe();
        Segments s = documents(T, more);
        Tensor x = in3(any_float(), T, H, C, any_layout()), w = in2(any_float(), H * C, K, DENSE);
        Tensor before = more ? in3(any_float(), K - 1, H, C, any_layout()) : none;
        Tensor y = out3(any_float(), T, H, C, any_layout());
        CALL(short_conv_fwd, y, x, w, before, s);
        Tensor dy = in3(any_float(), T, H, C, any_layout()), dx = out3(any_float(), T, H, C, any_layout());
        Tensor dw = maybe() ? add2(F32, H * C, K, DENSE) : none;
        Tensor db = more ? out3(any_float(), K - 1, H, C, any_layout()) : none;
        if (t_has(dw)) at_least(dw, 1);
        at_least(dx, 0.5);
        CALL(short_conv_bwd, dx, dw, db, dy, x, w, before, s);
    }
}

static void gates(void)
{
    for (int i = 0; i < 6; i++) {
        int64_t T = any_size(1, 700), G = any_size(1, 5), M = any_size(1, 4), H = G * M;
        fresh();
        Tensor a = in3(any_float(), T, G, M, any_layout()), b = in3(any_float(), T, G, M, any_layout());
        Tensor g = out2(F32, T, H, DENSE), beta = out2(F32, T, H, DENSE);
        Tensor decay = in2(any_float(), 1, H, DENSE), shift = in2(any_float(), 1, H, DENSE);
        CALL(delta_gates_fwd, g, beta, a, b, decay, shift);
        Tensor dg = in2(F32, T, H, DENSE), dbeta = in2(F32, T, H, DENSE);
        Tensor da = out3(any_float(), T, G, M, any_layout()), db = out3(any_float(), T, G, M, any_layout());
        Tensor ddecay = maybe() ? add2(F32, 1, H, DENSE) : none, dshift = add2(F32, 1, H, DENSE);
        if (t_has(ddecay)) at_least(ddecay, 10);
        at_least(dshift, 10);
        CALL(delta_gates_bwd, da, db, ddecay, dshift, dg, dbeta, g, beta, a, decay, shift);
    }
}

static void norms(void)
{
    static const int64_t width[] = { 1, 5, 64, 128, 257 };
    for (int i = 0; i < 10; i++) {
        int64_t T = any_size(1, 90), G = any_size(1, 3), M = any_size(1, 3), C = width[i % 5], H = G * M;
        fresh();
        Tensor x = in3(any_float(), T, H, C, any_layout()), rstd = out2(F32, T, H, DENSE);
        Tensor y = out3(any_float(), T, H, C, any_layout());
        CALL(l2norm_fwd, y, rstd, x, 1e-6f);
        Tensor dy = in3(any_float(), T, H, C, any_layout()), dx = out3(any_float(), T, H, C, any_layout());
        at_least(dx, 0.1);
        CALL(l2norm_bwd, dx, dy, y, rstd);
        Tensor z = in3(any_float(), T, G, M * C, any_layout()), w = in_weight(any_float(), C);
        output(rstd), output(y);
        CALL(gated_norm_fwd, y, rstd, x, z, w, 1e-6f);
        Tensor dz = out3(any_float(), T, G, M * C, any_layout()),
               dw = maybe() ? add2(F32, 1, C, DENSE) : none;
        output(dx), at_least(dx, 0.3), at_least(dz, 0.3);
        if (t_has(dw)) at_least(dw, 5);
        CALL(gated_norm_bwd, dx, dz, dw, dy, x, z, w, rstd);
    }
}

static Tensor spread(Tensor t, float by, bool square)     /* of both signs, or not above 0 */
{
    for (int64_t i = 0; i < t_count(t); i++) put(t, i, square ? -by * get(t, i) * get(t, i) : by * get(t, i));
    return t;
}

static const Tolerance close16 = { 1.5e-2, 1.0 / 16, 6e-2, 0 }, close32 = { 2e-5, 2e-4, 2e-4, 0 };

static void within_all(const Tensor *t, int n, bool narrow)
{
    for (int i = 0; i < n; i++)
        if (t_has(t[i])) within(t[i], narrow ? close16 : close32), at_least(t[i], 0.1);
}

static void rule_case(int i)
{
    static const int64_t keys[] = { 16, 128, 5, 64, 128 }, values[] = { 24, 128, 7, 64, 128 };
    DType   d = i < 5 ? F32 : BF16;
    int64_t T = any_size(1, 260), Hk = any_size(1, 2), Hv = Hk * any_size(1, 3), K = keys[i % 5];
    int64_t V = values[i % 5], N = (T + 63) / 64;
    bool    more = maybe();
    Layout  l = K == 128 ? DENSE : any_layout();             /* dense bf16 heads of 128: tensor cores */
    fresh();
    Segments s = documents(T, more);
    if (i == 1 || i == 6)
        s.n = 1, ((int32_t *)s.starts.data)[0] = 0, ((int32_t *)s.starts.data)[1] = (int32_t)T,
        s.starts = t_rows(s.starts, 0, 2);
    Tensor q = spread(in3(d, T, Hk, K, DENSE), 1 / sqrtf((float)K), false),
           k = in3(d, T, Hk, K, l);
    Tensor v = in3(d, T, Hv, V, l), o = out3(d, T, Hv, V, DENSE);
    spread(k, 1 / sqrtf((float)K), false);
    Tensor g = spread(in2(F32, T, Hv, DENSE), 0.05f, true), beta = in2(F32, T, Hv, DENSE);
    for (int64_t j = 0; j < T * Hv; j++) put(beta, j, 1 / (1 + expf(-get(beta, j))));
    Tensor first = more ? in2(F32, Hv, K * V, DENSE) : none, last = more ? out2(F32, Hv, K * V, DENSE) : none;
    within_all((Tensor[]){ o, last }, 2, d == BF16);
    CALL(delta_rule_fwd, o, last, q, k, v, g, beta, first, s, 0.3f);
    Tensor dout = in3(d, T, Hv, V, DENSE), dq = out3(d, T, Hk, K, DENSE), dk = out3(d, T, Hk, K, DENSE);
    Tensor dv = out3(d, T, Hv, V, DENSE), dg = out2(F32, T, Hv, DENSE), dbeta = out2(F32, T, Hv, DENSE);
    Tensor dfirst = more ? out2(F32, Hv, K * V, DENSE) : none,
           dlast  = more ? in2(F32, Hv, K * V, DENSE) : none;
    Tensor states = out2(d, N, Hv * K * V, DENSE);
    within_all((Tensor[]){ dq, dk, dv, dg, dbeta, dfirst }, 6, d == BF16);
    scratch(states);
    CALL(delta_rule_bwd, dq, dk, dv, dg, dbeta, dfirst, states, dout, dlast, q, k, v, g, beta, first, s,
         0.3f);
}

static void rule(void)
{
    for (int i = 0; i < 10; i++) rule_case(i);
}

/* Heads of one column and of more rows than a block has threads for. */
static void states(void)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 }, { 3, 5, 33 }, { 4, 128, 128 }, { 2, 256, 40 } };
    for (int i = 0; i < 16; i++) {
        const int64_t *n = sizes[i / 4];
        fresh();
        Tensor a = in2(F32, n[0], n[1] * n[1], STRIDED), b = in2(F32, n[0], n[1] * n[2], DENSE);
        Tensor x = i & 1 ? none : in2(F32, n[0], n[1] * n[2], DENSE);
        Tensor y = out2(F32, n[0], n[1] * n[2], STRIDED);
        CALL(state_pass, y, a, x, b, i & 2);
    }
}

int main(void)
{
    gpulab_open();
    GPU_RUN(convolution);
    GPU_RUN(gates);
    GPU_RUN(norms);
    GPU_RUN(rule);
    GPU_RUN(states);
    return gpulab_report();
}
