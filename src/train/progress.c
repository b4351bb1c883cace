/* train/progress.c -- see progress.h. */
#include "train/progress.h"

#include "base/clock.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static double time_product(Backend *be, Tensor *t)
{
    double from = clock_now();
    op_gemm(be, t[0], t[1], t[2], (Tensor){ 0 }, GEMM_NT);
    return backend_sync(be) ? INFINITY : clock_now() - from;
}

/* What the data sheet says, where there is one. Else products that grow while they do not take long, then the
 * same one again for the rest of 50 milliseconds: the best of them, on a machine that others may use too. */
Status peak_measure(Backend *be, DType dtype, double *flops)
{
    enum { LEAST = 128, MOST = 1024 };
    Arena a;
    Tensor t[3];
    double best = 0, from = clock_now();
    *flops = be->device->peak ? be->device->peak(dtype) : 0;
    if (*flops > 0) return OK;
    TRY(backend_arena_open(be, &a, "peak", 3 * (size_t)MOST * MOST * dtype_size(dtype)));
    for (int64_t n = 0, next = LEAST; clock_now() - from < 0.05 || next != n;) {
        if (next != n) {
            n = next;
            arena_clear(&a);
            for (int i = 0; i < 3; i++) t[i] = t2(&a, "peak", dtype, n, n);
            for (int i = 0; i < 3; i++) op_fill(be, t[i], 0.5f);
        }
        double took = time_product(be, t);
        best = fmax(best, 2.0 * (double)(n * n * n) / took);
        if (took < 0.1 && n < MOST) next = 2 * n;
    }
    Status st = backend_sync(be);
    backend_arena_close(be, &a);
    *flops = best;
    return st;
}

const char *progress_time_text(char out[32], double s)
{
    long n = s > 0 && s < 1e9 ? lround(s) : 0;
    if (n < 100)        snprintf(out, 32, "%lds", n);
    else if (n < 6000)  snprintf(out, 32, "%ldm", (n + 30) / 60);
    else if (n < 86400) snprintf(out, 32, "%ldh%02ldm", n / 3600, n / 60 % 60);
    else                snprintf(out, 32, "%ldd%02ldh", n / 86400, n / 3600 % 24);
    return out;
}

/* 3 significant digits and a letter. */
static const char *count_text(char out[32], double n)
{
    static const char letters[] = " kMGTP";
    int i = 0;
    for (; n >= 999.5 && i < 5; i++) n /= 1000;
    snprintf(out, 32, "%.*f%.*s", n < 9.995 ? 2 : n < 99.95 ? 1 : 0, n, i > 0, &letters[i]);
    return out;
}

static double ratio(double a, double b) { return b > 0 ? a / b : 0; }

bool progress_due(const Progress *p, int64_t step) { return step % p->every == 0 || step == p->steps; }

static void take_in(Progress *p, const StepReport *r)
{
    StepReport *s = &p->sum;
    bool good = r->verdict == STEP_GOOD;
    p->n++, p->good += good, p->skipped += !good;
    s->step = r->step, s->lr = r->lr, s->epoch = r->epoch, s->bad_samples = r->bad_samples;
    s->seconds += r->seconds, s->waited += r->waited, s->work += r->work, s->exposed += r->exposed;
    s->sliced += r->sliced;
    s->sums.tokens += r->sums.tokens, s->sums.room += r->sums.room, s->sums.visual += r->sums.visual;
    s->sums.patches += r->sums.patches, s->sums.supervised += r->sums.supervised;
    flops_add(&s->sums.model, &r->sums.model);
    for (int i = 0; i < PART_N; i++) {
        s->part[i] += r->part[i];
        p->peak = fmax(p->peak, ratio(r->sums.model.part[i], r->part[i]));   /* seen is as good as measured */
    }
    if (good || p->every == 1) {                             /* a mean over NaN says nothing of the others */
        s->sums.ce += r->sums.ce, s->sums.aux += r->sums.aux, s->sums.z += r->sums.z;
        s->grad_norm += r->grad_norm;
    }
    p->pace = p->pace > 0 ? 0.9 * p->pace + 0.1 * r->seconds : r->seconds;
}

