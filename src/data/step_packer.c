/* data/step_packer.c -- see step_packer.h. */
#include "data/step_packer.h"

#include "base/grow.h"
#include <stdlib.h>
#include <string.h>

void step_packer_open(StepPacker *p, const Budget *b, int64_t pass, int ranks, int micro)
{
    *p = (StepPacker){ .pass = pass, .ranks = ranks, .micro = micro };
    packer_open(&p->packer, b);
}

void step_packer_close(StepPacker *p)
{
    packer_close(&p->packer);
    for (int i = 0; i < p->queued; i++) pack_bin_close(&p->queue[i]);
    free(p->queue);
    p->queue = NULL, p->queued = p->cap = 0;
}

static Status queue_push(StepPacker *p, PackBin *bin)
{
    if (!GROW(p->queue, p->cap, p->queued + 1))
        return pack_bin_close(bin), fail(E_FIT, "no memory for a queue of %d micro-batches", p->queued);
    p->queue[p->queued++] = *bin;
    return OK;
}

static bool ended(const StepPacker *p) { return p->position == p->pass; }

/* At the end of a pass any number of queued bins makes a step. */
bool step_packer_has_step(const StepPacker *p)
{
    return p->queued >= p->ranks * p->micro || (ended(p) && p->queued > 0);
}

static Status next_pass(StepPacker *p)
{
    if (p->used == 0)
        return fail(E_DATA, "none of the %lld samples of a pass can be used; `treb data check` says why",
                    (long long)p->pass);
    p->epoch++;
    p->position = p->done = p->used = 0;
    return OK;
}

Status step_packer_put(StepPacker *p, const DocSize *size)
{
    REQUIRE(!step_packer_has_step(p), "a step is waiting to be taken");
    PackBin bin;
    bool    full = false;
    if (size) {
        PackDoc doc = { p->position, *size };
        TRY(packer_add(&p->packer, &doc, &bin, &full));
        if (full) TRY(queue_push(p, &bin));
        p->used++;
    } else
        p->done++;
    p->position++;
    if (!ended(p)) return OK;
    while (packer_flush(&p->packer, &bin)) TRY(queue_push(p, &bin));
    return p->queued ? OK : next_pass(p);
}

/* The last step of a pass takes all documents that are left, spread over its bins; where spreading finds no
 * place for a document the bins stay as they are. */
static Status take_rest(StepPacker *p, PackBin *bins, int n)
{
    bool done;
    TRY(pack_bins_spread(bins, n, p->queue, p->queued, &p->packer.budget, &done));
    for (int i = 0; i < p->queued; i++) {
        if (done) pack_bin_close(&p->queue[i]);
        else bins[i] = p->queue[i];
    }
    p->queued = 0;
    return OK;
}

static Status take_bins(StepPacker *p, PackBin *bins, int n)
{
    if (p->queued < n) TRY(take_rest(p, bins, n));
    else {
        memcpy(bins, p->queue, (size_t)n * sizeof *bins);
        p->queued -= n;
        memmove(p->queue, p->queue + n, (size_t)p->queued * sizeof *bins);
    }
    for (int i = 0; i < n; i++) p->done += bins[i].docs;
    return ended(p) && !p->queued ? next_pass(p) : OK;
}

Status step_packer_take(StepPacker *p, PackBin *out)
{
    REQUIRE(step_packer_has_step(p), "no step is ready");
    int      n     = p->ranks * p->micro;
    PackBin *bins  = calloc((size_t)n, sizeof *bins);
    int     *place = calloc((size_t)n, sizeof *place);
    Status   st    = bins && place ? OK : fail(E_FIT, "no memory for a step of %d micro-batches", n);
    if (!st) st = take_bins(p, bins, n);
    if (!st) st = pack_bins_assign(place, bins, p->ranks, p->micro);
    for (int i = 0; i < n && bins; i++) {
        if (!st) out[i] = bins[place[i]];
        else pack_bin_close(&bins[i]);
    }
    free(bins), free(place);
    return st;
}

double step_packer_epoch(const StepPacker *p) { return (double)p->epoch + (double)p->done / (double)p->pass; }

