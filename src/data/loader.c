/* data/loader.c -- opening, handing out steps, state and bad samples; see loader_private.h. */
#include "data/chat_template.h"
#include "data/fingerprint.h"
#include "data/loader_private.h"

#include "data/record_form.h"

#include "base/clock.h"
#include "base/cond.h"
#include "base/file_version.h"
#include "base/folder.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_WARNINGS = 20 };

bool loader_is_tolerant(const Loader *l) { return !strcmp(l->conf.recipe->data.bad_sample, "skip"); }

static Status data_open(Loader *l)
{
    const LoaderConf *c = &l->conf;
    const Config     *r = c->recipe;
    bool  train = c->sources->n > 0 && c->sources->item == r->data.train.item;
    Json *settings;
    TRY(sample_conf(&l->sample, r, c->tokenizer, &c->patch, &c->shape, &c->budget));
    TRY(sample_settings(&l->sample, &settings));
    DatasetConf d = {
        .sources = c->sources, .key = train ? "data.train" : "data.eval", .held_out = c->held_out,
        .once = c->once,
        .split = (train && r->data.eval.n == 0) || c->held_out ? r->eval.split : 0,
        .tolerant = loader_is_tolerant(l), .seed = (uint64_t)r->train.seed,
        .settings = settings, .log = c->log,
        .format = { c->tokenizer, l->sample.max_length },
    };
    Status st = dataset_open(&l->data, &d);
    json_decref(settings);
    l->data.conf.settings = NULL;
    TRY(st);
    l->sample.data = &l->data;
    TRY(sample_cache_open(&l->cache, CACHE_ROWS, CACHE_BYTES));
    return index_open(&l->index, l->data.samples);
}

/* Page-locked memory is copied to a device while the host goes on. */
static void pin_stream(const Loader *l, const Stream *s, bool on)
{
    if (l->conf.pin && s->memory) l->conf.pin(s->memory, s->bytes, on);
}

static Status step_open(Loader *l, PendingStep *s)
{
    const LoaderConf *c = &l->conf;
    size_t micro = (size_t)c->micro;
    s->slot    = calloc(micro, sizeof *s->slot);
    s->out     = calloc(micro, sizeof *s->out);
    s->out_doc = calloc(micro, sizeof *s->out_doc);
    if (!s->slot || !s->out || !s->out_doc) return fail(E_FIT, "no memory for %d micro-batches", c->micro);
    for (int k = 0; k < c->micro; k++) {
        TRY(stream_open(&s->slot[k].stream, &c->shape, &c->budget));
        pin_stream(l, &s->slot[k].stream, true);
    }
    return OK;
}

static void step_close(Loader *l, PendingStep *s)
{
    step_clear(l, s);
    for (int k = 0; s->slot && k < l->conf.micro; k++) {
        pin_stream(l, &s->slot[k].stream, false);
        slot_close(&s->slot[k]);
    }
    free(s->slot), free(s->out), free(s->out_doc);
}

static Status streams_open(Loader *l)
{
    const LoaderConf *c = &l->conf;
    l->bins = calloc((size_t)c->ranks * (size_t)c->micro, sizeof *l->bins);
    if (!l->bins) return fail(E_FIT, "no memory for %d micro-batches", c->micro);
    for (int i = 0; i < STEPS; i++) TRY(step_open(l, &l->step[i]));
    return OK;
}

static Status workers_open(Loader *l)
{
    l->workers = l->conf.workers > 0 ? l->conf.workers : cpu_count() > 1 ? cpu_count() - 1 : 1;
    l->scratch = calloc((size_t)l->workers, sizeof *l->scratch);
    if (!l->scratch) return fail(E_FIT, "no memory for %d loader threads", l->workers);
    for (int i = 0; i < l->workers; i++) TRY(sample_scratch_open(&l->scratch[i], l->conf.tokenizer));
    TRY(thread_pool_open(&l->pool, l->workers));
    thread_pool_submit(&l->pool, &l->job, l->workers, loader_worker, l);
    return OK;
}

