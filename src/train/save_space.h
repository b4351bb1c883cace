/* train/save_space.h -- bytes of the checkpoints of a run, and whether the disk has them, before the first
 * step. */
#ifndef TRAIN_SAVE_SPACE_H
#define TRAIN_SAVE_SPACE_H

#include "base/config.h"
#include "base/status.h"

typedef struct SaveSpace {
    double state, hf;   /* bytes of a checkpoint over all ranks: state/; the HF or PEFT form */
    double each, final; /* bytes of a checkpoint that stays: one before the end, the last */
    double most;        /* written at once, by the largest save */
    double peak;        /* at any time, with those that stay */
    double left;        /* free on the disk of the run; 0: not known */
} SaveSpace;

/* saves: of the whole run; best: another one stays besides the newest. Sets the others from state and hf. */
void        save_space_count(SaveSpace *s, const struct cfg_checkpoint *c, double saves, bool best);
void        save_space_find_left(SaveSpace *s, const char *folder);
/* E_IO where not even one checkpoint fits. */
MUST Status save_space_check(const SaveSpace *s, const struct cfg_checkpoint *c);

#endif
