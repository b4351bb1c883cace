/* train/engine_private.h -- between the files of the engine: engine_open.c, engine_plan.c, engine.c. */
#ifndef TRAIN_ENGINE_PRIVATE_H
#define TRAIN_ENGINE_PRIVATE_H

#include "train/engine.h"

/* Everything on a backend; room: what a plan found. A plan itself (room->slots 0) has nobody at the other
 * ends. */
MUST Status engine_open_on(Engine *e, const ModelShape *s, const EngineConf *conf, const char *backend,
                           bool levels, const EnginePlan *room);

static inline Arena *engine_act(Engine *e, int slot) { return slot ? &e->more[slot - 1] : &e->arena[A_ACT]; }
static inline bool   engine_weaves(const Engine *e)  { return e->pipe.shape.ahead > 0; }

#endif
