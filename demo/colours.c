/* demo/colours.c -- see colours.h. */
#include "demo/colours.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

const SynthColour synth_colour[SYNTH_COLOURS] = {
    { "red",    { 214,  36,  40 }, true  }, { "green",  {  40, 160,  64 }, false },
    { "blue",   {  36,  72, 214 }, true  }, { "yellow", { 244, 216,  40 }, false },
    { "purple", { 144,  44, 176 }, true  }, { "orange", { 246, 132,  24 }, false },
    { "black",  {  16,  16,  16 }, true  }, { "white",  { 250, 250, 250 }, false },
};

enum { ALL = (1 << SYNTH_COLOURS) - 1 };

static uint32_t all_inks(void)
{
    uint32_t bits = 0;
    for (int i = 0; i < SYNTH_COLOURS; i++) bits |= synth_colour[i].ink ? 1u << i : 0;
    return bits;
}

static Palette palette_of(uint32_t bits)
{
    Palette p = { 0 };
    for (int i = 0; i < SYNTH_COLOURS; i++)
        if (bits >> i & 1) p.colour[p.n++] = i;
    return p;
}

void colours_mix(Palettes *out, const SynthChoice *c)
{
    uint32_t shown = ALL & ~c->without, asked = c->about ? c->about : shown;
    *out = (Palettes){ palette_of(shown), palette_of(asked), palette_of(asked & all_inks()) };
}

const char *colours_text(char out[COLOURS_CAP], uint32_t bits)
{
    size_t n = 0;
    out[0] = 0;
    for (int i = 0; i < SYNTH_COLOURS; i++)
        if (bits >> i & 1)
            n += (size_t)snprintf(out + n, COLOURS_CAP - n, "%s%s", n ? ", " : "", synth_colour[i].name);
    return out;
}

Status colours_parse(uint32_t *bits, const char *option, const char *list)
{
    char   known[COLOURS_CAP];
    size_t len;
    const char *rest = list, *item;
    *bits = 0;
    while ((item = str_item(&rest, ',', &len))) {
        int i = 0;
        while (i < SYNTH_COLOURS && (strlen(synth_colour[i].name) != len ||
                                     strncmp(synth_colour[i].name, item, len)))
            i++;
        if (i == SYNTH_COLOURS)
            return fail(E_CONFIG, "%s %s: '%.*s' is no colour of the demo; there are %s", option, list,
                        (int)len,
                        item, colours_text(known, ALL));
        *bits |= 1u << i;
    }
    if (!*bits) return fail(E_CONFIG, "%s: no colour is named; there are %s", option,
                            colours_text(known, ALL));
    return OK;
}

Status colours_check(const SynthChoice *c)
{
    char a[COLOURS_CAP], b[COLOURS_CAP];
    uint32_t shown = ALL & ~c->without;
    if (c->without & c->about)
        return fail(E_CONFIG, "a set about %s cannot be without %s", colours_text(a, c->about),
                    colours_text(b, c->without & c->about));
    if (!(shown & (shown - 1)))
        return fail(E_CONFIG, "without %s: some pictures show two colours, so two must be left",
                    colours_text(a, c->without));
    if (!(shown & all_inks()))
        return fail(E_CONFIG, "without %s: digits and words are written in %s, so one of these must be left",
                    colours_text(a, c->without), colours_text(b, all_inks()));
    return OK;
}
