/* parallel/shard_masters.c -- weights that a rank reads in 8 bits alone and updates whole (level 0): f32
 * masters and codes hold all of it, and there is no weight in the dtype of the model.
 *
 * Codes have the bits of quantising that weight: some matrices at a time, masters are rounded to it into
 * Shard.stage, by the update that makes their codes or to be quantised from there. Stage is scratch memory,
 * free while weights change, so that a parameter takes two bytes of codes where it takes two of a bf16 weight
 * otherwise. */
#include "parallel/shard_private.h"

enum { STAGE_ELEMS = 16 << 20 };         /* 32 MiB in bf16: enough to fill a GPU */

int64_t masters_matrix(const Param *p)
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
        EACH_ITEM(i, s, b) matrix = masters_matrix(i->p) > matrix ? masters_matrix(i->p) : matrix;
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

bool masters_next(const Shard *s, const Param *p, MasterPart *x)
{
    const QuantizedWeight *z = &p->shard.fp8;
    int64_t E = p->ndim == 3 ? p->shard.shape[0] : 1, most = s->stage_elems / masters_matrix(p);
    int64_t e = x->e + x->n, n = E - e < most ? E - e : most;
    if (n <= 0) return false;
    *x = (MasterPart){ e, n, { matrices(z->q, e, n), matrices(z->scale, e, n), matrices(z->qt, e, n),
                               matrices(z->scale_t, e, n) } };
    return true;
}

static void remake_codes(Shard *s, const Param *p, const MasterPart *x)
{
    const QuantizedWeight *z = &x->codes;
    int64_t each = masters_matrix(p);
    Tensor  master = t_rows(p->shard.master, x->e * each, x->n * each), w = t_rows(s->stage, 0, x->n * each);
    op_set_weight(s->be, w, master, master);
    op_quantize_weight(s->be, z->q, z->scale, z->qt, z->scale_t,
                       t_wrap(w.data, s->conf.dtype, z->q.rank, z->q.n), true);
}

void masters_refresh(Shard *s, const Param *p)
{
    for (MasterPart x = { 0 }; masters_next(s, p, &x);) remake_codes(s, p, &x);
}
