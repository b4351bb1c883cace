/* nn/gdn_context.c -- see gdn_context.h. The ledger counts passes of the rule beyond the first as
 * recomputed. */
#include "nn/gdn_context.h"

#include "base/num.h"
#include "nn/context.h"

Tensor gdn_context_chunk(Tensor t, int half)
{
    int64_t n = t.n[0] / 2;
    return t_has(t) ? t_rows(t, half * n, n) : t;
}

/* One of this rank's chunks. */
typedef struct StateChunk {
    int     half, index;                 /* index in the stream */
    bool    enters, leaves;              /* a document goes on from the chunk before; in the one behind */
    GdnRule x;
    Segments seg;
} StateChunk;

static StateChunk chunk_of(const Pass *c, const GdnRule *x, int half)
{
    const ContextBatch *b = &c->batch->context;
    int i = context_chunk_at(b, half);
    return (StateChunk){ half, i, b->crossing[i] > 0, b->crossing[i + 1] > 0,
                         { gdn_context_chunk(x->q, half), gdn_context_chunk(x->k, half),
                           gdn_context_chunk(x->v, half), gdn_context_chunk(x->g, half),
                           gdn_context_chunk(x->beta, half), x->scale }, b->chunk[half] };
}

static bool begin_extra(const Pass *c)
{
    bool before = c->be->ledger.replay;
    c->be->ledger.replay = true;
    return before;
}
static void end_extra(const Pass *c, bool before) { c->be->ledger.replay = before; }

/* ---- maps of chunks: a row has A of all heads, then B or D ---- */

typedef struct Maps { int64_t H, dk, dv; Tensor all; } Maps;      /* (chunks, H dk (dk + dv)) */

static Maps maps_open(const Pass *c, const GdnRule *x, int64_t chunks)
{
    int64_t H = x->v.n[1], dk = x->q.n[2], dv = x->v.n[2];
    return (Maps){ H, dk, dv, scratch2(c, F32, chunks, H * dk * (dk + dv)) };
}

static Tensor map_a(const Maps *m, int64_t row)
{
    return t_as2(t_cols(t_rows(m->all, row, 1), 0, m->H * m->dk * m->dk), m->H, m->dk * m->dk);
}
static Tensor map_b(const Maps *m, int64_t row)
{
    int64_t a = m->H * m->dk * m->dk, n = m->H * m->dk * m->dv;
    return t_as2(t_cols(t_rows(m->all, row, 1), a, n), m->H, m->dk * m->dv);
}
static Tensor state_of(const Maps *m, Tensor states, int half)
{
    return t_as2(t_rows(states, half, 1), m->H, m->dk * m->dv);
}
static Tensor pass_of(const Maps *m, Tensor passes, int half)
{
    return t_as2(t_rows(passes, half, 1), m->H, m->dk * m->dk);
}

/* The maps of all chunks: rows by rank, of each its first chunk and its second. */
static Maps gather_maps(const Pass *c, const GdnRule *x, const Maps *own)
{
    Comm *cp = c->env->mesh->comm[GR_cp];
    Maps  all = maps_open(c, x, 2 * (int64_t)cp->size);
    comm_all_gather(cp, all.all, own->all);
    return all;
}

static int64_t map_row(const ContextBatch *b, int chunk)
{
    int cp = b->inner * b->outer;
    return chunk < cp ? 2 * chunk : 2 * (2 * cp - 1 - chunk) + 1;
}

/* A state on its way through the chunks; absent: 0. Two buffers take turns. */
typedef struct Traveller { Tensor state, buffer[2]; int turn; } Traveller;

static Traveller traveller_open(const Pass *c, const Maps *m)
{
    Traveller t = { 0 };
    for (int i = 0; i < 2; i++) t.buffer[i] = scratch2(c, F32, m->H, m->dk * m->dv);
    return t;
}

static void travel(const Pass *c, Traveller *t, const Maps *m, int64_t row, bool back)
{
    Tensor to = t->buffer[t->turn ^= 1];
    op_state_pass(c->be, to, map_a(m, row), t->state, map_b(m, row), back);
    t->state = to;
}

static void keep_state(const Pass *c, Tensor to, const Traveller *t)
{
    if (t_has(t->state)) op_copy(c->be, to, t->state);
    else                 op_fill(c->be, to, 0.0f);
}

/* ---- forward ---- */

static void run_fwd(const Pass *c, Tensor o, Tensor last, const StateChunk *k, Tensor v, Tensor first)
{
    op_delta_rule_fwd(c->be, o, last, k->x.q, k->x.k, v, k->x.g, k->x.beta, first, k->seg, k->x.scale);
}

static void write_identity(const Pass *c, Tensor a, int64_t dk)
{
    Tensor diagonal = t_as3(a, a.n[0], dk, dk);
    diagonal.n[2] = 1, diagonal.s[1] = dk + 1;
    op_fill(c->be, a, 0.0f);
    op_fill(c->be, diagonal, 1.0f);
}

