/* infer/evaluate_read.c -- reads the samples of an evaluation and their pictures. */
#include "infer/evaluate_private.h"

#include "base/activity.h"

#include <string.h>

static bool skips_bad(const EvalConf *c) { return !strcmp(c->recipe->data.bad_sample, "skip"); }

/* Ranks that see other files would wait for each other. */
static Status check_same_data(const Eval *v)
{
    double x[2] = { (double)v->data.pass, -(double)v->data.pass };
    comm_host_max(v->e->mesh.comm[GR_world], x, 2);
    if (x[0] + x[1] == 0) return OK;
    return fail(E_DATA, "%s: some ranks see %.0f samples, others %.0f; all of them must see the same files",
                v->conf->key ? v->conf->key : "data.eval", x[0], -x[1]);
}

static Status open_dataset(Eval *v)
{
    const EvalConf *c = v->conf;
    StreamShape ss = shape_stream(&v->e->model.shape);
    ss.bytes = v->e->byte_pixels;
    TRY(sample_conf(&v->sc, c->recipe, c->tokenizer, &c->patch, &ss, &v->e->conf.budget));
    TRY(sample_settings(&v->sc, &v->settings));
    DatasetConf d = { .sources  = c->sources,
                      .key      = c->key ? c->key : "data.eval",
                      .split    = c->split,
                      .held_out = c->split > 0,
                      .once     = true,
                      .tolerant = skips_bad(c),
                      .seed     = (uint64_t)c->recipe->train.seed,
                      .settings = v->settings,
                      .log      = c->log,
                      .format   = { c->tokenizer, v->sc.max_length } };
    return dataset_open(&v->data, &d);
}

Status eval_open_data(Eval *v)
{
    const EvalConf *c = v->conf;
    TRY(comm_agree(v->e->mesh.comm[GR_world], open_dataset(v)));
    TRY(check_same_data(v));
    v->sc.data = &v->data;
    v->samples = c->max_samples > 0 && c->max_samples < v->data.pass ? c->max_samples : v->data.pass;
    return OK;
}

void eval_item_close(EvalItem *x)
{
    sample_close(&x->sample);
    *x = (EvalItem){ 0 };
}

static void set_error(EvalItem *x, Status st)
{
    x->status = st;
    snprintf(x->text, sizeof x->text, "%s", status_text());
}

/* Worker w reads every workers-th item. The error of a sample is recorded in its item. */
static Status read_items(void *arg, int64_t w)
{
    Eval *v = arg;
    for (int64_t i = w; i < v->items; i += v->workers) {
        EvalItem *x = &v->item[i];
        int64_t position = x->position * v->data.pass / v->samples; /* all, or evenly spread */
        activity_mark();
        Status st = sample_load(&x->sample, &v->scratch[w], &v->sc, dataset_id(&v->data, 0, position));
        if (st) set_error(x, st);
        else if (!answer_find(&v->finder, &x->sample.ids, &x->prompt, &x->end)) x->prompt = 0;
    }
    return OK;
}

static bool is_leader(const Mesh *m) { return m->at[AX_TP] + m->at[AX_PP] == 0; }

/* Marks an unusable sample or ends the evaluation, according to data.bad_sample. logs: this rank warns. */
static Status check_item(const Eval *v, EvalItem *x, bool logs)
{
    if (!x->status && !x->sample.drop) return OK;
    bool skip = x->status == OK || (sample_is_bad(x->status) && skips_bad(v->conf));
    if (!skip) return fail(x->status, "%s", x->text);
    if (x->status && logs) log_warn(v->conf->log, "evaluation: %s", x->text);
    x->bad = true;
    return OK;
}

/* Ranks of a replica leave out the same samples: each that one of them cannot read. */
static void share_bad(const Eval *v, EvalItem *x, int64_t n)
{
    double bad[EVAL_BLOCK];
    if (!n) return;
    for (int64_t i = 0; i < n; i++) bad[i] = x[i].bad;
    comm_host_max(v->e->mesh.comm[GR_tp], bad, (int)n);
    comm_host_max(v->e->mesh.comm[GR_pp], bad, (int)n);
    for (int64_t i = 0; i < n; i++) x[i].bad = bad[i] > 0;
}

