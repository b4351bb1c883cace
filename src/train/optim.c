/* train/optim.c -- see optim.h. The norm adds parameters in the order of the model's list, then ranks in
 * theirs. */
#include "train/optim.h"

/* Elements after p->mine are copies of a neighbour's (kv heads that ranks share, a tied table). */
static int64_t counted(const Param *p)
{
    int64_t n = p->mine - p->own_at;
    if (!p->live || !p->keeper || n < 0) return 0;
    return n < p->own_n ? n : p->own_n;
}

void optim_norm(const Model *m, Backend *be, Tensor sumsq)
{
    const Mesh *mesh = m->params.mesh;
    ledger_enter(&be->ledger, PART_OPTIM);
    op_fill(be, sumsq, 0.0f);
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        if (counted(p)) op_sumsq(be, sumsq, t_rows(own_part(p, p->g), 0, counted(p)));
    }
    if (mesh) comm_all_reduce(mesh->comm[GR_world], sumsq, RED_SUM);
}

static void step_one(const Param *p, Backend *be, Tensor sumsq, const OptimConf *conf)
{
    Tensor none = { 0 };
    AdamW  h = conf->adam;
    if (!p->decay && !conf->decay_all) h.decay = 0.0f;
    if (conf->group_lr) h.lr = conf->group_lr[p->group];
    op_adamw(be, own_part(p, p->w), t_has(p->master) ? own_part(p, p->master) : none, own_part(p, p->m),
             own_part(p, p->v), own_part(p, p->g), sumsq, h);
}

void optim_step(const Model *m, Backend *be, Tensor sumsq, const OptimConf *conf, Shard *s)
{
    ledger_enter(&be->ledger, PART_OPTIM);
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        if (p->live && p->own_n) step_one(p, be, sumsq, conf);
        bool last = i + 1 == m->params.n || m->params.p[i + 1]->unit != p->unit;
        if (last) shard_stepped(s, p->unit);
    }
}
