/* train/progress.c -- see progress.h. */
#include "train/progress.h"

#include "comm/mesh.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *progress_time_text(char out[32], double s)
{
    long n = s > 0 && s < 1e9 ? lround(s) : 0;
    if (n < 100)        snprintf(out, 32, "%lds", n);
    else if (n < 6000)  snprintf(out, 32, "%ldm", (n + 30) / 60);
    else if (n < 86400) snprintf(out, 32, "%ldh%02ldm", n / 3600, n / 60 % 60);
    else                snprintf(out, 32, "%ldd%02ldh", n / 86400, n / 3600 % 24);
    return out;
}

/* "31.2k": three significant digits and the letter of the thousands. */
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

/* A skipped step has a loss of its own, which only a line of one step shows; an empty step has none. */
static bool has_loss(const Progress *p, const StepReport *r)
{
    return r->verdict == STEP_GOOD || (p->every == 1 && r->verdict != STEP_EMPTY);
}

/* A graph of a whole phase has one length. */
static bool parts_timed(const Progress *p) { return !(p->graphs && p->graphs->phases); }

static void add_times(Progress *p, const StepReport *r)
{
    StepReport *s = &p->sum;
    s->seconds += r->seconds, s->data_wait += r->data_wait;
    s->executed_flops += r->executed_flops, s->chunked_layers += r->chunked_layers;
    s->host_seconds += r->host_seconds, s->launches += r->launches, s->eager_phases += r->eager_phases;
    flops_add(&s->sums.model, &r->sums.model);
    for (int i = 0; i < PART_N; i++) {
        s->part_seconds[i] += r->part_seconds[i];
        if (parts_timed(p))
            p->peak.flops = fmax(p->peak.flops, ratio(r->sums.model.part[i], r->part_seconds[i]));
    }
    p->pace = p->pace > 0 ? 0.9 * p->pace + 0.1 * r->seconds : r->seconds;
}

static void add_step(Progress *p, const StepReport *r)
{
    StepReport *s = &p->sum;
    bool losses = has_loss(p, r);
    p->n++, p->losses += losses, p->skipped += r->verdict != STEP_GOOD;
    p->measured = fmax(p->measured, r->memory_used);
    memcpy(s->comm, r->comm, sizeof s->comm);
    s->step = r->step, s->lr = r->lr, s->epoch = r->epoch, s->bad_samples = r->bad_samples;
    s->sums.tokens += r->sums.tokens, s->sums.token_budget += r->sums.token_budget;
    s->sums.visual += r->sums.visual;
    s->sums.further += r->sums.further;
    if (losses) s->sums.ce += r->sums.ce, s->sums.aux += r->sums.aux, s->grad_norm += r->grad_norm;
    if (losses) s->sums.mtp += r->sums.mtp;
    add_times(p, r);
}

static const char *const part_names[PART_N] = {
    [PART_VISION] = "vision", [PART_MERGER] = "merger", [PART_DECODER] = "decoder", [PART_HEAD] = "head"
};

static bool part_timed(const Progress *p, int part)
{
    return parts_timed(p) && p->sum.part_seconds[part] > 0;
}

static double part_mfu(const Progress *p, int part)
{
    return ratio(ratio(p->sum.sums.model.part[part], p->sum.part_seconds[part]), p->peak.flops);
}

/* FLOP/s of the model on one device. */
static double model_flops(const Progress *p)
{
    return ratio(flops_sum(&p->sum.sums.model), p->sum.seconds * p->ranks);
}

static double mean(const Progress *p, double sum) { return p->losses ? sum / (double)p->losses : NAN; }

static const char *mean_text(char out[32], const Progress *p, const char *format, double sum)
{
    snprintf(out, 32, p->losses ? format : "-", mean(p, sum));
    return out;
}

static void mfu_text(const Progress *p, char *out, size_t size)
{
    size_t at = (size_t)snprintf(out, size, "mfu %.1f%%", 100 * ratio(model_flops(p), p->peak.flops));
    const char *open = " (";
    for (int i = 0; i < PART_N && at < size; i++) {
        if (!part_timed(p, i) || !part_names[i] || p->sum.sums.model.part[i] <= 0) continue;
        at += (size_t)snprintf(out + at, size - at, "%s%s %.0f", open, part_names[i], 100 * part_mfu(p, i));
        open = " ";
    }
    if (at < size && open[1] == 0) snprintf(out + at, size - at, ")");
}

