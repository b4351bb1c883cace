/* train/optim.c -- see optim.h. The norm adds parameters in the order of the model's list. */
#include "train/optim.h"

void optim_norm(const Model *m, Backend *be, Tensor sumsq)
{
    ledger_enter(&be->ledger, PART_OPTIM);
    op_fill(be, sumsq, 0.0f);
    for (int i = 0; i < m->params.n; i++)
        if (m->params.p[i]->live) op_sumsq(be, sumsq, m->params.p[i]->g);
}

void optim_step(const Model *m, Backend *be, Tensor sumsq, const OptimConf *conf)
{
    ledger_enter(&be->ledger, PART_OPTIM);
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        if (!p->live) continue;
        AdamW h = conf->adam;
        if (!p->decay && !conf->decay_all) h.decay = 0.0f;
        if (conf->group_lr) h.lr = conf->group_lr[p->group];
        op_adamw(be, p->w, p->master, p->m, p->v, p->g, sumsq, h);
    }
}
