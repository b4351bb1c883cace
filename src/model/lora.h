/* model/lora.h -- which weights get low-rank pairs, and declaring them.
 *
 * Modules are named as transformers names them: "model.language_model.layers.3.self_attn.q_proj"; experts are
 * the parameters "….mlp.experts.gate_up_proj" and "….mlp.experts.down_proj". A target is one of
 *
 *   all-linear       all of them but routers and the head
 *   all-attention    q, k, v and o of the decoder, qkv and proj of the tower
 *   experts          both parameters of all experts
 *   vision           tower and mergers
 *   a name           equal to the module's or to its end behind a dot
 *   a glob           with * ? [ ]: of the whole name, or of its end behind a dot; routers and the head only
 *                    if their name is its last part: "*.mlp.gate"
 *
 * and reaches what model.freeze_* leaves: a frozen part gets none. One that reaches nothing is an error, and
 * so is one that would have but for a freeze. Everything else of the model is frozen while there are
 * adapters, except modules that lora.modules_to_save names, which are trained whole; there and in
 * lora.exclude_modules the name of a module stands for all that is in it ("visual.merger"). */
#ifndef MODEL_LORA_H
#define MODEL_LORA_H

#include "base/config.h"
#include "nn/lora.h"

/* A module by its name with what is its own; an adapter that was loaded says so of each. */
typedef struct LoraTarget { char module[120]; int64_t rank; double alpha; } LoraTarget;

typedef struct LoraConf {
    int64_t rank;                        /* 0: no adapters, all that is not frozen is trained */
    double  alpha, dropout;
    bool    rslora;                      /* scaled by alpha / sqrt(rank) instead of alpha / rank */
    bool    gaussian;                    /* A is of N(0, 1/r^2), else of U(-1/sqrt(in), 1/sqrt(in)) */
    bool    shared_a;                    /* the experts of a layer have one A */
    const WordList *target, *exclude, *save;     /* of the recipe; NULL: none */
    const LoraTarget *exact;          /* instead of target: these and no others */
    int     exacts;
} LoraConf;

struct Model;

/* Declares the pairs of the part of a model that a rank has, and freezes the rest; after the family's
 * build. */
MUST Status lora_attach(struct Model *m, const LoraConf *c);
void        lora_close(struct Model *m);

/* Draws the pairs alone, as model_init draws all: for weights that were loaded. */
MUST Status lora_init(struct Model *m, Backend *be, uint64_t seed);

/* The name of piece i's module: its tensor's name without ".weight" or ".bias". */
void        lora_module_name(char *out, size_t n, const Param *p, int i);

#endif
