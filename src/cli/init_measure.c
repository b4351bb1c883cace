/* cli/init_measure.c -- lengths and pictures of a dataset, by a few hundred of its samples; see init.h. */
#include "cli/init.h"

#include "engine/batching.h"

#include <string.h>

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

Status init_measure(InitRun *x)
{
    DataView  v;
    DataLook *d = &x->data;
    lift_budgets(&x->setup);
    limit_pictures(x);
    TRY(data_view_open(&v, &x->setup, &x->setup.recipe.data.train, "DATA", true, true));
    Status st = data_look(d, &v, x->setup.model.tokenizer);
    data_view_close(&v);
    TRY(st);
    if (!d->looked) return fail(E_DATA, "no sample can be used: %s", d->error);
    if (d->sum.supervised > 0) return OK;
    return fail(E_DATA,
                "no token of the %lld samples that were looked at is supervised: there is nothing to "
                "learn. `treb data inspect` shows which tokens count",
                (long long)d->looked);
}
