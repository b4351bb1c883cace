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

typedef struct Step { Backend *be; Tensor sumsq; const OptimConf *conf; } Step;

static void step_portion(void *self, const Portion *x)
{
    const Step  *s = self;
    const Param *p = x->p;
    AdamW h = s->conf->adam;
    if (!p->decay && !s->conf->decay_all) h.decay = 0.0f;
    if (s->conf->group_lr) h.lr = s->conf->group_lr[p->group];
    op_adamw(s->be, t_rows(own_part(p, p->w), x->at, x->n), x->master, x->m, x->v,
             t_rows(own_part(p, p->g), x->at, x->n), s->sumsq, h);
}

void optim_step(Backend *be, Tensor sumsq, const OptimConf *conf, Shard *s)
{
    Step x = { be, sumsq, conf };
    ledger_enter(&be->ledger, PART_OPTIM);
    shard_step(s, step_portion, &x);
}
