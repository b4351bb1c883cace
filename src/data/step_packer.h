/* data/step_packer.h -- from the order of samples to the micro-batches of each step; sizes only, no data.
 *
 * The caller gives the size of the sample at each position of the pass, in order. As soon as ranks * micro
 * bins are closed there is a step. A pass ends on a step: the documents left then are spread over all
 * micro-batches of the last step, so every sample of a pass is in it exactly once. All ranks pack the same
 * steps. The state is small enough for every checkpoint; ranks and micro may change when a run is resumed. */
#ifndef DATA_STEP_PACKER_H
#define DATA_STEP_PACKER_H

#include "base/json.h"
#include "data/pack.h"

typedef struct StepPacker {
    Packer   packer;
    PackBin *queue;                  /* closed bins not yet in a step */
    int      queued, cap;
    int      ranks, micro;
    int64_t  pass;                   /* positions in a pass */
    int64_t  epoch, position;        /* the position whose size comes next */
    int64_t  done;                   /* samples of this pass taken in steps or left out */
    int64_t  used;                   /* documents of this pass */
} StepPacker;

void        step_packer_open(StepPacker *p, const Budget *b, int64_t pass, int ranks, int micro);
void        step_packer_close(StepPacker *p);                             /* twice is fine */

bool        step_packer_has_step(const StepPacker *p);                    /* false: give the next size */
MUST Status step_packer_put(StepPacker *p, const DocSize *size);          /* NULL: the sample is left out */
/* ranks * micro bins, which the caller closes; rank r has out[r * micro …]. Some may be empty at the end of a
 * pass of very few samples. */
MUST Status step_packer_take(StepPacker *p, PackBin *out);
double      step_packer_epoch(const StepPacker *p);                       /* passes done, with a fraction */

MUST Status step_packer_state(const StepPacker *p, Json **out);
MUST Status step_packer_restore(StepPacker *p, const Json *state);        /* into an opened packer */

#endif
