/* parallel/shard_state.c -- master weights and moments: where they are, and how offloaded ones pass through
 * the device in a step; see shard.h. */
#include "parallel/shard_private.h"

#include <stdlib.h>

/* Events of the copy streams: a chunk has arrived in its buffer; it has left it. */
enum { MARK_IN = COPY_EVENTS_STATE, MARK_OUT = MARK_IN + STATE_RING };
_Static_assert(MARK_OUT + STATE_RING <= COPY_EVENTS, "too few marks for the ring");

/* Some milliseconds on a link of 50 GB/s, and little of the device's memory. */
enum { CHUNK_ELEMS = 4 << 20 };

static bool has_master(const Shard *s)    { return s->conf.dtype != F32; }
static DType master_type(const Shard *s)  { return s->conf.split ? I16 : F32; }
static bool has_state(const ShardBucket *b)    { return !b->frozen; }

/* Whole buckets in order until the fraction is reached. */
static void choose_offloaded(Shard *s)
{
    double all = 0, taken = 0;
    EACH_BUCKET(b, s) all += has_state(b) ? (double)b->slice : 0;
    EACH_BUCKET(b, s) {
        if (!has_state(b) || taken >= s->conf.offload_fraction * all) continue;
        b->offloaded = true, taken += (double)b->slice;
    }
}

