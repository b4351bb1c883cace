/* parallel/shard_base.c -- buckets of a base in int8 or nf4 (nn/base_quant.h): codes of the slice, and whole
 * on every rank what decodes them. model/code_stage.h sets all of it when the weights are loaded. */
#include "parallel/shard_private.h"

#include "ops/weight_code.h"

DType codes_dtype(CodeFormat f) { return f == CODE_NF4 ? U8 : f == CODE_INT8 ? I8 : E4M3; }

/* Elements of a weight's tables; each begins on ARENA_ALIGN bytes of that of its bucket. */
typedef struct TableSizes { int64_t scale, first, group; } TableSizes;

static int64_t rows_of(const Param *p) { return param_local(p) / p->shard.shape[p->ndim - 1]; }

static int64_t aligned(int64_t n, int64_t size)
{
    return (n * size + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN / size;
}

static TableSizes tables_of(CodeFormat f, const Param *p)
{
    if (f == CODE_INT8) return (TableSizes){ .scale = aligned(rows_of(p), 4) };
    return (TableSizes){ aligned(nf4_blocks(param_local(p)), 1), aligned(rows_of(p), 4),
                         aligned(2 * code_groups(p), 4) };
}

static TableSizes bucket_tables(const Shard *s, const ShardBucket *b)
{
    TableSizes sum = { 0 };
    EACH_ITEM(i, s, b) {
        TableSizes t = tables_of(b->format, i->p);
        sum.scale += t.scale, sum.first += t.first, sum.group += t.group;
    }
    return sum;
}

static DType scale_dtype(CodeFormat f) { return f == CODE_NF4 ? U8 : F32; }

size_t base_bytes(const Shard *s, const ShardBucket *b)
{
    TableSizes t = bucket_tables(s, b);
    return arena_bytes(t.scale, scale_dtype(b->format)) + arena_bytes(t.first, I32) +
           arena_bytes(t.group, F32);
}

void base_bind(const Shard *s, ShardBucket *b, Arena *param)
{
    TableSizes t = bucket_tables(s, b);
    b->scale = t1(param, "codes", scale_dtype(b->format), t.scale);
    if (b->format != CODE_NF4) return;
    b->row_first = t1(param, "codes", I32, t.first);
    b->group = t1(param, "codes", F32, t.group);
}

/* Codes of elements [at, at + n) of a flat tensor of codes. */
static Tensor part_of(Tensor q, CodeFormat f, int64_t at, int64_t n)
{
    return t_rows(q, code_bytes(f, at), code_bytes(f, n));
}

static Tensor codes_view(const ShardBucket *b, const ShardItem *i, bool whole)
{
    const Param *p = i->p;
    int64_t      n[3] = { p->shard.shape[0], p->shard.shape[1], p->shard.shape[2] };
    if (!whole)
        return part_of(b->own_q, b->format, p->shard.len ? i->at + p->shard.offset - b->at : 0, p->shard.len);
    n[p->ndim - 1] = code_bytes(b->format, n[p->ndim - 1]);
    return t_wrap(part_of(b->q, b->format, i->at, 0).data, (DType)b->q.dtype, p->ndim, n);
}

void base_point(Shard *s, ShardBucket *b, bool whole)
{
    TableSizes at = { 0 };
    EACH_ITEM(i, s, b) {
        Param     *p = i->p;
        TableSizes t = tables_of(b->format, p);
        int64_t    groups = code_groups(p);
        p->shard.w = (Tensor){ 0 };
        p->shard.codes = (WeightCodes){ .format = b->format, .q = codes_view(b, i, whole) };
        if (b->format == CODE_INT8) p->shard.codes.scale = t_rows(b->scale, at.scale, rows_of(p));
        else {
            p->shard.codes.scale = t_rows(b->scale, at.scale, nf4_blocks(param_local(p)));
            p->shard.codes.first = t_rows(b->row_first, at.first, rows_of(p));
            p->shard.codes.group = t_as2(t_rows(b->group, at.group, 2 * groups), groups, 2);
        }
        at.scale += t.scale, at.first += t.first, at.group += t.group;
    }
}