/* A bin as [position, tokens, patches, supervised, position, …]. */
static Json *bin_state(const PackBin *b)
{
    Json *a = json_array();
    for (int64_t i = 0; i < b->docs; i++) {
        const PackDoc *d = &b->doc[i];
        const int64_t  v[4] = { d->at, d->size.tokens, d->size.patches, d->size.supervised };
        for (int k = 0; k < 4; k++) json_array_append_new(a, json_integer(v[k]));
    }
    return a;
}

static Json *bins_state(const PackBin *b, int n)
{
    Json *a = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(a, bin_state(&b[i]));
    return a;
}

Status step_packer_state(const StepPacker *p, Json **out)
{
    *out = json_pack("{sI sI sI sI sI sI sI so so}", "pass", (json_int_t)p->pass, "tokens",
                     (json_int_t)p->packer.budget.tokens, "patches", (json_int_t)p->packer.budget.patches,
                     "epoch", (json_int_t)p->epoch, "position", (json_int_t)p->position, "done",
                     (json_int_t)p->done, "used", (json_int_t)p->used, "open",
                     bins_state(p->packer.open, p->packer.opens), "queue", bins_state(p->queue, p->queued));
    return *out ? OK : fail(E_FIT, "no memory for the state of the loader");
}

static Status bin_restore(PackBin *b, const StepPacker *p, const Json *a)
{
    size_t n = json_array_size(a);
    if (n == 0 || n % 4) return fail(E_DATA, "a bin of %zu numbers", n);
    for (size_t i = 0; i < n; i += 4) {
        PackDoc d = { json_integer_value(json_array_get(a, i)),
                      { json_integer_value(json_array_get(a, i + 1)),
                        json_integer_value(json_array_get(a, i + 2)),
                        json_integer_value(json_array_get(a, i + 3)) } };
        if (d.at < 0 || d.at >= p->pass || d.size.tokens < 0 || d.size.patches < 0 || d.size.supervised < 0 ||
            pack_over_budget(&p->packer.budget, &d.size))
            return fail(E_DATA, "a document of an impossible size or position");
        TRY(pack_bin_push(b, &d));
    }
    return OK;
}

static Status bins_restore(StepPacker *p, const Json *state)
{
    const Json *open = json_object_get(state, "open"), *queue = json_object_get(state, "queue");
    if (json_array_size(open) > PACK_OPEN) return fail(E_DATA, "%zu open bins", json_array_size(open));
    for (size_t i = 0; i < json_array_size(open); i++)
        TRY(bin_restore(&p->packer.open[p->packer.opens++], p, json_array_get(open, i)));
    for (size_t i = 0; i < json_array_size(queue); i++) {
        PackBin bin = { 0 };
        Status  st  = bin_restore(&bin, p, json_array_get(queue, i));
        if (st) return pack_bin_close(&bin), st;
        TRY(queue_push(p, &bin));
    }
    return OK;
}

static Status check_same(const Json *state, const char *key, int64_t now, const char *way_out)
{
    int64_t then;
    TRY(json_int(state, key, -1, &then));
    if (then == now) return OK;
    return fail(E_CONFIG, "%s was %lld when the state was saved and is %lld now; %s", key, (long long)then,
                (long long)now, way_out);
}

Status step_packer_restore(StepPacker *p, const Json *state)
{
    TRY(check_same(state, "pass", p->pass, "a run continues only with the samples it started with"));
    TRY(check_same(state, "tokens", p->packer.budget.tokens, "set train.micro_tokens back"));
    TRY(check_same(state, "patches", p->packer.budget.patches, "set train.micro_patches back"));
    TRY(json_int(state, "epoch", 0, &p->epoch));
    TRY(json_int(state, "position", 0, &p->position));
    TRY(json_int(state, "done", 0, &p->done));
    TRY(json_int(state, "used", 0, &p->used));
    if (p->epoch < 0 || p->position < 0 || p->position > p->pass || p->done < 0 || p->used < 0)
        return fail(E_DATA, "position %lld of epoch %lld is impossible", (long long)p->position,
                    (long long)p->epoch);
    TRY(bins_restore(p, state));
    return ended(p) && !p->queued ? fail(E_DATA, "the pass ended without its last step") : OK;
}