static void put_scalar(Progress *p, int64_t step, const char *name, double value)
{
    metrics_put(p->metrics, name, value);
    tensorboard_scalar(p->board, step, name, value);
    mlflow_scalar(p->mlflow, step, name, value);
}

static Status end_line(Progress *p)
{
    mlflow_flush(p->mlflow);
    TRY(metrics_end(p->metrics));
    return tensorboard_flush(p->board);
}

/* ---- communication ---- */

static CommTime all_groups(const StepReport *s)
{
    CommTime sum = { 0 };
    for (int g = 0; g < LEDGER_GROUPS; g++)
        sum.exposed += s->comm[g].exposed, sum.length += s->comm[g].length;
    return sum;
}

static double hidden(CommTime t) { return fmax(0, 1 - ratio(t.exposed, t.length)); }

/* Groups with less than a thousandth of the step are not named. */
static void comm_text(const StepReport *s, char *out, size_t size)
{
    CommTime    all = all_groups(s);
    double      waits = 100 * ratio(all.exposed, s->seconds);
    size_t      at = (size_t)snprintf(out, size, "  comm exposed %.1f%%", waits);
    const char *open = " (";
    for (int g = 0; g < GR_N && at < size; g++) {
        double share = ratio(s->comm[g].exposed, s->seconds);
        if (share < 1e-3) continue;
        at += (size_t)snprintf(out + at, size - at, "%s%s %.1f", open, group_name((GroupId)g), 100 * share);
        open = " ";
    }
    if (at < size && all.length > 0)
        snprintf(out + at, size - at, "%shidden %.0f%%)", open[1] ? open : "; ", 100 * hidden(all));
}

static void put_comm(Progress *p)
{
    const StepReport *s = &p->sum;
    char     name[64];
    CommTime all = all_groups(s);
    put_scalar(p, s->step, "perf/exposed_comm", ratio(all.exposed, s->seconds));
    if (all.length > 0) put_scalar(p, s->step, "perf/hidden_comm", hidden(all));
    for (int g = 0; g < GR_N; g++) {
        if (s->comm[g].length <= 0) continue;
        snprintf(name, sizeof name, "perf/exposed_comm/%s", group_name((GroupId)g));
        put_scalar(p, s->step, name, ratio(s->comm[g].exposed, s->seconds));
        snprintf(name, sizeof name, "perf/hidden_comm/%s", group_name((GroupId)g));
        put_scalar(p, s->step, name, hidden(s->comm[g]));
    }
}

/* What only some runs have: a balance loss, other ranks, chunked layers, phases without a graph, skipped
 * steps. */
typedef struct Extras { char mtp[48], aux[48], comm[240], chunked[40], eager[40], skipped[40]; } Extras;

static Extras extras(const Progress *p)
{
    const StepReport *s = &p->sum;
    Extras x = { .aux = "" };
    char   mtp[32], aux[32];
    if (s->sums.further) snprintf(x.mtp, sizeof x.mtp, "  mtp %s", mean_text(mtp, p, "%.4f", s->sums.mtp));
    if (p->aux_coeff > 0) snprintf(x.aux, sizeof x.aux, "  aux %s", mean_text(aux, p, "%.2f", s->sums.aux));
    if (p->ranks > 1) comm_text(s, x.comm, sizeof x.comm);
    if (s->chunked_layers > 0)
        snprintf(x.chunked, sizeof x.chunked, "  moe chunked %.3g", s->chunked_layers / (double)p->n);
    if (p->graphs && s->eager_phases) snprintf(x.eager, sizeof x.eager, "  eager %" PRId64, s->eager_phases);
    if (p->skipped) snprintf(x.skipped, sizeof x.skipped, "  skipped %" PRId64, p->skipped);
    return x;
}

