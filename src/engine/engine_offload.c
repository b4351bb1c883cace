/* engine/engine_offload.c -- memory of offloaded activations: staging buffers on the device, and on the host
 * an arena for each slot; see nn/offload.h. */
#include "engine/engine_private.h"

#include <stdlib.h>

static int rows_of(const OffloadEngine *k) { return k->buffers ? 1 + k->separate : 0; }

Status engine_offload_open(Engine *e, const EnginePlan *plan)
{
    OffloadEngine *k = &e->offload;
    k->buffers = e->conf.train ? offload_buffers_needed(e->conf.policy) : 0;
    k->separate = engine_overlaps(e), k->resident = e->conf.resident;
    if (!k->buffers) return OK;
    for (int r = 0; r < rows_of(k); r++)
        for (int i = 0; i < k->buffers; i++)
            TRY(backend_arena_open(&e->be, &k->buffer[r][i].arena, "act", plan->staging));
    e->host_act = calloc((size_t)e->pipe.slots, sizeof *e->host_act);
    if (!e->host_act) return fail(E_FIT, "no host memory for %d slots", e->pipe.slots);
    for (int i = 0; i < e->pipe.slots; i++)
        TRY(backend_host_arena_open(&e->be, &e->host_act[i], "host", plan->offloaded[i]));
    return OK;
}

void engine_offload_close(Engine *e)
{
    OffloadEngine *k = &e->offload;
    for (int r = 0; e->be.device && r < rows_of(k); r++)
        for (int i = 0; i < k->buffers; i++) backend_arena_close(&e->be, &k->buffer[r][i].arena);
    for (int i = 0; e->host_act && i < e->pipe.slots; i++) backend_host_arena_close(&e->be, &e->host_act[i]);
    free(e->host_act);
    e->host_act = NULL, *k = (OffloadEngine){ 0 };
}

void engine_offload_clear(Engine *e)
{
    OffloadEngine *k = &e->offload;
    for (int r = 0; r < rows_of(k); r++)
        for (int i = 0; i < k->buffers; i++) arena_clear(&k->buffer[r][i].arena);
    for (int i = 0; e->host_act && i < e->pipe.slots; i++) arena_clear(&e->host_act[i]);
}

/* Any layer may use any staging buffer: all have the size of the largest. The dry run uses only the first
 * row. */
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
    if (a == A_SCRATCH) n += e->overlap_scratch.peak;
    if (a == A_ACT) n += engine_staging_peak(e) * (size_t)engine_staging_buffers(e);
    for (int i = 0; a == A_ACT && e->slot_act && i < e->pipe.slots - 1; i++) n += e->slot_act[i].peak;
    for (int i = 0; a == A_HOST && e->host_act && i < e->pipe.slots; i++) n += e->host_act[i].peak;
    return n;
}
