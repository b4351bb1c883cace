/* model/lora.h -- which weights get LoRA adapters, and declaring them.
 *
 * Modules have their names in transformers: "model.language_model.layers.3.self_attn.q_proj"; experts are the
 * parameters "….mlp.experts.gate_up_proj" and "….mlp.experts.down_proj". An entry of lora.target_modules is
 *
 *   all-linear       all linear modules except routers and the head
 *   all-attention    q, k, v and o of the decoder, qkv and proj of the vision tower
 *   experts          both parameters of all experts
 *   vision           vision tower and mergers
 *   a name           equal to the module's name, or to its end after a dot
 *   a glob           with * ? [ ]: of the whole name, or of its end after a dot; it selects a router or the
 *   head
 *                    only if its last part has no wildcard: "*.mlp.gate"
 *
 * Groups that model.freeze_* freezes get no adapters. An entry that selects nothing is an error, also if it
 * selects only frozen modules. While there are adapters, all other weights are frozen except the modules of
 * lora.modules_to_save, which are trained in full. In that list and in lora.exclude_modules the name of a
 * module stands for everything inside it ("visual.merger"). */
#ifndef MODEL_LORA_H
#define MODEL_LORA_H

#include "base/config.h"
#include "nn/lora.h"

/* A module by name, with rank and alpha of its adapter. */
typedef struct LoraTarget { char module[120]; int64_t rank; double alpha; } LoraTarget;

typedef struct LoraConf {
    int64_t rank;                        /* 0: no adapters; everything that is not frozen is trained */
    double  alpha, dropout;
    bool    rslora;                      /* scale alpha / sqrt(rank) instead of alpha / rank */
    bool    gaussian;                    /* A initialized from N(0, 1/r^2), else U(-1/sqrt(in), 1/sqrt(in)) */
    bool    shared_a;                    /* the experts of a layer share one A */
    const WordList *target, *exclude, *save;     /* lists of the recipe; NULL: empty */
    const LoraTarget *exact;             /* of a loaded adapter, instead of target: exactly these modules */
    int     exacts;
} LoraConf;

struct Model;

/* After the family's build: declares the adapters of this rank's part of the model and freezes its other
 * weights. */
MUST Status lora_attach(struct Model *m, const LoraConf *c);
void        lora_close(struct Model *m);

/* Initializes only the adapters, as model_init does, for a model whose weights were loaded. */
MUST Status lora_init(struct Model *m, Backend *be, uint64_t seed);

/* Whether p is a weight of lora.modules_to_save; m has adapters. */
bool        lora_trains_in_full(const struct Model *m, const Param *p);

/* alpha of a module's adapter. */
double      lora_module_alpha(const LoraConf *c, const char *module);

/* Name of the module of piece i: the tensor's name without ".weight" or ".bias". */
void        lora_module_name(char *out, size_t n, const Param *p, int i);

#endif
