/* model/lora_private.h -- shared by src/model/lora*.c and peft*.c. */
#ifndef MODEL_LORA_PRIVATE_H
#define MODEL_LORA_PRIVATE_H

#include "model/model.h"

/* A module is left frozen, gets an adapter, or is trained in full. */
typedef enum { LORA_NONE, LORA_ADAPTED, LORA_FULL } LoraRole;

/* Role of piece i of p. frozen: groups by the recipe. A function of names only, so that all ranks agree. */
LoraRole lora_role(const LoraConf *c, const bool frozen[GROUP_N], const Param *p, int i);
/* Whether model.freeze_* keeps adapters from a group. If all groups are frozen (inference), or if the adapter
 * was loaded, it does not: the adapters are attached, frozen. */
bool     lora_freeze_blocks(const LoraConf *c, const bool frozen[GROUP_N], Group g);
/* The entry of c->exact for a module; NULL: none. */
const LoraTarget *lora_find_target(const LoraConf *c, const char *module);

/* lora_entry.c: whether an entry of a list selects the module of piece i as a target; whether it names that
 * module or one that contains it. */
bool     lora_entry_targets(const char *entry, const Param *p, int i);
bool     lora_entry_covers(const char *entry, const Param *p, int i);

/* Whether name equals tail, or ends in it after a dot. */
bool     lora_name_ends_in(const char *name, const char *tail);

/* lora_check.c: E_CONFIG unless every entry of every list has an effect in the whole model. */
MUST Status lora_check(const LoraConf *c, const Model *whole);

#define FOR_EACH_PIECE(p, i, m)                                                                    \
    for (int at_ = 0; at_ < (m)->params.n; at_++)                                                  \
        for (const Param *p = (m)->params.p[at_], *once_ = p; once_; once_ = NULL)                 \
            for (int i = 0; i < p->pieces; i++)

#endif
