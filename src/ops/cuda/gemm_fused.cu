/* ops/cuda/gemm_fused.cu -- gemm_fused.c by the epilogues of cuBLASLt.
 *
 * The library's GELU is the tanh form and reads the f32 sum before it is rounded into pre. Where the library
 * has no algorithm the separate ops run; the shape alone decides. */
#include "ops/cuda/cublaslt.cuh"

static bool empty(Tensor d, int64_t K) { return !d.n[0] || !d.n[1] || !K; }

static LtCall call_of(int mode, Tensor d, Tensor a, Tensor b, cublasLtEpilogue_t epilogue)
{
    LtCall q = {};
    q.mode = mode, q.scale = 1.0f, q.d = d, q.a = a, q.b = b, q.epilogue = epilogue;
    return q;
}

/* Whether the epilogue can take t: absent, or of d's dtype. */
static bool fits(Tensor t, Tensor d) { return !t_has(t) || t.dtype == d.dtype; }

/* bf16 operands, or all f32; an aux matrix has rows of a multiple of 8 elements, as the library demands. */
static bool plain_types(Tensor d, Tensor a) { return a.dtype == BF16 || d.dtype == F32; }
static bool aux_fits(Tensor aux, Tensor d)  { return aux.dtype == d.dtype && aux.s[0] % 8 == 0; }

extern "C" void cuda_gemm_residual(Backend *be, Tensor y, Tensor res, Tensor a, Tensor b, Tensor bias)
{
    LtCall q = call_of(GEMM_NT, y, a, b, t_has(bias) ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT);
    q.c = res, q.bias = bias.data;
    bool can = !empty(y, a.n[1]) && plain_types(y, a) && fits(res, y) && fits(bias, y) &&
               (!t_has(bias) || (lt_aligned(y, a, b) && packs(res)));
    if (can && lt_matmul(be, &q)) return;
    cuda_copy(be, y, res);
    cuda_gemm(be, y, a, b, bias, GEMM_NT | GEMM_ACC);
}

extern "C" void cuda_gemm_gelu(Backend *be, Tensor y, Tensor pre, Tensor a, Tensor b, Tensor bias, Gelu kind)
{
    LtCall q = call_of(GEMM_NT, y, a, b, CUBLASLT_EPILOGUE_GELU_AUX);
    if (t_has(bias)) q.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    q.aux = pre, q.bias = bias.data;
    bool can = kind == GELU_TANH && !empty(y, a.n[1]) && plain_types(y, a) && aux_fits(pre, y) &&
               fits(bias, y) && (!t_has(bias) || lt_aligned(y, a, b));
    if (can && lt_matmul(be, &q)) return;
    cuda_gemm(be, pre, a, b, bias, GEMM_NT);
    cuda_gelu_fwd(be, y, pre, kind);
}

extern "C" void cuda_gemm_dgelu(Backend *be, Tensor dpre, Tensor dy, Tensor w, Tensor pre, Gelu kind)
{
    Tensor none = {};
    LtCall q = call_of(GEMM_NN, dpre, dy, w, CUBLASLT_EPILOGUE_DGELU);
    q.aux = pre;
    bool can = kind == GELU_TANH && !empty(dpre, dy.n[1]) && plain_types(dpre, dy) && aux_fits(pre, dpre);
    if (can && lt_matmul(be, &q)) return;
    cuda_gemm(be, dpre, dy, w, none, GEMM_NN);
    cuda_gelu_bwd(be, dpre, dpre, pre, kind);
}