/* Chunks begin at aligned elements, so that an element is updated by the same instructions in any cut. */
static void cut_chunks(Shard *s)
{
    int64_t most = s->conf.offload_chunk ? s->conf.offload_chunk : CHUNK_ELEMS;
    most = (most + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    int n = 0;
    EACH_BUCKET(b, s) {
        if (!b->offloaded) continue;
        b->first_chunk = n, b->chunks = (int)((b->slice + most - 1) / most);
        for (int64_t at = 0; s->chunk && at < b->slice; at += most)
            s->chunk[n + at / most] = (StateChunk){ at, b->slice - at < most ? b->slice - at : most };
        n += b->chunks;
        if (b->slice > s->most) s->most = b->slice < most ? b->slice : most;
    }
    s->chunks = n;
}

Status state_open(Shard *s)
{
    choose_offloaded(s);
    cut_chunks(s);
    if (!s->chunks) return OK;
    s->chunk = calloc((size_t)s->chunks, sizeof *s->chunk);
    if (!s->chunk) return fail(E_FIT, "no host memory for %d chunks of optimizer state", s->chunks);
    cut_chunks(s);
    return OK;
}

/* ---- memory ---- */

static size_t state_bytes(const Shard *s, int64_t n)
{
    return 2 * arena_bytes(n, s->conf.state) + (has_master(s) ? arena_bytes(n, master_type(s)) : 0);
}

void state_sizes(const Shard *s, ShardSizes *z)
{
    EACH_BUCKET(b, s) {
        if (!has_state(b)) continue;
        if (b->offloaded) z->host  += state_bytes(s, b->slice);
        else         z->optim += state_bytes(s, b->slice);
    }
    if (s->chunks) z->optim += STATE_RING * state_bytes(s, s->most);
}

static StateBuffers allocate_state(const Shard *s, Arena *a, const char *label, int64_t n)
{
    StateBuffers x = { 0 };
    if (has_master(s)) x.master = t1(a, label, master_type(s), n);
    x.m = t1(a, label, s->conf.state, n);
    x.v = t1(a, label, s->conf.state, n);
    return x;
}

void state_bind(Shard *s, Arena *optim, Arena *host)
{
    Tensor none = { 0 };
    EACH_BUCKET(b, s) {
        bool has = has_state(b);
        StateBuffers x = { 0 };
        if (has) x = allocate_state(s, b->offloaded ? host : optim, label_of(s, b), b->slice);
        b->master = x.master, b->m = x.m, b->v = x.v;
        EACH_ITEM(i, s, b) {
            i->p->shard.master = t_has(b->master) ? slice_view(i, b, b->master) : none;
            i->p->shard.m      = has ? slice_view(i, b, b->m) : none;
            i->p->shard.v      = has ? slice_view(i, b, b->v) : none;
        }
    }
    for (int i = 0; s->chunks && i < STATE_RING; i++)
        s->ring[i] = allocate_state(s, optim, "in use", s->most);
}

/* ---- a step ---- */

/* Copies chunk k in, after the chunk that was in its buffer has left. That chunk was no earlier than this one
 * was last updated, and copies out keep their order, so this chunk's state is back on the host too. */
static void copy_in(Shard *s, const ShardBucket *b, int k)
{
    const StateChunk *x = &s->chunk[k];
    StateBuffers *to = &s->ring[k % STATE_RING];
    backend_copy_wait(s->be, COPY_H2D, MARK_OUT + k % STATE_RING);
    if (has_master(s))
        backend_copy_h2d(s->be, t_rows(to->master, 0, x->n), t_rows(b->master, x->at, x->n).data);
    backend_copy_h2d(s->be, t_rows(to->m, 0, x->n), t_rows(b->m, x->at, x->n).data);
    backend_copy_h2d(s->be, t_rows(to->v, 0, x->n), t_rows(b->v, x->at, x->n).data);
    backend_copy_record(s->be, COPY_H2D, MARK_IN + k % STATE_RING);
}

static const ShardBucket *bucket_of(const Shard *s, int chunk)
{
    const ShardBucket *b = s->bucket;
    while (!b->offloaded || chunk >= b->first_chunk + b->chunks) b++;
    return b;
}

/* Starts as many copies as there are buffers. */
static void copy_in_more(Shard *s)
{
    for (; s->asked < s->chunks && s->asked < s->done + STATE_RING; s->asked++)
        copy_in(s, bucket_of(s, s->asked), s->asked);
}

/* After a step that was skipped the first chunks are still on the device and unchanged. A pass that only
 * prepares the backend copies nothing and must not count. */
void state_prefetch(Shard *s)
{
    if (!s->chunks || s->be->preparing) return;
    if (!s->asked) backend_copy_wait_compute(s->be, COPY_H2D);       /* writes of the state are complete */
    copy_in_more(s);
}

void state_discard(Shard *s) { s->asked = s->done = 0; }

static void copy_out(Shard *s, const ShardBucket *b, int k)
{
    const StateChunk *x = &s->chunk[k];
    const StateBuffers *from = &s->ring[k % STATE_RING];
    backend_copy_wait_compute(s->be, COPY_D2H);
    if (has_master(s))
        backend_copy_d2h(s->be, t_rows(b->master, x->at, x->n).data, t_rows(from->master, 0, x->n));
    backend_copy_d2h(s->be, t_rows(b->m, x->at, x->n).data, t_rows(from->m, 0, x->n));
    backend_copy_d2h(s->be, t_rows(b->v, x->at, x->n).data, t_rows(from->v, 0, x->n));
    backend_copy_record(s->be, COPY_D2H, MARK_OUT + k % STATE_RING);
}

static bool is_updated(const Param *p) { return p->step.has_grad && p->shard.len; }
static bool same_hyperparameters(const Param *p, const Param *q)
{
    return is_updated(q) && p->decay == q->decay && p->group == q->group;
}
static int64_t place(const ShardBucket *b, const ShardItem *i) { return i->at + i->p->shard.offset - b->at; }

/* Elements [from, to) of the slice; `state` begins at element `at`. */
static ShardRange range_of(const Shard *s, const ShardBucket *b, const Param *p, int64_t from, int64_t to,
                           int64_t at, const StateBuffers *state)
{
    int64_t n = to - from;
    ShardRange x = { .p = p, .w = t_rows(b->own_w, from, n), .g = t_rows(b->own_g, from, n),
                  .m = t_rows(state->m, from - at, n), .v = t_rows(state->v, from - at, n) };
    if (has_master(s)) x.master = t_rows(state->master, from - at, n);
    return x;
}

/* Updates what live parameters have in [at, at + n) of the slice, adjacent ones with equal hyperparameters
 * together: the adapters of a layer are many and small. Returns whether there was anything. */
static bool step_range(Shard *s, const ShardBucket *b, int64_t at, int64_t n, const StateBuffers *state,
                       ShardRangeFn *step, void *self)
{
    bool any = false;
    const ShardItem *end = s->item + b->first + b->n;
    for (const ShardItem *i = s->item + b->first, *last; i < end; i = last + 1) {
        last = i;
        if (!is_updated(i->p)) continue;
        while (last + 1 < end && same_hyperparameters(i->p, last[1].p)) last++;
        int64_t from = place(b, i), to = place(b, last) + last->p->shard.len;
        if (from < at) from = at;
        if (to > at + n) to = at + n;
        if (from >= to) continue;
        ShardRange x = range_of(s, b, i->p, from, to, at, state);
        step(self, &x);
        any = true;
    }
    return any;
}

static void step_offloaded(Shard *s, const ShardBucket *b, ShardRangeFn *step, void *self)
{
    for (int k = b->first_chunk; k < b->first_chunk + b->chunks; k++) {
        const StateChunk *x = &s->chunk[k];
        copy_in_more(s);
        backend_wait_copy(s->be, MARK_IN + k % STATE_RING);
        if (step_range(s, b, x->at, x->n, &s->ring[k % STATE_RING], step, self)) copy_out(s, b, k);
        s->done = k + 1;
    }
}

void shard_step(Shard *s, ShardRangeFn *step, void *self)
{
    for (int u = 0; u < s->units; u++) {
        EACH_IN_UNIT(b, s, u) {
            StateBuffers here = { b->master, b->m, b->v };
            if (b->offloaded)           step_offloaded(s, b, step, self);
            else if (has_state(b)) step_range(s, b, 0, b->slice, &here, step, self);
        }
        if (s->unit[u].n) weights_changed(s, u);
    }
    weights_publish(s);
    state_discard(s);
    shard_prefetch_first(s);
}