/* Scratch of maps: as much whatever the documents are. */
typedef struct MapScratch { Tensor identity, zeros, o_pass, o_last; } MapScratch;

static MapScratch map_scratch(const Pass *c, const GdnRule *x, const Maps *m)
{
    DType   d = (DType)x->v.dtype;
    int64_t n = x->q.n[0] / 2;
    return (MapScratch){ scratch2(c, F32, m->H, m->dk * m->dk), scratch2(c, d, 1, m->dk),
                         t_heads(scratch2(c, d, n, m->H * m->dk), 0, m->H, m->dk),
                         t_heads(scratch2(c, d, n, m->H * m->dv), 0, m->H, m->dv) };
}

/* A: the identity passes the chunk while all values are 0. */
static void compute_pass(const Pass *c, const StateChunk *k, const Maps *m, const MapScratch *w, Tensor a)
{
    Tensor v = w->zeros;
    v.rank = 3, v.n[0] = k->x.q.n[0], v.n[1] = m->H, v.n[2] = m->dk;
    v.s[0] = v.s[1] = 0, v.s[2] = 1;
    write_identity(c, w->identity, m->dk);
    op_fill(c->be, w->zeros, 0.0f);
    run_fwd(c, w->o_pass, a, k, v, w->identity);
}

/* Of one chunk: A and B where the state goes on; the outputs o where no state enters. */
static void chunk_maps(const Pass *c, const StateChunk *k, const Maps *m, const MapScratch *w, Tensor o)
{
    Tensor a = map_a(m, k->half), b = map_b(m, k->half), none = { 0 };
    bool   replay = c->be->ledger.replay;
    if (!k->leaves) op_fill(c->be, b, 0.0f);
    if (!k->enters || !k->leaves) op_fill(c->be, a, 0.0f);
    if (k->enters) begin_extra(c);
    if (!k->enters || k->leaves)
        run_fwd(c, k->enters ? w->o_last : o, k->leaves ? b : none, k, k->x.v, none);
    if (k->enters && k->leaves) compute_pass(c, k, m, w, a);
    end_extra(c, replay);
}

/* The states that enter this rank's chunks. */
static void enter_states(const Pass *c, const Maps *m, GdnStates kept)
{
    const ContextBatch *b = &c->batch->context;
    Traveller t = traveller_open(c, m);
    bool      replay = begin_extra(c);
    for (int i = 0; i <= context_chunk_at(b, 1); i++) {
        if (!b->crossing[i]) t.state = (Tensor){ 0 };
        for (int half = 0; half < 2; half++)
            if (i == context_chunk_at(b, half)) keep_state(c, state_of(m, kept.first, half), &t);
        if (b->crossing[i + 1]) travel(c, &t, m, map_row(b, i), false);
    }
    end_extra(c, replay);
}

void gdn_context_rule_fwd(const Pass *c, Tensor o, GdnStates kept, const GdnRule *x)
{
    ArenaMark  mark = arena_mark(c->scratch);
    Maps       own = maps_open(c, x, 2);
    MapScratch work = map_scratch(c, x, &own);
    StateChunk k[2] = { chunk_of(c, x, 0), chunk_of(c, x, 1) };
    for (int half = 0; half < 2; half++) {
        chunk_maps(c, &k[half], &own, &work, gdn_context_chunk(o, half));
        op_copy(c->be, pass_of(&own, kept.pass, half), map_a(&own, half));
    }
    Maps all = gather_maps(c, x, &own);
    enter_states(c, &all, kept);
    for (int half = 0; half < 2; half++)
        if (k[half].enters)
            run_fwd(c, gdn_context_chunk(o, half), (Tensor){ 0 }, &k[half], k[half].x.v,
                    state_of(&own, kept.first, half));
    arena_reset(c->scratch, mark);
}

/* ---- backward ---- */

typedef struct ChunkGrads { Tensor dfirst, dlast, dout, first, states; } ChunkGrads;

static void run_bwd(const Pass *c, const GdnRuleGrads *to, const StateChunk *k, const ChunkGrads *g)
{
    op_delta_rule_bwd(c->be, gdn_context_chunk(to->dq, k->half), gdn_context_chunk(to->dk, k->half),
                      gdn_context_chunk(to->dv, k->half), gdn_context_chunk(to->dg, k->half),
                      gdn_context_chunk(to->dbeta, k->half), g->dfirst, g->states, g->dout, g->dlast, k->x.q,
                      k->x.k, k->x.v, k->x.g, k->x.beta, g->first, k->seg, k->x.scale);
}

static ChunkGrads grads_of(const StateChunk *k, const Maps *m, Tensor dout, GdnStates kept, Tensor states)
{
    return (ChunkGrads){ .states = states, .dout = gdn_context_chunk(dout, k->half),
                         .first = k->enters ? state_of(m, kept.first, k->half) : (Tensor){ 0 } };
}

