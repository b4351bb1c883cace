/* ops/cuda/grouped_fused.cu -- grouped_fused.c on a GPU: which calls the fused kernels of a kernel set take.
 *
 * They require bf16 with rows aligned to 16 bytes; other calls take the separate ops, which also write the
 * padding rows. The backward kernels sum dgate per tile; a kernel here adds the tiles of a row in order. */
#include "ops/coded_panel.h"
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

bool fast(Tensor a, Tensor wide, Tensor slim, Tensor offsets, LoraTerm lora)
{
    bool some = a.n[0] > 0 && a.n[1] > 0 && slim.n[1] > 0 && lora_packs(lora);
    bool even = !(lora.dropout.p > 0) || lora.dropout.col % DROPOUT_COLS == 0;
    return some && even && plain_bf16(a) && plain_bf16(wide) && plain_bf16(slim) &&
           offsets.n[0] - 1 <= EXPERTS_MOST;
}

bool reads_codes(Backend *be, const WeightCodes &w, Tensor panel, int64_t terms, int64_t columns)
{
    auto reads = cuda_of(be)->kernels->reads_codes;
    return reads && reads(w, panel, terms, columns);
}

/* dgate may be absent; its sums are those of the tiles. */
void backward(Backend *be, FusedCall q, Tensor dgate)
{
    const KernelSet *set = cuda_of(be)->kernels;
    int64_t R = q.wide.n[0], tiles = ceil_div(q.F, set->dgate_cols);
    if (t_has(dgate)) q.part = (float *)cuda_workspace(be, (size_t)(tiles * R) * sizeof(float));
    set->dswiglu(be, q);
    if (t_has(dgate))
        LAUNCH(be, "grouped_dswiglu", add_tiles, ceil_div(R, 256), 256, 0, (float *)dgate.data, dgate.s[0],
               q.part, (int)tiles, R, (const int *)q.offsets.data, (int)q.offsets.n[0] - 1);
}

}

extern "C" void cuda_grouped_swiglu(Backend *be, Tensor gu, Tensor h, Tensor a, Tensor w, Tensor offsets,
                                    Tensor gate, LoraTerm lora)
{
    Tensor none = { };
    if (offsets.n[0] < 2) return;
    if (!fast(a, gu, h, offsets, lora) || !plain_bf16(w)) {
        cuda_grouped_gemm(be, gu, a, w, offsets, lora, GEMM_NT);
        cuda_swiglu_fwd(be, h, gu, gate, offsets);
        return;
    }
    cuda_of(be)->kernels->swiglu(be, { a, w, offsets, gu, h, none, gate, lora, NULL, h.n[1] });
}

extern "C" void cuda_grouped_dswiglu(Backend *be, Tensor dgu, Tensor dgate, Tensor dout, Tensor w,
                                     Tensor offsets, Tensor gu, Tensor gate, LoraTerm lora)
{
    Tensor dh = half_of(dgu, 0), none = { };
    if (offsets.n[0] < 2) return;
    if (!fast(dout, dgu, dh, offsets, lora) || !plain_bf16(w) || !plain_bf16(gu)) {
        cuda_grouped_gemm(be, dh, dout, w, offsets, lora, GEMM_NN);
        swiglu_bwd_used(be, dgu, dgate, dh, gu, gate, (const int *)offsets.data + offsets.n[0] - 1,
                        (const int *)offsets.data);
        return;
    }
    backward(be, { dout, w, offsets, dgu, none, gu, gate, lora, NULL, dgu.n[1] / 2 }, dgate);
}

/* See grouped_coded.c. */
extern "C" void cuda_grouped_swiglu_coded(Backend *be, Tensor gu, Tensor h, Tensor a, WeightCodes w,
                                          Tensor panel, Tensor offsets, Tensor gate, LoraTerm lora)
{
    Tensor none = { };
    int64_t F = h.n[1];
    if (offsets.n[0] < 2) return;
    if (fast(a, gu, h, offsets, lora) && reads_codes(be, w, panel, a.n[1], F)) {
        cuda_of(be)->kernels->swiglu(be, { a, panel, offsets, gu, h, none, gate, lora, NULL, F, w });
        return;
    }
    for (CodedPanel p = { }; coded_panel_next(&p, w, panel, offsets, lora);) {
        cuda_decode_weight(be, p.w, w, coded_panel_at(&p));
        cuda_grouped_swiglu(be, gu, h, a, p.w, p.offsets, gate, p.lora);
    }
}

extern "C" void cuda_grouped_dswiglu_coded(Backend *be, Tensor dgu, Tensor dgate, Tensor dout, WeightCodes w,
                                           Tensor panel, Tensor offsets, Tensor gu, Tensor gate,
                                           LoraTerm lora)
{
    Tensor none = { };
    int64_t F = dgu.n[1] / 2;
    if (offsets.n[0] < 2) return;
    if (fast(dout, dgu, half_of(dgu, 0), offsets, lora) && plain_bf16(gu) &&
        reads_codes(be, w, panel, dout.n[1], F)) {
        backward(be, { dout, panel, offsets, dgu, none, gu, gate, lora, NULL, F, w }, dgate);
        return;
    }
    for (CodedPanel p = { }; coded_panel_next(&p, w, panel, offsets, lora);) {
        cuda_decode_weight(be, p.w, w, coded_panel_at(&p));
        cuda_grouped_dswiglu(be, dgu, dgate, dout, p.w, p.offsets, gu, gate, p.lora);
    }
}
