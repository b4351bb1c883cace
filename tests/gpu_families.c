/* Ops of families beside Qwen3 on the GPU against the CPU: gates, sinks, windows and narrow values of
 * attention, rotation of latent attention, sigmoid routers. */
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

static void turns(void)
{
    for (int i = 0; i < 12; i++) {
        int64_t T = any_size(1, 70), H = any_size(1, 9), R = 2 * any_size(1, 40);
        bool    pairs = i & 1;
        fresh();
        Tensor x = in3(any_float(), T, i & 2 ? 1 : H, R, any_layout()), y = out3(any_float(), T, H, R,
                                                                                 any_layout());
        Tensor cs = in2(F32, T, R, DENSE);
        CALL(turn_fwd, y, x, cs, pairs);
        Tensor dy = in3(any_float(), T, H, R, any_layout());
        Tensor dx = out3(any_float(), T, i & 2 ? 1 : H, R, any_layout());
        at_least(dx, 0.5);
        CALL(turn_bwd, dx, dy, cs, pairs);
    }
}

static Segments three(int64_t *T)
{
    int32_t at[] = { 0, 0, 0, 0 };
    for (int i = 0; i < 3; i++) at[i + 1] = at[i] + (int32_t)any_size(1, 200);
    Segments s = { .n = 3, .causal = true, .pairs = 1000 };
    for (int i = 0; i < 3; i++) s.longest = at[i + 1] - at[i] > s.longest ? at[i + 1] - at[i] : s.longest;
    *T = at[3], s.starts = int_list(4, at);
    return s;
}

static const Tolerance close16 = { 1.2e-2, 1.0 / 32, 6e-2, 0 }, close32 = { 2e-5, 2e-4, 2e-4, 0 };

static void attention(void)
{
    static const int64_t width[] = { 12, 24, 64, 192 }, narrow[] = { 12, 16, 64, 128 };
    for (int i = 0; i < 8; i++) {
        int64_t T, G = any_size(1, 3), H = G * any_size(1, 4), C = width[i % 4], Cv = narrow[i % 4];
        DType   d = i < 4 ? F32 : BF16;
        fresh();
        Segments s = three(&T);
        s.window = i % 2 ? any_size(1, 150) : 0;
        Tensor q = in3(d, T, H, C, DENSE), k = in3(d, T, G, C, DENSE), v = in3(d, T, G, Cv, DENSE);
        Tensor o = out3(d, T, H, Cv, DENSE), lse = out2(F32, H, T, DENSE), sink = in2(F32, 1, H, DENSE);
        within(o, d == F32 ? close32 : close16);
        CALL(attention_fwd, o, lse, q, k, v, s, 0.2f);
        output(o), output(lse);
        within(o, d == F32 ? close32 : close16);
        CALL(sink_fwd, o, lse, sink);
        Tensor dout = in3(d, T, H, Cv, DENSE), dq = out3(d, T, H, C, DENSE), dk = out3(d, T, G, C, DENSE);
        Tensor dv = out3(d, T, G, Cv, DENSE), delta = out2(F32, H, T, DENSE), grads[] = { dq, dk, dv };
        for (int j = 0; j < 3; j++) within(grads[j], d == F32 ? close32 : close16), at_least(grads[j], 0.02);
        scratch(delta);
        CALL(attention_bwd, dq, dk, dv, delta, dout, o, lse, q, k, v, s, 0.2f);
        Tensor dsink = add2(F32, 1, H, DENSE);
        at_least(dsink, 10);
        CALL(sink_bwd, dsink, dout, o, lse, sink);
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
    GPU_RUN(routers);
    return gpulab_report();
}
