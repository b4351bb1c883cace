/* parallel/shard_state.c -- master weights and moments: where they are, and how offloaded ones pass through
 * the device in a step; see shard.h. */
#include "parallel/shard_private.h"

#include "ops/moment_code.h"

#include <stdlib.h>

/* Events of the copy streams: a chunk has arrived in its buffer; it has left it. */
enum { MARK_IN = COPY_EVENTS_STATE, MARK_OUT = MARK_IN + STATE_RING };
_Static_assert(MARK_OUT + STATE_RING <= COPY_EVENTS, "too few marks for the ring");

/* Some milliseconds on a link of 50 GB/s, and little of the device's memory. */
enum { CHUNK_ELEMS = 4 << 20 };
_Static_assert(ARENA_ALIGN % MOMENT_BLOCK == 0, "chunks are of whole blocks of coded moments");

static bool has_master(const Shard *s)    { return s->conf.dtype != F32; }
static DType master_type(const Shard *s)  { return s->conf.split ? I16 : F32; }
static bool is_coded(const Shard *s)      { return s->conf.state == U8; }
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
    size_t scales = is_coded(s) ? arena_bytes(moment_blocks(n), F32) : 0;
    return 2 * (arena_bytes(n, s->conf.state) + scales) +
           (has_master(s) ? arena_bytes(n, master_type(s)) : 0);
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
    if (!is_coded(s)) return x;
    x.m_scale = t1(a, label, F32, moment_blocks(n));
    x.v_scale = t1(a, label, F32, moment_blocks(n));
    return x;
}

/* Elements [at, at + n) of buffers; where there are codes, `at` begins a block. */
static StateBuffers state_rows(const StateBuffers *x, int64_t at, int64_t n)
{
    StateBuffers r = { .m = t_rows(x->m, at, n), .v = t_rows(x->v, at, n) };
    if (t_has(x->master)) r.master = t_rows(x->master, at, n);
    if (!t_has(x->m_scale)) return r;
    REQUIRE(at % MOMENT_BLOCK == 0, "state_rows: element %lld begins no block", (long long)at);
    r.m_scale = t_rows(x->m_scale, at / MOMENT_BLOCK, moment_blocks(n));
    r.v_scale = t_rows(x->v_scale, at / MOMENT_BLOCK, moment_blocks(n));
    return r;
}

static int64_t place(const ShardBucket *b, const ShardItem *i) { return i->at + i->p->shard.offset - b->at; }

static void point_state(ParamShard *p, const StateBuffers *x)
{
    p->master = x->master, p->m = x->m, p->v = x->v, p->m_scale = x->m_scale, p->v_scale = x->v_scale;
}

void state_bind(Shard *s, Arena *optim, Arena *host)
{
    EACH_BUCKET(b, s) {
        b->state = (StateBuffers){ 0 };
        if (has_state(b))
            b->state = allocate_state(s, b->offloaded ? host : optim, label_of(s, b), b->slice);
        EACH_ITEM(i, s, b) {
            StateBuffers own = { 0 };
            int64_t      n = i->p->shard.len;
            if (has_state(b)) own = state_rows(&b->state, n ? place(b, i) : 0, n);
            point_state(&i->p->shard, &own);
        }
    }
    for (int i = 0; s->chunks && i < STATE_RING; i++)
        s->ring[i] = allocate_state(s, optim, "in use", s->most);
}

/* ---- a step ---- */

/* The tensors of a state; those that it lacks are absent. */
enum { STATE_TENSORS = 5 };
static void list_tensors(Tensor out[STATE_TENSORS], const StateBuffers *x, int64_t at, int64_t n)
{
    StateBuffers r = state_rows(x, at, n);
    out[0] = r.master, out[1] = r.m, out[2] = r.v, out[3] = r.m_scale, out[4] = r.v_scale;
}

/* Copies chunk k in, after the chunk that was in its buffer has left. That chunk was no earlier than this one
 * was last updated, and copies out keep their order, so this chunk's state is back on the host too. */
static void copy_in(Shard *s, const ShardBucket *b, int k)
{
    const StateChunk *x = &s->chunk[k];
    Tensor to[STATE_TENSORS], from[STATE_TENSORS];
    list_tensors(to, &s->ring[k % STATE_RING], 0, x->n);
    list_tensors(from, &b->state, x->at, x->n);
    backend_copy_wait(s->be, COPY_H2D, MARK_OUT + k % STATE_RING);
    for (int i = 0; i < STATE_TENSORS; i++)
        if (t_has(to[i])) backend_copy_h2d(s->be, to[i], from[i].data);
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
    Tensor to[STATE_TENSORS], from[STATE_TENSORS];
    list_tensors(from, &s->ring[k % STATE_RING], 0, x->n);
    list_tensors(to, &b->state, x->at, x->n);
    backend_copy_wait_compute(s->be, COPY_D2H);
    for (int i = 0; i < STATE_TENSORS; i++)
        if (t_has(to[i])) backend_copy_d2h(s->be, to[i].data, from[i]);
    backend_copy_record(s->be, COPY_D2H, MARK_OUT + k % STATE_RING);
}

