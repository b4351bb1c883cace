/* nn/fp8_weight.c -- see fp8_weight.h. */
#include "nn/fp8_weight.h"

#include "ops/quant.h"

static Tensor place(Arena *a, DType d, Tensor w, int64_t rows, int64_t cols)
{
    return w.rank == 3 ? t3(a, "fp8 weights", d, w.n[0], rows, cols) : t2(a, "fp8 weights", d, rows, cols);
}

void fp8_weight_open(Param *p, Arena *a, bool transposed)
{
    Tensor  w = p->shard.w;
    int64_t N = w.n[w.rank - 2], K = w.n[w.rank - 1];
    QuantizedWeight *z = &p->shard.fp8;
    *z = (QuantizedWeight){ .q     = place(a, E4M3, w, N, K),
                            .scale = place(a, F32, w, quant_groups(N), quant_groups(K)) };
    if (!transposed) return;
    z->qt      = place(a, E4M3, w, K, N);
    z->scale_t = place(a, F32, w, quant_groups(K), quant_groups(N));
}

void fp8_weight_refresh(Backend *be, const Param *p)
{
    const QuantizedWeight *z = &p->shard.fp8;
    if (t_has(z->q)) op_quantize_weight(be, z->q, z->scale, z->qt, z->scale_t, p->shard.w, true);
}
