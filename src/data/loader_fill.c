/* data/loader_fill.c -- see loader_private.h. A slot is one stream. One worker lays out its documents, any
 * number of workers decode its pictures into their rows of the stream, and the last of them finishes it. */
#include "data/loader_private.h"

#include "base/grow.h"
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
    *s = (PendingStep){ .slot = slot, .out = s->out, .out_doc = s->out_doc };
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

static Status reserve_docs(LoaderSlot *s, int64_t n)
{
    if (n <= s->cap) return OK;
    SlotDoc   *doc  = realloc(s->doc, (size_t)n * sizeof *doc);
    if (doc) s->doc = doc;
    LoaderDoc *from = realloc(s->from, (size_t)n * sizeof *from);
    if (from) s->from = from;
    if (!doc || !from) return fail(E_FIT, "no memory for %lld documents", (long long)n);
    return s->cap = n, OK;
}

static Status job_push(LoaderSlot *s, SlotJob j)
{
    if (!GROW(s->job, s->job_cap, s->jobs + 1))
        return fail(E_FIT, "no memory for %lld pictures", (long long)s->jobs);
    s->job[s->jobs++] = j;
    return OK;
}

/* pixels NULL: they are decoded later. */
static Status append_doc(LoaderSlot *s, const SlotDoc *d, const char *pixels)
{
    const Sample *m     = &d->sample;
    VisualSlice  *slice = calloc((size_t)m->slices + 1, sizeof *slice);
    if (!slice) return fail(E_FIT, "no memory for %lld slices", (long long)m->slices);
    for (int64_t i = 0; i < m->slices; i++) {
        slice[i] = (VisualSlice){ m->slice[i].h, m->slice[i].w, pixels };
        if (pixels) pixels += slice[i].h * slice[i].w * s->stream.shape.patch_dim;   /* a byte each */
    }
    Document doc = { m->ids.n, m->ids.v, m->targets.v, m->slices, slice };
    Status   st  = stream_add(&s->stream, &doc);
    free(slice);
    return st;
}

/* A sample that was not kept since it was measured is loaded here. If its file changed in between, it counts
 * as a bad sample. */
static Status doc_load(Loader *l, LoaderSlot *s, SlotDoc *d, SampleScratch *t, const DocSize *packed)
{
    if (!d->loaded) TRY(sample_load(&d->sample, t, &l->sample, d->id));
    const DocSize *size = &d->sample.size;
    if (d->sample.drop || size->tokens != packed->tokens || size->patches != packed->patches)
        return fail(E_DATA, "%s: the file changed while the run was reading it", d->sample.record.where);
    d->patch = s->stream.patches;
    TRY_CTX(append_doc(s, d, NULL), "%s", d->sample.record.where);
    return OK;
}

/* Removes the jobs of pictures that other ranks decode. */
static void keep_own_pictures(const Loader *l, LoaderSlot *s)
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

/* Under the lock: lists the documents of the bin, with the samples that the cache has. */
static Status list_docs(Loader *l, LoaderSlot *s, int64_t epoch)
{
    TRY(reserve_docs(s, s->bin.docs));
    for (int64_t i = 0; i < s->bin.docs; i++) {
        SlotDoc *d = &s->doc[s->docs++];
        *d = (SlotDoc){ .position = s->bin.doc[i].at };
        d->id     = dataset_id(&l->data, epoch, d->position);
        d->loaded = sample_cache_take(&l->cache, epoch, d->position, &d->sample);
    }
    return OK;
}

static Status lay_out_docs(Loader *l, LoaderSlot *s, SampleScratch *t)
{
    stream_clear(&s->stream);
    for (int64_t i = 0; i < s->docs; i++) {
        SlotDoc *d  = &s->doc[i];
        activity_mark();
        Status   st = doc_load(l, s, d, t, &s->bin.doc[i].size);
        if (st && !sample_is_bad(st)) return st;
        if (st) doc_fail(d, st, 0);
        int64_t patch = d->patch;
        for (int64_t k = 0; !st && k < d->sample.slices; k++) {
            TRY(job_push(s, (SlotJob){ i, k, patch }));
            patch += (int64_t)d->sample.slice[k].h * d->sample.slice[k].w;
        }
    }
    keep_own_pictures(l, s);
    s->left = s->jobs;
    return OK;
}

/* Removes the documents whose pictures turned out bad: the others are appended again, with a copy of their
 * pixels. */
