/* parallel/shard_codes.c -- buckets whose weights are used in 8 bits alone (ops/quant.h): codes are gathered
 * in place of weights, half the bytes.
 *
 * A slice may end inside a block, so that its scale depends on elements of other ranks. Each rank finds the
 * largest magnitudes of its slices, one call for each group takes their maximum over the ranks, and each rank
 * quantises its slices by the scales of it: the codes are those of the whole weight. Scales are whole on
 * every rank. Codes of a base (ShardConf.base_codes) are set when the weight is loaded (model/fp8_stage.h),
 * with scales of the blocks that the slice touches and zero for the others. Bases in int8 and nf4:
 * shard_base.c. */
#include "parallel/shard_private.h"

#include "ops/weight_code.h"

enum { SCALE_GRID = ARENA_ALIGN / 4 };                       /* scales of a weight begin on ARENA_ALIGN */

bool codes_replace(const ShardConf *c, const Param *p, int level)
{
    if (c->base && base_quant_has(c->base, p)) return true;
    if (!c->fp8 || !precision_only_coded(c->fp8, p)) return false;
    return p->frozen ? c->base_codes : level > 0;
}

CodeFormat codes_format(const ShardConf *c, bool frozen)
{
    return frozen && c->base && c->base->format ? c->base->format : CODE_FP8;
}

static int64_t rows_of(const Param *p) { return p->shard.shape[p->ndim - 2]; }
static int64_t cols_of(const Param *p) { return p->shard.shape[p->ndim - 1]; }
static int64_t stack_of(const Param *p) { return p->ndim == 3 ? p->shard.shape[0] : 1; }

static int64_t blocks_of(const Param *p)
{
    return stack_of(p) * quant_groups(rows_of(p)) * quant_groups(cols_of(p));
}

static int64_t scales_of(const Shard *s, const ShardBucket *b)
{
    int64_t n = 0;
    EACH_ITEM(i, s, b) n += (blocks_of(i->p) + SCALE_GRID - 1) / SCALE_GRID * SCALE_GRID;
    return n;
}

/* ---- memory ---- */

/* Buckets whose scales are one tensor: of a group, of a base or trained. */
static bool shares_scales(const ShardBucket *b, GroupId sums, bool frozen)
{
    return b->coded && b->format == CODE_FP8 && b->sums == sums && b->frozen == frozen;
}

static int64_t scales_of_group(const Shard *s, GroupId sums, bool frozen)
{
    int64_t n = 0;
    EACH_BUCKET(b, s) n += shares_scales(b, sums, frozen) ? scales_of(s, b) : 0;
    return n;
}

static bool keeps_transposed(const Shard *s, const ShardBucket *b)
{
    return b->coded && (b->level == 1 || b->level == 2) && !s->conf.one_layout;
}

size_t codes_bytes(const Shard *s)
{
    size_t n = 0;
    for (int g = 0; g < GR_N; g++)
        for (int frozen = 0; frozen < 2; frozen++)
            n += arena_bytes(scales_of_group(s, (GroupId)g, frozen), F32);
    EACH_BUCKET(b, s) {
        if (b->coded) n += arena_bytes(code_bytes(b->format, b->level == 3 ? b->slice : b->elems), U8);
        if (b->coded && b->format != CODE_FP8) n += base_bytes(s, b);
        if (keeps_transposed(s, b)) n += arena_bytes(b->elems, E4M3) + arena_bytes(scales_of(s, b), F32);
    }
    return n;
}

static void bind_scales(Shard *s, Arena *param, GroupId sums, bool frozen)
{
    int64_t n = scales_of_group(s, sums, frozen), at = 0;
    if (!n) return;
    CodeScales *x = &s->scales[s->scale_groups++];
    *x = (CodeScales){ .frozen = frozen, .t = t1(param, "codes", F32, n) };
    EACH_BUCKET(b, s) {
        if (!shares_scales(b, sums, frozen)) continue;
        x->comm = b->shard_comm, b->scale = t_rows(x->t, at, scales_of(s, b));
        at += scales_of(s, b);
    }
}

