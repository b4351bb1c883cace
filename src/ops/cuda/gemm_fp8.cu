/* ops/cuda/gemm_fp8.cu -- gemm_fp8.c on a GPU: a thread for each element of c, where the kernel set has no
 * faster kernel; and grouped_fused_fp8.c by separate ops. */
#include "ops/cuda/kernel_set.cuh"
#include "ops/quant.h"

namespace {

/* Rows of c, a and b by their strides; sb by rows of groups; strides of stacks are 0 for a single b. */
struct Fp8Args {
    void          *c;
    const uint8_t *a, *b;
    const float   *sa, *sb;
    const void    *bias, *res;
    const int32_t *offsets;                              /* NULL: one product */
    int64_t        M, N, K, E, ldc, lda, ldb, ldsa, ldsb, each_b, each_sb, ldr;
    bool           bias_f32;
};

static Fp8Args args_of(Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb)
{
    int last = b.rank - 2;
    Fp8Args x = { c.data, (const uint8_t *)a.data, (const uint8_t *)b.data, (const float *)sa.data,
                  (const float *)sb.data, NULL, NULL, NULL, a.n[0], b.n[last], a.n[1], 1, c.s[0], a.s[0],
                  b.s[last], sa.s[0], sb.s[last], last ? b.s[0] : 0, last ? sb.s[0] : 0, 0, false };
    return x;
}

/* The expert of row r, or -1 for padding. */
__device__ int64_t expert_of(const Fp8Args &x, int64_t r)
{
    if (!x.offsets) return 0;
    if (r < x.offsets[0] || r >= x.offsets[x.E]) return -1;
    int64_t low = 0, high = x.E;
    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        if (x.offsets[mid] <= r) low = mid;
        else                     high = mid;
    }
    return low;
}

template <class T> __global__ void product_kernel(Fp8Args x)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, r = i / x.N, n = i % x.N;
    if (r >= x.M) return;
    int64_t e = expert_of(x, r);
    if (e < 0) return;
    const uint8_t *a = x.a + r * x.lda, *b = x.b + e * x.each_b + n * x.ldb;
    const float   *sb = x.sb + e * x.each_sb + n / QUANT_GROUP * x.ldsb;
    float sum = 0.0f;
    for (int64_t k = 0, g = 0; k < x.K; k += QUANT_GROUP, g++) {
        int64_t end = min(x.K, k + QUANT_GROUP);
        float   part = 0.0f;
        for (int64_t j = k; j < end; j++) part += e4m3_to_f32(a[j]) * e4m3_to_f32(b[j]);
        sum += (x.sa[g * x.ldsa + r] * sb[g]) * part;
    }
    T *c = (T *)x.c + r * x.ldc + n;
    if (x.bias) sum += x.bias_f32 ? ((const float *)x.bias)[n] : to_f32(((const bf16 *)x.bias)[n]);
    if (x.res)  sum += to_f32(((const T *)x.res)[r * x.ldr + n]);
    *c = from_f32<T>(sum);
}

static bool fast_product(Backend *be, const char *what, Fp8Call x)
{
    const KernelSet *set = cuda_of(be)->kernels;
    return set->gemm_fp8 && set->gemm_fp8(be, what, x);
}

static void launch(Backend *be, const char *what, Tensor c, Fp8Args x)
{
    int64_t blocks = ceil_div(x.M * x.N, 256);
    BY_DTYPE(c.dtype, T, LAUNCH(be, what, product_kernel<T>, blocks, 256, 0, x));
}

}

extern "C" void cuda_gemm_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb, Tensor bias,
                              Tensor res)
{
    Tensor none = { };
    if (fast_product(be, "gemm_fp8", { c, a, sa, b, sb, none, bias, res })) return;
    Fp8Args x = args_of(c, a, sa, b, sb);
    x.bias = bias.data, x.bias_f32 = bias.dtype == F32, x.res = res.data, x.ldr = res.s[0];
    launch(be, "gemm_fp8", c, x);
}

extern "C" void cuda_grouped_gemm_fp8(Backend *be, Tensor c, Tensor a, Tensor sa, Tensor b, Tensor sb,
                                      Tensor offsets)
{
    Tensor none = { };
    if (fast_product(be, "grouped_gemm_fp8", { c, a, sa, b, sb, offsets, none, none })) return;
    Fp8Args x = args_of(c, a, sa, b, sb);
    x.offsets = (const int32_t *)offsets.data, x.E = offsets.n[0] - 1;
    launch(be, "grouped_gemm_fp8", c, x);
}

extern "C" void cuda_grouped_swiglu_fp8(Backend *be, Tensor gu, Tensor h, Tensor hq, Tensor hs, Tensor a,
                                        Tensor sa, Tensor w, Tensor sw, Tensor offsets, Tensor gate,
                                        bool stores_h)
{
    const KernelSet *set = cuda_of(be)->kernels;
    SwigluFp8Call    x = { gu, h, hq, hs, a, sa, w, sw, offsets, gate, stores_h };
    if (set->swiglu_fp8 && set->swiglu_fp8(be, x)) return;
    cuda_grouped_gemm_fp8(be, gu, a, sa, w, sw, offsets);
    cuda_swiglu_fwd(be, h, gu, gate, offsets);
    cuda_quantize_rows(be, hq, hs, h, offsets, true);
}
