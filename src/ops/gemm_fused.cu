/* ops/gemm_fused.cu -- see gemm_fused.cuh. */
#include "ops/gemm_fused.cuh"

#include "ops/cublaslt.cuh"

static bool empty(Tensor d, int64_t K) { return !d.n[0] || !d.n[1] || !K; }

static LtCall call_of(int mode, Tensor d, Tensor a, Tensor b, cublasLtEpilogue_t epilogue)
{
    LtCall q = {};
    q.mode = mode, q.d = d, q.a = a, q.b = b, q.epilogue = epilogue;
    return q;
}

/* What the library rounds and adds in d's dtype: nothing, or a tensor of that dtype. */
static bool fits(Tensor t, Tensor d) { return !t_has(t) || t.dtype == d.dtype; }

/* bf16 operands, or all f32; an aux matrix has rows of a multiple of 8 elements, as the library demands. */
static bool plain_types(Tensor d, Tensor a) { return a.dtype == BF16 || d.dtype == F32; }
static bool aux_fits(Tensor aux, Tensor d)  { return aux.dtype == d.dtype && aux.s[0] % 8 == 0; }

void gemm_residual(Backend *be, Tensor y, Tensor res, Tensor a, Tensor b, Tensor bias)
{
    LtCall q = call_of(GEMM_NT, y, a, b, t_has(bias) ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    q.c = res, q.bias = bias.data;
    if (!empty(y, a.n[1]) && plain_types(y, a) && fits(res, y) && fits(bias, y) && lt_matmul(be, &q)) return;
    cuda_copy(be, y, res);
    cuda_gemm(be, y, a, b, bias, GEMM_NT | GEMM_ACC);
}

void gemm_gelu(Backend *be, Tensor y, Tensor pre, Tensor a, Tensor b, Tensor bias)
{
    LtCall q = call_of(GEMM_NT, y, a, b, CUBLASLT_EPILOGUE_GELU_AUX);
    if (t_has(bias)) q.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    q.aux = pre, q.bias = bias.data;
    bool can = !empty(y, a.n[1]) && plain_types(y, a) && aux_fits(pre, y) && fits(bias, y);
    if (can && lt_matmul(be, &q)) return;
    cuda_gemm(be, pre, a, b, bias, GEMM_NT);
    cuda_gelu_fwd(be, y, pre, GELU_TANH);
}

void gemm_dgelu(Backend *be, Tensor dpre, Tensor dy, Tensor w, Tensor pre)
{
    Tensor none = {};
    LtCall q = call_of(GEMM_NN, dpre, dy, w, CUBLASLT_EPILOGUE_DGELU);
    q.aux = pre;
    if (!empty(dpre, dy.n[1]) && plain_types(dpre, dy) && aux_fits(pre, dpre) && lt_matmul(be, &q)) return;
    cuda_gemm(be, dpre, dy, w, none, GEMM_NN);
    cuda_gelu_bwd(be, dpre, dpre, pre, GELU_TANH);
}

/* The library overwrites a bias gradient: it goes behind its part of the workspace and is added from there.
 * Our dy is its B, and sums over k of B are as many as d' has columns: one per row of dw. */
void gemm_bgrad(Backend *be, Tensor dw, Tensor db, Tensor dy, Tensor x, int flags)
{
    Tensor  none = {};
    bool    add = flags & GEMM_ACC;
    int64_t n[2] = { 1, dw.n[0] };
    LtCall  q = call_of(GEMM_TN, dw, dy, x, CUBLASLT_EPILOGUE_BGRADB);
    if (add) q.c = dw;
    if (!empty(dw, dy.n[0]) && dw.dtype == F32 && t_has(db)) {
        uintptr_t ws = (uintptr_t)cuda_workspace(be, LT_WORKSPACE + (size_t)n[1] * sizeof(float));
        q.bias = (void *)(ws + LT_WORKSPACE);
        if (be->sticky) return;
        if (lt_matmul(be, &q)) {
            Tensor y = db;
            y.rank = 2, y.n[0] = 1, y.n[1] = n[1], y.s[0] = n[1], y.s[1] = 1;
            cuda_add(be, y, y, t_wrap(q.bias, F32, 2, n));
            return;
        }
    }
    cuda_gemm(be, dw, dy, x, none, GEMM_TN | (add ? GEMM_ACC : 0));
    if (t_has(db)) cuda_colsum(be, db, dy);
}
