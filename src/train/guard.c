/* train/guard.c -- see guard.h. */
#include "train/guard.h"

#include <math.h>
#include <signal.h>
#include <stddef.h>

const char *guard_verdict_text(StepVerdict v)
{
    static const char *const texts[] = {
        [STEP_GOOD]       = "good",
        [STEP_NOT_FINITE] = "the loss or the gradient is not finite",
        [STEP_SPIKE]      = "the loss is far above every loss before it",
        [STEP_EMPTY]      = "no token of the step is supervised",
        [STEP_HELD]       = "a step before it was bad",
    };
    return texts[v];
}

double guard_spike_factor(const Guard *g, int64_t ahead)
{
    return g->taken + ahead >= g->history ? g->spike : 0;
}

StepVerdict guard_classify(const Guard *g, double loss, double norm, int64_t supervised)
{
    if (!isfinite(loss) || !isfinite(norm)) return STEP_NOT_FINITE;
    if (supervised <= 0) return STEP_EMPTY;
    double spike = guard_spike_factor(g, 0);
    if (spike > 0 && g->highest > 0 && loss > spike * g->highest) return STEP_SPIKE;
    return STEP_GOOD;
}

Status guard_record(Guard *g, StepVerdict v, double loss, double norm)
{
    if (v == STEP_GOOD) {
        g->in_a_row = 0, g->taken++;
        if (loss > g->highest) g->highest = loss;
        return OK;
    }
    g->skipped++, g->in_a_row++, g->last = v;
    if (v == STEP_EMPTY && !g->taken && g->in_a_row == GUARD_EMPTY)
        return fail(E_DATA,
                    "the first %d steps have no supervised token: there is nothing to learn in "
                    "data.train. `treb data inspect RECIPE` shows which tokens count; check data.loss, "
                    "data.template, \"loss\" and \"weight\" of the messages",
                    GUARD_EMPTY);
    if (!g->limit || g->in_a_row < g->limit) return OK;
    return fail(E_CHECK,
                "%lld steps in a row were skipped, the last because %s (loss %g, gradient norm %g); look at "
                "the data, lower optim.learning_rate, or raise train.max_skipped_steps",
                (long long)g->in_a_row, guard_verdict_text(v), loss, norm);
}

/* Signal handlers can only reach globals. */
static volatile sig_atomic_t received;

static const int watched[] = { SIGTERM, SIGINT, SIGUSR1, SIGHUP, SIGQUIT };
enum { WATCHED = sizeof watched / sizeof *watched };

static void on_signal(int sig)
{
    if (sig == SIGINT && received == SIGINT) {               /* the second one ends the process */
        signal(SIGINT, SIG_DFL);
        raise(SIGINT);
    }
    received = sig;
}

/* One that is ignored stays so: nohup ignores SIGHUP. */
static void watch(int sig, const struct sigaction *act)
{
    struct sigaction was;
    if (!sigaction(sig, NULL, &was) && was.sa_handler != SIG_IGN) sigaction(sig, act, NULL);
}

void guard_signals_on(void)
{
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    sigemptyset(&act.sa_mask);
    received = 0;
    for (int i = 0; i < WATCHED; i++) watch(watched[i], &act);
    signal(SIGXFSZ, SIG_IGN);
}

void guard_signals_off(void)
{
    struct sigaction act = { .sa_handler = SIG_DFL };
    for (int i = 0; i < WATCHED; i++) watch(watched[i], &act);
    signal(SIGXFSZ, SIG_DFL);
}

int guard_signal(void) { return (int)received; }
