/* demo/colours.h -- the colours of the demo set, and which of them a set has.
 *
 * Sets of colours are words of bits, a bit for each place in the table. A set of pictures may do without some
 * colours, or be about some: then every picture shows one of these, as that which is asked for, beside any
 * others. So a model can be taught all colours but one, and that one afterwards. */
#ifndef DEMO_COLOURS_H
#define DEMO_COLOURS_H

#include "base/status.h"
#include "demo/draw.h"

#include <stdbool.h>
#include <stdint.h>

enum { SYNTH_COLOURS = 8 };

typedef struct SynthColour { const char *name; Rgb rgb; bool ink; } SynthColour;   /* ink: to write in */

extern const SynthColour synth_colour[SYNTH_COLOURS];

/* Zero: every colour, about none in particular. */
typedef struct SynthChoice {
    uint32_t without;                    /* neither drawn nor named */
    uint32_t about;
} SynthChoice;

/* What a picture may take: anything that is shown, what is asked for, what of that can be written in. */
typedef struct Palette { int n, colour[SYNTH_COLOURS]; } Palette;
typedef struct Palettes { Palette shown, asked, ink; } Palettes;

void        colours_mix(Palettes *out, const SynthChoice *c);

/* "red,green" as bits; option is for the message. */
MUST Status colours_parse(uint32_t *bits, const char *option, const char *list);
/* Enough is left to draw every kind of question with. */
MUST Status colours_check(const SynthChoice *c);

enum { COLOURS_CAP = 96 };
const char *colours_text(char out[COLOURS_CAP], uint32_t bits);             /* "red, green" */

#endif
