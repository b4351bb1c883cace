/* model/peft_config.h -- adapter_config.json: what is believed of it and what is refused. */
#ifndef MODEL_PEFT_CONFIG_H
#define MODEL_PEFT_CONFIG_H

#include "base/json.h"
#include "model/lora.h"

typedef struct PeftConfig {
    int64_t     r;
    double      alpha, dropout;
    bool        rslora, gaussian;
    bool        settled;                 /* by a PEFT whose A has an expert's input as columns, always */
    const char *base;                    /* base_model_name_or_path, "": not said */
    struct PeftPattern *rank, *scale;    /* of rank_pattern and alpha_pattern, in the file's order */
    int         ranks, scales;
} PeftConfig;

MUST Status peft_config_open(PeftConfig *c, const Json *o);       /* o outlives c; on failure it is closed */
void        peft_config_close(PeftConfig *c);                     /* twice is fine */
/* Rank and alpha of a module: by the first key of each pattern that matches its name, or all of them. */
MUST Status peft_config_module(const PeftConfig *c, LoraTarget *t);

#endif
