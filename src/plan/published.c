/* plan/published.c -- rows of published.def as tasks for the formulas. */
#include "plan/published.h"

#define LAYOUT(TP, PP, VPP, EP, MBS)                                                                         \
    .c = { .tp = TP, .cp = 1, .pp = PP, .vpp = VPP, .ep = EP, .etp = 1, .mbs = MBS, .zero = 1 }
#define RUN(MODEL, HW, GPUS, GBS, PREC, GRAD, MOMENT, ...)                                                   \
    { .model = MODEL, .hw = HW, .mtp = -1, .gpus = GPUS, .seq = 4096, .gbs = GBS,                            \
      .precision = PREC_##PREC, .grad = GRAD, .moment = MOMENT, .imbalance = 1, __VA_ARGS__ }
#define OFFLOAD(SHARE) .c.offload = SHARE, .keep_master = true
#define DEEPEP         .c.dispatch = DISPATCHER_deepep
#define HYBRIDEP       .c.dispatch = DISPATCHER_hybridep
#define EIGHT_BITS     .fp8_stash = true
#define LONG_STATE     DEEPEP, .fp8_stash = true, .c.recompute = RE_UP_PROJ | RE_NORM | RE_MOE | RE_MLP
#define TOKENS(N, CP)  .seq = N, .c.cp = CP, .fused = true
#define HEADS_FIRST(N) .c.cp_inner = N
#define OVERLAP        .c.overlap = true
#define EAGER          .launch = 8e-6            /* seconds a kernel started from Python costs */
#define GRAPHS         .launch = 1e-6            /* most of them captured */

#pragma GCC diagnostic ignored "-Woverride-init" /* fields after a run's defaults */

#define MEMORY(...)
#define SPEED(...)
#define PAIR(...)
#define LONG(...)

#undef MEMORY
#define MEMORY(...) { __VA_ARGS__ },
static const PublishedMemory memory_rows[] = {
#include "plan/published.def"
};
#undef MEMORY
#define MEMORY(...)

#undef SPEED
#define SPEED(...) { __VA_ARGS__ },
static const PublishedSpeed speed_rows[] = {
#include "plan/published.def"
};
#undef SPEED
#define SPEED(...)

#undef PAIR
#define PAIR(...) { __VA_ARGS__ },
static const PublishedPair pair_rows[] = {
#include "plan/published.def"
};
#undef PAIR
#define PAIR(...)

#undef LONG
#define LONG(...) { __VA_ARGS__ },
static const PublishedLong long_rows[] = {
#include "plan/published.def"
};

#define AT(rows, i) ((i) >= 0 && (i) < (int)(sizeof rows / sizeof *rows) ? &rows[i] : NULL)

const PublishedMemory *published_memory(int i) { return AT(memory_rows, i); }
const PublishedSpeed  *published_speed(int i)  { return AT(speed_rows, i); }
const PublishedPair   *published_pair(int i)   { return AT(pair_rows, i); }
const PublishedLong   *published_long(int i)   { return AT(long_rows, i); }

int published_least(const PublishedLong *p)
{
    const Candidate *c = &p->run.c;
    int wide = c->tp * c->cp, experts = c->ep * c->etp;
    return c->pp * (wide > experts ? wide : experts);
}

Status published_task(Task *t, ModelRow *room, const PublishedRun *r)
{
    const ModelRow *m = model_row(r->model);
    REQUIRE(m, "published row of %s: no such model", r->model);
    *room = *m;
    if (r->mtp >= 0) room->mtp = r->mtp;
    *t = (Task){ .model = room, .gpus = r->gpus, .seq = r->seq, .gbs = r->gbs, .precision = r->precision,
                 .grad_bytes = r->grad, .moment_bytes = r->moment, .master_bytes = 4,
                 .imbalance = r->imbalance, .foreign = true, .unfused_logits = !r->fused, .thin_overlap = true,
                 .keep_core = true, .keep_fc2 = r->keep_fc2, .keep_master = r->keep_master,
                 .fp8_stash = r->fp8_stash, .launch = r->launch };
    return hardware_find(&t->hw, r->hw);
}

Status published_bytes(double *gb, int *stage, const PublishedMemory *p)
{
    Task t;
    ModelRow m;
    *gb = 0, *stage = 0;
    TRY(published_task(&t, &m, &p->run));
    for (int i = 0; i < p->run.c.pp; i++) {
        StageMemory s;
        analytic_memory(&s, &t, &p->run.c, i);
        double bytes = p->scope == SCOPE_STATE ? s.weights + s.grads + s.optimizer : s.total - s.fixed;
        if (bytes / 1e9 > *gb) *gb = bytes / 1e9, *stage = i;
    }
    return OK;
}

Status published_time(StepTime *s, const PublishedRun *r)
{
    Task t;
    ModelRow m;
    TRY(published_task(&t, &m, r));
    analytic_time(s, &t, &r->c);
    return OK;
}

Status published_ratio(double *ratio, const PublishedPair *p)
{
    StepTime a, b;
    TRY(published_time(&a, &p->before));
    TRY(published_time(&b, &p->after));
    *ratio = a.tokens_s / p->before.gpus / (b.tokens_s / p->after.gpus);
    return OK;
}
