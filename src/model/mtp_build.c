/* model/mtp_build.c -- the parameters that predict further tokens, under the names of the hub: those of a
 * layer behind the last, and three norms and a product of its own. Files have the embedding and the head once
 * more there; both are the model's. */
#include "model/build.h"

/* On another stage than the embedding it has a table of its own; the embedding's counts for it. */
static Param *build_embed(Model *m, const char *name)
{
    if (m->embed) return m->embed;
    if (m->shape.text.tied) return m->head.w;
    params_unit(&m->params);
    Param *p = build_table(m, name);
    p->tied_copy = true, p->shard.unique = 0;
    return p;
}

void build_mtp(Model *m, int moe, const char *embed)
{
    const TextShape *t = &m->shape.text;
    ParamSet   *s = &m->params;
    const char *at = m->shape.text_prefix;
    int         l = (int)t->L;
    build_layer(s, &m->layer[l], &m->shape, l, moe);
    m->mtp.enorm = build_norm(s, t, t->D, "%slayers.%d.enorm.weight", at, l);
    m->mtp.hnorm = build_norm(s, t, t->D, "%slayers.%d.hnorm.weight", at, l);
    m->mtp.w     = param_matrix(s, G_LLM, t->D, 2 * t->D, "%slayers.%d.eh_proj.weight", at, l);
    m->mtp.norm  = build_norm(s, t, t->D, "%slayers.%d.shared_head.norm.weight", at, l);
    m->mtp.embed = build_embed(m, embed);
}