void codes_bind(Shard *s, Arena *param)
{
    for (int g = 0; g < GR_N; g++)
        for (int frozen = 0; frozen < 2; frozen++) bind_scales(s, param, (GroupId)g, frozen);
    EACH_BUCKET(b, s) {
        if (!b->coded) continue;
        int64_t n = code_bytes(b->format, b->level == 3 ? b->slice : b->elems);
        Tensor  q = t1(param, "codes", codes_dtype(b->format), n);
        if (b->level < 3) b->q = q;
        b->own_q =
            b->level == 3 ? q : t_rows(q, code_bytes(b->format, b->at), code_bytes(b->format, b->slice));
        if (b->format != CODE_FP8) base_bind(s, b, param);
        if (!keeps_transposed(s, b)) continue;
        b->qt = t1(param, "codes", E4M3, b->elems);
        b->scale_t = t1(param, "codes", F32, scales_of(s, b));
    }
}

/* A matrix or a stack of them, (rows, cols) each, at element `at` of a flat tensor. */
static Tensor stack_view(const Param *p, Tensor flat, int64_t at, int64_t rows, int64_t cols)
{
    int64_t n[3] = { stack_of(p), rows, cols };
    return t_wrap(t_rows(flat, at, 0).data, (DType)flat.dtype, p->ndim, p->ndim == 3 ? n : n + 1);
}

void codes_point(Shard *s, ShardBucket *b, bool whole)
{
    int64_t at = 0;
    if (b->format != CODE_FP8) {
        base_point(s, b, whole);
        return;
    }
    EACH_ITEM(i, s, b) {
        Param  *p = i->p;
        int64_t N = rows_of(p), K = cols_of(p), down = quant_groups(N), across = quant_groups(K);
        QuantizedWeight *z = &p->shard.fp8;
        z->q     = whole ? stack_view(p, b->q, i->at, N, K) : slice_view(i, b, b->own_q);
        z->scale = stack_view(p, b->scale, at, down, across);
        if (t_has(b->qt)) {
            z->qt      = stack_view(p, b->qt, i->at, K, N);
            z->scale_t = stack_view(p, b->scale_t, at, across, down);
        }
        p->shard.w = t_has(b->own_w) ? slice_view(i, b, b->own_w) : (Tensor){ 0 };
        if (b->frozen) p->shard.codes = (WeightCodes){ .format = CODE_FP8, .q = z->q, .scale = z->scale };
        at += (blocks_of(p) + SCALE_GRID - 1) / SCALE_GRID * SCALE_GRID;
    }
}

/* ---- changes ---- */

static WeightSlice slice_of(const Param *p)
{
    return (WeightSlice){ p->shard.offset, rows_of(p), cols_of(p) };
}

void codes_find_amax(Shard *s, ShardBucket *b)
{
    EACH_ITEM(i, s, b)
        op_weight_amax(s->be, i->p->shard.fp8.scale, slice_view(i, b, b->own_w), slice_of(i->p));
}

void codes_quantize(Shard *s, ShardBucket *b)
{
    EACH_ITEM(i, s, b)
        op_quantize_slice(s->be, slice_view(i, b, b->own_q), slice_view(i, b, b->own_w),
                          i->p->shard.fp8.scale, slice_of(i->p));
}

void codes_transpose(Shard *s, const ShardBucket *b)
{
    if (!keeps_transposed(s, b)) return;
    EACH_ITEM(i, s, b) {
        const QuantizedWeight *z = &i->p->shard.fp8;
        op_transpose(s->be, z->qt, z->q);
        op_transpose(s->be, z->scale_t, z->scale);
    }
}

void codes_agree_scales(Shard *s, bool frozen)
{
    for (CodeScales *x = s->scales; x < s->scales + s->scale_groups; x++) {
        if (x->frozen != frozen) continue;
        if (comm_size(x->comm) > 1) comm_all_reduce(x->comm, x->t, RED_MAX);
        if (!frozen) op_amax_scales(s->be, x->t, x->t, true);
    }
}
