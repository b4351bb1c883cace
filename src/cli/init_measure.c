/* cli/init_measure.c -- lengths and pictures of a dataset, by a few hundred of its samples; see init.h. */
#include "cli/init.h"

#include "engine/batching.h"

#include <stdio.h>
#include <string.h>

enum { LOOK = 400 };

/* Areas above which pictures are reduced unless the recipe says otherwise: what a first run can afford. */
enum { PIXELS_CPU = 1 << 18, PIXELS_GPU = 1 << 21 };

static void lift_budgets(DataSetup *s)
{
    s->recipe.data.max_length = 10000000;
    s->budget =
        (Budget){ .tokens = INT32_MAX, .patches = INT32_MAX, .docs = INT32_MAX, .supervised = INT32_MAX };
}

static void limit_pictures(InitRun *x)
{
    Config *c    = &x->setup.recipe;
    int64_t most = !strcmp(x->hw.backend, "cuda") ? PIXELS_GPU : PIXELS_CPU;
    if (!config_is_set(c, "image", "max_pixels") && c->image.max_pixels > most) c->image.max_pixels = most;
    if (c->image.min_pixels > c->image.max_pixels) c->image.min_pixels = c->image.max_pixels;
    x->setup.patch = batching_patches(c, &x->setup.model.shape.vision);
}

static void add_sample(InitData *d, const Sample *s)
{
    double n = (double)++d->looked;
    if (s->size.tokens > d->longest) d->longest = s->size.tokens;
    if (s->size.patches > d->most_patches) d->most_patches = s->size.patches;
    d->pictures += s->slices;
    d->tokens += ((double)s->size.tokens - d->tokens) / n;
    d->patches += ((double)s->size.patches - d->patches) / n;
    d->supervised += ((double)s->size.supervised - d->supervised) / n;
}

static Status look_at(InitData *d, SampleScratch *t, const SampleConf *c, int64_t id)
{
    Sample s;
    Status st = sample_load(&s, t, c, id);
    if (!st) {
        add_sample(d, &s);
        sample_close(&s);
        return OK;
    }
    if (!sample_is_bad(st)) return st;
    if (!d->bad++) snprintf(d->error, sizeof d->error, "%s", status_text());
    return OK;
}

static Status look(InitData *d, const DataView *v, const Tokenizer *tokenizer)
{
    SampleScratch t;
    int64_t       n = v->data.samples < LOOK ? v->data.samples : LOOK;
    TRY(sample_scratch_open(&t, tokenizer));
    Status st  = OK;
    d->samples = v->data.samples;
    for (int64_t i = 0; !st && i < n; i++) st = look_at(d, &t, &v->sample, i * d->samples / n);
    sample_scratch_close(&t);
    return st;
}

Status init_measure(InitRun *x)
{
    DataView  v;
    InitData *d = &x->data;
    lift_budgets(&x->setup);
    limit_pictures(x);
    TRY(data_view_open(&v, &x->setup, &x->setup.recipe.data.train, "DATA", true, true));
    Status st = look(d, &v, x->setup.model.tokenizer);
    data_view_close(&v);
    TRY(st);
    if (!d->looked) return fail(E_DATA, "no sample can be used: %s", d->error);
    if (d->supervised > 0) return OK;
    return fail(E_DATA,
                "no token of the %lld samples that were looked at is supervised: there is nothing to "
                "learn. `treb data inspect` shows which tokens count",
                (long long)d->looked);
}
