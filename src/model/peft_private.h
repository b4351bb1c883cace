/* model/peft_private.h -- shared by src/model/peft*.c. */
#ifndef MODEL_PEFT_PRIVATE_H
#define MODEL_PEFT_PRIVATE_H

#include "model/peft.h"

#define PEFT_PREFIX "base_model.model."
#define PEFT_HEAD   PEFT_PREFIX "lm_head.weight"              /* of a tied model too, beside the embedding */

/* How a file stores an adapter; see peft.h. FUSED_SQUARE: fused or transposed, not yet decided.
 * PER_EXPERT_SPLIT: gate and up of each expert have different A. */
typedef enum {
    PEFT_PLAIN, PEFT_FUSED, PEFT_FUSED_TRANSPOSED, PEFT_FUSED_SQUARE, PEFT_PER_EXPERT, PEFT_PER_EXPERT_SPLIT
} PeftForm;

struct PeftAdapter {
    PeftForm        form;
    const StTensor *a, *b;               /* PLAIN, FUSED, FUSED_TRANSPOSED */
    char            prefix[140];         /* PER_EXPERT*: of the tensors' names */
    bool            gate_up;             /* of experts: gate_up_proj, else down_proj */
    int64_t         E, out, in;          /* of the weight; E 1: not of experts */
};

/* Finds "<prefix><e>.<gate_proj, up_proj or down_proj>.lora_<which>.weight"; part 1: up_proj. */
MUST Status peft_expert_tensor(const PeftFile *f, const PeftAdapter *p, int64_t e, int part, char which,
                               const StTensor **t);
/* peft_describe.c: writes adapter_config.json of m's adapters into folder dir (NULL: does not write), and
 * tells whether experts are written one by one. */
MUST Status peft_describe(const Model *m, const char *base, bool *per_expert, const char *dir);
/* Whether p is the embedding, trained in full, of a model with a tied head. */
bool        peft_ties_head(const Model *m, const Param *p);

static inline int peft_parts(const PeftAdapter *p) { return p->gate_up ? 2 : 1; }

static inline int peft_param_index(const Model *m, const Param *p)
{
    int i = 0;
    while (m->params.p[i] != p) i++;
    return i;
}

#endif
