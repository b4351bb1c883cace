/* parallel/shard.c -- the hooks around a unit's use, and how long a call may be out; see shard.h. */
#include "parallel/shard_private.h"

static void begin(void *self, int unit, bool backward)
{
    Shard *s = self;
    ShardUnit  *u = &s->unit[unit];
    REQUIRE(unit >= 0 && unit < s->units, "unit %d of %d", unit, s->units);
    if (!u->users++) weights_take(s, unit);
    if (backward && !u->writers++) grads_open(s, unit);
    weights_ahead(s, unit, backward);
}

static void end(void *self, int unit, bool backward)
{
    Shard *s = self;
    ShardUnit  *u = &s->unit[unit];
    REQUIRE(u->users > 0 && (!backward || u->writers > 0), "unit %d ends what has not begun", unit);
    if (backward && !--u->writers) grads_close(s, unit);
    if (--u->users) return;
    EACH_IN_UNIT(b, s, unit)
        if (b->level == 3) weights_point(s, b, false);
}

/* The call that has been out for longest on c; NULL: there is none. */
static ShardBucket *oldest(Shard *s, const Comm *c, bool *sum)
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

/* Tickets of a group are few and go round, so those of many calls ago are joined: they are done by now, or
 * the work is held up by communication anyway. */
void make_room(Shard *s, const Comm *c)
{
    enum { MANY = COMM_TICKETS / 2 };
    bool sum;
    for (ShardBucket *b; (b = oldest(s, c, &sum)) && c->seq - (sum ? b->sum_nr : b->gather_nr) >= MANY;) {
        if (sum) sum_join(s, b);
        else     gather_join(b);
    }
}

UnitHooks unit_hooks(Shard *s) { return (UnitHooks){ begin, end, s }; }

const UnitHooks *shard_hooks(const Shard *s) { return &s->hooks; }
