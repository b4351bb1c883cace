/* plan/published_print.c -- what was published beside what the formulas say, as tables for a page. */
#include "plan/published.h"

#include <math.h>

static const char *const precisions[] = { "BF16", "FP8", "MXFP8" };

static void layout(char *text, size_t size, const Candidate *c)
{
    snprintf(text, size, "%d/%d/%d/%d", c->tp, c->pp, c->vpp, c->ep);
}

static Status memory_line(FILE *out, const PublishedMemory *m)
{
    char measured[32], off[16];
    double gb, middle = (m->low + m->high) / 2;
    int stage;
    TRY(published_bytes(&gb, &stage, m));
    if (m->low <= 0) snprintf(measured, sizeof measured, "fits %.0f", m->high);
    else if (m->high > 500) snprintf(measured, sizeof measured, "over %.1f", m->low);
    else if (m->high > m->low) snprintf(measured, sizeof measured, "%.0f - %.0f", m->low, m->high);
    else snprintf(measured, sizeof measured, "%.1f", m->low);
    if (m->low > 0 && m->high <= 500) snprintf(off, sizeof off, "%+.1f %%", 100 * (gb / middle - 1));
    else snprintf(off, sizeof off, "%s", gb >= m->low && gb < m->high ? "yes" : "no");
    fprintf(out, "| %s | %s | %s | %.1f | %d | %s | %s |\n", m->id, m->what, measured, gb, stage, off,
            m->note);
    return OK;
}

static Status speed_line(FILE *out, const PublishedSpeed *p)
{
    char cut[48];
    StepTime s;
    ModelRow m;
    Task t;
    TRY(published_time(&s, &p->run));
    TRY(published_task(&t, &m, &p->run));
    layout(cut, sizeof cut, &p->run.c);
    double counted = p->tokens * analytic_flops_token(&m, p->run.seq) / 1e12;
    double tokens = s.tokens_s / p->run.gpus;
    fprintf(out, "| %s | %s | %s | %s | %.0f | %.1f | %.1f | %+.2f %% | %.0f | %+.0f %% | %s |\n", p->id,
            p->what, precisions[p->run.precision], cut, p->tokens, p->tflops, counted,
            100 * (counted / p->tflops - 1), tokens, 100 * (tokens / p->tokens - 1), p->note);
    return OK;
}

static Status pair_line(FILE *out, const PublishedPair *p)
{
    double ratio;
    TRY(published_ratio(&ratio, p));
    fprintf(out, "| %s | %s | %.3f | %.3f | %s |\n", p->id, p->what, p->ratio, ratio, p->note);
    return OK;
}

static Status long_line(FILE *out, const PublishedLong *p)
{
    const Candidate *c = &p->run.c;
    StepTime s;
    ModelRow m;
    Task t;
    int stage = 0, wide = c->tp * c->cp, experts = c->ep * c->etp;
    TRY(published_task(&t, &m, &p->run));
    analytic_time(&s, &t, c);
    double peak = analytic_peak(&t, c, &stage), share = peak / t.hw.capacity;
    fprintf(out, "| %s | %s | %d/%d/%d/%d/%d | %d x max(%d, %d) = %d | %d ", p->id, p->what, c->tp, c->cp,
            c->pp, c->vpp, c->ep, c->pp, wide, experts, published_least(p), p->run.gpus);
    fprintf(out, "| %.1f of %.0f, %s | %.0f | ", peak / 1e9, t.hw.capacity / 1e9,
            share <= 0.92 ? "fits" : share <= 0.97 ? "tight" : "does not fit", s.model_tflops);
    if (p->tflops > 0) fprintf(out, "%.0f ", p->tflops);
    fprintf(out, "| %s |\n", p->note);
    return OK;
}

Status published_print(FILE *out)
{
    fputs("| | run | GB measured | GB here | stage | off | |\n|---|---|---|---|---|---|---|\n", out);
    for (int i = 0; published_memory(i); i++) TRY(memory_line(out, published_memory(i)));
    fputs("\n| | run | | tp/pp/vpp/ep | tokens/s/card | TFLOPS | counted here | off | predicted tokens/s | "
          "off | |\n|---|---|---|---|---|---|---|---|---|---|---|\n", out);
    for (int i = 0; published_speed(i); i++) TRY(speed_line(out, published_speed(i)));
    fputs("\n| | change | seconds a token, after over before | here | |\n|---|---|---|---|---|\n", out);
    for (int i = 0; published_pair(i); i++) TRY(pair_line(out, published_pair(i)));
    fputs("\n| | run | tp/cp/pp/vpp/ep | cards at least | cards | GB of a card | TFLOPS | published "
          "| |\n|---|---|---|---|---|---|---|---|---|\n", out);
    for (int i = 0; published_long(i); i++) TRY(long_line(out, published_long(i)));
    return OK;
}