static void log_step(const Progress *p)
{
    const StepReport *s = &p->sum;
    const double gib = (double)(1 << 30), wait = 100 * ratio(s->data_wait, s->seconds);
    const double tflops = model_flops(p) / 1e12;
    char   step[48], loss[32], grad[32], rate[32], left[32], mfu[160], text[1700], brief[1100];
    Extras x = extras(p);
    snprintf(step, sizeof step, "step %" PRId64 "/%" PRId64, s->step, p->steps);
    mean_text(loss, p, "%.4f", s->sums.ce), mean_text(grad, p, "%.3g", s->grad_norm);
    count_text(rate, ratio((double)s->sums.tokens, s->seconds));
    progress_time_text(left, p->pace * (double)(p->steps - s->step));
    mfu_text(p, mfu, sizeof mfu);
    snprintf(text, sizeof text,
             "%s  loss %s%s%s  grad %s  lr %.2g  %s tok/s (useful %.0f%%)  %.3g TFLOP/s  %s  "
             "mem %.2f/%.1f GiB (planned %.2f)  data wait %.1f%%%s%s%s%s  eta %s", step, loss, x.mtp, x.aux,
             grad,
             s->lr, rate, 100 * ratio((double)s->sums.tokens, (double)s->sums.token_budget), tflops, mfu,
             p->measured / gib, p->device_memory / gib, p->planned / gib, wait, x.comm, x.chunked, x.eager,
             x.skipped, left);
    snprintf(brief, sizeof brief, "%s  loss %s  %s tok/s  %.3g TFLOP/s  mfu %.1f%%  wait %.0f%%%s  eta %s",
             step, loss, rate, tflops, 1e14 * ratio(tflops, p->peak.flops), wait, x.skipped, left);
    if (s->step < p->steps) log_live(p->log, text, brief);
    else                    log_info(p->log, "%s", text);    /* the last line stays on the screen */
}

Status progress_put(Progress *p, int64_t step, const Scalar *s, int n)
{
    metrics_begin(p->metrics, step);
    for (int i = 0; i < n; i++) put_scalar(p, step, s[i].name, s[i].value);
    return end_line(p);
}

enum { MAX_SCALARS = 39 };

static int train_scalars(const Progress *p, Scalar *out)
{
    const StepReport *s = &p->sum;
    int k = 0;
    out[k++] = (Scalar){ "train/loss", mean(p, s->sums.ce) };        /* NAN, written as null: all skipped */
    out[k++] = (Scalar){ "train/grad_norm", mean(p, s->grad_norm) };
    out[k++] = (Scalar){ "train/learning_rate", s->lr };
    out[k++] = (Scalar){ "train/epoch", s->epoch };
    out[k++] = (Scalar){ "train/skipped_steps", (double)p->skipped };
    out[k++] = (Scalar){ "data/visual_token_share", ratio((double)s->sums.visual, (double)s->sums.tokens) };
    out[k++] = (Scalar){ "data/bad_samples", (double)s->bad_samples };
    if (s->sums.further) out[k++] = (Scalar){ "train/mtp_loss", mean(p, s->sums.mtp) };
    if (p->aux_coeff > 0) out[k++] = (Scalar){ "moe/aux_loss", mean(p, s->sums.aux) };
    if (p->ranks > 1) out[k++] = (Scalar){ "moe/sliced_layers", s->chunked_layers / (double)p->n };
    return k;
}

