/* infer/evaluate_records.c -- results by sample: of the replicas, joined in the order of the data. */
#include "infer/evaluate_private.h"

#include "base/grow.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

Status eval_open_records(Eval *v)
{
    v->record = calloc(EVAL_BLOCK, sizeof *v->record);
    v->all    = calloc((size_t)v->replicas * EVAL_BLOCK, sizeof *v->all);
    if (!v->record || !v->all) return fail(E_FIT, "no memory for the results of %d replicas", v->replicas);
    if (!v->conf->samples || v->e->mesh.rank) return OK;
    v->file = fopen(v->conf->samples, "w");
    return v->file ? OK : fail(E_IO, "%s: cannot be written: %s", v->conf->samples, strerror(errno));
}

void eval_close_records(Eval *v)
{
    free(v->record), free(v->all);
    text_close(&v->lines), text_close(&v->all_lines);
}

static bool wants_line(const Eval *v, const EvalItem *x)
{
    int64_t lines = v->conf->sample_lines, at = x->position;
    return v->conf->samples && (lines <= 0 || (at + 1) * lines / v->samples > at * lines / v->samples);
}

/* Appends a line to v->lines. */
static Status put_line(Eval *v, const EvalItem *x, const Text *answer, const Text *expected)
{
    EvalRecord *r = &v->record[x->record];
    size_t before = v->lines.n;
    Json  *o = NULL;
    TRY(answer_json(&o, &v->finder, &x->sample, &v->sc, r->channel, answer, expected, r->correct));
    char  *text = json_dumps(o, JSON_COMPACT);
    Status st = text ? text_printf(&v->lines, "%s\n", text)
                     : fail(E_DATA, "%s: the answer cannot be written as JSON", x->sample.record.where);
    r->line = (int64_t)(v->lines.n - before);
    free(text);
    json_decref(o);
    return st;
}

Status eval_score_answer(Eval *v, const EvalItem *x, const Ids *got)
{
    EvalRecord *r = &v->record[x->record];
    Text   answer = { 0 }, expected = { 0 };
    Status st = detokenize(&answer, v->conf->tokenizer, got->v, got->n);
    if (!st) st = detokenize(&expected, v->conf->tokenizer, x->sample.ids.v + x->prompt, x->end - x->prompt);
    r->asked = 1, r->correct = !st && answer_equals(&answer, &expected);
    if (!st && wants_line(v, x)) st = put_line(v, x, &answer, &expected);
    text_close(&answer), text_close(&expected);
    return st;
}

/* ---- joining ---- */

static Status channel_row(EvalResult *r, const char *name, EvalRow **row)
{
    for (int i = 0; i < r->rows; i++)
        if (!strcmp(r->row[i].channel, name)) return *row = &r->row[i], OK;
    EvalRow *more = realloc(r->row, (size_t)(r->rows + 1) * sizeof *more);
    if (!more) return fail(E_FIT, "no memory for %d channels", r->rows + 1);
    r->row = more;
    *row = &r->row[r->rows++];
    **row = (EvalRow){ 0 };
    snprintf((*row)->channel, sizeof (*row)->channel, "%s", name);
    return OK;
}

static Status add_record(EvalResult *r, const EvalRecord *x)
{
    EvalRow *row = NULL;
    r->skipped += x->skipped;
    if (!x->evaluated) return OK;
    TRY(channel_row(r, x->channel, &row));
    row->samples++, row->supervised += x->supervised, row->ce += x->ce;
    row->asked += x->asked, row->correct += x->correct;
    return OK;
}

/* Brings this replica's lines to the length of the longest, and allocates a buffer for those of all. */
static Status pad_lines(Eval *v, size_t *longest)
{
    double most = (double)v->lines.n;
    comm_host_max(v->e->mesh.comm[GR_dp], &most, 1);
    *longest = (size_t)most;
    while (v->lines.n < *longest) TRY(text_push(&v->lines, "\n", 1));
    if (!*longest || GROW(v->all_lines.v, v->all_lines.cap, *longest * (size_t)v->replicas)) return OK;
    return fail(E_FIT, "no memory for the answers of %d replicas", v->replicas);
}

/* Lines of a replica lie in the order of its records. */
static Status write_lines(Eval *v, size_t longest)
{
    size_t *at = calloc((size_t)v->replicas, sizeof *at), failed = 0;
    if (!at) return fail(E_FIT, "no memory for the answers of %d replicas", v->replicas);
    for (int i = 0; i < EVAL_BLOCK * v->replicas; i++) {
        int    k = i % v->replicas;
        size_t n = (size_t)v->all[k * EVAL_BLOCK + i / v->replicas].line;
        failed |= fwrite(v->all_lines.v + (size_t)k * longest + at[k], 1, n, v->file) != n;
        at[k] += n;
    }
    free(at);
    return failed ? fail(E_IO, "%s: cannot be written: %s", v->conf->samples, strerror(errno)) : OK;
}

static Status join_lines(Eval *v)
{
    size_t longest = 0;
    Comm  *world = v->e->mesh.comm[GR_world];
    TRY(comm_agree(world, pad_lines(v, &longest)));
    if (longest) comm_host_gather(v->e->mesh.comm[GR_dp], v->all_lines.v, v->lines.v, longest);
    v->lines.n = 0;
    return comm_agree(world, v->file && longest ? write_lines(v, longest) : OK);
}

Status eval_join_records(Eval *v)
{
    Status st = OK;
    comm_host_gather(v->e->mesh.comm[GR_dp], v->all, v->record, EVAL_BLOCK * sizeof *v->record);
    for (int i = 0; i < EVAL_BLOCK * v->replicas && !st; i++)
        st = add_record(v->out, &v->all[i % v->replicas * EVAL_BLOCK + i / v->replicas]);
    TRY(comm_agree(v->e->mesh.comm[GR_world], st));
    return v->conf->samples ? join_lines(v) : OK;
}
