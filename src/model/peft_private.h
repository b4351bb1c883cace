/* model/peft_private.h -- what the files of adapter_files.h share. */
#ifndef MODEL_PEFT_PRIVATE_H
#define MODEL_PEFT_PRIVATE_H

#include "model/peft.h"

#define PEFT_PREFIX "base_model.model."
#define PEFT_HEAD   PEFT_PREFIX "lm_head.weight"              /* a tied one too, beside the embedding */

/* How a file has a pair; see adapter_files.h. HALVES: of each expert, gate and up with an A of their own. */
typedef enum { PEFT_PLAIN, PEFT_FUSED, PEFT_FUSED_TRANSPOSED, PEFT_FUSED_SQUARE, PEFT_PER_EXPERT, PEFT_PER_EXPERT_SPLIT } PeftForm;

struct PeftAdapter {
    PeftForm        form;
    const StTensor *a, *b;               /* PLAIN, FUSED, TURNED */
    char            at[140];             /* EACH, HALVES: the names of its tensors begin so */
    bool            gate_up;             /* of experts: which of the two parameters */
    int64_t         E, out, in;          /* of the weight; E 1: not of experts */
};

/* "<at><e>.<part>.lora_A.weight" of part 0 or 1 of an expert: gate and up, or down. */
MUST Status peft_expert_tensor(const PeftFile *f, const PeftAdapter *p, int64_t e, int part, char which,
                        const StTensor **t);
/* peft_describe.c: adapter_config.json of m's adapters into folder dir (NULL: it is not written), and
 * whether their experts have names of their own. */
MUST Status peft_describe(const Model *m, const char *base, bool *each, const char *dir);
bool        peft_ties_head(const Model *m, const Param *p);    /* p is trained whole, and a tied head with it */

static inline int peft_parts(const PeftAdapter *p) { return p->gate_up ? 2 : 1; }

#endif
