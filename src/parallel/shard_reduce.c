/* parallel/shard_reduce.c -- sums gradients over ranks.
 *
 * Levels 0 and 1 accumulate over micro-batches in place and are summed over ranks once, after the last
 * backward of their unit. Levels 2 and 3 are summed after every micro-batch, the first time straight into the
 * slice, later into a buffer and then added: the full gradient is in a slot that the next unit but one needs,
 * so its sum is joined by then. */
#include "parallel/shard_private.h"

/* Gradients that no backward has written are zero; this rank takes part in their sum all the same. */
static void zero_unwritten(Shard *s, ShardBucket *b)
{
    EACH_ITEM(i, s, b) {
        if (i->p->step.grad_unset) op_fill(s->be, i->p->shard.g, 0.0f);
        i->p->step.grad_unset = false;
    }
}

static void reset_grads(Shard *s, ShardBucket *b)
{
    EACH_ITEM(i, s, b) {
        i->p->step.grad_unset = i->product, i->p->step.squared = false;
        if (!i->product) op_fill(s->be, i->p->shard.g, 0.0f);
    }
}

static Tensor own_in_whole(const ShardBucket *b) { return t_rows(b->g, b->at, b->slice); }

static void sum_start(Shard *s, ShardBucket *b)
{
    Comm *c = b->level ? b->shard_comm : b->sum_comm;
    zero_unwritten(s, b);
    b->adds  = b->level >= 2 && b->begun;
    b->begun = true;
    if (comm_size(c) == 1) return;
    limit_pending(s, c);
    if (!b->level) b->sum = comm_all_reduce_start(c, b->g, RED_SUM);
    else           b->sum = comm_reduce_scatter_start(c, b->adds ? own_in_whole(b) : b->own_g, b->g, RED_SUM);
    b->sum_nr = c->seq;
    if (!s->conf.overlap) sum_join(s, b);
}

void sum_join(Shard *s, ShardBucket *b)
{
    if (!b->sum_nr) return;
    comm_join(b->sum);
    b->sum_nr = 0;
    if (b->adds) op_add(s->be, b->own_g, b->own_g, own_in_whole(b));
    b->adds = false;
}

void grads_open(Shard *s, int unit)
{
    ShardUnit *u = &s->unit[unit];
    if (u->slot < 0) return;
    int *holder = &s->grads[u->slot];
    if (*holder >= 0) {
        REQUIRE(*holder == unit || !s->unit[*holder].writers,
                "unit %d runs its backward while unit %d uses its buffer", unit, *holder);
        EACH_IN_UNIT(b, s, *holder) sum_join(s, b);
    }
    *holder = unit;
    EACH_IN_UNIT(b, s, unit) {
        if (b->frozen || b->level < 2) continue;
        grads_point(s, b, true);
        reset_grads(s, b);
    }
}

void grads_close(Shard *s, int unit)
{
    ShardUnit *u = &s->unit[unit];
    u->backs++;
    EACH_IN_UNIT(b, s, unit) {
        if (b->frozen || (b->level < 2 && (b->begun || u->backs < s->micro))) continue;
        sum_start(s, b);
        if (b->level >= 2) grads_point(s, b, false);
    }
}

/* After a forward without a backward a tied embedding is still open: the counts are reset. */
void shard_begin_step(Shard *s, int micro)
{
    EACH_BUCKET(b, s) sum_join(s, b);
    shard_marks_clear(s, micro);
    EACH_BUCKET(b, s) {
        if (b->level == 3) weights_point(s, b, false);
        if (b->level >= 2 && !b->frozen) grads_point(s, b, false);
        if (!b->frozen && b->level < 2) reset_grads(s, b);
    }
    state_prefetch(s);
}

/* ---- the end of a step ---- */

