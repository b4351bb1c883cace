/* model/peft_config.h -- adapter_config.json: reads the supported keys and refuses those that change the
 * meaning. */
#ifndef MODEL_PEFT_CONFIG_H
#define MODEL_PEFT_CONFIG_H

#include "base/json.h"
#include "model/lora.h"

typedef struct PeftConfig {
    int64_t     r;
    double      alpha, dropout;
    bool        rslora, gaussian;
    bool        in_is_cols;              /* by its version: the columns of A are always an expert's inputs */
    const char *base;                    /* base_model_name_or_path; "": not set */
    struct PeftPattern *rank, *scale;    /* rank_pattern and alpha_pattern, in the order of the file */
    int         ranks, scales;
} PeftConfig;

MUST Status peft_config_open(PeftConfig *c, const Json *o);   /* o outlives c; closed on failure */
void        peft_config_close(PeftConfig *c);                 /* may be called twice */
/* Sets rank and alpha of t->module: by the first key of each pattern that matches it,
 * else r and lora_alpha. */
MUST Status peft_config_module(const PeftConfig *c, LoraTarget *t);

#endif
