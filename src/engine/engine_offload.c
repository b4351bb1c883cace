/* engine/engine_offload.c -- the memory that parked activations take: berths of the device, and on the
 * host an arena for each micro-batch in flight; see nn/offload.h. */
#include "engine/engine_private.h"

#include <stdlib.h>

static int rows_of(const OffloadEngine *k) { return k->buffers ? 1 + k->separate : 0; }

Status engine_offload_open(Engine *e, const EnginePlan *room)
{
    OffloadEngine *k = &e->offload;
    k->buffers = e->conf.train ? offload_buffers_needed(e->conf.policy) : 0;
    k->separate = engine_overlaps(e), k->resident = e->conf.resident;
    if (!k->buffers) return OK;
    for (int r = 0; r < rows_of(k); r++)
        for (int i = 0; i < k->buffers; i++)
            TRY(backend_arena_open(&e->be, &k->buffer[r][i].arena, "act", room->berth));
    e->parked = calloc((size_t)e->pipe.slots, sizeof *e->parked);
    if (!e->parked) return fail(E_FIT, "no host memory for %d slots", e->pipe.slots);
    for (int i = 0; i < e->pipe.slots; i++)
        TRY(backend_host_arena_open(&e->be, &e->parked[i], "host", room->parked[i]));
    return OK;
}

void engine_offload_close(Engine *e)
{
    OffloadEngine *k = &e->offload;
    for (int r = 0; e->be.device && r < rows_of(k); r++)
        for (int i = 0; i < k->buffers; i++) backend_arena_close(&e->be, &k->buffer[r][i].arena);
    for (int i = 0; e->parked && i < e->pipe.slots; i++) backend_host_arena_close(&e->be, &e->parked[i]);
    free(e->parked);
    e->parked = NULL, *k = (OffloadEngine){ 0 };
}

void engine_offload_clear(Engine *e)
{
    OffloadEngine *k = &e->offload;
    for (int r = 0; r < rows_of(k); r++)
        for (int i = 0; i < k->buffers; i++) arena_clear(&k->buffer[r][i].arena);
    for (int i = 0; e->parked && i < e->pipe.slots; i++) arena_clear(&e->parked[i]);
}

/* Any layer may come to any berth: all are as large as the largest. The second row is never pushed to. */
size_t engine_staging_peak(const Engine *e)
{
    size_t most = 0;
    for (int i = 0; i < e->offload.buffers; i++)
        if (e->offload.buffer[0][i].arena.peak > most) most = e->offload.buffer[0][i].arena.peak;
    return most;
}

int engine_staging_buffers(const Engine *e) { return e->offload.buffers * rows_of(&e->offload); }

size_t engine_arena_peak(const Engine *e, ArenaId a)
{
    size_t n = e->arena[a].peak;
    if (a == A_SCRATCH) n += e->beside.peak;
    if (a == A_ACT) n += engine_staging_peak(e) * (size_t)engine_staging_buffers(e);
    for (int i = 0; a == A_ACT && e->more && i < e->pipe.slots - 1; i++) n += e->more[i].peak;
    for (int i = 0; a == A_HOST && e->parked && i < e->pipe.slots; i++) n += e->parked[i].peak;
    return n;
}