static Status restore(Loader *l, const Json *state)
{
    int64_t version, seed;
    step_packer_open(&l->packer, &l->conf.budget, l->data.pass, l->conf.ranks, l->conf.micro);
    if (state) {
        TRY(json_int(state, "version", 0, &version));
        TRY(json_int(state, "seed", -1, &seed));
        if (version != LOADER_STATE_VERSION)
            return fail(E_DATA, "version %lld; this program reads version %d", (long long)version,
                        LOADER_STATE_VERSION);
        if (seed != l->conf.recipe->train.seed)
            return fail(E_CONFIG, "train.seed was %lld when the state was saved and is %lld now; set it back",
                        (long long)seed, (long long)l->conf.recipe->train.seed);
        TRY(json_int(state, "skipped", 0, &l->skipped));
        TRY(json_int(state, "bad", 0, &l->bad_pass));
        TRY(json_int(state, "bad_epoch", 0, &l->bad_epoch));
        TRY(step_packer_restore(&l->packer, json_object_get(state, "planner")));
    }
    loader_pack_clear(l);
    return step_packer_state(&l->packer, &l->now);
}

static void list_in_quarantine(Loader *l, const char *where, const char *text, int64_t id, int64_t epoch);

static Status open_all(Loader *l, const Json *state)
{
    TRY(data_open(l));
    TRY(streams_open(l));
    TRY_CTX(restore(l, state), "the saved state of the data loader");
    for (int64_t i = 0; !state && i < l->data.files; i++)
        if (l->data.file[i].file.damage[0])
            list_in_quarantine(l, l->data.file[i].file.path, l->data.file[i].file.damage, -1, 0);
    TRY(workers_open(l));
    pthread_mutex_lock(&l->lock);
    loader_pack_ahead(l);
    pthread_mutex_unlock(&l->lock);
    return OK;
}

enum { PROBED = 64 }; /* records whose keys are looked at when a run starts */

/* Says which keys of the records nothing reads, before a run has trained on half of what its data say. */
static void log_unused_keys(Loader *l)
{
    UnusedKeys unused = { 0 };
    char       text[2048];
    int64_t    step = l->data.samples / PROBED + 1;
    for (int64_t i = 0; i < l->data.samples; i += step) {
        Record r;
        Json  *v = NULL;
        if (dataset_read(&l->data, i, &r)) continue;
        if (r.kind == RECORD_JSON && !json_parse_data(&v, r.text, r.len, "record") &&
            !record_form(v, l->sample.columns))
            unused_keys_add(&unused, v, l->sample.chat.template ? l->sample.chat.template->source : NULL);
        json_decref(v);
        record_close(&r);
    }
    unused_keys_text(&unused, text, sizeof text);
    if (*text)
        log_info(l->conf.log, "keys of data records that are not used (of %lld looked at): %s",
                 (long long)((l->data.samples + step - 1) / step), text);
}

Status loader_open(Loader **out, const LoaderConf *conf, const Json *state)
{
    Loader *l = *out = calloc(1, sizeof *l);
    if (!l) return fail(E_FIT, "no memory for a loader");
    REQUIRE(conf->micro > 0 && conf->ranks > 0 && conf->rank >= 0 && conf->rank < conf->ranks,
            "rank %d of %d, %d micro-batches", conf->rank, conf->ranks, conf->micro);
    l->conf = *conf;
    l->conf.shape.bytes = true;                            /* pixels are 8-bit levels */
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->work, NULL);
    cond_open(&l->ready);
    Status st = open_all(l, state);
    if (!st && conf->rank == 0 && !conf->once) log_unused_keys(l);
    if (st) loader_close(l), *out = NULL;
    return st;
}

static void workers_close(Loader *l)
{
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->lock);
    thread_pool_close(&l->pool);
    for (int i = 0; l->scratch && i < l->workers; i++) sample_scratch_close(&l->scratch[i]);
    free(l->scratch);
}

