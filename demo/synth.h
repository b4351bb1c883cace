/* demo/synth.h -- the demo set: questions about pictures that are drawn here, and the files they are kept in.
 *
 * An item is a pure function of (set, split, number): the same on every machine with the same libm and
 * codecs, in whatever order items are drawn. Every channel (kind of question) goes through its answers
 * evenly, in a shuffled order, and nothing in a question tells its answer: without the picture one is right
 * once in `answers` times. The one channel without pictures, text, is answered from its own words and stands
 * outside that. */
#ifndef DEMO_SYNTH_H
#define DEMO_SYNTH_H

#include "base/status.h"
#include "demo/draw.h"
#include "demo/colours.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum { SYNTH_TRAIN, SYNTH_EVAL, SYNTH_SPLITS } SynthSplit;

enum { SYNTH_PICTURES = 2, SYNTH_TURNS = 4, SYNTH_TEXT_CAP = 64 };

typedef struct SynthTurn { char question[SYNTH_TEXT_CAP], answer[SYNTH_TEXT_CAP]; } SynthTurn;

typedef struct SynthItem {
    const char *channel;
    SynthTurn   turn[SYNTH_TURNS];           /* the channel's question, then what is asked in training only */
    int         turns, pictures;
    Canvas      picture[SYNTH_PICTURES];
    int         quality[SYNTH_PICTURES];     /* of a JPEG; 0: PNG */
} SynthItem;

typedef struct SynthSet { uint64_t seed; SynthChoice choice; } SynthSet;

/* A set that is about some colours has no channel that cannot show them. */
int         synth_channels(const SynthChoice *c);
const char *synth_channel(const SynthChoice *c, int i, int *answers, int *pictures);     /* its name */

MUST Status synth_item(SynthItem *it, const SynthSet *set, SynthSplit split, int64_t number);
void        synth_item_close(SynthItem *it);                                 /* twice is fine */

typedef struct SynthConf { const char *dir; int64_t items[SYNTH_SPLITS]; SynthSet set; } SynthConf;

/* Writes dir/train.jsonl, eval.jsonl, eval_blind.jsonl (the questions of eval with the pictures of another
 * item of the same channel), images/, and last synth.json, which says what was drawn. A folder whose
 * synth.json says the same is left as it is (*drawn = false); one that holds anything else is refused. */
MUST Status synth_write(const SynthConf *conf, bool *drawn);

#endif
