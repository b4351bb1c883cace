/* cli/data_look.c -- see data_look.h. */
#include "cli/data_look.h"

#include "base/num.h"

#include <math.h>
#include <stdlib.h>

static void add_sample(DataLook *d, const Sample *s)
{
    d->size[d->looked++] = s->size;
    d->longest      = max_i64(d->longest, s->size.tokens);
    d->most_patches = max_i64(d->most_patches, s->size.patches);
    d->pictures += s->slices;
    d->sum.tokens += s->size.tokens, d->sum.patches += s->size.patches;
    d->sum.supervised += s->size.supervised;
    d->sum.pairs += (double)s->size.tokens * (double)(s->size.tokens + 1) / 2;
    for (int64_t i = 0; i < s->slices; i++) {
        double patches = (double)s->slice[i].h * s->slice[i].w;
        d->sum.vpairs += patches * patches;
    }
}

static Status look_at(DataLook *d, SampleScratch *t, const SampleConf *c, int64_t id)
{
    Sample s;
    Status st = sample_load(&s, t, c, id);
    if (!st) {
        if (!s.drop) add_sample(d, &s);
        sample_close(&s);
        return OK;
    }
    if (!sample_is_bad(st)) return st;
    if (!d->bad++) snprintf(d->error, sizeof d->error, "%s", status_text());
    return OK;
}

Status data_look(DataLook *d, const DataView *v, const Tokenizer *tokenizer)
{
    SampleScratch t;
    int64_t       n = min_i64(v->data.samples, DATA_LOOK);
    *d = (DataLook){ .samples = v->data.samples };
    TRY(sample_scratch_open(&t, tokenizer));
    Status st = OK;
    for (int64_t i = 0; !st && i < n; i++) st = look_at(d, &t, &v->sample, i * d->samples / n);
    sample_scratch_close(&t);
    return st;
}

/* ---- packing ---- */

typedef struct Packed { int64_t bins, tokens; } Packed;

/* Bins that are full; those that are open at the end are not counted. */
static Status pack(Packed *p, const DataLook *d, const Budget *b)
{
    Packer  packer;
    PackBin bin;
    Status  st   = OK;
    bool    full = false;
    packer_open(&packer, b);
    for (int64_t i = 0; i < d->looked && !st; i++) {
        st = packer_add(&packer, &(PackDoc){ i, d->size[i] }, &bin, &full);
        if (st || !full) continue;
        p->bins++, p->tokens += bin.used.tokens;
        pack_bin_close(&bin);
    }
    packer_close(&packer);
    return st;
}

/* Where too few were looked at to fill a bin, patches alone keep it from being full. */
static double fill_by_patches(const DataLook *d, const Budget *b)
{
    double patches = (double)d->sum.patches / (double)d->sum.tokens * (double)b->tokens;
    return patches > (double)b->patches ? (double)b->patches / patches : 1;
}

Status data_look_content(BatchContent *c, const DataLook *d, const Budget *b)
{
    Packed p = { 0 };
    TRY(pack(&p, d, b));
    *c      = content_of(&d->sum, 0, CONTENT_SAMPLED);
    c->fill = p.bins ? (double)p.tokens / ((double)p.bins * (double)b->tokens) : fill_by_patches(d, b);
    return OK;
}

/* ---- a recipe ---- */

static Status look_at_recipe(DataLook *d, const DataSetup *s)
{
    DataView v;
    if (!s->model.tokenizer) return fail(E_CONFIG, "the model has no tokenizer");
    TRY(data_view_open(&v, s, &s->recipe.data.train, "data.train", true, true));
    Status st = data_look(d, &v, s->model.tokenizer);
    data_view_close(&v);
    if (!st && !d->sum.tokens) st = fail(E_DATA, "data.train: no sample can be used");
    return st;
}

static Status content_of_recipe(BatchContent *c, DataLook *d, const Config *recipe)
{
    DataSetup s;
    if (!d) return fail(E_FIT, "no memory");
    if (!recipe->data.train.n) return fail(E_CONFIG, "data.train is not set");
    TRY(data_setup_of(&s, recipe));
    Status st = look_at_recipe(d, &s);
    if (!st) st = data_look_content(c, d, &s.budget);
    data_setup_close(&s);
    return st;
}

bool data_content(BatchContent *c, const Config *recipe, const Log *log)
{
    DataLook *d = calloc(1, sizeof *d);
    Status    st = content_of_recipe(c, d, recipe);
    free(d);
    if (!st) return true;
    log_warn(log, "%s; times are those of documents of data.max_length and pictures of a usual size",
             status_text());
    return false;
}