static int perf_scalars(const Progress *p, Scalar *out)
{
    static const char *const mfu_names[PART_N] = { "perf/mfu_vision", "perf/mfu_merger", "perf/mfu_decoder",
                                                   "perf/mfu_head", NULL };
    static const char *const time_names[PART_N] = { "perf/time_vision", "perf/time_merger",
                                                    "perf/time_decoder", "perf/time_head",
                                                    "perf/time_optimizer" };
    const StepReport *s = &p->sum;
    double gib = (double)(1 << 30);
    int k = 0;
    out[k++] = (Scalar){ "perf/tokens_per_second_per_gpu",
                         ratio((double)s->sums.tokens, s->seconds * p->ranks) };
    out[k++] = (Scalar){ "perf/useful_tokens", ratio((double)s->sums.tokens, (double)s->sums.token_budget) };
    out[k++] = (Scalar){ "perf/tflops", model_flops(p) / 1e12 };
    out[k++] = (Scalar){ "perf/mfu", ratio(model_flops(p), p->peak.flops) };
    out[k++] = (Scalar){ "perf/hfu", ratio(ratio(s->executed_flops, s->seconds), p->peak.flops * p->ranks) };
    for (int i = 0; i < PART_N; i++)
        if (mfu_names[i] && part_timed(p, i)) out[k++] = (Scalar){ mfu_names[i], part_mfu(p, i) };
    for (int i = 0; i < PART_N; i++)
        if (part_timed(p, i))
            out[k++] = (Scalar){ time_names[i], s->part_seconds[i] / (double)(p->n * p->ranks) };
    out[k++] = (Scalar){ "perf/step_time", s->seconds / (double)p->n };
    out[k++] = (Scalar){ "perf/data_wait", ratio(s->data_wait, s->seconds) };
    if (s->launches) {
        out[k++] = (Scalar){ "perf/host_time", s->host_seconds / (double)p->n };
        out[k++] = (Scalar){ "perf/launches", (double)s->launches / (double)p->n };
    }
    if (p->graphs) {
        out[k++] = (Scalar){ "perf/eager_phases", (double)s->eager_phases };
        out[k++] = (Scalar){ "mem/graphs_gib", (double)p->graphs->bytes / gib };
    }
    out[k++] = (Scalar){ "mem/planned_gib", p->planned / gib };
    out[k++] = (Scalar){ "mem/measured_gib", p->measured / gib };
    out[k++] = (Scalar){ "mem/peak_gib", p->measured / gib };
    return k;
}

static void put_code_loss(Progress *p, const char *word, CodedSide side, const CodeLoss *x)
{
    const Scalar s[] = { { "amax", x->amax }, { "flushed", ratio(x->flushed, x->elements) },
                         { "saturated", x->saturated }, { "not_finite", x->not_finite } };
    char name[64];
    for (size_t i = 0; i < sizeof s / sizeof *s; i++) {
        snprintf(name, sizeof name, "fp8/%s/%s/%s", s[i].name, word, coded_side_name(side));
        put_scalar(p, p->sum.step, name, s[i].value);
    }
}

static void put_code_losses(Progress *p)
{
    for (int i = 0; i < SITES && p->codes; i++)
        for (int side = 0; side < CODED_ROWS; side++)
            if (p->codes->site[i][side].groups > 0)
                put_code_loss(p, precision_site_word((Site)i), (CodedSide)side, &p->codes->site[i][side]);
}

/* The layers of experts and the sources of data are as many as the run has: their numbers are put one by
 * one. */
static Status write_line(Progress *p, const ExpertCounts *experts, const SourceLoss *sources)
{
    Scalar  s[MAX_SCALARS];
    char    name[512];
    int     n = train_scalars(p, s);
    int64_t step = p->sum.step;
    n += perf_scalars(p, s + n);
    REQUIRE(n <= MAX_SCALARS, "%d scalars", n);
    metrics_begin(p->metrics, step);
    for (int i = 0; i < n; i++) put_scalar(p, step, s[i].name, s[i].value);
    put_comm(p);
    put_code_losses(p);
    for (int64_t l = 0; l < experts->layers; l++) {
        snprintf(name, sizeof name, "moe/max_over_mean/layer_%02" PRId64, experts->layer[l]);
        put_scalar(p, step, name, expert_counts_imbalance(experts, l));
    }
    for (int i = 0; i < sources->channels; i++) {
        if (!sources->tokens[i]) continue;                   /* no sample of it since the line before */
        snprintf(name, sizeof name, "loss_by_source/%s", sources->name[i]);
        put_scalar(p, step, name, sources->loss[i] / (double)sources->tokens[i]);
    }
    return end_line(p);
}

Status progress_step(Progress *p, const StepReport *r, const ExpertCounts *experts,
                     const SourceLoss *sources)
{
    add_step(p, r);
    if (!progress_due(p, r->step)) return OK;
    log_step(p);
    Status st = write_line(p, experts, sources);
    p->n = p->losses = 0;
    p->sum = (StepReport){ 0 };
    return st;
}
