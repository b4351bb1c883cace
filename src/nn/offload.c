/* nn/offload.c -- see offload.h. */
#include "nn/module.h"

enum { MARK_OUT = 0, MARK_IN = MARK_OUT + OFFLOAD_BUFFERS, MARK_END = MARK_IN + OFFLOAD_BUFFERS };
_Static_assert((int)MARK_END <= (int)COPY_EVENTS_STATE, "events that are the optimizer's");

bool any_offloaded(const Pass *c, Label first, Label last)
{
    bool any = false;
    for (int l = (int)first; l <= (int)last; l++) any |= c->policy[l] == OFFLOAD;
    return c->env->offload && any;
}

/* One is written, one is being copied out, one is free by then; an offloaded layer input needs one more,
 * since it is written one layer ahead. */
int offload_buffers_needed(const uint8_t policy[LABEL_N])
{
    bool any = false;
    for (int l = 0; l < LABEL_N; l++) any |= policy[l] == OFFLOAD;
    return !any ? 0 : policy[L_INPUT] == OFFLOAD ? OFFLOAD_BUFFERS : OFFLOAD_BUFFERS - 1;
}

static StagingBuffer *forward_buffers(const Pass *c) { return c->env->offload->buffer[0]; }
static StagingBuffer *backward_buffers(const Pass *c)
{
    return c->env->offload->buffer[c->env->offload->separate];
}

static void free_buffers(const Pass *c)
{
    for (int i = 0; i < c->env->offload->buffers; i++) forward_buffers(c)[i].holds = NULL;
}

void offload_chunk_begin(const Pass *c)
{
    if (c->env->offload) free_buffers(c);
}

void offload_open(const Pass *c, OffloadRecord *r)
{
    OffloadEngine *k = c->env->offload;
    int   b = k->next;
    k->next = (b + 1) % k->buffers;
    backend_wait_copy(c->be, MARK_OUT + b);                       /* its last copy to the host is done */
    arena_clear(&forward_buffers(c)[b].arena);
    forward_buffers(c)[b].holds = r;
    *r = (OffloadRecord){ .buffer = b, .sent = b };
}

Tensor offload_push(const Pass *c, OffloadRecord *r, Tensor *slot, Label l, DType d, int64_t rows,
                    int64_t cols)
{
    Arena *arena = &forward_buffers(c)[r->buffer].arena;
    REQUIRE(r->n < OFFLOAD_VALUES, "a layer offloads more than %d values", OFFLOAD_VALUES);
    r->value[r->n++] = (OffloadedValue){ slot, arena->used };
    return t2(arena, label_name(l), d, rows, cols);
}

/* Unused rows are not copied, but have host memory: what a step needs does not depend on its data. */
void offload_start(const Pass *c, OffloadRecord *r, bool stays)
{
    size_t bytes = forward_buffers(c)[r->buffer].arena.used;
    if (stays || !bytes) return;
    r->host = arena_push(c->host, "OFFLOADED", bytes);
    backend_copy_wait_compute(c->be, COPY_D2H);
    for (int i = 0; i < r->n; i++) backend_copy_d2h(c->be, r->host + r->value[i].at, *r->value[i].slot);
    backend_copy_record(c->be, COPY_D2H, MARK_OUT + r->sent);
}

void offload_chunk_end(const Pass *c, bool at_once)
{
    if (c->env->offload && !at_once) free_buffers(c);
}

/* Copies into staging buffer b, which was last read by compute of the step so far or by a copy to the
 * host. */
static void copy_back(const Pass *c, OffloadRecord *r, int b)
{
    char *base = backward_buffers(c)[b].arena.base;
    backend_copy_wait_compute(c->be, COPY_H2D);
    backend_copy_wait(c->be, COPY_H2D, MARK_OUT + r->sent);
    if (!c->env->offload->separate) backend_copy_wait(c->be, COPY_H2D, MARK_OUT + b);
    for (int i = 0; i < r->n; i++) {
        r->value[i].slot->data = base + r->value[i].at;
        backend_copy_h2d(c->be, *r->value[i].slot, r->host + r->value[i].at);
    }
    backend_copy_record(c->be, COPY_H2D, MARK_IN + b);
    r->buffer = b, r->coming = true;
    backward_buffers(c)[b].holds = r;
}

static bool is_here(const Pass *c, const OffloadRecord *r)
{
    return backward_buffers(c)[r->buffer].holds == r;
}

void offload_prefetch(const Pass *c, OffloadRecord *r)
{
    if (is_here(c, r) || !r->host) return;
    for (int b = 0; b < c->env->offload->buffers; b++)
        if (!backward_buffers(c)[b].holds) {
            copy_back(c, r, b);
            return;
        }
}

void offload_wait(const Pass *c, OffloadRecord *r)
{
    offload_prefetch(c, r);
    REQUIRE(!r->n || is_here(c, r), "offloaded values are in no staging buffer");
    if (r->coming) backend_wait_copy(c->be, MARK_IN + r->buffer);
    r->coming = false;
}

void offload_release(const Pass *c, OffloadRecord *r)
{
    if (is_here(c, r)) backward_buffers(c)[r->buffer].holds = NULL;
}
