/* demo/synth.h -- the demo set: questions about pictures that this program draws, and their files.
 *
 * An item is a pure function of (set, split, number): it is the same on every machine with the same libm
 * and codecs, in whatever order items are drawn. Every channel (kind of question) uses its answers equally
 * often, in a shuffled order, and no question tells its answer: a guess without the picture is right once
 * in `answers` times. The channel `text` has no pictures; its questions contain their answers. */
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
    SynthTurn   turn[SYNTH_TURNS];           /* the question of the channel, then further ones for training */
    int         turns, pictures;
    Canvas      picture[SYNTH_PICTURES];
    int         quality[SYNTH_PICTURES];     /* JPEG quality; 0: PNG */
} SynthItem;

typedef struct SynthSet { uint64_t seed; SynthChoice choice; } SynthSet;

/* A set about some colours has only the channels that can show them. */
int         synth_channels(const SynthChoice *c);
const char *synth_channel(const SynthChoice *c, int i, int *answers, int *pictures);     /* its name */

MUST Status synth_item(SynthItem *it, const SynthSet *set, SynthSplit split, int64_t number);
void        synth_item_close(SynthItem *it);                                 /* twice is fine */

typedef struct SynthConf { const char *dir; int64_t items[SYNTH_SPLITS]; SynthSet set; } SynthConf;

/* Writes dir/train.jsonl, eval.jsonl, eval_blind.jsonl (the control with mismatched images: each question
 * of eval with the pictures of another item of the same channel), images/, and last synth.json, which
 * describes the set. A folder with an equal synth.json is left unchanged (*drawn = false); another folder
 * that is not empty is refused. */
MUST Status synth_write(const SynthConf *conf, bool *drawn);

#endif