static bool is_updated(const Param *p) { return p->step.has_grad && p->shard.len; }
static bool same_hyperparameters(const Param *p, const Param *q)
{
    return is_updated(q) && p->decay == q->decay && p->group == q->group;
}

bool codes_in_step(const Shard *s, const ShardBucket *b, const Param *p)
{
    bool whole = b->level == 0 && !b->offloaded;
    return t_has(p->shard.fp8.q) && whole && s->conf.dtype == BF16 && !is_coded(s) && is_updated(p);
}

bool codes_after_step(const Shard *s, const ShardBucket *b, const Param *p)
{
    return is_updated(p) && !codes_in_step(s, b, p);
}

/* Elements [from, to) of the slice; `state` begins at element `at`. */
static ShardRange range_of(const Shard *s, const ShardBucket *b, const Param *p, int64_t from, int64_t to,
                           int64_t at, const StateBuffers *state)
{
    int64_t n = to - from;
    Tensor  w = b->from_master ? t_rows(s->stage, 0, n) : t_rows(b->own_w, from, n);
    return (ShardRange){ .p = p, .w = w, .g = t_rows(b->own_g, from, n),
                         .state = state_rows(state, from - at, n),
                         .codes = codes_in_step(s, b, p) ? &p->shard.fp8 : NULL };
}

/* Whether one range has both: neighbours with equal hyperparameters, whose codes the step does not make, and
 * where moments are in codes without padding between them, which must not count in the scale of a block. */
static bool steps_together(const Shard *s, const ShardBucket *b, const ShardItem *i, const ShardItem *next)
{
    if (codes_in_step(s, b, i->p) || codes_in_step(s, b, next->p)) return false;
    return same_hyperparameters(i->p, next->p) &&
           (!is_coded(s) || place(b, i) + i->p->shard.len == place(b, next));
}

/* Updates what parameters with a gradient have in [at, at + n) of the slice, adjacent ones with equal
 * hyperparameters together: the adapters of a layer are many and small. Returns whether it updated any. */
static bool step_range(Shard *s, const ShardBucket *b, int64_t at, int64_t n, const StateBuffers *state,
                       ShardRangeFn *step, void *self)
{
    bool any = false;
    const ShardItem *end = s->item + b->first + b->n;
    for (const ShardItem *i = s->item + b->first, *last; i < end; i = last + 1) {
        last = i;
        if (!is_updated(i->p)) continue;
        while (last + 1 < end && steps_together(s, b, last, last + 1)) last++;
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

/* The updated weights of masters have no memory but s->stage: the update makes the codes of some matrices at
 * a time; or what it writes is dropped (step_staged), and codes are made from the masters. */
static void step_matrices(Shard *s, const ShardBucket *b, const ShardItem *i, ShardRangeFn *step, void *self)
{
    int64_t at = place(b, i), each = masters_matrix(i->p);
    for (MasterPart part = { 0 }; masters_next(s, i->p, &part);) {
        int64_t    from = at + part.e * each;
        ShardRange x = range_of(s, b, i->p, from, from + part.n * each, 0, &b->state);
        x.codes = &part.codes;
        step(self, &x);
    }
}

static void step_staged(Shard *s, const ShardBucket *b, const ShardItem *i, ShardRangeFn *step, void *self)
{
    int64_t at = place(b, i), end = at + i->p->shard.len;
    for (; at < end; at += s->stage_elems) {
        int64_t    n = end - at < s->stage_elems ? end - at : s->stage_elems;
        ShardRange x = range_of(s, b, i->p, at, at + n, 0, &b->state);
        step(self, &x);
    }
}

static void step_masters(Shard *s, const ShardBucket *b, ShardRangeFn *step, void *self)
{
    EACH_ITEM(i, s, b) {
        if (codes_in_step(s, b, i->p)) step_matrices(s, b, i, step, self);
        else if (is_updated(i->p))     step_staged(s, b, i, step, self);
    }
}

void shard_step(Shard *s, ShardRangeFn *step, void *self)
{
    ArenaMark mark;
    masters_stage(s, &mark);
    for (int u = 0; u < s->units; u++) {
        EACH_IN_UNIT(b, s, u) {
            if (b->offloaded)        step_offloaded(s, b, step, self);
            else if (b->from_master) step_masters(s, b, step, self);
            else if (has_state(b))   step_range(s, b, 0, b->slice, &b->state, step, self);
        }
        if (s->unit[u].n) weights_changed(s, u, true);
    }
    masters_unstage(s, mark);
    weights_publish(s);
    state_discard(s);
    shard_prefetch_first(s);
}