static Status check_items(Eval *v, EvalItem *x, int64_t n, bool logs)
{
    Status st = OK;
    for (int64_t i = 0; i < n && !st; i++) st = check_item(v, &x[i], logs);
    TRY(comm_agree(v->e->mesh.comm[GR_world], st));
    share_bad(v, x, n);
    for (int64_t i = 0; i < n; i++) v->record[x[i].record].skipped = x[i].bad;
    return OK;
}

static void drop_bad(Eval *v)
{
    int64_t kept = 0;
    for (int64_t i = 0; i < v->items; i++) {
        EvalItem *x = &v->item[i];
        if (x->bad) { eval_item_close(x); continue; }
        if (kept != i) v->item[kept] = *x, *x = (EvalItem){ 0 };
        kept++;
    }
    v->items = kept;
}

/* The channel that the sample's JSON names, else that of its data source. */
static const char *channel_of(const Eval *v, const Sample *s)
{
    const Json *own = s->json ? json_object_get(s->json, "channel") : NULL;
    return json_is_string(own) ? json_string_value(own)
                               : dataset_channel(&v->data, dataset_file(&v->data, s->id)->source);
}

Status eval_read_block(Eval *v)
{
    memset(v->record, 0, EVAL_BLOCK * sizeof *v->record);
    for (v->items = 0; v->items < EVAL_BLOCK; v->items++) {
        int64_t position = v->block + v->items * v->replicas + v->replica;
        if (position >= v->samples) break;
        v->item[v->items] = (EvalItem){ .position = position, .record = (int)v->items };
    }
    Status st = thread_pool_run(&v->pool, v->workers, read_items, v);
    TRY(comm_agree(v->e->mesh.comm[GR_world], st));
    TRY(check_items(v, v->item, v->items, is_leader(&v->e->mesh)));
    drop_bad(v);
    for (int64_t i = 0; i < v->items; i++) {
        EvalRecord *r = &v->record[v->item[i].record];
        snprintf(r->channel, sizeof r->channel, "%s", channel_of(v, &v->item[i].sample));
    }
    return OK;
}

/* ---- pictures ---- */

typedef struct SliceRange { int64_t first, last; } SliceRange;

/* The slices that this rank encodes: of the first stage, which has the tower. */
static SliceRange slices_here(const Eval *v)
{
    SliceRange r = { 0, 0 };
    if (v->e->model.vision.depth) batch_slices(&v->e->mesh, &v->stream, &r.first, &r.last);
    return r;
}

static Status load_item(Eval *v, EvalItem *x, SampleScratch *scratch, SliceRange here)
{
    int64_t at = x->patch;
    for (int64_t k = 0; k < x->sample.slices; k++) {
        bool mine = x->slice + k >= here.first && x->slice + k < here.last;
        if (mine)
            TRY(sample_pixels(stream_patch(&v->stream, at), v->stream.shape.bytes, &x->sample, scratch,
                              &v->sc, k));
        at += (int64_t)x->sample.slice[k].h * x->sample.slice[k].w;
    }
    return OK;
}

static Status load_pixels(void *arg, int64_t w)
{
    Eval *v = arg;
    SliceRange here = slices_here(v);
    for (int64_t i = w; i < v->docs; i += v->workers) {
        activity_mark();
        Status st = load_item(v, &v->batch[i], &v->scratch[w], here);
        if (st) set_error(&v->batch[i], st);
    }
    return OK;
}

Status eval_read_pixels(Eval *v)
{
    Status st = OK;
    if (!v->conf->blind && v->stream.patches) st = thread_pool_run(&v->pool, v->workers, load_pixels, v);
    TRY(comm_agree(v->e->mesh.comm[GR_world], st));
    return check_items(v, v->batch, v->docs, true);
}
