/* model/family.h -- a model family: how its config.json is read and which parameters it has. */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H

#include "base/json.h"
#include "model/shape.h"

typedef struct Model Model;

typedef struct Family {
    const char *name;                                        /* model_type in config.json */
    Status (*shape)(ModelShape *s, const Json *hf);          /* keys of config.json to a checked shape */
    void   (*build)(Model *m);                               /* declares parameters, fills modules */
} Family;

MUST Status family_find(const Family **f, const char *name); /* unknown: lists the known ones */

/* Read `dir`/config.json, or config.json itself. */
MUST Status shape_load(ModelShape *s, const char *path);
MUST Status shape_read(ModelShape *s, const Json *hf, const char *what);

extern const Family family_qwen3, family_qwen3_moe, family_qwen3_vl, family_qwen3_vl_moe;
extern const Family family_llama, family_mistral, family_mixtral, family_olmoe, family_glm4_moe;
extern const Family family_deepseek_v3, family_kimi_k2, family_gpt_oss;
extern const Family family_qwen3_next, family_qwen3_5_moe, family_qwen3_5_moe_text;

#endif
