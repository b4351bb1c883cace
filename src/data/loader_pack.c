/* data/loader_pack.c -- see loader_private.h. Workers measure samples in any order; the step packer gets
 * their sizes in the order of the pass, so that the timing of workers cannot change how steps are packed.
 * Everything here runs under the lock, except measuring. */
#include "data/loader_private.h"

#include "base/grow.h"
#include <stdlib.h>
#include <string.h>

static void pending_clear(PendingSample *m)
{
    free(m->text);
    *m = (PendingSample){ 0 };
}

void loader_pack_clear(Loader *l)
{
    for (int i = 0; i < AHEAD; i++) pending_clear(&l->ahead[i]);
    sample_cache_clear(&l->cache);
    l->asked = l->begun = l->used = 0;
    l->ask_epoch = l->packer.epoch, l->ask_position = l->packer.position;
    l->ended = false;
}

/* Fills the ring of pending samples. A size that the index has needs no worker. */
static void ask_ahead(Loader *l)
{
    while (l->asked - l->used < AHEAD) {
        if (l->ask_position == l->data.pass) {
            if (l->conf.once) return;
            l->ask_epoch++, l->ask_position = 0;
        }
        PendingSample *m = &l->ahead[l->asked++ % AHEAD];
        *m = (PendingSample){ .epoch = l->ask_epoch, .position = l->ask_position++ };
        m->id   = dataset_id(&l->data, m->epoch, m->position);
        m->kind = index_get(&l->index, m->id, &m->size);
        if (m->kind == SIZE_GOOD || m->kind == SIZE_DROP) m->state = SAMPLE_MEASURED;
    }
}

static PendingSample *next_asked(Loader *l)
{
    for (; l->begun < l->asked; l->begun++) {
        PendingSample *m = &l->ahead[l->begun % AHEAD];
        if (m->state == SAMPLE_ASKED) return l->begun++, m;
    }
    return NULL;
}

bool loader_measure_some(Loader *l, SampleScratch *t)
{
    Sample         loaded;
    PendingSample *m = next_asked(l);
    if (!m) return false;
    m->state = SAMPLE_BUSY;
    pthread_mutex_unlock(&l->lock);
    m->status = index_measure(&l->index, t, &l->sample, m->id, &m->size, &m->kind, &loaded);
    if (m->status) m->text = strdup(status_text());
    pthread_mutex_lock(&l->lock);
    if (!m->status && m->kind == SIZE_GOOD && loaded.size.tokens)
        sample_cache_put(&l->cache, m->epoch, m->position, &loaded);
    else
        sample_close(&loaded);
    m->state = SAMPLE_MEASURED;
    loader_pack_ahead(l);
    return true;
}

static void end_steps(Loader *l, PendingStep *s, Status st, const char *text)
{
    s->status = st, s->text = strdup(text ? text : "");
    s->state = STEP_END, l->ended = true;
    l->packed++;
}

static Status list_bad(PendingStep *s, PendingSample *m)
{
    if (!GROW(s->bad, s->bad_cap, s->bads + 1)) return fail(E_FIT, "no memory for a list of bad samples");
    s->bad[s->bads++] = (BadSample){ m->id, m->epoch, m->position, m->status, m->text };
    m->text = NULL;
    return OK;
}

/* Gives the step packer the next size. A bad sample is only listed here; loader_next decides whether the run
 * goes on without it. */
static Status pack_one(Loader *l, PendingStep *s, PendingSample *m)
{
    if (m->status && !sample_is_bad(m->status)) return fail(m->status, "%s", m->text ? m->text : "");
    if (m->status) TRY(list_bad(s, m));
    return step_packer_put(&l->packer, m->kind == SIZE_GOOD ? &m->size : NULL);
}

/* The bin of another rank: its samples are not needed here. */
static void discard_bin(Loader *l, PackBin *bin, int64_t epoch)
{
    Sample s;
    for (int64_t i = 0; i < bin->docs; i++)
        if (sample_cache_take(&l->cache, epoch, bin->doc[i].at, &s)) sample_close(&s);
    pack_bin_close(bin);
}

static Status take_step(Loader *l, PendingStep *s)
{
    StepPacker *p     = &l->packer;
    int         micro = l->conf.micro, first = l->conf.rank * micro;
    s->epoch = p->epoch;
    TRY(step_packer_take(p, l->bins));
    for (int i = 0; i < p->ranks * micro; i++)
        if (i < first || i >= first + micro) discard_bin(l, &l->bins[i], s->epoch);
    for (int k = 0; k < micro; k++) {
        s->slot[k].bin   = l->bins[first + k];
        s->slot[k].state = SLOT_TEXT;
    }
    s->passes = step_packer_epoch(p);
    s->state  = STEP_FILLING;
    return step_packer_state(p, &s->after);
}

/* Steps end after one pass where conf.once asks for one, and at the first error. */
void loader_pack_ahead(Loader *l)
{
    while (!l->ended && l->packed < l->handed + STEPS) {
        PendingStep *s  = &l->step[l->packed % STEPS];
        Status       st = OK;
        if (s->state != STEP_FREE) break;
        if (step_packer_has_step(&l->packer)) {
            st = take_step(l, s);
            if (!st) l->packed++;
        } else if (l->conf.once && l->packer.epoch > 0) {
            end_steps(l, s, OK, NULL);
        } else {
            ask_ahead(l);
            PendingSample *m = &l->ahead[l->used % AHEAD];
            if (l->used == l->asked || m->state != SAMPLE_MEASURED) break;
            st = pack_one(l, s, m);
            pending_clear(m);
            l->used++;
        }
        if (st) end_steps(l, s, st, status_text());
    }
    if (!l->ended) ask_ahead(l);
    pthread_cond_broadcast(&l->work);
    pthread_cond_signal(&l->ready);
}
