/* nn/fp8_weight.c -- see fp8_weight.h. */
#include "nn/fp8_weight.h"

#include "ops/quant.h"

static Tensor place(Arena *a, DType d, const Param *p, int64_t rows, int64_t cols)
{
    if (p->ndim == 3) return t3(a, "fp8 weights", d, p->shard.shape[0], rows, cols);
    return t2(a, "fp8 weights", d, rows, cols);
}

void fp8_weight_open(Param *p, Arena *a, bool transposed)
{
    int64_t N = p->shard.shape[p->ndim - 2], K = p->shard.shape[p->ndim - 1];
    QuantizedWeight *z = &p->shard.fp8;
    *z = (QuantizedWeight){ .q     = place(a, E4M3, p, N, K),
                            .scale = place(a, F32, p, quant_groups(N), quant_groups(K)) };
    if (!transposed) return;
    z->qt      = place(a, E4M3, p, K, N);
    z->scale_t = place(a, F32, p, quant_groups(K), quant_groups(N));
}

void fp8_weight_refresh(Backend *be, const Param *p)
{
    const QuantizedWeight *z = &p->shard.fp8;
    if (t_has(z->q)) op_quantize_weight(be, z->q, z->scale, z->qt, z->scale_t, p->shard.w, true);
}
