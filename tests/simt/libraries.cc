/* tests/simt/libraries.cc -- what is not emulated: dense products of cuBLASLt, as loops on the host with its
 * roundings (sums in f32, the epilogue before the one rounding). */
#include "simt/device.h"

#include "ops/cuda/cublaslt.cuh"
#include "bench/hold_sms.h"

#include <stdio.h>

#include <vector>

namespace {

/* op(t) as rows of f32, (n, K): rows of c for a, columns of c for b. */
std::vector<float> operand(Tensor t, bool turned)
{
    int64_t n = t.n[turned ? 1 : 0], K = t.n[turned ? 0 : 1];
    std::vector<float> out((size_t)(n * K));
    for (int64_t i = 0; i < t.n[0]; i++)
        for (int64_t j = 0; j < t.n[1]; j++) {
            int64_t at = i * t.s[0] + j;
            out[(size_t)(turned ? j * K + i : i * K + j)] =
                t.dtype == F32 ? ((const float *)t.data)[at] : to_f32(((const bf16 *)t.data)[at]);
        }
    return out;
}

float get(Tensor t, int64_t i, int64_t j)
{
    int64_t at = i * t.s[0] + j;
    return t.dtype == F32 ? ((const float *)t.data)[at] : to_f32(((const bf16 *)t.data)[at]);
}

void put(Tensor t, int64_t i, int64_t j, float x)
{
    int64_t at = i * t.s[0] + j;
    if (t.dtype == F32) ((float *)t.data)[at] = x;
    else                ((bf16 *)t.data)[at] = from_f32<bf16>(x);
}

float gelu_inner(float x) { return tanhf(0.79788456f * (x + 0.044715f * x * x * x)); }
float gelu(float x)       { return 0.5f * x * (1.0f + gelu_inner(x)); }
float gelu_slope(float x)
{
    float t = gelu_inner(x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * 0.79788456f * (1.0f + 3.0f * 0.044715f * x * x);
}

void finish(const LtCall &q, int64_t i, int64_t j, float x)
{
    Tensor bias = { };
    bias.data = q.bias, bias.dtype = q.d.dtype;
    x *= q.scale;
    if (t_has(q.c)) x += get(q.c, i, j);
    if (q.bias) x += get(bias, 0, j);
    if (q.epilogue == CUBLASLT_EPILOGUE_DGELU) x *= gelu_slope(get(q.aux, i, j));
    else if (t_has(q.aux)) put(q.aux, i, j, x), x = gelu(x);
    put(q.d, i, j, x);
}

void multiply(const LtCall &q)
{
    std::vector<float> a = operand(q.a, q.mode == GEMM_TN), b = operand(q.b, q.mode != GEMM_NT);
    int64_t M = q.d.n[0], N = q.d.n[1], K = q.a.n[q.mode != GEMM_TN];
    #pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < M; i++)
        for (int64_t j = 0; j < N; j++) {
            const float *x = &a[(size_t)(i * K)], *y = &b[(size_t)(j * K)];
            float sum[8] = { }, all = 0.0f;
            int64_t k = 0;
            for (; k + 8 <= K; k += 8)
                for (int l = 0; l < 8; l++) sum[l] += x[k + l] * y[k + l];
            for (; k < K; k++) sum[0] += x[k] * y[k];
            for (int l = 0; l < 8; l++) all += sum[l];
            finish(q, i, j, all);
        }
}

bool even(Tensor t) { return !t_has(t) || t.dtype == F32 || (t.s[0] % 2 == 0 && (intptr_t)t.data % 4 == 0); }

}

/* The library has no algorithm for bf16 rows that begin on odd elements. */
bool lt_matmul(Backend *be, const LtCall *call)
{
    LtCall q = *call;
    if (!even(q.a) || !even(q.b) || !even(q.c) || !even(q.d)) return false;
    if (!cuda_workspace(be, LT_WORKSPACE)) return true;         /* preparing, or failed */
    double from = clock_now();
    simt::queue(cuda_of(be)->stream, [q] { multiply(q); });
    cuda_launched(be, from);
    return true;
}

Status lt_open(Cuda *)                  { return OK; }
void   lt_close(Cuda *)                 { }
void   lt_describe(char *out, size_t n) { snprintf(out, n, "products on the host"); }

/* One kernel runs at a time: none can be beside another. */
Status hold_sms(int)  { return OK; }
void   release_sms()  { }
