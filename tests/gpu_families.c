/* Ops of families beside Qwen3 on the GPU against the CPU: gates, sinks, windows and narrow values of
 * attention, rotation of latent attention, sigmoid routers, the activation and biases of gpt-oss's
 * experts. */
#include "gpulab.h"

static void gates(void)
{
    static const int64_t width[] = { 1, 5, 64, 129, 2048 };
    for (int i = 0; i < 5; i++)
        for (int one = 0; one < 2; one++) {
            int64_t T = any_size(1, 90), H = any_size(1, 5), C = width[i];
            fresh();
            Tensor x = in3(any_float(), T, H, C, any_layout()), y = out3(any_float(), T, H, C, any_layout());
            Tensor g = in3(any_float(), T, H, one ? 1 : C, any_layout());
            Tensor res = maybe() ? in3(any_float(), T, H, C, any_layout()) : none;
            CALL(gate_fwd, y, x, g, res);
            Tensor dy = in3(any_float(), T, H, C, any_layout()), dx = out3(any_float(), T, H, C,
                                                                           any_layout());
            Tensor dg = out3(any_float(), T, H, one ? 1 : C, any_layout());
            at_least(dg, 0.1);
            CALL(gate_bwd, dx, dg, dy, x, g);
        }
}

/* Every third case as latent attention has it: a part of wider heads, one dtype. */
static Tensor turned(DType d, int64_t T, int64_t H, int64_t R, bool part)
{
    return part ? t_cols(in3(d, T, H, 3 * R, DENSE), 2 * R, R) : in3(any_float(), T, H, R, any_layout());
}

static Tensor poisoned(Tensor t)
{
    for (int64_t r = 0; r < gpu_rows(t); r++)
        memset(gpu_row(t, r), 0xff, (size_t)gpu_width(t) * dtype_size((DType)t.dtype));
    return output(t);
}

static void turns(void)
{
    for (int i = 0; i < 24; i++) {
        int64_t T = any_size(1, 70), H = any_size(1, 9), R = i % 3 ? 2 * any_size(1, 40) : 64;
        bool    pairs = i & 1;
        DType   d = any_float();
        fresh();
        Tensor x = turned(d, T, i & 2 ? 1 : H, R, i % 3 == 0);
        Tensor y = poisoned(turned(d, T, H, R, i % 3 == 0)), cs = in2(F32, T, R, DENSE);
        CALL(turn_fwd, y, x, cs, pairs);
        Tensor dy = turned(d, T, H, R, i % 3 == 0);
        Tensor dx = poisoned(turned(d, T, i & 2 ? 1 : H, R, i % 3 == 0));
        at_least(dx, 0.5);
        CALL(turn_bwd, dx, dy, cs, pairs);
    }
}

/* Up to three documents of up to `most` rows; even: of `most` rows each. */
static Segments documents(int64_t *T, int64_t most, bool even)
{
    int32_t  at[] = { 0, 0, 0, 0 };
    Segments s = { .n = 3, .causal = true };
    for (int i = 0; i < 3; i++) {
        double n = (double)(even ? most : any_size(1, most));
        at[i + 1] = at[i] + (int32_t)n, s.pairs += n * (n + 1) / 2;
        s.longest = n > (double)s.longest ? (int64_t)n : s.longest;
    }
    *T = at[3] + (even ? 0 : any_size(0, 3)), s.starts = int_list(4, at);
    return s;
}

static const Tolerance close16 = { 1.2e-2, 1.0 / 32, 6e-2, 0 }, close32 = { 2e-5, 2e-4, 2e-4, 0 };

/* Heads of a family: queries, key heads, widths of keys and of values; narrow values and their gradients lie
 * beside keys in one matrix, as latent attention has them. */
typedef struct FamilyHeads { int64_t H, G, C, Cv; } FamilyHeads;

static Tensor values(DType d, int64_t T, FamilyHeads h)
{
    if (h.C == h.Cv) return in3(d, T, h.G, h.Cv, DENSE);
    return t_cols(in3(d, T, h.G, h.C - h.C / 3 + h.Cv, DENSE), h.C - h.C / 3, h.Cv);
}

