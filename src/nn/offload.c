/* nn/offload.c -- see park.h. */
#include "nn/module.h"

enum { MARK_OUT = 0, MARK_IN = MARK_OUT + OFFLOAD_BUFFERS, MARK_END = MARK_IN + OFFLOAD_BUFFERS };
_Static_assert((int)MARK_END <= (int)COPY_EVENTS_STATE, "marks that are the optimizer's");

bool any_offloaded(const Pass *c, Label first, Label last)
{
    bool any = false;
    for (int l = (int)first; l <= (int)last; l++) any |= c->policy[l] == OFFLOAD;
    return c->env->offload && any;
}

/* One is worked on, one is on its way out, one is free again by then; the input of the next layer is made one
 * layer ahead. */
int offload_buffers_needed(const uint8_t policy[LABEL_N])
{
    bool any = false;
    for (int l = 0; l < LABEL_N; l++) any |= policy[l] == OFFLOAD;
    return !any ? 0 : policy[L_INPUT] == OFFLOAD ? OFFLOAD_BUFFERS : OFFLOAD_BUFFERS - 1;
}

static StagingBuffer *there(const Pass *c) { return c->env->offload->buffer[0]; }
static StagingBuffer *back(const Pass *c)  { return c->env->offload->buffer[c->env->offload->separate]; }

static void forget(const Pass *c)
{
    for (int i = 0; i < c->env->offload->buffers; i++) there(c)[i].holds = NULL;
}

void offload_chunk_begin(const Pass *c)
{
    if (c->env->offload) forget(c);
}

void offload_open(const Pass *c, OffloadRecord *p)
{
    OffloadEngine *k = c->env->offload;
    int   b = k->next;
    k->next = (b + 1) % k->buffers;
    backend_wait_copy(c->be, MARK_OUT + b);                       /* what it held has left */
    arena_clear(&there(c)[b].arena);
    there(c)[b].holds = p;
    *p = (OffloadRecord){ .berth = b, .sent = b };
}

Tensor offload_push(const Pass *c, OffloadRecord *p, Tensor *slot, Label l, DType d, int64_t rows, int64_t cols)
{
    Arena *room = &there(c)[p->berth].arena;
    REQUIRE(p->n < OFFLOAD_VALUES, "a layer parks more than %d values", OFFLOAD_VALUES);
    p->value[p->n++] = (OffloadedValue){ slot, room->used };
    return t2(room, label_name(l), d, rows, cols);
}

/* Rows that are not used stay behind, but have their room: what a step needs does not depend on its data. */
void offload_start(const Pass *c, OffloadRecord *p, bool stays)
{
    size_t bytes = there(c)[p->berth].arena.used;
    if (stays || !bytes) return;
    p->host = arena_push(c->host, "PARKED", bytes);
    backend_copy_wait_compute(c->be, COPY_D2H);
    for (int i = 0; i < p->n; i++) backend_copy_d2h(c->be, p->host + p->value[i].at, *p->value[i].slot);
    backend_copy_record(c->be, COPY_D2H, MARK_OUT + p->sent);
}

void offload_chunk_end(const Pass *c, bool at_once)
{
    if (c->env->offload && !at_once) forget(c);
}

/* The berth was last read by work of the step so far, or by a copy to the host. */
static void bring(const Pass *c, OffloadRecord *p, int b)
{
    char *base = back(c)[b].arena.base;
    backend_copy_wait_compute(c->be, COPY_H2D);
    backend_copy_wait(c->be, COPY_H2D, MARK_OUT + p->sent);
    if (!c->env->offload->separate) backend_copy_wait(c->be, COPY_H2D, MARK_OUT + b);
    for (int i = 0; i < p->n; i++) {
        p->value[i].slot->data = base + p->value[i].at;
        backend_copy_h2d(c->be, *p->value[i].slot, p->host + p->value[i].at);
    }
    backend_copy_record(c->be, COPY_H2D, MARK_IN + b);
    p->berth = b, p->coming = true;
    back(c)[b].holds = p;
}

static bool is_here(const Pass *c, const OffloadRecord *p) { return back(c)[p->berth].holds == p; }

void offload_prefetch(const Pass *c, OffloadRecord *p)
{
    if (is_here(c, p) || !p->host) return;
    for (int b = 0; b < c->env->offload->buffers; b++)
        if (!back(c)[b].holds) {
            bring(c, p, b);
            return;
        }
}

void offload_wait(const Pass *c, OffloadRecord *p)
{
    offload_prefetch(c, p);
    REQUIRE(!p->n || is_here(c, p), "parked values are in no berth");
    if (p->coming) backend_wait_copy(c->be, MARK_IN + p->berth);
    p->coming = false;
}

void offload_release(const Pass *c, OffloadRecord *p)
{
    if (is_here(c, p)) back(c)[p->berth].holds = NULL;
}
