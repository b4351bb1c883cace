/* model/family.h -- a model family: how its config.json reads and what it is built of. */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H

#include "base/json.h"
#include "model/shape.h"

typedef struct Model Model;

typedef struct Family {
    const char *name;                                        /* model_type in config.json */
    Status (*shape)(ModelShape *s, const Json *hf);          /* their keys -> our numbers, checked */
    void   (*build)(Model *m);                               /* declare parameters, fill modules */
} Family;

MUST Status family_find(const Family **f, const char *name); /* unknown: lists the known ones */

/* Read `dir`/config.json, or config.json itself. */
MUST Status shape_load(ModelShape *s, const char *path);
MUST Status shape_read(ModelShape *s, const Json *hf, const char *what);

extern const Family family_qwen3, family_qwen3_moe, family_qwen3_vl, family_qwen3_vl_moe;

#endif
