/* data/loader_steps.c -- see loader_private.h and loader_steps in loader.h. */
#include "data/index_cache.h"
#include "data/loader_private.h"

#include "base/clock.h"

#include <math.h>

static const double WORTH_KEEPING = 1; /* seconds that it took */

/* Measures the first `n` samples of a pass. */
static Status measure(Loader *l, int64_t epoch, int64_t n)
{
    Meter meter;
    meter_open(&meter, l->conf.log, "measuring samples", METER_COUNT, (double)n);
    IndexRange range = { epoch, n };
    Status     st = index_fill(&l->index, &l->sample, &range, l->workers + 1, loader_is_tolerant(l), &meter);
    meter_close(&meter);
    return st;
}

static Status count_steps(Loader *l, double epochs, int64_t *steps)
{
    *steps = 0;
    for (int64_t e = 0; (double)e < epochs; e++) {
        PassTotals pass;
        double     part = epochs - (double)e;
        TRY(measure(l, e, l->data.pass));
        TRY(index_pack_pass(&l->index, &l->sample, e, l->conf.ranks, l->conf.micro, &pass));
        *steps += part >= 1 ? pass.steps : (int64_t)ceil(part * (double)pass.steps - 1e-9);
    }
    return OK;
}

/* Exact, from kept sizes where there are some. */
static Status count_measured(Loader *l, const StepsAsk *ask, LoaderSteps *out)
{
    bool sizes = index_cache_load(&l->index, ask->key);
    if (sizes)
        log_info(l->conf.log, "data         sizes of %lld samples are known from an earlier start",
                 (long long)l->index.n);
    double from = clock_now();
    TRY(count_steps(l, ask->epochs, &out->steps));
    if (sizes || clock_now() - from < WORTH_KEEPING) return OK;
    if (index_cache_save(&l->index, ask->key))
        log_info(l->conf.log, "sizes of samples are not kept for the next start: %s", status_text());
    return OK;
}

static Status estimate_steps(Loader *l, const StepsAsk *ask, LoaderSteps *out)
{
    PackedHead head;
    TRY(measure(l, 0, ask->measured));
    TRY(index_pack_head(&l->index, &l->sample, ask->measured, &head));
    double bins    = (double)l->data.pass / (double)ask->measured * head.bins;
    double steps   = ask->epochs * bins / (double)l->conf.ranks / (double)l->conf.micro;
    out->steps     = head.bins > 0 && steps < 1 ? 1 : (int64_t)ceil(steps - 1e-9);
    out->within    = 2 * head.error;
    out->estimated = true;
    return OK;
}

/* What took long is kept for the next start. */
Status loader_steps(Loader *l, double epochs, LoaderSteps *out)
{
    enum { WORTH_ESTIMATING = 4 };
    char     key[CACHE_KEY];
    int64_t  few = l->conf.recipe->data.measure_samples;
    bool     all = !few || l->data.pass / WORTH_ESTIMATING <= few;
    StepsAsk ask = { key, &l->data, epochs, l->conf.ranks, l->conf.micro, all ? 0 : few };
    *out = (LoaderSteps){ 0 };
    TRY(index_cache_key(key, &l->sample));
    if (index_cache_load_steps(out, &ask)) return OK;
    double from = clock_now();
    TRY(all ? count_measured(l, &ask, out) : estimate_steps(l, &ask, out));
    if (clock_now() - from < WORTH_KEEPING || !index_cache_save_steps(out, &ask)) return OK;
    log_info(l->conf.log, "the number of steps is not kept for the next start: %s", status_text());
    return OK;
}
