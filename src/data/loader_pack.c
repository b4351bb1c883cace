/* data/loader_pack.c -- see loader_private.h. Sizes may become known in any order; the planner hears of
 * them in the order of the pass, so that workers cannot change a plan. Everything here holds the lock, but
 * for measuring. */
#include "data/loader_private.h"

#include <stdlib.h>
#include <string.h>

static void measure_clear(PendingSample *m)
{
    free(m->text);
    *m = (PendingSample){ 0 };
}

void loader_pack_clear(Loader *l)
{
    for (int i = 0; i < AHEAD; i++) measure_clear(&l->ahead[i]);
    l->asked = l->begun = l->used = 0;
    l->ask_epoch = l->planner.epoch, l->ask_position = l->planner.position;
    l->ended = false;
}

/* Asks ahead as far as there is room. A size that is known needs no worker. */
static void ask(Loader *l)
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
        if (m->kind == SIZE_GOOD || m->kind == SIZE_DROP) m->state = MEASURE_DONE;
    }
}

static PendingSample *next_asked(Loader *l)
{
    for (; l->begun < l->asked; l->begun++) {
        PendingSample *m = &l->ahead[l->begun % AHEAD];
        if (m->state == MEASURE_ASKED) return l->begun++, m;
    }
    return NULL;
}

bool loader_measure_some(Loader *l, SampleScratch *t)
{
    PendingSample *m = next_asked(l);
    if (!m) return false;
    m->state = MEASURE_BUSY;
    pthread_mutex_unlock(&l->lock);
    m->status = index_measure(&l->index, t, &l->sample, m->id, &m->size, &m->kind);
    if (m->status) m->text = strdup(status_text());
    pthread_mutex_lock(&l->lock);
    m->state = MEASURE_DONE;
    loader_pack_ahead(l);
    return true;
}

static void step_fail(Loader *l, PendingStep *s, Status st, const char *text)
{
    s->status = st, s->text = strdup(text ? text : "");
    s->state = STEP_END, l->ended = true;
    l->planned++;
}

static Status step_bad(PendingStep *s, PendingSample *m)
{
    if (s->bads == s->bad_room) {
        int64_t    room = s->bad_room ? 2 * s->bad_room : 16;
        BadSample *more = realloc(s->bad, (size_t)room * sizeof *more);
        if (!more) return fail(E_FIT, "no memory for a list of bad samples");
        s->bad = more, s->bad_room = room;
    }
    s->bad[s->bads++] = (BadSample){ m->id, m->epoch, m->position, m->status, m->text };
    m->text = NULL;
    return OK;
}

/* Gives the planner the next measure; what a bad one means is decided when its step is handed out. */
static Status plan_one(Loader *l, PendingStep *s, PendingSample *m)
{
    if (m->status && !sample_is_bad(m->status)) return fail(m->status, "%s", m->text ? m->text : "");
    if (m->status) TRY(step_bad(s, m));
    return step_packer_put(&l->planner, m->kind == SIZE_GOOD ? &m->size : NULL);
}

static Status step_take(Loader *l, PendingStep *s)
{
    StepPacker *p     = &l->planner;
    int      micro = l->conf.micro, first = l->conf.rank * micro;
    s->epoch = p->epoch;
    TRY(step_packer_take(p, l->bins));
    for (int i = 0; i < p->ranks * micro; i++)
        if (i < first || i >= first + micro) pack_bin_close(&l->bins[i]);
    for (int k = 0; k < micro; k++) {
        s->slot[k].bin   = l->bins[first + k];
        s->slot[k].state = SLOT_TEXT;
    }
    s->passes = step_packer_epoch(p);
    s->state  = STEP_FILLING;
    return step_packer_state(p, &s->after);
}

/* A pass that is read once ends where the second would begin; a plan that failed ends there. */
void loader_pack_ahead(Loader *l)
{
    while (!l->ended && l->planned < l->handed + STEPS) {
        PendingStep  *s  = &l->step[l->planned % STEPS];
        Status st = OK;
        if (s->state != STEP_FREE) break;
        if (step_packer_has_step(&l->planner)) {
            st = step_take(l, s);
            if (!st) l->planned++;
        } else if (l->conf.once && l->planner.epoch > 0) {
            step_fail(l, s, OK, NULL);
        } else {
            ask(l);
            PendingSample *m = &l->ahead[l->used % AHEAD];
            if (l->used == l->asked || m->state != MEASURE_DONE) break;
            st = plan_one(l, s, m);
            measure_clear(m);
            l->used++;
        }
        if (st) step_fail(l, s, st, status_text());
    }
    if (!l->ended) ask(l);
    pthread_cond_broadcast(&l->work);
    pthread_cond_signal(&l->ready);
}
