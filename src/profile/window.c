/* profile/window.c -- see window.h. */
#include "profile/window.h"

#include "base/clock.h"

#include <math.h>
#include <stdlib.h>

static Status end_oldest(Trainer *t, WindowStep *step, int *ended)
{
    WindowStep *s = &step[(*ended)++];
    TRY(trainer_end_step(t, &s->report));
    s->ended = clock_now();
    if (progress_due(&t->progress, s->report.step)) source_loss_clear(&t->source_loss);
    return OK;
}

static Status run_all(Trainer *t, WindowStep *step, int n)
{
    int ended = 0;
    for (int i = 0; i < n; i++) {
        step[i].begins = clock_now();
        TRY(trainer_begin_step(t));
        if (!t->late || t->begun > 1) TRY(end_oldest(t, step, &ended));
    }
    while (t->begun) TRY(end_oldest(t, step, &ended));
    return backend_sync(&t->engine.be);
}

Status window_run(Trainer *t, WindowStep *step, int n)
{
    Progress was = t->progress;
    expert_counts_reset(&t->expert_counts);
    t->progress.every = INT64_MAX, t->progress.steps = t->step + n;
    t->step_ended = clock_now();
    Status st = run_all(t, step, n);
    t->progress.every = was.every, t->progress.steps = was.steps;
    return st;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double window_median(const WindowStep *step, int first, int n)
{
    double *x = n > first ? malloc((size_t)(n - first) * sizeof *x) : NULL, middle = NAN;
    if (!x) return NAN;
    for (int i = first; i < n; i++) x[i - first] = step[i].report.seconds;
    n -= first;
    qsort(x, (size_t)n, sizeof *x, ascending);
    middle = n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
    free(x);
    return middle;
}