/* Attention with a sink behind it, forward and backward. */
static void attend(DType d, FamilyHeads h, Segments s, int64_t T)
{
    Tolerance close = d == F32 ? close32 : close16;
    Tensor q = in3(d, T, h.H, h.C, DENSE), k = in3(d, T, h.G, h.C, DENSE), v = values(d, T, h);
    Tensor o = out3(d, T, h.H, h.Cv, DENSE), lse = out2(F32, h.H, T, DENSE), sink = in2(F32, 1, h.H, DENSE);
    float  scale = 1.0f / sqrtf((float)h.C);
    within(o, close);
    within(lse, (Tolerance){ 2e-5, 1e-4, 1e-4, 1 });
    CALL(attention_fwd, o, lse, q, k, v, s, scale);
    output(o), output(lse);
    within(o, close);
    CALL(sink_fwd, o, lse, sink);
    Tensor dout = in3(d, T, h.H, h.Cv, DENSE), delta = out2(F32, h.H, T, DENSE);
    Tensor dq = out3(d, T, h.H, h.C, DENSE), dk = out3(d, T, h.G, h.C, DENSE), dv = poisoned(values(d, T, h));
    Tensor grads[] = { dq, dk, dv };
    for (int j = 0; j < 3; j++) within(grads[j], close), at_least(grads[j], 0.02);
    scratch(delta);
    any_order(dq);
    CALL(attention_bwd, dq, dk, dv, delta, dout, o, lse, q, k, v, s, scale);
    Tensor dsink = add2(F32, 1, h.H, DENSE);
    at_least(dsink, 10);
    CALL(sink_bwd, dsink, dout, o, lse, sink);
}

/* In f32 our own kernels; in bf16 cuDNN, where it is: latent attention, heads of gpt-oss and Qwen3-Next. */
static void attention(void)
{
    static const FamilyHeads heads[] = { { 4, 4, 24, 12 }, { 16, 16, 192, 128 }, { 16, 2, 64, 64 },
                                         { 8, 1, 256, 256 }, { 6, 3, 12, 12 }, { 3, 3, 192, 128 } };
    for (int i = 0; i < 18; i++) {
        int64_t T;
        fresh();
        Segments s = documents(&T, i % 4 == 3 ? 256 : 300, i % 4 == 3);
        s.window = i % 2 ? any_size(1, 200) : 0;
        if (s.window) s.pairs = fmin(s.pairs, (double)(T * s.window));
        GPU->repeat = i < 12;
        attend(i < 6 ? F32 : BF16, heads[i % 6], s, T);
        GPU->repeat = true;
    }
}

/* The case that training has: one long document among short ones. */
static void long_documents(void)
{
    static const FamilyHeads heads[] = { { 2, 2, 192, 128 }, { 16, 2, 64, 64 }, { 4, 1, 256, 256 } };
    for (int i = 0; i < 6; i++) {
        int32_t  at[] = { 0, 37, 37 + 1900, 37 + 1900 + 128, 37 + 1900 + 128 + 1 };
        Segments s = { .n = 4, .causal = true, .longest = 1900, .pairs = 1e6, .window = i < 3 ? 0 : 128 };
        fresh();
        s.starts = int_list(5, at);
        GPU->repeat = false;
        attend(BF16, heads[i % 3], s, at[4] + 5);
        GPU->repeat = true;
    }
}

/* Rows sorted by expert, some experts with none; rows past the last are padding. */
static Tensor expert_borders(int64_t E, int64_t R)
{
    Tensor   t = int1(E + 1);
    int32_t *at = t.data;
    at[0] = 0;
    for (int64_t e = 0; e < E; e++)
        at[e + 1] = at[e] + (int32_t)(num_below(3) ? num_below((uint32_t)(2 * R / (3 * E) + 1)) : 0);
    return t;
}

