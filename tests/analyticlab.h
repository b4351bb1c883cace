/* tests/analyticlab.h -- tasks and candidates in one line, for tests of the analytic model. */
#ifndef TESTS_ANALYTICLAB_H
#define TESTS_ANALYTICLAB_H

#include "plan/analytic.h"
#include "lab.h"

/* Its hardware has no speed: nothing is timed on it. */
static inline Task task(const char *model, int gpus, int64_t gbs, int grad, int moment)
{
    Task t = { .model = model_row(model), .gpus = gpus, .seq = 4096, .gbs = gbs, .grad_bytes = grad,
               .moment_bytes = moment, .master_bytes = 4, .imbalance = 1,
               .unfused_logits = true, .foreign = true };
    t.hw.domain = 8;
    return t;
}

static inline Candidate way(int tp, int pp, int ep, int mbs)
{
    return (Candidate){ .tp = tp, .cp = 1, .pp = pp, .vpp = 1, .ep = ep, .etp = 1, .mbs = mbs, .zero = 1 };
}

static inline void near(const char *what, double got, double want, double by)
{
    EXPECT(fabs(got - want) <= by * fabs(want), "%s: %.5g, not %.5g", what, got, want);
}

#endif
