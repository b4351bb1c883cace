/* parallel/shard.c -- the hooks around the use of a unit, and the limit of pending calls; see shard.h. */
#include "parallel/shard_private.h"

static void begin(void *self, int unit, bool backward)
{
    Shard *s = self;
    ShardUnit  *u = &s->unit[unit];
    REQUIRE(unit >= 0 && unit < s->units, "unit %d of %d", unit, s->units);
    if (!u->users++) weights_take(s, unit);
    if (backward && !u->writers++) grads_open(s, unit);
    weights_prefetch(s, unit, backward);
}

static void end(void *self, int unit, bool backward)
{
    Shard *s = self;
    ShardUnit  *u = &s->unit[unit];
    REQUIRE(u->users > 0 && (!backward || u->writers > 0), "unit %d: end without begin", unit);
    if (backward && !--u->writers) grads_close(s, unit);
    if (--u->users) return;
    EACH_IN_UNIT(b, s, unit)
        if (b->level == 3) weights_point(s, b, false);
}

/* The bucket with the oldest pending call on c; NULL: there is none. */
static ShardBucket *oldest_pending(Shard *s, const Comm *c, bool *sum)
{
    ShardBucket *old = NULL;
    int64_t nr = INT64_MAX;
    EACH_BUCKET(b, s) {
        bool sums = b->sum_nr && b->sum.comm == c, gathers = b->gather_nr && b->gather.comm == c;
        if (sums && b->sum_nr < nr)       nr = b->sum_nr, old = b, *sum = true;
        if (gathers && b->gather_nr < nr) nr = b->gather_nr, old = b, *sum = false;
    }
    return old;
}

/* A group has few tickets, so calls that were started many calls ago are joined: they are done by now, or
 * compute waits for communication anyway. */
void limit_pending(Shard *s, const Comm *c)
{
    enum { MANY = COMM_TICKETS / 2 };
    bool sum;
    for (ShardBucket *b; (b = oldest_pending(s, c, &sum));) {
        if (c->seq - (sum ? b->sum_nr : b->gather_nr) < MANY) return;
        if (sum) sum_join(s, b);
        else     gather_join(s, b);
    }
}

UnitHooks unit_hooks(Shard *s) { return (UnitHooks){ begin, end, s }; }

const UnitHooks *shard_hooks(const Shard *s) { return &s->hooks; }