static const char *const part_names[PART_N] = {
    [PART_VISION] = "vision", [PART_MERGER] = "merger", [PART_DECODER] = "decoder", [PART_HEAD] = "head"
};

static double part_mfu(const Progress *p, int part)
{
    return ratio(ratio(p->sum.sums.model.part[part], p->sum.part[part]), p->peak);
}

static double whole_mfu(const Progress *p)
{
    return ratio(ratio(flops_sum(&p->sum.sums.model), p->sum.seconds), p->peak * p->ranks);
}

static void say_mfu(const Progress *p, char *out, size_t room)
{
    size_t at = (size_t)snprintf(out, room, "mfu %.1f%%", 100 * whole_mfu(p));
    const char *open = " (";
    for (int i = 0; i < PART_N && at < room; i++) {
        if (!part_names[i] || p->sum.part[i] <= 0 || p->sum.sums.model.part[i] <= 0) continue;
        at += (size_t)snprintf(out + at, room - at, "%s%s %.0f", open, part_names[i], 100 * part_mfu(p, i));
        open = " ";
    }
    if (at < room && open[1] == 0) snprintf(out + at, room - at, ")");
}

static void say(const Progress *p)
{
    const StepReport *s = &p->sum;
    double n = p->every == 1 ? 1 : (double)(p->good ? p->good : 1), gib = (double)(1 << 30);
    char rate[32], left[32], mfu[160], aux[40] = "", skipped[40] = "", comm[72] = "", text[512], brief[160];
    say_mfu(p, mfu, sizeof mfu);
    if (p->aux_coeff > 0) snprintf(aux, sizeof aux, "  aux %.2f", s->sums.aux / n);
    if (p->ranks > 1)
        snprintf(comm, sizeof comm, "  comm exposed %.1f%%", 100 * ratio(s->exposed, s->seconds));
    if (s->sliced > 0)
        snprintf(comm + strlen(comm), sizeof comm - strlen(comm), "  moe sliced %.3g",
                 s->sliced / (double)p->n);
    if (p->skipped) snprintf(skipped, sizeof skipped, "  skipped %" PRId64, p->skipped);
    snprintf(text, sizeof text,
             "step %" PRId64 "/%" PRId64 "  loss %.4f%s  grad %.3g  lr %.2g  %s tok/s (useful %.0f%%)  %s  "
             "mem %.2f/%.1f GiB  data wait %.1f%%%s%s  eta %s",
             s->step, p->steps, s->sums.ce / n, aux, s->grad_norm / n, s->lr,
             count_text(rate, ratio((double)s->sums.tokens, s->seconds)),
             100 * ratio((double)s->sums.tokens, (double)s->sums.room), mfu, p->memory / gib,
             p->memory_all / gib, 100 * ratio(s->waited, s->seconds), comm, skipped,
             progress_time_text(left, p->pace * (double)(p->steps - s->step)));
    snprintf(brief, sizeof brief, "step %" PRId64 "/%" PRId64 "  loss %.4f  %s tok/s  mfu %.1f%%  wait "
             "%.0f%%%s  eta %s", s->step, p->steps, s->sums.ce / n, rate, 100 * whole_mfu(p),
             100 * ratio(s->waited, s->seconds), skipped, left);
    if (s->step < p->steps) log_live(p->log, text, brief);
    else                    log_info(p->log, "%s", text);    /* the last one stays */
}

static void put(Progress *p, int64_t step, const char *name, double value)
{
    metrics_put(p->metrics, name, value);
    tensorboard_scalar(p->board, step, name, value);
}

Status progress_put(Progress *p, int64_t step, const Scalar *s, int n)
{
    metrics_begin(p->metrics, step);
    for (int i = 0; i < n; i++) put(p, step, s[i].name, s[i].value);
    TRY(metrics_end(p->metrics));
    return tensorboard_flush(p->board);
}

