/* engine/step_results.c -- see step_results.h. */
#include "engine/step_results.h"

#include <stdlib.h>

/* The next tensor of a block; those of 8 bytes an element come first. */
static Tensor cut(char *at, size_t *used, DType d, int64_t rows, int64_t cols)
{
    int64_t n[2] = { rows, cols };
    Tensor  t = t_wrap(at + *used, d, cols ? 2 : 1, n);
    *used += (size_t)t_bytes(t);
    return t;
}

static ResultBlock lay_out(char *at, const StepResultsConf *c, size_t *bytes)
{
    ResultBlock b = { 0 };
    size_t used = 0;
    b.sums  = cut(at, &used, F64, SUMS, 0);
    b.guard = cut(at, &used, F64, GUARD_CELLS, 0);
    b.sumsq = cut(at, &used, F64, 1, 0), b.squares = cut(at, &used, F64, c->tensors, 0);
    if (c->coded) b.codes = cut(at, &used, I64, c->coded, CODE_CELLS);
    if (c->layers) b.counts = cut(at, &used, I32, c->layers * COUNT_KINDS, c->experts);
    if (c->rows) b.row_loss = cut(at, &used, F32, c->micros * c->rows, 1);
    *bytes = used;
    return b;
}

/* Memory for the slots. A device without data copies nothing: its results are zeros. */
static Status open_slots(StepResults *r, Backend *be, size_t bytes)
{
    size_t all = POST_SLOTS * (bytes + ARENA_ALIGN);
    if (be->device->copies) return backend_host_arena_open(be, &r->host, "results", all);
    r->zeros = calloc(1, all + ARENA_ALIGN);
    if (!r->zeros) return fail(E_FIT, "no host memory for the results of a step");
    return OK;
}

Status step_results_open(StepResults *r, Backend *be, Arena *device, const StepResultsConf *conf)
{
    size_t bytes;
    *r = (StepResults){ .conf = *conf };
    lay_out(device->base, conf, &bytes);
    r->all = t1(device, "results", U8, (int64_t)bytes);
    r->device = lay_out(r->all.data, conf, &bytes);
    TRY(open_slots(r, be, bytes));
    for (int i = 0; i < POST_SLOTS; i++) {
        void *at = r->zeros ? r->zeros : t1(&r->host, "results", U8, (int64_t)bytes).data;
        r->slot[i] = lay_out(at, conf, &bytes);
    }
    return OK;
}

void step_results_close(StepResults *r, Backend *be)
{
    if (r->host.base) backend_host_arena_close(be, &r->host);
    free(r->zeros);
    *r = (StepResults){ 0 };
}

/* An f64 of zero has the bits of an i64 of zero. */
static void clear_codes(StepResults *r, Backend *be)
{
    int64_t n = t_count(r->device.codes);
    op_fill(be, t_wrap(r->device.codes.data, F64, 1, &n), 0.0f);
}

void step_results_begin(StepResults *r, Backend *be)
{
    op_fill(be, r->device.sums, 0.0f);
    if (t_has(r->device.counts)) op_fill(be, r->device.counts, 0.0f);
    if (t_has(r->device.codes)) clear_codes(r, be);
}

Tensor step_results_counts(const ResultBlock *b, int64_t layer, int kind)
{
    Tensor row = t_rows(b->counts, layer * COUNT_KINDS + kind, 1);
    return t_wrap(row.data, I32, 1, &row.n[1]);
}

Tensor step_results_row_loss(const StepResults *r, const ResultBlock *b, int micro)
{
    return t_rows(b->row_loss, micro * r->conf.rows, r->conf.rows);
}

void step_results_set_guard(StepResults *r, Backend *be, double highest)
{
    const double guard[GUARD_CELLS] = { [GUARD_HIGHEST] = highest };
    backend_put(be, r->device.guard.data, guard, sizeof guard);
}

void step_results_post(StepResults *r, Backend *be, int slot)
{
    backend_post(be, slot, r->slot[slot].sums.data, r->all);
}

Status step_results_wait(StepResults *r, Backend *be, int slot, double seconds[PART_TIMES])
{
    return backend_wait_post(be, slot, seconds);
}
