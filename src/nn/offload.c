/* nn/offload.c -- see park.h. */
#include "nn/module.h"

enum { MARK_OUT = 0, MARK_IN = MARK_OUT + PARK_BERTHS, MARK_END = MARK_IN + PARK_BERTHS };
_Static_assert((int)MARK_END <= (int)COPY_EVENTS_STATE, "marks that are the optimizer's");

bool parks(const Ctx *c, Label first, Label last)
{
    bool any = false;
    for (int l = (int)first; l <= (int)last; l++) any |= c->policy[l] == PARK;
    return c->park && any;
}

/* One is worked on, one is on its way out, one is free again by then; the input of the next layer is made one
 * layer ahead. */
int park_berths(const uint8_t policy[LABEL_N])
{
    bool any = false;
    for (int l = 0; l < LABEL_N; l++) any |= policy[l] == PARK;
    return !any ? 0 : policy[L_INPUT] == PARK ? PARK_BERTHS : PARK_BERTHS - 1;
}

static Berth *there(const Ctx *c) { return c->park->berth[0]; }
static Berth *back(const Ctx *c)  { return c->park->berth[c->park->apart]; }

static void forget(const Ctx *c)
{
    for (int i = 0; i < c->park->berths; i++) there(c)[i].holds = NULL;
}

void park_begin(Ctx *c)
{
    if (c->park) forget(c);
}

void park_open(Ctx *c, Parked *p)
{
    Park *k = c->park;
    int   b = k->next;
    k->next = (b + 1) % k->berths;
    backend_wait_copy(c->be, MARK_OUT + b);                       /* what it held has left */
    arena_clear(&there(c)[b].room);
    there(c)[b].holds = p;
    *p = (Parked){ .berth = b, .sent = b };
}

Tensor park_push(Ctx *c, Parked *p, Tensor *slot, Label l, DType d, int64_t rows, int64_t cols)
{
    Arena *room = &there(c)[p->berth].room;
    REQUIRE(p->n < PARK_VALUES, "a layer parks more than %d values", PARK_VALUES);
    p->value[p->n++] = (ParkedValue){ slot, room->used };
    return t2(room, label_name(l), d, rows, cols);
}

/* Rows that are not used stay behind, but have their room: what a step needs does not depend on its data. */
void park_send(Ctx *c, Parked *p, bool stays)
{
    size_t bytes = there(c)[p->berth].room.used;
    if (stays || !bytes) return;
    p->host = arena_push(c->host, "PARKED", bytes);
    backend_copy_wait_compute(c->be, COPY_D2H);
    for (int i = 0; i < p->n; i++) backend_copy_d2h(c->be, p->host + p->value[i].at, *p->value[i].slot);
    backend_copy_record(c->be, COPY_D2H, MARK_OUT + p->sent);
}

void park_end(Ctx *c, bool at_once)
{
    if (c->park && !at_once) forget(c);
}

/* The berth was last read by work of the step so far, or by a copy to the host. */
static void bring(Ctx *c, Parked *p, int b)
{
    char *base = back(c)[b].room.base;
    backend_copy_wait_compute(c->be, COPY_H2D);
    backend_copy_wait(c->be, COPY_H2D, MARK_OUT + p->sent);
    if (!c->park->apart) backend_copy_wait(c->be, COPY_H2D, MARK_OUT + b);
    for (int i = 0; i < p->n; i++) {
        p->value[i].slot->data = base + p->value[i].at;
        backend_copy_h2d(c->be, *p->value[i].slot, p->host + p->value[i].at);
    }
    backend_copy_record(c->be, COPY_H2D, MARK_IN + b);
    p->berth = b, p->coming = true;
    back(c)[b].holds = p;
}

static bool is_here(const Ctx *c, const Parked *p) { return back(c)[p->berth].holds == p; }

void park_want(Ctx *c, Parked *p)
{
    if (is_here(c, p) || !p->host) return;
    for (int b = 0; b < c->park->berths; b++)
        if (!back(c)[b].holds) {
            bring(c, p, b);
            return;
        }
}

void park_take(Ctx *c, Parked *p)
{
    park_want(c, p);
    REQUIRE(!p->n || is_here(c, p), "parked values are in no berth");
    if (p->coming) backend_wait_copy(c->be, MARK_IN + p->berth);
    p->coming = false;
}

void park_done(Ctx *c, Parked *p)
{
    if (is_here(c, p)) back(c)[p->berth].holds = NULL;
}
