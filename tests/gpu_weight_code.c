/* Codes of frozen weights on the GPU: the CPU's bits, and products over a few experts of a stack. */
#include "codelab.h"

static Tensor flat_out(DType d, int64_t n) { return output(gpu_new(d, 1, &n, DENSE, 0xff)); }

static void stats(CodeFormat f, DType d, int64_t N, int64_t K)
{
    fresh();
    Tensor w = in2(d, N, K, DENSE), group = { 0 };
    Tensor amax = flat_out(F32, f == CODE_NF4 ? nf4_blocks(N * K) : N);
    exact(amax);
    if (f == CODE_NF4) group = out2(F32, nf4_groups(N * K), 2, DENSE), exact(group);
    if (num_below(3) == 0) memset(gpu_row(w, 0), 0, 128 * dtype_size(d));
    CALL(weight_stats, f, amax, group, w);
}

static void scales(CodeFormat f, int64_t n)
{
    fresh();
    Tensor amax = flat_in(F32, n * NF4_GROUP), group = in2(F32, n, 2, DENSE);
    Tensor scale = out2(f == CODE_NF4 ? U8 : F32, n, NF4_GROUP / 2, DENSE);
    float *g = group.data;
    for (int64_t i = 0; i < n; i++) g[2 * i] = num_below(5) ? 16 + fabsf(g[2 * i]) : 0;
    exact(scale);
    CALL(code_scales, f, scale, amax, group, NF4_GROUP / 4, NF4_GROUP / 2);
}

static void codes(CodeFormat f, DType d, int64_t N, int64_t K)
{
    fresh();
    Tensor  w = in2(d, N, K, DENSE), amax = flat_in(F32, f == CODE_NF4 ? nf4_blocks(N * K) : N);
    int64_t at = K / 128 * 64, n = K - at;
    Tensor  q = out2(f == CODE_NF4 ? U8 : I8, N, code_bytes(f, n), DENSE);
    for (int64_t i = 0; i < t_count(amax); i++) ((float *)amax.data)[i] = 9 + fabsf(((float *)amax.data)[i]);
    exact(q);
    CALL(code_weight, f, q, w, amax, at, K, K);
}

static void decoded(CodeFormat f, DType d, int64_t E, int64_t N, int64_t K, TileAt at, const int64_t n[3])
{
    fresh();
    WeightCodes z = random_codes(f, E, N, K);
    Tensor w = out3(d, n[0], n[1], n[2], DENSE);
    exact(w);
    CALL(decode_weight, w, z, at);
}

static void tiles(CodeFormat f)
{
    for (int i = 0; i < 12; i++) {
        int64_t E = 1 + num_below(4), K = 64 * (1 + num_below(6)), N = 1 + num_below(200),
                step = i % 2 ? 8 : 1;
        TileAt  at = { num_below(E), num_below(N), num_below(K / step) * step };
        int64_t n[3] = { 1 + num_below(E - at.e), 1 + num_below(N - at.row),
                         step * (1 + num_below((K - at.col) / step)) };
        decoded(f, i % 3 ? BF16 : F32, E, N, K, at, n);
    }
    decoded(f, BF16, 4, 768, 2048, (TileAt){ 1, 0, 0 }, (int64_t[]){ 3, 768, 2048 });
}

static void fp8(void) { tiles(CODE_FP8); }

static void int8(void)
{
    for (int i = 0; i < 12; i++) {
        DType d = i % 2 ? BF16 : F32;
        stats(CODE_INT8, d, 1 + num_below(100), 1 + num_below(1000));
        codes(CODE_INT8, d, 1 + num_below(100), 128 + num_below(300));
        scales(CODE_INT8, 1 + num_below(20));
    }
    tiles(CODE_INT8);
}

static void nf4(void)
{
    for (int i = 0; i < 12; i++) {
        DType d = i % 2 ? BF16 : F32;
        stats(CODE_NF4, d, 1 + num_below(300), 64 * (2 + num_below(20)));
        codes(CODE_NF4, d, 1 + num_below(100), 64 * (2 + num_below(6)));
        scales(CODE_NF4, 1 + num_below(20));
    }
    stats(CODE_NF4, BF16, 1536, 2048);
    tiles(CODE_NF4);
}

/* Products of experts e .. of a stack leave the rows of the others alone. */
static void some_experts(int64_t N, int64_t K, int64_t E)
{
    for (int backward = 0; backward < 2; backward++) {
        fresh();
        int64_t  R = 700, most = R - 30;
        int32_t *off;
        Tensor   a       = in2(BF16, R, K, DENSE),
               w         = backward ? in3(BF16, E, K, N, DENSE) : in3(BF16, E, 2 * N, K, DENSE);
        Tensor gu        = backward ? in2(BF16, R, 2 * N, DENSE) : out2(BF16, R, 2 * N, DENSE),
               gate      = in2(F32, R, 1, DENSE);
        Tensor   h = backward ? out2(BF16, R, 2 * N, DENSE) : out2(BF16, R, N, DENSE);
        Tensor   dgate = backward ? out2(F32, R, 1, DENSE) : (Tensor){ 0 };
        int64_t  n = E + 1;
        Tensor   offsets = gpu_new(I32, 1, &n, DENSE, 0);
        LoraTerm lora = { 0 };
        off = offsets.data;
        for (int64_t e = 0; e <= E; e++) off[e] = (int32_t)(200 + (most - 200) * e / E);
        times(h, 2);                                         /* what it is made from has been rounded */
        if (backward) within(dgate, (Tolerance){ 2e-3, 4e-3, 1e-2, 1 });
        if (backward) CALL(grouped_dswiglu, h, dgate, a, w, offsets, gu, gate, lora);
        else          CALL(grouped_swiglu, gu, h, a, w, offsets, gate, lora);
    }
}

static void parts_of_stacks(void)
{
    some_experts(128, 256, 3);
    some_experts(96, 72, 2);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(fp8);
    GPU_RUN(int8);
    GPU_RUN(nf4);
    GPU_RUN(parts_of_stacks);
    return gpulab_report();
}
