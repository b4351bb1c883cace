/* bench/delta_rule.c -- see bench/delta_rule.h. */
#include "bench/delta_rule.h"

#include "bench/attention.h"

/* Queries and keys of unit length on average. */
static Tensor unit_heads(Case *c, int64_t heads)
{
    const Setup *s = c->s;
    Tensor t = t2(s->a, "bench", s->d, s->T, heads * c->width);
    op_normal(s->be, t, 7, (uint64_t)arena_mark(s->a).used, 0, t.n[1], 1.0f / 11.3f);
    return t_heads(t, 0, heads, c->width);
}

static Tensor filled(const Setup *s, int64_t cols, float value)
{
    Tensor t = t2(s->a, "bench", F32, s->T, cols);
    op_fill(s->be, t, value);
    return t;
}

void make_delta_rule(Case *c)
{
    const Setup *s = c->s;
    int64_t Hk = s->H / 2, Hv = s->H, tiles = (s->T + 63) / 64;
    c->width = 128;                                  /* q k v o | dq dk dv dout | g beta dg dbeta | states */
    for (int i = 0; i < 8; i++)
        c->t[i] = i % 4 < 2 ? unit_heads(c, Hk) : bench_heads(c, s->T, Hv);
    for (int i = 8; i < 12; i++) c->t[i] = filled(s, Hv, i % 2 ? 0.5f : -0.05f);
    c->t[12] = blank(s, s->d, tiles, Hv * c->width * c->width);
    bench_documents(c, s->T, s->docs);
}

void run_delta_rule(void *p)
{
    Case  *c = p;
    Tensor none = { 0 };
    op_delta_rule_fwd(c->s->be, c->t[3], none, c->t[0], c->t[1], c->t[2], c->t[8], c->t[9], none, c->seg,
                      0.0884f);
}

void run_delta_rule_bwd(void *p)
{
    Case  *c = p;
    Tensor none = { 0 };
    op_delta_rule_bwd(c->s->be, c->t[4], c->t[5], c->t[6], c->t[10], c->t[11], none, c->t[12], c->t[7], none,
                      c->t[0], c->t[1], c->t[2], c->t[8], c->t[9], none, c->seg, 0.0884f);
}