void loader_close(Loader *l)
{
    if (!l) return;
    workers_close(l);
    for (int i = 0; i < STEPS; i++) step_close(l, &l->step[i]);
    step_packer_close(&l->packer);
    loader_pack_clear(l);
    sample_cache_close(&l->cache);
    index_close(&l->index);
    dataset_close(&l->data);
    json_decref(l->now);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->work);
    pthread_cond_destroy(&l->ready);
    free(l->bins), free(l->text);
    free(l);
}

/* File names may be any bytes; JSON is UTF-8. */
static Json *json_text(const char *text)
{
    Json *v = json_string(text);
    if (v) return v;
    char *plain = strdup(text);
    for (char *p = plain; p && *p; p++)
        if ((unsigned char)*p >= 0x80) *p = '?';
    v = json_string(plain ? plain : "");
    free(plain);
    return v;
}

/* A quarantine file that cannot be written is a warning and does not end the run. */
static void list_in_quarantine(Loader *l, const char *where, const char *text, int64_t id, int64_t epoch)
{
    if (!l->conf.quarantine || l->rewound) return;
    Json *line = json_pack("{so sI sI so}", "where", json_text(where), "sample", (json_int_t)id, "epoch",
                           (json_int_t)epoch, "error", json_text(text));
    FILE  *f    = NULL;
    char *out = line ? json_dumps(line, 0) : NULL;
    Status st   = out ? file_append(&f, l->conf.quarantine) : fail(E_FIT, "no memory for a line");
    if (!st && fprintf(f, "%s\n", out) < 0) st = fail(E_IO, "%s", strerror(errno));
    if (f && fclose(f) && !st) st = fail(E_IO, "%s", strerror(errno));
    if (st) log_warn(l->conf.log, "%s: cannot be written: %s", l->conf.quarantine, status_text());
    free(out);
    json_decref(line);
}

static Status stay_failed(Loader *l, Status st)
{
    if (!l->status) l->status = st, l->text = strdup(status_text());
    return st;
}

/* A bad sample ends the run or, with data.bad_sample: skip, is listed and counted; too many in a pass end
 * it. */
static Status bad_sample(Loader *l, Status status, const char *text, int64_t id, int64_t epoch)
{
    char where[320];
    if (!loader_is_tolerant(l))
        return fail(status, "%s; set data.bad_sample: skip to train without it", text);
    dataset_where(&l->data, id, where, sizeof where);
    list_in_quarantine(l, where, text, id, epoch);
    if (l->warned++ < MOST_WARNINGS && !l->rewound) log_warn(l->conf.log, "left out: %s", text);
    if (epoch != l->bad_epoch) l->bad_epoch = epoch, l->bad_pass = 0;
    l->skipped++, l->bad_pass++;
    double share = l->conf.recipe->data.bad_share;
    if (l->bad_pass < 2 || (double)l->bad_pass <= share * (double)l->data.pass) return OK;
    return fail(E_DATA,
                "%lld of %lld samples are bad, more than %.4g %% (data.bad_share); the latest: %s; see "
                "quarantine.jsonl, or run `treb data check`",
                (long long)l->bad_pass, (long long)l->data.pass, 100 * share, text);
}

static Status bad_samples(Loader *l, const PendingStep *s)
{
    for (int64_t i = 0; i < s->bads; i++)
        TRY(bad_sample(l, s->bad[i].status, s->bad[i].text ? s->bad[i].text : "", s->bad[i].id,
                       s->bad[i].epoch));
    for (int k = 0; s->state == STEP_FILLING && k < l->conf.micro; k++)
        for (int64_t i = 0; i < s->slot[k].docs; i++) {
            const SlotDoc *d = &s->slot[k].doc[i];
            if (d->bad) TRY(bad_sample(l, d->status, d->text ? d->text : "", d->id, s->epoch));
        }
    return OK;
}

static void describe_step(Loader *l, const PendingStep *s, LoaderStep *out)
{
    for (int k = 0; k < l->conf.micro; k++) {
        Stream *m = s->out[k] = &s->slot[k].stream;
        s->out_doc[k]    = s->slot[k].from;
        out->tokens     += m->tokens;
        out->supervised += m->supervised;
        out->patches    += m->patches;
        out->samples    += m->docs;
    }
    out->micro = s->out, out->doc = s->out_doc;
    out->epoch = s->passes;
}

