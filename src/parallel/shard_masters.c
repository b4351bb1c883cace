/* parallel/shard_masters.c -- weights that a rank reads in 8 bits alone and updates whole (level 0): f32
 * masters and codes hold all of it, and there is no weight in the dtype of the model.
 *
 * Codes have the bits of quantising that weight: some matrices at a time, masters are rounded to it into
 * Shard.stage and quantised from there. Stage is scratch memory, free while weights change, so that a
 * parameter takes two bytes of codes where it takes two of a bf16 weight otherwise. */
#include "parallel/shard_private.h"

enum { STAGE_ELEMS = 16 << 20 };         /* 32 MiB in bf16: enough to fill a GPU */

static int64_t matrix_elems(const Param *p)
{
    return p->shard.shape[p->ndim - 2] * p->shard.shape[p->ndim - 1];
}

bool masters_replace(const ShardConf *c, const Param *p, int level)
{
    bool masters = c->dtype == BF16 && !c->split && c->offload_fraction <= 0;
    return c->fp8 && !c->keep_wide && masters && level == 0 && !p->frozen && precision_only_coded(c->fp8, p);
}

/* At least one matrix; a multiple of ARENA_ALIGN, so that an update has the same bits in any cut. */
void masters_open(Shard *s)
{
    int64_t most = 0, matrix = 0;
    EACH_BUCKET(b, s) {
        if (!b->from_master) continue;
        most = b->slice > most ? b->slice : most;
        EACH_ITEM(i, s, b) matrix = matrix_elems(i->p) > matrix ? matrix_elems(i->p) : matrix;
    }
    if (most > STAGE_ELEMS) most = STAGE_ELEMS > matrix ? STAGE_ELEMS : matrix;
    s->stage_elems = (most + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
}

void masters_stage(Shard *s, ArenaMark *mark)
{
    if (!s->stage_elems) return;
    *mark    = arena_mark(s->scratch);
    s->stage = t1(s->scratch, "scratch", s->conf.dtype, s->stage_elems);
}

void masters_unstage(Shard *s, ArenaMark mark)
{
    if (!s->stage_elems) return;
    arena_reset(s->scratch, mark);
    s->stage = (Tensor){ 0 };
}

/* Matrices [e, e + n) of a stack; all of a matrix. */
static Tensor matrices(Tensor t, int64_t e, int64_t n)
{
    return t_has(t) && t.rank == 3 ? t_rows(t, e, n) : t;
}

static void remake_codes(Shard *s, const Param *p, int64_t e, int64_t n)
{
    const QuantizedWeight *z = &p->shard.fp8;
    const int64_t *of = p->shard.shape;
    int64_t each = matrix_elems(p), shape[3] = { n, of[p->ndim - 2], of[p->ndim - 1] };
    Tensor  master = t_rows(p->shard.master, e * each, n * each), w = t_rows(s->stage, 0, n * each);
    op_set_weight(s->be, w, master, master);
    op_quantize_weight(s->be, matrices(z->q, e, n), matrices(z->scale, e, n), matrices(z->qt, e, n),
                       matrices(z->scale_t, e, n),
                       t_wrap(w.data, s->conf.dtype, p->ndim, p->ndim == 3 ? shape : shape + 1), true);
}

void masters_refresh(Shard *s, const ShardBucket *b)
{
    EACH_ITEM(i, s, b) {
        int64_t E = i->p->ndim == 3 ? i->p->shard.shape[0] : 1, at_once = s->stage_elems / matrix_elems(i->p);
        for (int64_t e = 0; e < E; e += at_once) remake_codes(s, i->p, e, E - e < at_once ? E - e : at_once);
    }
}
