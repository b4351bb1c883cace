/* ops/cuda/micro.cu -- the microscaled ops of quantize_micro.c and gemm_micro.c have no kernels yet:
 * backend_require_precision refuses a run that needs them, and a call fails by name. */
#include "ops/cuda/cuda.cuh"

static void refuse(Backend *be, const char *op, Precision p)
{
    if (!be->sticky)
        be->sticky = fail(E_DEVICE, "%s: there is no kernel for %s on GPUs yet; use train.precision=bf16", op,
                      precision_word(p));
}

extern "C" void cuda_quantize_micro(Backend *be, MicroCodes z, Tensor x, Tensor offsets, MicroRule rule)
{
    refuse(be, "quantize_micro", z.format);
}

extern "C" void cuda_gemm_micro(Backend *be, Tensor c, MicroCodes a, MicroCodes b, Tensor bias, Tensor res)
{
    refuse(be, "gemm_micro", a.format);
}

extern "C" void cuda_grouped_gemm_micro(Backend *be, Tensor c, MicroCodes a, MicroCodes b, Tensor offsets)
{
    refuse(be, "grouped_gemm_micro", a.format);
}
