/* parallel/shard_gather.c -- gathers weights from the slices. Levels 1 and 2: in place, after a step, joined
 * when the unit is next used. Level 3: into a buffer, around each use. */
#include "parallel/shard_private.h"

static void gather_start(Shard *s, ShardBucket *b)
{
    limit_pending(s, b->shard_comm);
    b->gather    = comm_all_gather_start(b->shard_comm, b->w, b->own_w);
    b->gather_nr = b->shard_comm->seq;
    if (!s->conf.overlap) gather_join(b);
}

void gather_join(ShardBucket *b)
{
    if (b->gather_nr) comm_join(b->gather);
    b->gather_nr = 0;
}

static void gather_join_unit(Shard *s, int unit)
{
    EACH_IN_UNIT(b, s, unit) gather_join(b);
}

/* Starts to gather a unit's weights into its slot; the unit that was in it is no longer in use. */
static void fill_slot(Shard *s, int unit)
{
    ShardSlot *k = &s->slot[s->unit[unit].slot];
    if (k->weights == unit) return;
    if (k->weights >= 0) {
        REQUIRE(!s->unit[k->weights].users, "unit %d is needed while unit %d uses its buffer", unit,
                k->weights);
        gather_join_unit(s, k->weights);
    }
    k->weights = unit;
    EACH_IN_UNIT(b, s, unit)
        if (b->level == 3) gather_start(s, b);
}

static bool is_gathered_per_use(const Shard *s, int unit)
{
    return s->conf.zero == 3 && s->unit[unit].slot >= 0;
}

void weights_take(Shard *s, int unit)
{
    if (is_gathered_per_use(s, unit)) fill_slot(s, unit);
    gather_join_unit(s, unit);
    EACH_IN_UNIT(b, s, unit)
        if (b->level == 3) weights_point(s, b, true);
}

void weights_prefetch(Shard *s, int unit, bool backward)
{
    int at = s->unit[unit].place + (backward ? -1 : 1);
    if (!s->conf.overlap || at < 0 || at >= s->units) return;
    int next = s->order[at];
    if (!is_gathered_per_use(s, next)) return;
    int holder = s->slot[s->unit[next].slot].weights;
    if (holder < 0 || !s->unit[holder].users) fill_slot(s, next);
}

void weights_changed(Shard *s, int unit)
{
    if (is_gathered_per_use(s, unit)) {
        ShardSlot *k = &s->slot[s->unit[unit].slot];
        if (k->weights == unit) k->weights = -1;
    }
    EACH_IN_UNIT(b, s, unit)
        if (!b->frozen && (b->level == 1 || b->level == 2)) gather_start(s, b);
}

void shard_wait_weights(Shard *s)
{
    EACH_BUCKET(b, s) gather_join(b);
}

void shard_refresh_weights(Shard *s)
{
    shard_wait_weights(s);
    state_discard(s);
    for (int i = 0; i < s->conf.params->n; i++) {
        const Param *p = s->conf.params->p[i];
        if (t_has(p->shard.master) && p->shard.len)
            op_set_weight(s->be, shard_slice(p, p->shard.w), shard_slice(p, p->shard.master),
                          param_load_view(p).t);
    }
    for (int at = 0; at < s->units; at++) weights_changed(s, s->order[at]);
    for (int i = 0; i < s->slots; i++) s->slot[i].weights = -1;
    shard_wait_weights(s);
}