static Status first_failure(const Loader *l)
{
    return l->status ? fail(l->status, "%s", l->text ? l->text : "") : OK;
}

/* Returns when the step is ready or the loader has failed. */
static Status wait_for_step(Loader *l, const PendingStep *s, double *waited)
{
    double   start = clock_now();
    uint64_t seen = 0;
    pthread_mutex_lock(&l->lock);
    if (l->held == HELD) step_clear(l, &l->step[(l->handed - l->held--) % STEPS]);
    loader_pack_ahead(l);
    while (!l->status && !(l->packed > l->handed && step_is_ready(l, s)))
        activity_wait(&l->ready, &l->lock, &l->activity, &seen);
    Status st = first_failure(l);
    pthread_mutex_unlock(&l->lock);
    *waited = clock_now() - start;
    return st;
}

Status loader_next(Loader *l, LoaderStep *out)
{
    PendingStep *s = &l->step[l->handed % STEPS];
    *out = (LoaderStep){ 0 };
    TRY(wait_for_step(l, s, &out->waited));
    Status st = bad_samples(l, s);
    if (!st && s->status) st = fail(s->status, "%s", s->text);
    if (st) return stay_failed(l, st);
    out->skipped = l->skipped;
    if (s->state == STEP_END) {
        s->bads = 0;                                        /* bad samples are reported once */
        return out->epoch = 1, OK;
    }
    pthread_mutex_lock(&l->lock);
    json_decref(l->now);
    l->now = json_incref(s->after);
    l->handed++, l->held++;
    pthread_mutex_unlock(&l->lock);
    return describe_step(l, s, out), OK;
}

const Stream *loader_peek(Loader *l, bool wait)
{
    uint64_t seen = 0;
    pthread_mutex_lock(&l->lock);
    const PendingStep *s = &l->step[l->handed % STEPS];
    if (wait) loader_pack_ahead(l);
    while (wait && !l->status && !(l->packed > l->handed && step_is_ready(l, s)))
        activity_wait(&l->ready, &l->lock, &l->activity, &seen);
    bool made = !l->status && s->state != STEP_END && l->packed > l->handed && step_is_ready(l,
                                                                                             s) && !s->status;
    pthread_mutex_unlock(&l->lock);
    return made ? &s->slot[0].stream : NULL;
}

Status loader_state(Loader *l, Json **out)
{
    *out = json_pack("{si sI sI sI sI sO}", "version", LOADER_STATE_VERSION, "seed",
                     (json_int_t)l->conf.recipe->train.seed, "skipped", (json_int_t)l->skipped, "bad",
                     (json_int_t)l->bad_pass, "bad_epoch", (json_int_t)l->bad_epoch, "planner", l->now);
    return *out ? OK : fail(E_FIT, "no memory for the state of the loader");
}

Status loader_rewind(Loader *l)
{
    uint64_t seen = 0;
    pthread_mutex_lock(&l->lock);
    l->pause = true;
    while (l->busy > 0) activity_wait(&l->ready, &l->lock, &l->activity, &seen);
    for (int i = 0; i < STEPS; i++) step_clear(l, &l->step[i]);
    step_packer_close(&l->packer);
    json_decref(l->now);
    l->now = NULL;
    l->handed = l->packed = l->bad_pass = l->bad_epoch = 0;
    l->held = 0, l->pause = false, l->rewound = true;
    Status st = first_failure(l);
    if (!st) st = restore(l, NULL);
    if (!st) loader_pack_ahead(l);
    pthread_mutex_unlock(&l->lock);
    return st;
}

int64_t loader_samples(const Loader *l) { return l->data.pass; }

Json *loader_fingerprint(const Loader *l) { return fingerprint_dataset(&l->data); }

const char *loader_channel(const Loader *l, int source) { return dataset_channel(&l->data, source); }
