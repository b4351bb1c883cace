/* Matrix products and column sums on the GPU against the CPU: gemm, colsum, and fused
 * products: gemm_residual, gemm_gelu, gemm_dgelu. */
#include "gpulab.h"

static const int modes[] = { GEMM_NT, GEMM_NN, GEMM_TN };

/* dtypes: of a and b, of c, of the bias. */
typedef struct Kinds { DType in, out, bias; } Kinds;

static void product(int64_t M, int64_t N, int64_t K, int flags, Kinds k, bool bias, Layout l)
{
    int mode = flags & GEMM_MODE;
    fresh();
    Tensor a = mode == GEMM_TN ? in2(k.in, K, M, l) : in2(k.in, M, K, l);
    Tensor b = mode == GEMM_NT ? in2(k.in, N, K, l) : in2(k.in, K, N, l);
    Tensor c = flags & GEMM_ACC ? add2(k.out, M, N, l) : out2(k.out, M, N, l);
    Tensor add = bias ? in2(k.bias, 1, N, DENSE) : none;
    at_least(c, 1);                                           /* a single product may be arbitrarily small */
    CALL(gemm, c, a, b, add, flags);
}

static Kinds any_kinds(void) { return (Kinds){ any_float(), any_float(), any_float() }; }

static void gemm_of_any_size(void)
{
    for (int i = 0; i < 120; i++)
        product(any_size(1, 150), any_size(1, 150), any_size(1, 150), modes[i % 3] | (maybe() ? GEMM_ACC : 0),
                any_kinds(), maybe(), any_layout());
}

static void gemm_at_the_edges_of_tiles(void)
{
    static const int64_t edges[] = { 1, 63, 64, 65, 127, 128, 129 };
    for (int i = 0; i < 7; i++)
        for (int m = 0; m < 3; m++)
            for (int d = 0; d < 2; d++)
                product(edges[i], edges[num_below(7)], edges[num_below(7)], modes[m],
                        (Kinds){ floats[d], any_float(), F32 }, maybe(), any_layout());
}

static void gemm_of_nothing(void)
{
    for (int m = 0; m < 3; m++) {
        for (int acc = 0; acc <= GEMM_ACC; acc += GEMM_ACC) {
            for (int bias = 0; bias < 2; bias++) {
                product(0, 24, 16, modes[m] | acc, any_kinds(), bias, DENSE);
                product(24, 0, 16, modes[m] | acc, any_kinds(), bias, DENSE);
                product(24, 40, 0, modes[m] | acc, any_kinds(), bias, any_layout());
                product(5, 7, 0, modes[m] | acc, any_kinds(), bias, any_layout());
            }
        }
    }
}

/* The shapes a model has: forward, input gradient, weight gradient into f32. */
static void gemm_of_a_model(void)
{
    for (int d = 0; d < 2; d++) {
        product(1000, 2048, 1536, GEMM_NT, (Kinds){ floats[d], floats[d], floats[d] }, true, DENSE);
        product(1000, 1536, 2048, GEMM_NN, (Kinds){ floats[d], floats[d], F32 }, false, DENSE);
        product(2048, 1536, 1000, GEMM_TN | GEMM_ACC, (Kinds){ floats[d], F32, F32 }, false, DENSE);
        product(4096, 512, 264, GEMM_NT, (Kinds){ floats[d], floats[d], floats[d] }, false, STRIDED);
        product(520, 3456, 1152, GEMM_NT, (Kinds){ floats[d], floats[d], floats[d] }, true, STRIDED);
        product(128, 2048, 4096, GEMM_NT, (Kinds){ floats[d], F32, F32 }, false, DENSE); /* a router's */
    }
}

static void gemm_of_a_few_rows(void)
{
    for (int64_t M = 1; M <= 9; M++)
        product(M, 1000 + 8 * num_below(4), 512, GEMM_NT | (maybe() ? GEMM_ACC : 0), any_kinds(), maybe(),
                any_layout());
}

/* Fused products: residual add, GELU, its gradient. The GPU may round once where the CPU rounds twice. */
static void fused(int64_t M, int64_t N, int64_t K, DType in, DType out, Gelu kind, Layout l)
{
    fresh();
    float  each = 1.0f / sqrtf((float)(K ? K : 1));
    Tensor a = in2(in, M, K, l), b = gpu_normal(in2(in, N, K, l), 0, each), res = in2(out, M, N, l);
    Tensor bias = maybe() ? in2(maybe() ? out : any_float(), 1, N, DENSE) : none, y = out2(out, M, N, l);
    at_least(y, 1);
    CALL(gemm_residual, y, res, a, b, bias);
    Tensor pre = out2(out, M, N, l), h = out2(out, M, N, l);
    at_least(pre, 1), at_least(h, 1), times(h, 2);
    CALL(gemm_gelu, h, pre, a, b, bias, kind);
    Tensor dy = in2(in, M, K, l), w = gpu_normal(in2(in, K, N, l), 0, each), dpre = out2(out, M, N, l);
    at_least(dpre, 1), times(dpre, 2);
    CALL(gemm_dgelu, dpre, dy, w, pre, kind);
}

static void products_with_company(void)
{
    for (int i = 0; i < 48; i++) {
        int64_t unit = i % 3 ? 8 : 1, most = i % 3 ? 20 : 130;
        fused(unit * any_size(1, most), unit * any_size(1, most), unit * any_size(1, most), any_float(),
              any_float(), i & 1 ? GELU_ERF : GELU_TANH, unit == 8 && maybe() ? DENSE : any_layout());
    }
    for (int d = 0; d < 2; d++) {
        fused(0, 24, 16, floats[d], floats[d], GELU_TANH, DENSE);
        fused(9, 24, 0, floats[d], floats[d], GELU_TANH, DENSE);
        fused(1000, 1152, 768, floats[d], floats[d], GELU_TANH, DENSE);
        fused(1000, 1152, 768, floats[d], F32, GELU_TANH, STRIDED);
    }
}

static void sums(int64_t T, int64_t N, DType d, Layout l)
{
    fresh();
    Tensor x = in2(d, T, N, l), y = add2(F32, 1, N, DENSE);
    at_least(y, sqrt((double)T));
    CALL(colsum, y, x);
}

static void column_sums(void)
{
    for (int d = 0; d < 2; d++) {
        sums(0, 33, floats[d], DENSE);
        sums(1, 1, floats[d], DENSE);
        for (int l = 0; l < LAYOUTS; l++) {
            sums(any_size(2, 300), any_size(2, 300), floats[d], (Layout)l);
            sums(4096, 2048, floats[d], (Layout)l);
        }
        sums(3001, 1, floats[d], DENSE);
        sums(7, 9001, floats[d], LOOSE);
    }
}

int main(void)
{
    gpulab_open();
    GPU_RUN(gemm_of_any_size);
    GPU_RUN(gemm_at_the_edges_of_tiles);
    GPU_RUN(gemm_of_nothing);
    GPU_RUN(gemm_of_a_model);
    GPU_RUN(gemm_of_a_few_rows);
    GPU_RUN(products_with_company);
    GPU_RUN(column_sums);
    return gpulab_report();
}