enum { MOST_SCALARS = 24 };

/* The numbers of a line; routing's are put beside them, since their count is the model's. */
static int scalars(const Progress *p, Scalar out[MOST_SCALARS])
{
    static const char *const mfu_names[PART_N] = { "perf/mfu_vision", "perf/mfu_merger", "perf/mfu_decoder",
                                                   "perf/mfu_head", NULL };
    const StepReport *s = &p->sum;
    double n = p->every == 1 ? 1 : (double)p->good;          /* 0 / 0: all were skipped, and null says so */
    int k = 0;
    out[k++] = (Scalar){ "train/loss", s->sums.ce / n };
    out[k++] = (Scalar){ "train/grad_norm", s->grad_norm / n };
    out[k++] = (Scalar){ "train/learning_rate", s->lr };
    out[k++] = (Scalar){ "train/epoch", s->epoch };
    out[k++] = (Scalar){ "train/skipped_steps", (double)p->skipped };
    out[k++] = (Scalar){ "perf/tokens_per_second_per_gpu",
                         ratio((double)s->sums.tokens, s->seconds * p->ranks) };
    out[k++] = (Scalar){ "perf/useful_tokens", ratio((double)s->sums.tokens, (double)s->sums.room) };
    out[k++] = (Scalar){ "perf/mfu", whole_mfu(p) };
    out[k++] = (Scalar){ "perf/hfu", ratio(ratio(s->work, s->seconds), p->peak * p->ranks) };
    for (int i = 0; i < PART_N; i++)
        if (mfu_names[i] && s->part[i] > 0) out[k++] = (Scalar){ mfu_names[i], part_mfu(p, i) };
    out[k++] = (Scalar){ "perf/step_time", s->seconds / (double)p->n };
    out[k++] = (Scalar){ "perf/data_wait", ratio(s->waited, s->seconds) };
    out[k++] = (Scalar){ "perf/exposed_comm", ratio(s->exposed, s->seconds) };
    if (p->ranks > 1) out[k++] = (Scalar){ "moe/sliced_layers", s->sliced / (double)p->n };
    out[k++] = (Scalar){ "mem/peak_gib", p->memory / (1 << 30) };
    out[k++] = (Scalar){ "data/visual_token_share", ratio((double)s->sums.visual, (double)s->sums.tokens) };
    out[k++] = (Scalar){ "data/bad_samples", (double)s->bad_samples };
    if (p->aux_coeff > 0) out[k++] = (Scalar){ "moe/aux_loss", s->sums.aux / n };
    return k;
}

static Status write_line(Progress *p, const ExpertCounts *routing, const SourceLoss *by)
{
    Scalar s[MOST_SCALARS];
    char   name[512];
    int    n = scalars(p, s);
    metrics_begin(p->metrics, p->sum.step);
    for (int i = 0; i < n; i++) put(p, p->sum.step, s[i].name, s[i].value);
    for (int64_t l = 0; l < routing->layers; l++) {
        snprintf(name, sizeof name, "moe/max_over_mean/layer_%02" PRId64, routing->layer[l]);
        put(p, p->sum.step, name, expert_counts_imbalance(routing, l));
    }
    for (int i = 0; i < by->channels; i++) {
        if (!by->tokens[i]) continue;                        /* it had no turn since the last line */
        snprintf(name, sizeof name, "loss_by_source/%s", by->name[i]);
        put(p, p->sum.step, name, by->loss[i] / (double)by->tokens[i]);
    }
    TRY(metrics_end(p->metrics));
    return tensorboard_flush(p->board);
}

Status progress_step(Progress *p, const StepReport *r, const ExpertCounts *routing, const SourceLoss *by)
{
    take_in(p, r);
    if (!progress_due(p, r->step)) return OK;
    say(p);
    Status st = write_line(p, routing, by);
    p->n = p->good = 0;
    p->sum = (StepReport){ 0 };
    return st;
}
