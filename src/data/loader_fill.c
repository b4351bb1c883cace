/* data/loader_fill.c -- see loader_private.h. A slot is one stream: one worker lays out its documents,
 * then any number decode its pictures straight into their place, and the last one closes it. */
#include "data/loader_private.h"

#include <stdlib.h>
#include <string.h>

static void doc_clear(SlotDoc *d)
{
    sample_close(&d->sample);
    free(d->text);
    *d = (SlotDoc){ 0 };
}

static void slot_clear(LoaderSlot *s)
{
    for (int64_t i = 0; i < s->docs; i++) doc_clear(&s->doc[i]);
    pack_bin_close(&s->bin);
    s->docs = s->jobs = s->next = s->left = 0;
    s->state = SLOT_FREE;
}

void slot_close(LoaderSlot *s)
{
    slot_clear(s);
    stream_close(&s->stream);
    free(s->doc), free(s->from), free(s->job);
    *s = (LoaderSlot){ 0 };
}

void step_clear(Loader *l, PendingStep *s)
{
    LoaderSlot *slot = s->slot;
    for (int k = 0; slot && k < l->conf.micro; k++) slot_clear(&slot[k]);
    for (int64_t i = 0; i < s->bads; i++) free(s->bad[i].text);
    free(s->bad), free(s->text);
    json_decref(s->after);
    *s = (PendingStep){ .slot = slot };
}

bool step_is_ready(const Loader *l, const PendingStep *s)
{
    if (s->state == STEP_END) return true;
    for (int k = 0; k < l->conf.micro; k++)
        if (s->state == STEP_FREE || s->slot[k].state != SLOT_READY) return false;
    return true;
}

static void doc_fail(SlotDoc *d, Status st, int64_t slice)
{
    if (d->bad && d->bad_slice <= slice) return;
    free(d->text);
    d->bad = true, d->bad_slice = slice, d->status = st, d->text = strdup(status_text());
}

static Status docs_room(LoaderSlot *s, int64_t n)
{
    if (n <= s->room) return OK;
    SlotDoc   *doc  = realloc(s->doc, (size_t)n * sizeof *doc);
    if (doc) s->doc = doc;
    LoaderDoc *from = realloc(s->from, (size_t)n * sizeof *from);
    if (from) s->from = from;
    if (!doc || !from) return fail(E_FIT, "no memory for %lld documents", (long long)n);
    return s->room = n, OK;
}

static Status job_push(LoaderSlot *s, SlotJob j)
{
    if (s->jobs == s->job_room) {
        int64_t  room = s->job_room ? 2 * s->job_room : 16;
        SlotJob *more = realloc(s->job, (size_t)room * sizeof *more);
        if (!more) return fail(E_FIT, "no memory for %lld pictures", (long long)room);
        s->job = more, s->job_room = room;
    }
    s->job[s->jobs++] = j;
    return OK;
}

/* pixels NULL: the pictures are still to come. */
static Status stream_put(LoaderSlot *s, const SlotDoc *d, const char *pixels)
{
    const Sample *m     = &d->sample;
    VisualSlice        *slice = calloc((size_t)m->slices + 1, sizeof *slice);
    if (!slice) return fail(E_FIT, "no memory for %lld slices", (long long)m->slices);
    for (int64_t i = 0; i < m->slices; i++) {
        slice[i] = (VisualSlice){ m->slice[i].h, m->slice[i].w, pixels };
        if (pixels) pixels += slice[i].h * slice[i].w * s->stream.shape.patch_dim;   /* levels: a byte each */
    }
    Document doc = { m->ids.n, m->ids.v, m->targets.v, m->slices, slice };
    Status   st  = stream_add(&s->stream, &doc);
    free(slice);
    return st;
}

/* A file that changed since its sample was measured is as bad as one that cannot be read. */
static Status doc_load(Loader *l, LoaderSlot *s, SlotDoc *d, SampleScratch *t, const DocSize *planned)
{
    TRY(sample_load(&d->sample, t, &l->sample, d->id));
    const DocSize *size = &d->sample.size;
    if (d->sample.drop || size->tokens != planned->tokens || size->patches != planned->patches)
        return fail(E_DATA, "%s: it changed while the run was reading it", d->sample.record.where);
    d->patch = s->stream.patches;
    TRY_CTX(stream_put(s, d, NULL), "%s", d->sample.record.where);
    return OK;
}

/* Leaves the jobs of pictures that this rank decodes. */
static void own_pictures(const Loader *l, LoaderSlot *s)
{
    const LoaderConf *c = &l->conf;
    int64_t first = 0, last = 0, n = 0;
    if (!c->parts || !strcmp(c->recipe->data.bad_sample, "skip")) return;
    if (c->part < c->parts) stream_share(&s->stream, c->parts, c->part, &first, &last);
    for (int64_t i = 0; i < s->jobs; i++)
        if (s->job[i].patch >= s->stream.vstart[first] && s->job[i].patch < s->stream.vstart[last])
            s->job[n++] = s->job[i];
    s->jobs = n;
}

