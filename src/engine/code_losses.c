/* engine/code_losses.c -- see code_losses.h. */
#include "engine/code_losses.h"

#include "ops/quant.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *coded_side_name(CodedSide s) { return s == CODED_X ? "x" : "dy"; }

static bool is_coded(const Engine *e, const Param *p, CodedSide side)
{
    Site site = precision_site(p);
    return site < SITES && e->conf.precision.coded[site][side == CODED_X ? PRODUCT_Y : PRODUCT_DX];
}

Status code_losses_open(CodeLosses *x, const Engine *e)
{
    const ParamSet *s = &e->model.params;
    *x = (CodeLosses){ 0 };
    if (!t_has(e->results.device.codes)) return OK;
    x->tensor = calloc((size_t)(CODED_ROWS * s->n) + 1, sizeof *x->tensor);
    if (!x->tensor) return fail(E_FIT, "no host memory to measure the codes of %d weights", s->n);
    for (int i = 0; i < s->n; i++)
        for (int side = 0; side < CODED_ROWS; side++)
            if (is_coded(e, s->p[i], (CodedSide)side))
                x->tensor[x->n++] = (CodedTensor){ .p = s->p[i], .side = (CodedSide)side };
    return OK;
}

void code_losses_close(CodeLosses *x)
{
    free(x->tensor);
    *x = (CodeLosses){ 0 };
}

static void add_loss(CodeLoss *to, const CodeLoss *x)
{
    to->amax = fmax(to->amax, x->amax);
    to->elements += x->elements, to->flushed += x->flushed, to->saturated += x->saturated;
    to->groups += x->groups, to->not_finite += x->not_finite;
}

static CodeLoss read_cells(const int64_t *cell)
{
    return (CodeLoss){ .amax = (double)quant_float((uint32_t)cell[CODE_AMAX]),
                       .elements = (double)cell[CODE_ELEMENTS], .flushed = (double)cell[CODE_FLUSHED],
                       .saturated = (double)cell[CODE_SATURATED], .groups = (double)cell[CODE_GROUPS],
                       .not_finite = (double)cell[CODE_NOT_FINITE] };
}

/* The first site of the word. */
static Site first_site(Site s)
{
    int i = 0;
    while (strcmp(precision_site_word((Site)i), precision_site_word(s))) i++;
    return (Site)i;
}

void code_losses_add(CodeLosses *x, const ResultBlock *b)
{
    for (CodedTensor *t = x->tensor; t < x->tensor + x->n; t++) {
        const int64_t *rows = b->codes.data;
        CodeLoss       step = read_cells(rows + code_stats_row(t->p, t->side == CODED_DY) * CODE_CELLS);
        add_loss(&t->line, &step);
        add_loss(&x->site[first_site(precision_site(t->p))][t->side], &step);
    }
}

void code_losses_sum_ranks(CodeLosses *x, const Engine *e)
{
    enum { N = SITES * CODED_ROWS, FIELDS = sizeof(CodeLoss) / sizeof(double) };
    double    amax[N];
    CodeLoss *all = &x->site[0][0];
    for (int i = 0; i < N; i++) amax[i] = all[i].amax;
    comm_host_max(e->mesh.comm[GR_world], amax, N);
    comm_host_sum(e->mesh.comm[GR_world], &all->amax, N * FIELDS);
    for (int i = 0; i < N; i++) all[i].amax = amax[i];
}

void code_losses_end_line(CodeLosses *x)
{
    memset(x->site, 0, sizeof x->site);
    for (int i = 0; i < x->n; i++) x->tensor[i].line = (CodeLoss){ 0 };
}

static bool loses_much(const CodeLoss *x)
{
    return x->saturated > 0 || x->not_finite > 0 || x->flushed > x->elements / 2;
}

static Status name_tensor(const CodedTensor *t)
{
    const CodeLoss *x = &t->line;
    const char     *word = precision_site_word(precision_site(t->p));
    return fail(E_CHECK,
                "%s: the rows %s that it multiplies lose much in 8 bits, in %d lines in a row: %.3g %% "
                "became zero, %.0f saturated, %.0f of %.0f groups are not finite; list train.fp8_products "
                "without %s, or set train.precision=bf16", t->p->piece[0].name, coded_side_name(t->side),
                CODE_LOSS_LINES, x->elements > 0 ? 100 * x->flushed / x->elements : 0.0, x->saturated,
                x->not_finite, x->groups, word);
}

Status code_losses_check(CodeLosses *x)
{
    const CodedTensor *found = NULL;
    for (CodedTensor *t = x->tensor; t < x->tensor + x->n; t++) {
        t->lines = loses_much(&t->line) ? t->lines + 1 : 0;
        if (t->lines == CODE_LOSS_LINES && !found) found = t;
    }
    return found ? name_tensor(found) : OK;
}
