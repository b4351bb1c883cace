/* ops/cuda/grouped_fused.cu -- grouped_fused.c on a GPU: which calls the fused kernels of a kernel set take.
 *
 * They require bf16 with rows aligned to 16 bytes; other calls take the separate ops, which also write the
 * padding rows. The backward kernels sum dgate per tile; a kernel here adds the tiles of a row in order. */
#include "ops/cuda/kernel_set.cuh"
#include "ops/cuda/swiglu.cuh"

namespace {

/* dgate of a row is the sum over its tiles; padding rows have none. */
__global__ void add_tiles(float *dgate, int64_t stride, const float *part, int tiles, int64_t R,
                          const int *offsets, int E)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (r < offsets[0] || r >= offsets[E]) return;
    float sum = 0.0f;
    for (int i = 0; i < tiles; i++) sum += part[i * R + r];
    dgate[r * stride] = sum;
}

bool plain_bf16(Tensor t) { return t.dtype == BF16 && packs(t); }

bool fast(Tensor a, Tensor w, Tensor wide, Tensor slim, Tensor offsets, LoraTerm lora)
{
    bool some = a.n[0] > 0 && a.n[1] > 0 && slim.n[1] > 0 && lora_packs(lora);
    bool even = !(lora.dropout.p > 0) || lora.dropout.col % DROPOUT_COLS == 0;
    return some && even && plain_bf16(a) && plain_bf16(w) && plain_bf16(wide) && plain_bf16(slim) &&
           offsets.n[0] - 1 <= EXPERTS_MOST;
}

}

extern "C" void cuda_grouped_swiglu(Backend *be, Tensor gu, Tensor h, Tensor a, Tensor w, Tensor offsets,
                                    Tensor gate, LoraTerm lora)
{
    Tensor none = { };
    if (offsets.n[0] < 2) return;
    if (!fast(a, w, gu, h, offsets, lora)) {
        cuda_grouped_gemm(be, gu, a, w, offsets, lora, GEMM_NT);
        cuda_swiglu_fwd(be, h, gu, gate, offsets);
        return;
    }
    cuda_of(be)->kernels->swiglu(be, { a, w, offsets, gu, h, none, gate, lora, NULL, h.n[1] });
}

extern "C" void cuda_grouped_dswiglu(Backend *be, Tensor dgu, Tensor dgate, Tensor dout, Tensor w,
                                     Tensor offsets, Tensor gu, Tensor gate, LoraTerm lora)
{
    const KernelSet *set = cuda_of(be)->kernels;
    int64_t R = dgu.n[0], F = dgu.n[1] / 2, tiles = ceil_div(F, set->dgate_cols);
    Tensor  dh = half_of(dgu, 0), none = { };
    float  *part = NULL;
    if (offsets.n[0] < 2) return;
    if (!fast(dout, w, dgu, dh, offsets, lora) || !plain_bf16(gu)) {
        cuda_grouped_gemm(be, dh, dout, w, offsets, lora, GEMM_NN);
        swiglu_bwd_used(be, dgu, dgate, dh, gu, gate, (const int *)offsets.data + offsets.n[0] - 1,
                        (const int *)offsets.data);
        return;
    }
    if (t_has(dgate)) part = (float *)cuda_workspace(be, (size_t)(tiles * R) * sizeof(float));
    set->dswiglu(be, { dout, w, offsets, dgu, none, gu, gate, lora, part, F });
    if (t_has(dgate))
        LAUNCH(be, "grouped_dswiglu", add_tiles, ceil_div(R, 256), 256, 0, (float *)dgate.data, dgate.s[0],
               part, (int)tiles, R, (const int *)offsets.data, (int)offsets.n[0] - 1);
}
