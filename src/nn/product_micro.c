/* nn/product_micro.c -- see product_micro.h. */
#include "nn/product_micro.h"

#include "base/rng.h"
#include "ops/quant_micro.h"

static const Tensor none = { 0 };

static Precision format_of(const Pass *c) { return c->env->precision->format; }

static Tensor tensor_scales(const Pass *c, int64_t n)
{
    return format_of(c) == PREC_NVFP4 ? t1(c->scratch, "scratch", F32, n) : none;
}

static MicroRule row_rule(const Pass *c, WeightPart w)
{
    MicroRule r = { 0 };
    if (format_of(c) != PREC_NVFP4 || !w.transposed) return r;
    r.seed = c->dropout_seed, r.stream = rng_stream(w.of->piece[0].name);
    return r;
}

/* Scratch has the capacity, as all rows of experts have. */
static MicroCodes code_rows(const Pass *c, Tensor x, WeightPart w, ExpertRows rows)
{
    Precision  f = format_of(c);
    int64_t    R = x.n[0], K = x.n[1];
    MicroCodes z = { f, t_rows(scratch2(c, micro_code_type(f), rows.capacity, micro_bytes(f, K)), 0, R),
                     t_rows(scratch2(c, micro_scale_type(f), rows.capacity, micro_groups(f, K)), 0, R),
                     tensor_scales(c, 1) };
    op_quantize_micro(c->be, z, x, rows.offsets, row_rule(c, w));
    return z;
}

static Tensor weight_scratch(const Pass *c, DType d, Tensor w, int64_t rows, int64_t cols)
{
    return w.rank == 3 ? t3(c->scratch, "scratch", d, w.n[0], rows, cols) : scratch2(c, d, rows, cols);
}

/* A part is cut from the codes of the whole weight, which give it its tensor scale. */
static MicroCodes code_weight(const Pass *c, WeightPart p)
{
    Precision  f = format_of(c);
    Tensor     w = p.of->shard.w;
    int64_t    N = w.n[w.rank - 2], K = w.n[w.rank - 1];
    int64_t    rows = p.transposed ? K : N, cols = p.transposed ? N : K;
    MicroCodes z = { f, weight_scratch(c, micro_code_type(f), w, rows, micro_bytes(f, cols)),
                     weight_scratch(c, micro_scale_type(f), w, rows, micro_groups(f, cols)),
                     tensor_scales(c, w.rank == 3 ? w.n[0] : 1) };
    op_quantize_micro(c->be, z, w, none,
                      (MicroRule){ .blocks = f == PREC_NVFP4, .transposed = p.transposed });
    if (p.rows) z.q = t_rows(z.q, p.from, p.rows), z.scale = t_rows(z.scale, p.from, p.rows);
    return z;
}

void micro_product(const Pass *c, Tensor y, Tensor x, WeightPart w, Tensor bias, Tensor res)
{
    ArenaMark  mark = arena_mark(c->scratch);
    MicroCodes a = code_rows(c, x, w, (ExpertRows){ .capacity = x.n[0] }), b = code_weight(c, w);
    op_gemm_micro(c->be, y, a, b, bias, res);
    arena_reset(c->scratch, mark);
}

void micro_experts(const Pass *c, Tensor y, Tensor x, WeightPart w, ExpertRows rows)
{
    ArenaMark  mark = arena_mark(c->scratch);
    MicroCodes a = code_rows(c, x, w, rows), b = code_weight(c, w);
    op_grouped_gemm_micro(c->be, y, a, b, rows.offsets);
    arena_reset(c->scratch, mark);
}