/* D, and A as forward kept it. Where no gradient comes from the chunk behind, the others are final too. */
static void chunk_maps_bwd(const Pass *c, const GdnRuleGrads *to, const StateChunk *k, const Maps *m,
                           ChunkGrads g, Tensor pass)
{
    bool replay = c->be->ledger.replay;
    op_copy(c->be, map_a(m, k->half), pass);
    if (k->enters) g.dfirst = map_b(m, k->half);
    else           op_fill(c->be, map_b(m, k->half), 0.0f);
    if (k->leaves) begin_extra(c);
    if (k->enters || !k->leaves) run_bwd(c, to, k, &g);
    end_extra(c, replay);
}

/* The gradients of the states that leave this rank's chunks, to dlast (2, Hv dk dv). */
static void leave_states(const Pass *c, const Maps *m, Tensor dlast)
{
    const ContextBatch *b = &c->batch->context;
    Traveller t = traveller_open(c, m);
    bool      replay = begin_extra(c);
    for (int i = 2 * b->inner * b->outer - 1; i >= context_chunk_at(b, 0); i--) {
        if (!b->crossing[i + 1]) t.state = (Tensor){ 0 };
        for (int half = 0; half < 2; half++)
            if (i == context_chunk_at(b, half)) keep_state(c, state_of(m, dlast, half), &t);
        if (b->crossing[i]) travel(c, &t, m, map_row(b, i), true);
    }
    end_extra(c, replay);
}

void gdn_context_rule_bwd(const Pass *c, const GdnRuleGrads *to, Tensor dout, GdnStates kept,
                          const GdnRule *x)
{
    ArenaMark  mark = arena_mark(c->scratch);
    Maps       own = maps_open(c, x, 2);
    StateChunk k[2] = { chunk_of(c, x, 0), chunk_of(c, x, 1) };
    int64_t    tiles = (x->q.n[0] / 2 + GDN_TILE - 1) / GDN_TILE;
    Tensor     states = scratch2(c, (DType)x->q.dtype, tiles, kept.first.n[1]);
    Tensor     dlast = scratch2(c, F32, 2, kept.first.n[1]);
    for (int half = 0; half < 2; half++)
        chunk_maps_bwd(c, to, &k[half], &own, grads_of(&k[half], &own, dout, kept, states),
                       pass_of(&own, kept.pass, half));
    Maps all = gather_maps(c, x, &own);
    leave_states(c, &all, dlast);
    for (int half = 0; half < 2; half++) {
        ChunkGrads g = grads_of(&k[half], &own, dout, kept, states);
        g.dlast = state_of(&own, dlast, half);
        if (k[half].leaves) run_bwd(c, to, &k[half], &g);
    }
    arena_reset(c->scratch, mark);
}

/* ---- rows before a chunk ---- */

/* Rows of the last h of chunk `half` that belong to the document which goes on. */
static int64_t live_rows(const Pass *c, int half, int64_t h)
{
    const ContextBatch *b = &c->batch->context;
    return min_i64(h, b->crossing[context_chunk_at(b, half) + 1]);
}

/* Columns of these rows in a buffer of tails; x (Ta, H, C) says how wide they are. */
static Tensor tail_rows(Tensor tail, int half, int64_t live, int64_t col, Tensor x)
{
    int64_t h = tail.n[0] / 2;
    return t_heads(t_rows(tail, (half + 1) * h - live, live), col, x.n[1], x.n[2]);
}
static Tensor chunk_end(Tensor x, int half, int64_t live)
{
    return t_rows(x, (half + 1) * x.n[0] / 2 - live, live);
}

void gdn_context_tails_put(const Pass *c, Tensor tail, int64_t col, Tensor x)
{
    int64_t h = tail.n[0] / 2;
    for (int half = 0; half < 2; half++) {
        int64_t live = live_rows(c, half, h);
        Tensor  all = t_heads(t_rows(tail, half * h, h), col, x.n[1], x.n[2]);
        if (live < h) op_fill(c->be, all, 0.0f);
        if (live) op_copy(c->be, tail_rows(tail, half, live, col, x), chunk_end(x, half, live));
    }
}

void gdn_context_tails_send(const Pass *c, Tensor before, Tensor tail)
{
    context_exchange_tails(c, c->env->mesh->comm[GR_cp], before, tail);
}

void gdn_context_tails_return(const Pass *c, Tensor dtail, Tensor dbefore)
{
    context_return_tails(c, c->env->mesh->comm[GR_cp], dtail, dbefore);
}

void gdn_context_tails_add(const Pass *c, Tensor dx, Tensor dtail, int64_t col)
{
    for (int half = 0; half < 2; half++) {
        int64_t live = live_rows(c, half, dtail.n[0] / 2);
        Tensor  to = chunk_end(dx, half, live);
        if (live) op_add(c->be, to, to, tail_rows(dtail, half, live, col, dx));
    }
}

Tensor gdn_context_before(const Pass *c, Tensor before, int half, int64_t col, Tensor x)
{
    const ContextBatch *b = &c->batch->context;
    int64_t h = before.n[0] / 2;
    if (!b->crossing[context_chunk_at(b, half)]) return (Tensor){ 0 };
    return t_heads(t_rows(before, half * h, h), col, x.n[1], x.n[2]);
}
