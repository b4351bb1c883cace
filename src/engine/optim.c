/* engine/optim.c -- see optim.h. The norm adds tensors in the order of the model's list, a batch of them per
 * op, then ranks in their order. */
#include "engine/optim.h"

/* Elements of the shard that this rank counts: those after p->mine are copies of another rank's (kv heads
 * that ranks share, a tied table). */
static int64_t counted(const Param *p)
{
    int64_t n = p->shard.unique - p->shard.offset;
    if (!p->step.has_grad || !p->shard.is_writer || n < 0) return 0;
    return n < p->shard.len ? n : p->shard.len;
}

/* The elements of tensor i in this rank's shard; after the last tensor the shard is padded with zeros. */
typedef struct Range { int64_t at, n; } Range;

static Range range_of(const Param *p, int i)
{
    int     n;
    const StridedRange *c = piece_ranges(p, i, &n);
    int64_t from = c->local - p->shard.offset, to = from;
    for (int k = 0; k < n; k++) to += c[k].len * c[k].count;
    if (from < 0) from = 0;
    if (to > counted(p)) to = counted(p);
    return (Range){ from, to > from ? to - from : 0 };
}

bool optim_owns_piece(const Param *p, int i) { return range_of(p, i).n > 0; }

/* Of a gradient whose squares are known by strips, those; else the gradient. */
static Addend addend_of(const Param *p, Range r, int64_t cell)
{
    if (p->step.squared && p->pieces == 1 && r.n == t_count(p->shard.g))
        return (Addend){ p->shard.squares, cell, true };
    return (Addend){ t_rows(shard_slice(p, p->shard.g), r.at, r.n), cell, false };
}

void optim_grad_norm(const Model *m, Backend *be, Tensor sumsq, Tensor squares)
{
    const Mesh *mesh = m->params.mesh;
    Addends list;
    int64_t cell = 0;
    list.n = 0;
    ledger_enter(&be->ledger, PART_OPTIM);
    op_fill(be, sumsq, 0.0f);
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        for (int k = 0; k < p->pieces; k++, cell++) {
            Range r = range_of(p, k);
            if (!r.n) continue;
            list.at[list.n++] = addend_of(p, r, cell);
            if (list.n == ADDENDS) op_squares(be, sumsq, squares, &list), list.n = 0;
        }
    }
    if (list.n) op_squares(be, sumsq, squares, &list);
    if (mesh) comm_all_reduce(mesh->comm[GR_world], sumsq, RED_SUM);
}

typedef struct Step { Backend *be; Tensor sumsq; const OptimConf *conf; } Step;

static void step_portion(void *self, const ShardRange *x)
{
    const Step  *s = self;
    const Param *p = x->p;
    AdamW h = s->conf->adam;
    if (!p->decay && !s->conf->decay_all) h.decay = 0.0f;
    if (s->conf->group_lr) h.lr = s->conf->group_lr[p->group];
    if (s->conf->now) h.now = &s->conf->now[p->group];
    const StateBuffers    *t = &x->state;
    const QuantizedWeight *z = x->codes;
    if (z)
        op_adamw_fp8(s->be, z->q, z->scale, z->qt, z->scale_t, x->w, t->master, t->m, t->v, x->g, s->sumsq, h,
                     true);
    else if (t_has(t->m_scale))
        op_adamw_coded(s->be, x->w, t->master, t->m, t->m_scale, t->v, t->v_scale, x->g, s->sumsq, h);
    else op_adamw(s->be, x->w, t->master, t->m, t->v, x->g, s->sumsq, h);
}

void optim_step(Backend *be, Tensor sumsq, const OptimConf *conf, Shard *s)
{
    Step x = { be, sumsq, conf };
    ledger_enter(&be->ledger, PART_OPTIM);
    shard_step(s, step_portion, &x);
}
