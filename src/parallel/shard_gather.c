/* parallel/shard_gather.c -- gathers weights from the slices. Levels 1 and 2: in place, after a step, joined
 * when the unit is next used. Level 3: into a buffer, around each use. */
#include "parallel/shard_private.h"

#include "nn/fp8_weight.h"

static void gather_start(Shard *s, ShardBucket *b)
{
    limit_pending(s, b->shard_comm);
    b->gather    = b->coded ? comm_all_gather_start(b->shard_comm, b->q, b->own_q)
                            : comm_all_gather_start(b->shard_comm, b->w, b->own_w);
    b->gather_nr = b->shard_comm->seq;
    if (!s->conf.overlap) gather_join(s, b);
}

void gather_join(Shard *s, ShardBucket *b)
{
    if (!b->gather_nr) return;
    comm_join(b->gather);
    b->gather_nr = 0;
    codes_transpose(s, b);
}

static void gather_join_unit(Shard *s, int unit)
{
    EACH_IN_UNIT(b, s, unit) gather_join(s, b);
}

static bool is_gathered_per_use(const Shard *s, int unit)
{
    return s->conf.zero == 3 && s->unit[unit].slot >= 0;
}

/* The least recently used buffer of the unit's shape that no pass holds, so that a buffer that another pass
 * has prefetched stays; NULL: all are in use. */
static WeightBuffer *free_buffer(Shard *s, int unit)
{
    WeightBuffer *found = NULL;
    for (WeightBuffer *k = s->weights; k < s->weights + s->weight_buffers; k++) {
        if (s->unit[k->owner].shape != s->unit[unit].shape || (k->unit >= 0 && s->unit[k->unit].users))
            continue;
        if (!found || k->used < found->used) found = k;
    }
    return found;
}

static void empty_buffer(Shard *s, WeightBuffer *k)
{
    if (k->unit < 0) return;
    gather_join_unit(s, k->unit);
    s->unit[k->unit].held = -1;
    k->unit = -1, k->used = 0;
}

/* Starts to gather a unit's weights, unless a buffer has them. False: no buffer is free. */
static bool fill_buffer(Shard *s, int unit)
{
    ShardUnit    *u = &s->unit[unit];
    WeightBuffer *k = u->held >= 0 ? &s->weights[u->held] : free_buffer(s, unit);
    if (!k) return false;
    if (u->held < 0) {
        empty_buffer(s, k);
        k->unit = unit, u->held = (int)(k - s->weights);
        EACH_IN_UNIT(b, s, unit) {
            if (b->level != 3) continue;
            *(b->coded ? &b->q : &b->w) = (buckets_of(s, k->owner) + (b - buckets_of(s, unit)))->buffer;
            gather_start(s, b);
        }
    }
    k->used = ++s->uses;
    return true;
}

void weights_take(Shard *s, int unit)
{
    if (is_gathered_per_use(s, unit))
        REQUIRE(fill_buffer(s, unit), "unit %d: all weight buffers of its shape are in use", unit);
    gather_join_unit(s, unit);
    EACH_IN_UNIT(b, s, unit)
        if (b->level == 3) weights_point(s, b, true);
}

void weights_prefetch(Shard *s, int unit, bool backward)
{
    int at = s->unit[unit].place + (backward ? -1 : 1);
    if (!s->conf.overlap || at < 0 || at >= s->units) return;
    if (is_gathered_per_use(s, s->order[at])) fill_buffer(s, s->order[at]);
}

void shard_prefetch_first(Shard *s)
{
    if (s->conf.overlap && s->units && is_gathered_per_use(s, s->order[0])) fill_buffer(s, s->order[0]);
}

static void refresh_fp8(Shard *s, const ShardBucket *b, bool stepped)
{
    EACH_ITEM(i, s, b) {
        if (stepped && !codes_after_step(s, b, i->p)) continue;
        if (b->from_master) masters_refresh(s, i->p);
        else                fp8_weight_refresh(s->be, i->p);
    }
}

void weights_changed(Shard *s, int unit, bool stepped)
{
    if (s->unit[unit].held >= 0) empty_buffer(s, &s->weights[s->unit[unit].held]);
    EACH_IN_UNIT(b, s, unit) {
        if (b->frozen) continue;
        if (b->coded) codes_find_amax(s, b);
        else if (b->level == 1 || b->level == 2) gather_start(s, b);
        if (b->level == 0) refresh_fp8(s, b, stepped);
    }
}

static void publish_codes(Shard *s, int unit)
{
    EACH_IN_UNIT(b, s, unit) {
        if (b->frozen || !b->coded) continue;
        codes_quantize(s, b);
        if (b->level < 3) gather_start(s, b);
    }
}

void weights_publish(Shard *s)
{
    codes_agree_scales(s, false);
    for (int at = 0; at < s->units; at++) publish_codes(s, s->order[at]);
}

static bool is_in_fp8_product(const ProductPrecision *p, const Param *w)
{
    Site site = precision_site(w);
    return site < SITES && (p->coded[site][PRODUCT_Y] || p->coded[site][PRODUCT_DX]);
}

void shard_keep_fp8(Shard *s, Arena *param, Arena *scratch)
{
    const ProductPrecision *p = s->conf.fp8;
    s->scratch = scratch;
    EACH_BUCKET(b, s)
        EACH_ITEM(i, s, b)
            if (b->from_master ||
                (p && s->conf.keep_wide && b->level == 0 && !b->coded && is_in_fp8_product(p, i->p)))
                fp8_weight_open(i->p, param, !s->conf.one_layout);
}

void shard_wait_weights(Shard *s)
{
    EACH_BUCKET(b, s) gather_join(s, b);
}

void shard_refresh_weights(Shard *s)
{
    shard_wait_weights(s);
    state_discard(s);
    for (int i = 0; i < s->conf.params->n; i++) {
        const Param *p = s->conf.params->p[i];
        ShardView own = param_load_view(p);
        if (t_has(own.t) && !t_has(own.rest) && t_has(p->shard.w) && p->shard.len)
            op_set_weight(s->be, shard_slice(p, p->shard.w), own.t, own.t);
    }
    ArenaMark mark;
    masters_stage(s, &mark);
    for (int at = 0; at < s->units; at++) weights_changed(s, s->order[at], false);
    masters_unstage(s, mark);
    weights_publish(s);
    codes_agree_scales(s, true);
    EACH_BUCKET(b, s)
        if (b->frozen && b->level == 0 && !b->coded) refresh_fp8(s, b, false);
    shard_wait_weights(s);
}
