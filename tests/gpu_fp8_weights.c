/* Slices of weights in e4m3 and transposed codes on the GPU: the CPU's bits. */
#include "gpulab.h"
#include "ops/quant.h"

/* A slice of n elements from `at` on, with some that have no code. */
static Tensor slice(DType d, int64_t n)
{
    static const float odd[] = { 0.0f, -0.0f, INFINITY, NAN, 1e-42f, 3e38f, 448.0f };
    Tensor w = gpu_normal(gpu_new(d, 1, &n, DENSE, 0xff), 0, ldexpf(1.0f, (int)num_below(60) - 30));
    for (int i = 0; i < 6 && n && num_below(2); i++) {
        float v = odd[num_below((int64_t)(sizeof odd / sizeof *odd))];
        dtype_convert((char *)w.data + num_below(n) * (int64_t)dtype_size(d), d, &v, F32, 1);
    }
    return w;
}

typedef struct Stack { int64_t E, N, K; } Stack;

static Tensor block_scales(Stack x, bool output_of)
{
    int64_t n = quant_groups(x.N), k = quant_groups(x.K);
    if (output_of) return x.E ? out3(F32, x.E, n, k, DENSE) : out2(F32, n, k, DENSE);
    return x.E ? in3(F32, x.E, n, k, DENSE) : in2(F32, n, k, DENSE);
}

static void amax(Stack x, int64_t at, int64_t n, DType d)
{
    fresh();
    Tensor w = slice(d, n), out = block_scales(x, true);
    WeightSlice of = { at, x.N, x.K };
    exact(out);
    CALL(weight_amax, out, w, of);
}

static void codes(Stack x, int64_t at, int64_t n, DType d)
{
    fresh();
    Tensor w = slice(d, n), scale = block_scales(x, false);
    Tensor q = output(gpu_new(E4M3, 1, &n, DENSE, 0xff));
    float *s = scale.data;
    for (int64_t i = 0; i < t_count(scale); i++) s[i] = ldexpf(1.0f, (int)num_below(80) - 40);
    if (num_below(4) == 0) s[0] = NAN;
    WeightSlice of = { at, x.N, x.K };
    exact(q);
    CALL(quantize_slice, q, w, scale, of);
}

static void scales(int64_t n)
{
    fresh();
    Tensor a = in2(F32, 1, n, DENSE), s = out2(F32, 1, n, DENSE);
    float *x = a.data;
    for (int64_t i = 0; i < n; i++)
        x[i] = num_below(9) ? fabsf(x[i]) * ldexpf(1, (int)num_below(200) - 100) : 0;
    if (n) x[0] = INFINITY;
    bool pow2 = num_below(2);
    exact(s);
    CALL(amax_scales, s, a, pow2);
}

static void slices(void)
{
    for (int i = 0; i < 40; i++) {
        Stack   x = { num_below(4), 1 + num_below(300), 1 + num_below(300) };
        int64_t all = (x.E ? x.E : 1) * x.N * x.K, at = num_below(all + 1), n = num_below(all - at + 1);
        DType   d = num_below(2) ? F32 : BF16;
        amax(x, at, n, d);
        codes(x, at, n, d);
        scales(num_below(1000));
    }
    amax((Stack){ 3, 1536, 512 }, 12345, 2000000, BF16);
    codes((Stack){ 3, 1536, 512 }, 12345, 2000000, BF16);
}

static void transposed(DType d, Stack x)
{
    fresh();
    Tensor in = x.E ? in3(F32, x.E, x.N, x.K, DENSE) : in2(F32, x.N, x.K, DENSE);
    Tensor out = x.E ? out3(d, x.E, x.K, x.N, DENSE) : out2(d, x.K, x.N, DENSE);
    in.dtype = d;                                            /* any bytes will do */
    exact(out);
    CALL(transpose, out, in);
}

static void transposes(void)
{
    for (int i = 0; i < 40; i++) {
        int64_t step = num_below(2) ? 16 : 1;
        Stack   x = { num_below(4), step * (1 + num_below(300 / step)), step * (1 + num_below(300 / step)) };
        transposed(num_below(3) ? E4M3 : F32, x);
    }
    transposed(E4M3, (Stack){ 3, 1536, 2048 });
}

static void packed(int64_t R, int64_t K, DType d)
{
    fresh();
    Tensor x = in2(d, R, K, num_below(2) ? DENSE : STRIDED), y = out2(BF16, R, quant_packed_width(K), DENSE);
    if (R && num_below(2)) dtype_convert(gpu_row(x, num_below(R)), d, &(float){ NAN }, F32, 1);
    exact(y);
    CALL(pack_rows, y, x);
}

static void unpacked(int64_t R, int64_t K, DType d)
{
    fresh();
    Tensor y = gpu_new(BF16, 2, (int64_t[]){ R, quant_packed_width(K) }, DENSE, 0x00);
    Tensor from = in2(F32, R, K, DENSE), x = out2(d, R, K, num_below(2) ? DENSE : STRIDED);
    int32_t used = (int32_t)(R - num_below(R / 4 + 1));
    Tensor  off = num_below(2) ? int_list(2, (int32_t[]){ 0, used }) : (Tensor){ 0 };
    Tensor  q = { 0 }, scale = { 0 };
    if (num_below(2)) q = out2(E4M3, R, K, DENSE), scale = out2(F32, quant_groups(K), R, DENSE);
    op_pack_rows(BE, y, from);
    exact(x);
    if (t_has(q)) exact(q), exact(scale);
    CALL(unpack_rows, x, q, scale, y, off);
}

static void rows_that_travel(void)
{
    for (int i = 0; i < 40; i++) {
        packed(num_below(70), 1 + num_below(500), num_below(2) ? F32 : BF16);
        unpacked(num_below(70), 1 + num_below(500), num_below(2) ? F32 : BF16);
    }
    packed(1000, 2048, BF16);
    unpacked(1000, 2048, BF16);
}

int main(void)
{
    gpulab_open();
    GPU_RUN(slices);
    GPU_RUN(transposes);
    GPU_RUN(rows_that_travel);
    return gpulab_report();
}
