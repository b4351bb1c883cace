/* engine/engine_private.h -- between the files of the engine: engine_open.c, engine_park.c, engine_plan.c,
 * engine.c. */
#ifndef ENGINE_ENGINE_PRIVATE_H
#define ENGINE_ENGINE_PRIVATE_H

#include "engine/engine.h"

/* Everything on a backend; room: what a plan found. A plan itself (room->slots 0) has nobody at the other
 * ends. */
MUST Status engine_open_on(Engine *e, const ModelShape *s, const EngineConf *conf, const char *backend,
                           bool levels, const EnginePlan *room);

/* engine_park.c: berths and host arenas of a policy that parks something. */
MUST Status engine_offload_open(Engine *e, const EnginePlan *room);
void        engine_offload_close(Engine *e);
void        engine_offload_clear(Engine *e);
int         engine_staging_buffers(const Engine *e);
size_t      engine_staging_peak(const Engine *e);                        /* of the fullest */

static inline Arena *engine_act(Engine *e, int slot) { return slot ? &e->more[slot - 1] : &e->arena[A_ACT]; }
static inline bool   engine_overlaps(const Engine *e)  { return e->pipe.shape.extra_warmup > 0; }

#endif
