/* engine/engine_offload.c -- the memory that parked activations take: berths of the device, and on the host an
 * arena for each micro-batch in flight; see nn/offload.h. */
#include "engine/engine_private.h"

#include <stdlib.h>

static int rows_of(const Park *k) { return k->berths ? 1 + k->apart : 0; }

Status engine_park_open(Engine *e, const EnginePlan *room)
{
    Park *k = &e->park;
    k->berths = e->conf.train ? park_berths(e->conf.policy) : 0;
    k->apart = engine_overlaps(e), k->home = e->conf.home;
    if (!k->berths) return OK;
    for (int r = 0; r < rows_of(k); r++)
        for (int i = 0; i < k->berths; i++)
            TRY(backend_arena_open(&e->be, &k->berth[r][i].room, "act", room->berth));
    e->parked = calloc((size_t)e->pipe.slots, sizeof *e->parked);
    if (!e->parked) return fail(E_FIT, "no host memory for %d slots", e->pipe.slots);
    for (int i = 0; i < e->pipe.slots; i++)
        TRY(backend_host_arena_open(&e->be, &e->parked[i], "host", room->parked[i]));
    return OK;
}

void engine_park_close(Engine *e)
{
    Park *k = &e->park;
    for (int r = 0; e->be.device && r < rows_of(k); r++)
        for (int i = 0; i < k->berths; i++) backend_arena_close(&e->be, &k->berth[r][i].room);
    for (int i = 0; e->parked && i < e->pipe.slots; i++) backend_host_arena_close(&e->be, &e->parked[i]);
    free(e->parked);
    e->parked = NULL, *k = (Park){ 0 };
}

void engine_park_clear(Engine *e)
{
    Park *k = &e->park;
    for (int r = 0; r < rows_of(k); r++)
        for (int i = 0; i < k->berths; i++) arena_clear(&k->berth[r][i].room);
    for (int i = 0; e->parked && i < e->pipe.slots; i++) arena_clear(&e->parked[i]);
}

/* Any layer may come to any berth: all are as large as the largest. The second row is never pushed to. */
size_t engine_berth_peak(const Engine *e)
{
    size_t most = 0;
    for (int i = 0; i < e->park.berths; i++)
        if (e->park.berth[0][i].room.peak > most) most = e->park.berth[0][i].room.peak;
    return most;
}

int engine_berths(const Engine *e) { return e->park.berths * rows_of(&e->park); }

size_t engine_peak(const Engine *e, ArenaId a)
{
    size_t n = e->arena[a].peak;
    if (a == A_SCRATCH) n += e->beside.peak;
    if (a == A_ACT) n += engine_berth_peak(e) * (size_t)engine_berths(e);
    for (int i = 0; a == A_ACT && e->more && i < e->pipe.slots - 1; i++) n += e->more[i].peak;
    for (int i = 0; a == A_HOST && e->parked && i < e->pipe.slots; i++) n += e->parked[i].peak;
    return n;
}