static void clamped_glus(void)
{
    static const int64_t width[] = { 1, 7, 24, 360, 2880 };
    for (int i = 0; i < 15; i++) {
        int64_t R = any_size(1, 70), F = width[i % 5], E = any_size(1, 6);
        DType   d = i < 5 ? F32 : i < 10 ? BF16 : any_float();
        Layout  l = i < 10 ? DENSE : any_layout();
        fresh();
        Tensor gu = gpu_normal(in2(d, R, 2 * F, l), 0, 4.0f), h = out2(i < 10 ? d : any_float(), R, F, l);
        Tensor gate = i % 3 ? in2(F32, R, 1, DENSE) : none;
        Tensor offsets = i % 2 ? expert_borders(E, R) : none;
        CALL(clamped_glu_fwd, h, gu, gate, offsets);
        Tensor dh = in2(d, R, F, l), dgu = out2(d, R, 2 * F, l);
        Tensor dgate = t_has(gate) && maybe() ? out2(F32, R, 1, DENSE) : none;
        if (t_has(dgate)) at_least(dgate, sqrt((double)F)), times(dgate, 4);
        CALL(clamped_glu_bwd, dgu, dgate, dh, gu, gate);
    }
}

static void group_biases(void)
{
    static const int64_t width[] = { 1, 9, 64, 520, 2880 };
    for (int i = 0; i < 15; i++) {
        int64_t R = any_size(1, 300), N = width[i % 5], E = any_size(1, 9);
        DType   d = i < 5 ? F32 : i < 10 ? BF16 : any_float();
        Layout  l = i < 10 ? DENSE : any_layout();
        fresh();
        Tensor offsets = expert_borders(E, R), gate = i % 3 ? in2(F32, R, 1, DENSE) : none;
        Tensor y = output(in2(d, R, N, l)), b = in2(i < 10 ? d : any_float(), E, N, DENSE);
        CALL(group_bias_fwd, y, b, offsets, gate);
        Tensor dy = in2(d, R, N, l), db = i % 4 ? add2(F32, E, N, DENSE) : none;
        Tensor dgate = i % 4 == 0 || maybe() ? add2(F32, R, 1, DENSE) : none;
        if (t_has(db)) at_least(db, 10);
        if (t_has(dgate)) at_least(dgate, sqrt((double)N));
        CALL(group_bias_bwd, db, dgate, dy, b, offsets, gate);
    }
}

static void routers(void)
{
    static const int64_t sizes[][4] = { { 7, 8, 2, 4 }, { 65, 64, 6, 1 }, { 200, 256, 8, 8 },
                                        { 5, 384, 8, 1 } };
    for (int i = 0; i < 8; i++) {
        int64_t T = sizes[i % 4][0], E = sizes[i % 4][1], K = sizes[i % 4][2], G = any_size(1, 4);
        int     n = (int)sizes[i % 4][3];
        RouterGroups groups = { n, n > 1 ? n / 2 : n };
        bool    renorm = i & 1;
        fresh();
        Tensor z = output(in2(F32, T, E, any_layout()));
        CALL(log_sigmoid, z);
        Tensor idx = out2(I32, T, K, DENSE), weight = out2(F32, T, K, DENSE), lse = out2(F32, T, 1, DENSE);
        Tensor bias = i & 4 ? in2(F32, 1, E, DENSE) : none;
        CALL(router_fwd, idx, weight, lse, z, true);
        output(idx), output(weight);
        CALL(select_fwd, idx, weight, z, bias, groups, renorm, 2.5f);
        Tensor dz = out2(any_float(), T, E, any_layout()), g = in2(F32, T, K, DENSE);
        Tensor coef = in2(F32, G, E, DENSE), group = int_below(T, -1, G);
        Factor zcoef = any_factor(0.01f);
        at_least(dz, 0.01);
        CALL(select_bwd, dz, g, weight, idx, z, lse, coef, group, zcoef, renorm, 2.5f);
    }
}

int main(void)
{
    gpulab_open();
    GPU_RUN(gates);
    GPU_RUN(turns);
    GPU_RUN(attention);
    GPU_RUN(long_documents);
    GPU_RUN(clamped_glus);
    GPU_RUN(group_biases);
    GPU_RUN(routers);
    return gpulab_report();
}
