/* model/lora_private.h -- what the files of adapters.h share. For src/model/adapter*.c alone. */
#ifndef MODEL_LORA_PRIVATE_H
#define MODEL_LORA_PRIVATE_H

#include "model/model.h"

typedef enum { LORA_NONE, LORA_ADAPTED, LORA_FULL } LoraRole;      /* as it is; gets a pair; is trained itself */

/* What becomes of piece i of p. frozen: the groups, as the recipe has them. A function of names alone, so
 * all ranks say the same of what they share. */
LoraRole   lora_role(const LoraConf *c, const bool frozen[GROUP_N], const Param *p, int i);
/* Whether a freeze keeps pairs from a group. Who trains nothing (an evaluation), or has loaded an adapter,
 * has its pairs all the same: frozen too. */
bool   lora_freeze_blocks(const LoraConf *c, const bool frozen[GROUP_N], Group g);
/* What an adapter that was loaded says of a module; NULL: nothing. */
const LoraTarget *lora_find_target(const LoraConf *c, const char *module);

/* adapters_words.c */
bool   lora_entry_targets(const char *entry, const Param *p, int i);      /* as a target */
bool   lora_entry_covers(const char *entry, const Param *p, int i);       /* it or a module that it is in */

/* lora_check.c: over the whole model, every entry of every list does something. */
MUST Status lora_check(const LoraConf *c, const Model *whole);

#define FOR_EACH_PIECE(p, i, m)                                                                        \
    for (int at_ = 0; at_ < (m)->params.n; at_++)                                                  \
        for (const Param *p = (m)->params.p[at_], *once_ = p; once_; once_ = NULL)                 \
            for (int i = 0; i < p->pieces; i++)

#endif
