/* train/trainer_eval.c -- see trainer_eval.h. */
#include "train/trainer_eval.h"

#include "engine/step_stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Status eval_sources_open(EvalSources *s, const Loader *l, int sources, int64_t rows)
{
    *s = (EvalSources){ .row_cap = rows };
    TRY(source_loss_open(&s->loss, l, sources));
    s->accuracy = calloc((size_t)sources, sizeof *s->accuracy);
    s->rows     = calloc((size_t)rows + 1, sizeof *s->rows);
    if (s->accuracy && s->rows) return OK;
    eval_sources_close(s);
    return fail(E_FIT, "no host memory for the evaluations of %d sources", sources);
}

void eval_sources_close(EvalSources *s)
{
    source_loss_close(&s->loss);
    free(s->accuracy), free(s->rows);
    *s = (EvalSources){ 0 };
}

void eval_sources_clear(EvalSources *s)
{
    source_loss_clear(&s->loss);
    for (int i = 0; i < s->loss.channels; i++) s->accuracy[i] = NAN;
}

void eval_sources_add(EvalSources *s, Engine *e, const Stream *micro, const LoaderDoc *doc)
{
    if (!s->loss.channels || !step_stats_has_rows(e)) return;
    backend_fetch(&e->be, s->rows, t_rows(e->row_loss, 0, s->row_cap));
    source_loss_add(&s->loss, e, micro, doc, s->rows);
}

/* A row's channel may be cut to the length of its field. */
static int channel_find(const EvalSources *s, const EvalRow *r)
{
    for (int i = 0; i < s->loss.channels; i++)
        if (!strncmp(s->loss.name[i], r->channel, sizeof r->channel - 1)) return i;
    return -1;
}

void eval_sources_answers(EvalSources *s, const EvalResult *r)
{
    for (int i = 0; i < r->rows; i++) {
        int at = channel_find(s, &r->row[i]);
        if (at >= 0 && r->row[i].asked) s->accuracy[at] = eval_accuracy(&r->row[i]);
    }
}

void eval_sources_log(const EvalSources *s, const Log *log)
{
    for (int i = 0; i < s->loss.channels; i++) {
        char text[64] = "";
        if (!s->loss.tokens[i]) continue;
        if (!isnan(s->accuracy[i])) snprintf(text, sizeof text, "  accuracy %.1f%%", 100 * s->accuracy[i]);
        log_info(log, "     %s  loss %.4f%s  %lld supervised tokens", s->loss.name[i],
                 s->loss.loss[i] / (double)s->loss.tokens[i], text, (long long)s->loss.tokens[i]);
    }
}

int eval_sources_scalars(const EvalSources *s)
{
    int n = 0;
    for (int i = 0; i < s->loss.channels; i++)
        if (s->loss.tokens[i]) n += 1 + !isnan(s->accuracy[i]);
    return n;
}

void eval_sources_put(const EvalSources *s, Scalar *out, char (*name)[256])
{
    for (int i = 0, n = 0; i < s->loss.channels; i++) {
        if (!s->loss.tokens[i]) continue;
        snprintf(name[n], sizeof *name, "eval/loss_by_source/%s", s->loss.name[i]);
        out[n] = (Scalar){ name[n], s->loss.loss[i] / (double)s->loss.tokens[i] }, n++;
        if (isnan(s->accuracy[i])) continue;
        snprintf(name[n], sizeof *name, "eval/accuracy_by_source/%s", s->loss.name[i]);
        out[n] = (Scalar){ name[n], s->accuracy[i] }, n++;
    }
}
