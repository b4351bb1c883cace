/* comm/comm_self.c -- the transports without peers. "self" is one rank: a call copies data within the rank or
 * does nothing. "fake" is one rank of a world of any size, for plans: comm.c charges what would be sent.
 * Gathers and all_to_all copy the rank's own part to its place and leave the rest unwritten, sums leave
 * everything unwritten, and host calls return this rank's data for every member. */
#include "comm/transport.h"
#include "ops/ops.h"

#include <string.h>

static void local_move(Backend *be, void *to, const void *from, int64_t bytes)
{
    if (to == from || !bytes) return;
    if (be->device->host_memory) memmove(to, from, (size_t)bytes);
    else {                                                   /* as elements that the op copies unchanged */
        int64_t n = bytes / (bytes % 4 ? 2 : 4);
        DType   d = bytes % 4 ? BF16 : I32;
        REQUIRE(bytes % 2 == 0, "%lld bytes within a device", (long long)bytes);
        be->ops->copy(be, t_wrap(to, d, 1, &n), t_wrap((void *)from, d, 1, &n));
    }
}

void local_part(Comm *c, const CommCall *call)
{
    Backend *be = c->be;
    char    *out = call->out.data, *in = call->in.data;
    int64_t  row, kept, got;
    switch (call->kind) {
    case CALL_ALL_GATHER:
        local_move(be, out + c->rank * t_bytes(call->in), in, t_bytes(call->in));
        return;
    case CALL_REDUCE_SCATTER:
        local_move(be, out, in + c->rank * t_bytes(call->out), t_bytes(call->out));
        return;
    case CALL_ALL_TO_ALL:
        row = call_row(call->in), kept = call->give.n[c->rank], got = call->get.n[c->rank];
        REQUIRE(kept == got, "all_to_all: a rank sends %lld rows to itself and expects %lld", (long long)kept,
                (long long)got);
        local_move(be, out + call->get.at[c->rank] * row, in + call->give.at[c->rank] * row, kept * row);
        return;
    default:
        return;
    }
}

static Status lone_group(Comm *world, Comm *out)                          { return OK; }
static void   lone_close(Comm *c)                                         { }
static void   lone_start(Comm *c, int slot, const CommCall *call)             { local_part(c, call); }
static void   lone_join(Comm *c, int slot)                                { }
static void   lone_abort(Comm *world, const char *why)                    { }

static Status lone_gather(Comm *c, void *out, const void *in, size_t bytes)
{
    for (int i = 0; i < c->size; i++) memcpy((char *)out + (size_t)i * bytes, in, bytes);
    return OK;
}

static Status self_open(Comm **world, const CommConf *conf)
{
    *world = comm_new(&transport_self, NULL, 0, 1);
    return *world ? OK : fail(E_FIT, "no memory");
}

static Status fake_open(Comm **world, const CommConf *conf)
{
    if (conf->size < 1 || conf->rank < 0 || conf->rank >= conf->size)
        return fail(E_CONFIG, "comm.kind fake: rank %d of %d ranks", conf->rank, conf->size);
    if (!(*world = comm_new(&transport_fake, NULL, conf->rank, conf->size))) return fail(E_FIT, "no memory");
    for (int i = 0; i < conf->size; i++) (*world)->node[i] = conf->per_node > 0 ? i / conf->per_node : 0;
    return OK;
}

#define LONE .group = lone_group, .close = lone_close, .start = lone_start, .join = lone_join, \
              .host_gather = lone_gather, .abort = lone_abort, .one_process = true

const Transport transport_self = { .name = "self", .open = self_open, LONE };
const Transport transport_fake = { .name = "fake", .open = fake_open, LONE };
