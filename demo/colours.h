/* demo/colours.h -- the colours of the demo, and which of them a set uses.
 *
 * A set of colours is a bit mask, one bit for each row of the table. A set of pictures may leave colours
 * out, or be about some: then every picture shows one of these, which its question asks for. So a model
 * can be trained on all colours but one, and on that one afterwards. */
#ifndef DEMO_COLOURS_H
#define DEMO_COLOURS_H

#include "base/status.h"
#include "demo/draw.h"

#include <stdbool.h>
#include <stdint.h>

enum { SYNTH_COLOURS = 8 };

/* ink: text is legible in it */
typedef struct SynthColour { const char *name; Rgb rgb; bool ink; } SynthColour;

extern const SynthColour synth_colour[SYNTH_COLOURS];

/* Zeroed: every colour. */
typedef struct SynthChoice {
    uint32_t without;                    /* neither drawn nor named */
    uint32_t about;
} SynthChoice;

/* The colours of a set: those shown, those asked for, and of these the ones for text. */
typedef struct Palette { int n, colour[SYNTH_COLOURS]; } Palette;
typedef struct Palettes { Palette shown, asked, ink; } Palettes;

void        colours_mix(Palettes *out, const SynthChoice *c);

/* "red,green" as a mask; option is for messages. */
MUST Status colours_parse(uint32_t *bits, const char *option, const char *list);
/* An error where too few colours are left to draw every channel. */
MUST Status colours_check(const SynthChoice *c);

enum { COLOURS_CAP = 96 };
const char *colours_text(char out[COLOURS_CAP], uint32_t bits);             /* "red, green" */

#endif
