/* data/step_packer.h -- from the order of samples to the micro-batches of each step; sizes only, no data.
 *
 * The planner asks for one position of the pass after the other and is told the size of the sample there.
 * As soon as ranks * micro bins are full it has a step. A pass ends on a step: what is left then is spread
 * over all micro-batches of the last step, so every sample of a pass is seen in it exactly once. All ranks
 * make the same plan, and its state is small enough for every checkpoint; ranks and micro may change
 * between two runs. */
#ifndef DATA_STEP_PACKER_H
#define DATA_STEP_PACKER_H

#include "base/json.h"
#include "data/pack.h"

typedef struct StepPacker {
    Packer   packer;
    PackBin *queue;                  /* closed, not yet in a step */
    int      queued, room;
    int      ranks, micro;
    int64_t  pass;                   /* positions in a pass */
    int64_t  epoch, position;        /* the position wanted next */
    int64_t  done;                   /* of this pass: handed out in steps, or left out for good */
    int64_t  used;                   /* of this pass: documents taken */
} StepPacker;

void        step_packer_open(StepPacker *p, const Budget *b, int64_t pass, int ranks, int micro);
void        step_packer_close(StepPacker *p);                             /* twice is fine */

bool        step_packer_has_step(const StepPacker *p);                    /* else the next size is wanted */
MUST Status step_packer_put(StepPacker *p, const DocSize *size);          /* NULL: this one is left out */
/* ranks * micro bins, now the caller's to pack_bin_close: rank r's are out[r * micro …]. Some may be empty at
 * the end of a pass of very few samples. */
MUST Status step_packer_take(StepPacker *p, PackBin *out);
double      step_packer_epoch(const StepPacker *p);                       /* passes done, with a fraction */

MUST Status step_packer_state(const StepPacker *p, Json **out);
MUST Status step_packer_restore(StepPacker *p, const Json *state);        /* of an opened planner */

#endif