static Status slot_text(Loader *l, LoaderSlot *s, int64_t epoch, SampleScratch *t)
{
    stream_clear(&s->stream);
    TRY(docs_room(s, s->bin.docs));
    for (int64_t i = 0; i < s->bin.docs; i++) {
        SlotDoc *d  = &s->doc[s->docs++];
        *d = (SlotDoc){ .position = s->bin.doc[i].at };
        d->id = dataset_id(&l->data, epoch, d->position);
        Status st = doc_load(l, s, d, t, &s->bin.doc[i].size);
        if (st && !sample_is_bad(st)) return st;
        if (st) doc_fail(d, st, 0);
        int64_t patch = d->patch;
        for (int64_t k = 0; !st && k < d->sample.slices; k++) {
            TRY(job_push(s, (SlotJob){ i, k, patch }));
            patch += (int64_t)d->sample.slice[k].h * d->sample.slice[k].w;
        }
    }
    own_pictures(l, s);
    s->left = s->jobs;
    return OK;
}

/* Documents whose pictures turned out bad leave the stream; the others are put again, their pixels from a
 * copy. */
static Status slot_rebuild(LoaderSlot *s)
{
    size_t dim    = (size_t)s->stream.shape.patch_dim, n = (size_t)s->stream.patches * dim;
    char  *pixels = malloc(n + 1);
    Status st     = pixels ? OK : fail(E_FIT, "no memory to repair a micro-batch");
    if (!st) memcpy(pixels, s->stream.pixels, n);
    if (!st) stream_clear(&s->stream);
    for (int64_t i = 0; !st && i < s->docs; i++)
        if (!s->doc[i].bad) st = stream_put(s, &s->doc[i], pixels + (size_t)s->doc[i].patch * dim);
    free(pixels);
    return st;
}

static Status slot_finish(Loader *l, LoaderSlot *s)
{
    int64_t n = 0;
    for (int64_t i = 0; i < s->docs; i++) {
        if (s->doc[i].bad) continue;
        s->from[n++] = (LoaderDoc){ s->doc[i].id, dataset_file(&l->data, s->doc[i].id)->source };
    }
    Status st = n < s->stream.docs ? slot_rebuild(s) : OK;
    for (int64_t i = 0; i < s->docs; i++) sample_close(&s->doc[i].sample);
    return st;
}

/* The rest is the loader's own trouble, not a sample's. */
static void loader_fail(Loader *l, Status st)
{
    if (!l->status) l->status = st, l->text = strdup(status_text());
    pthread_cond_signal(&l->ready);
}

static void finish(Loader *l, LoaderSlot *s)
{
    s->state = SLOT_BUSY;
    pthread_mutex_unlock(&l->lock);
    Status st = slot_finish(l, s);
    pthread_mutex_lock(&l->lock);
    s->state = SLOT_READY;
    if (st) loader_fail(l, st);
    pthread_cond_signal(&l->ready);
}

static void make_text(Loader *l, LoaderSlot *s, int64_t epoch, SampleScratch *t)
{
    s->state = SLOT_BUSY;
    pthread_mutex_unlock(&l->lock);
    Status st = slot_text(l, s, epoch, t);
    pthread_mutex_lock(&l->lock);
    s->state = SLOT_PICTURES;
    if (st) loader_fail(l, st);
    if (st || s->left == 0) finish(l, s);
    else                    pthread_cond_broadcast(&l->work);
}

static void make_picture(Loader *l, LoaderSlot *s, SampleScratch *t)
{
    SlotJob  j = s->job[s->next++];
    SlotDoc *d = &s->doc[j.doc];
    void    *out = stream_patch(&s->stream, j.patch);
    Status   st = OK;
    pthread_mutex_unlock(&l->lock);
    st = sample_pixels(out, true, &d->sample, t, &l->sample, j.slice);
    pthread_mutex_lock(&l->lock);
    if (st && !sample_is_bad(st)) loader_fail(l, st);
    else if (st)                  doc_fail(d, st, j.slice);
    if (--s->left == 0) finish(l, s);
}

/* The oldest step first; pictures before text, since they end what was begun. */
bool loader_fill_some(Loader *l, SampleScratch *t)
{
    for (int64_t i = l->handed; i < l->planned; i++) {
        PendingStep *step = &l->step[i % STEPS];
        for (int k = 0; step->state == STEP_FILLING && k < l->conf.micro; k++) {
            LoaderSlot *s = &step->slot[k];
            if (s->state == SLOT_PICTURES && s->next < s->jobs) return make_picture(l, s, t), true;
            if (s->state == SLOT_TEXT) return make_text(l, s, step->epoch, t), true;
        }
    }
    return false;
}

Status loader_worker(void *arg, int64_t i)
{
    Loader        *l = arg;
    SampleScratch *t = &l->scratch[i];
    pthread_mutex_lock(&l->lock);
    l->busy++;
    while (!l->stop) {
        bool idle = l->status || l->pause;
        if (!idle && (loader_fill_some(l, t) || loader_measure_some(l, t))) continue;
        l->busy--;
        pthread_cond_signal(&l->ready);                     /* whoever rewinds waits for idleness */
        pthread_cond_wait(&l->work, &l->lock);
        l->busy++;
    }
    l->busy--;
    pthread_mutex_unlock(&l->lock);
    return OK;
}