/* Sums of units that ran fewer backwards than expected, last unit first: the order of a backward. */
static void start_remaining_sums(Shard *s)
{
    for (int at = s->units - 1; at >= 0; at--) {
        int u = s->order[at];
        REQUIRE(!s->unit[u].writers, "a step ends during the backward of unit %d", u);
        EACH_IN_UNIT(b, s, u)
            if (!b->frozen && b->level < 2 && !b->begun) sum_start(s, b);
    }
}

static void join_all(Shard *s)
{
    EACH_BUCKET(b, s) sum_join(s, b);
}

/* Sums the same slice over all replicas. */
static void sum_copies(Shard *s)
{
    EACH_BUCKET(b, s) {
        if (b->frozen || !b->level || comm_size(b->copy_comm) == 1) continue;
        limit_pending(s, b->copy_comm);
        b->sum    = comm_all_reduce_start(b->copy_comm, b->own_g, RED_SUM);
        b->sum_nr = b->copy_comm->seq;
    }
    join_all(s);
}

/* The first element of rows of kv heads that several ranks of tp share; the end if there are none. A shared
 * piece has, over all ranks together, `sharers` times its full rows. */
static int64_t shared_from(const Param *p, const Mesh *m)
{
    int64_t rows = 0, all = 0, sharers = m->comm[GR_kv]->size, tp = m->size[AX_TP];
    if (!p->head_width) return param_local(p);
    for (int i = 0; i < p->pieces; i++) {
        all += p->piece[i].rows;
        if (p->piece[i].rows * tp != p->piece[i].shape[0] * sharers) rows = all;
    }
    return rows * (param_local(p) / all);
}

/* Each rank's gradient of a shared kv head covers its own query heads; after the sum all update it alike. */
static void sum_shared(Shard *s)
{
    enum { WINDOW = 16 };
    const Mesh *m = s->conf.params->mesh;
    Ticket out[WINDOW] = { 0 };
    int n = 0;
    if (!m || m->comm[GR_kv]->size == 1) return;
    EACH_BUCKET(b, s)
        if (!b->frozen) EACH_ITEM(i, s, b) {
            const Param *p = i->p;
            int64_t from = shared_from(p, m) - p->shard.offset;
            if (from < 0) from = 0;
            if (from >= p->shard.len) continue;
            Tensor rows = t_rows(shard_slice(p, p->shard.g), from, p->shard.len - from);
            comm_join(out[n % WINDOW]);
            out[n++ % WINDOW] = comm_all_reduce_start(m->comm[GR_kv], rows, RED_SUM);
        }
    for (int i = 0; i < WINDOW; i++) comm_join(out[i]);
}

/* The tied embedding of the first stage and head of the last. It is alone in its bucket on both, so both have
 * the same slices. */
static void sum_tied(Shard *s)
{
    const Param *p = s->conf.tied;
    const Mesh  *m = s->conf.params->mesh;
    if (!p || !m || !t_has(p->shard.g) || !p->shard.len) return;
    comm_all_reduce(m->comm[GR_embd], shard_slice(p, p->shard.g), RED_SUM);
}

/* A parameter that has a gradient on any rank has one on every rank, zero or not. */
static void agree_live(Shard *s)
{
    const ParamSet *p = s->conf.params;
    if (!p->mesh || p->mesh->comm[GR_tp_dp_cp]->size == 1) return;
    for (int i = 0; i < p->n; i++) s->live[i] = p->p[i]->step.has_grad;
    comm_host_max(p->mesh->comm[GR_tp_dp_cp], s->live, p->n);
    for (int i = 0; i < p->n; i++) p->p[i]->step.has_grad = s->live[i] > 0;
}

void shard_finish_grads(Shard *s)
{
    start_remaining_sums(s);
    join_all(s);
    shard_wait_weights(s);                                    /* of units that this step did not use */
    EACH_BUCKET(b, s) {
        if (!b->frozen && !b->begun) op_fill(s->be, b->own_g, 0.0f);
    }
    sum_copies(s);
    sum_shared(s);
    sum_tied(s);
    agree_live(s);
}