static Status slot_rebuild(LoaderSlot *s)
{
    size_t dim    = (size_t)s->stream.shape.patch_dim, n = (size_t)s->stream.patches * dim;
    char  *pixels = malloc(n + 1);
    Status st     = pixels ? OK : fail(E_FIT, "no memory to repair a micro-batch");
    if (!st) memcpy(pixels, s->stream.pixels, n);
    if (!st) stream_clear(&s->stream);
    for (int64_t i = 0; !st && i < s->docs; i++)
        if (!s->doc[i].bad) st = append_doc(s, &s->doc[i], pixels + (size_t)s->doc[i].patch * dim);
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

/* An error that is not a sample's ends the loader. */
static void loader_fail(Loader *l, Status st)
{
    if (!l->status) l->status = st, l->text = strdup(status_text());
    pthread_cond_signal(&l->ready);
}

static void finish_slot(Loader *l, LoaderSlot *s)
{
    s->state = SLOT_BUSY;
    pthread_mutex_unlock(&l->lock);
    Status st = slot_finish(l, s);
    pthread_mutex_lock(&l->lock);
    s->state = SLOT_READY;
    if (st) loader_fail(l, st);
    pthread_cond_signal(&l->ready);
}

static void fill_text(Loader *l, LoaderSlot *s, int64_t epoch, SampleScratch *t)
{
    s->state = SLOT_BUSY;
    Status st = list_docs(l, s, epoch);
    pthread_mutex_unlock(&l->lock);
    if (!st) st = lay_out_docs(l, s, t);
    pthread_mutex_lock(&l->lock);
    s->state = SLOT_PICTURES;
    if (st) loader_fail(l, st);
    if (st || s->left == 0) finish_slot(l, s);
    else                    pthread_cond_broadcast(&l->work);
}

/* The jobs from `first` on that one worker takes: a picture, or all slices of one video file, whose frames
 * are decoded in order. */
static int64_t job_run(const LoaderSlot *s, int64_t first)
{
    const Sample *m = &s->doc[s->job[first].doc].sample;
    const Frame  *f = &m->frame[m->slice[s->job[first].slice].a];
    int64_t       n = 1;
    if (!f->nth) return 1;
    for (; first + n < s->jobs && s->job[first + n].doc == s->job[first].doc; n++) {
        const Frame *next = &m->frame[m->slice[s->job[first + n].slice].a];
        if (next->path != f->path || next->bytes != f->bytes || next->nth < f->nth) break;
    }
    return n;
}

static Status fill_run(Loader *l, LoaderSlot *s, SampleScratch *t, int64_t first, int64_t n, int64_t *bad)
{
    const SlotJob *j = &s->job[first];
    const Sample  *m = &s->doc[j->doc].sample;
    Status         st = OK;
    for (int64_t i = 0; i < n && !st; i++) {
        activity_mark();
        *bad = j[i].slice;
        st   = sample_pixels(stream_patch(&s->stream, j[i].patch), true, m, t, &l->sample, j[i].slice);
    }
    sample_close_video(t);
    return st;
}

static void fill_picture(Loader *l, LoaderSlot *s, SampleScratch *t)
{
    int64_t  first = s->next, n = job_run(s, first), bad = 0;
    SlotDoc *d = &s->doc[s->job[first].doc];
    s->next += n;
    pthread_mutex_unlock(&l->lock);
    Status st = fill_run(l, s, t, first, n, &bad);
    pthread_mutex_lock(&l->lock);
    if (st && !sample_is_bad(st)) loader_fail(l, st);
    else if (st)                  doc_fail(d, st, bad);
    s->left -= n;
    if (s->left == 0) finish_slot(l, s);
}

/* The oldest step first; within a slot pictures before text, since pictures complete it. */
bool loader_fill_some(Loader *l, SampleScratch *t)
{
    for (int64_t i = l->handed; i < l->packed; i++) {
        PendingStep *step = &l->step[i % STEPS];
        for (int k = 0; step->state == STEP_FILLING && k < l->conf.micro; k++) {
            LoaderSlot *s = &step->slot[k];
            if (s->state == SLOT_PICTURES && s->next < s->jobs) return fill_picture(l, s, t), true;
            if (s->state == SLOT_TEXT) return fill_text(l, s, step->epoch, t), true;
        }
    }
    return false;
}

Status loader_worker(void *arg, int64_t i)
{
    Loader        *l = arg;
    SampleScratch *t = &l->scratch[i];
    activity_adopt(&l->activity);
    pthread_mutex_lock(&l->lock);
    l->busy++;
    while (!l->stop) {
        bool idle = l->status || l->pause;
        activity_mark();
        if (!idle && (loader_fill_some(l, t) || loader_measure_some(l, t))) continue;
        l->busy--;
        pthread_cond_signal(&l->ready);                     /* loader_rewind waits until no worker is busy */
        pthread_cond_wait(&l->work, &l->lock);
        l->busy++;
    }
    l->busy--;
    pthread_mutex_unlock(&l->lock);
    return OK;
}
