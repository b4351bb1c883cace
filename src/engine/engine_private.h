/* engine/engine_private.h -- shared by engine.c, engine_open.c, engine_offload.c and engine_plan.c. */
#ifndef ENGINE_ENGINE_PRIVATE_H
#define ENGINE_ENGINE_PRIVATE_H

#include "engine/engine.h"

/* Opens all parts on a backend, with arenas of the sizes in plan. plan->slots 0: a dry run, whose sizes are
 * upper limits and whose communicators are fake. */
MUST Status engine_open_on(Engine *e, const ModelShape *s, const EngineConf *conf, const char *backend,
                           bool byte_pixels, const EnginePlan *plan);

/* engine_offload.c: staging buffers and host arenas of offloaded activations. */
MUST Status engine_offload_open(Engine *e, const EnginePlan *plan);
void        engine_offload_close(Engine *e);
void        engine_offload_clear(Engine *e);
int         engine_staging_buffers(const Engine *e);
size_t      engine_staging_peak(const Engine *e);                        /* of the fullest buffer */

/* engine_graph.c */
MUST Status engine_graph_check(const EngineConf *conf);    /* refuses what graphs cannot run with */
MUST Status engine_graph_open(Engine *e);                  /* nothing without conf.graphs, or in a dry run */
size_t      engine_graph_bytes(const EngineConf *conf);    /* device memory that graphs may take */
/* graph_cache_begin, with the batch in the key. A pass in which ranks communicate is no graph; its scopes
 * are. */
bool        engine_graph_begin(Engine *e, GraphKey k);

static inline Arena *engine_act(Engine *e, int slot)
{
    return slot ? &e->slot_act[slot - 1] : &e->arena[A_ACT];
}

static inline bool   engine_overlaps(const Engine *e)  { return e->pipe.shape.extra_warmup > 0; }

#endif
