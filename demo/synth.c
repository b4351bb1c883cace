/* demo/synth.c -- see synth.h: the channels and the picture of each. synth_write.c writes files. */
#include "demo/synth.h"
#include "base/rng.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- random numbers ---- */

typedef struct Dice { uint64_t seed, stream, next; SynthSplit split; Palettes palette; } Dice;

static uint32_t roll(Dice *d) { return rng_u32(d->seed, d->stream, d->next++); }
static int      below(Dice *d, int n) { return (int)((uint64_t)roll(d) * (uint64_t)n >> 32); }
static double   between(Dice *d, double lo, double hi) { return lo + (hi - lo) * (double)rng_unit(roll(d)); }

static uint64_t stream_of(const char *what, SynthSplit split, int64_t a, int64_t b)
{
    char name[96];
    snprintf(name, sizeof name, "synth/%s/%d/%lld/%lld", what, (int)split, (long long)a, (long long)b);
    return rng_stream(name);
}

static int one_of(Dice *d, const Palette *p) { return p->colour[below(d, p->n)]; }

/* A random colour of the set other than `taken`. */
static int other_colour(Dice *d, int taken)
{
    const Palette *p = &d->palette.shown;
    int k = below(d, p->n - 1), at = 0;
    while (p->colour[at] != taken) at++;
    return p->colour[k + (k >= at)];
}

/* ---- backgrounds, places, words ---- */

static const char *const figures[FIGURE_N] = { "circle", "square", "triangle", "cross", "ring", "bar" };
static const char *const sides[]   = { "left", "right", "upper", "lower" };
static const char *const places[]  = { "top left", "top right", "bottom left", "bottom right", "centre" };
static const char *const words[]   = { "cat", "dog", "sun", "key", "box", "fish", "tree", "moon" };
static const char *const ordinals[] = { "first", "second" };

#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

static Rgb shade_of(Dice *d, int colour)
{
    Rgb c = synth_colour[colour].rgb;
    uint8_t *v[3] = { &c.r, &c.g, &c.b };
    for (int i = 0; i < 3; i++) {
        int x = *v[i] + below(d, 17) - 8;
        *v[i] = (uint8_t)(x < 0 ? 0 : x > 255 ? 255 : x);
    }
    return c;
}

/* A new picture with a grey background that contrasts with every colour; width / height is between least
 * and most. */
static Status open_picture(SynthItem *it, Dice *d, double least, double most)
{
    int      i = it->pictures++;
    double   area = between(d, 44, 96), aspect = exp(between(d, log(least), log(most)));
    uint8_t  grey = (uint8_t)(112 + below(d, 32)), grey_end = (uint8_t)(112 + below(d, 32));
    Canvas  *c = &it->picture[i];
    it->quality[i] = below(d, 2) ? 80 + below(d, 16) : 0;
    TRY(canvas_open(c, lrint(area / sqrt(aspect)), lrint(area * sqrt(aspect)), (Rgb){ grey, grey, grey }));
    draw_shade(c, (Rgb){ grey_end, grey_end, grey_end }, 1, below(d, 2));
    draw_grain(c, 4, d->seed, d->stream ^ (uint64_t)(i + 1) << 56);
    return OK;
}

static double side_of(const Canvas *c) { return (double)(c->h < c->w ? c->h : c->w); }

/* Places for n figures that do not touch each other and lie inside the picture. Where that fails, all
 * figures shrink by the same factor. */
static void scatter(Dice *d, const Canvas *c, int n, double *r, double (*at)[2])
{
    for (int tries = 0, i = 0; i < n; tries++) {
        at[i][0] = between(d, r[i] + 1, (double)c->w - r[i] - 1);
        at[i][1] = between(d, r[i] + 1, (double)c->h - r[i] - 1);
        int k = 0;
        while (k < i && hypot(at[i][0] - at[k][0], at[i][1] - at[k][1]) > r[i] + r[k] + 2) k++;
        i += k == i;
        if (i == n || tries % 64 < 63) continue;
        for (k = 0; k < n; k++) r[k] *= 0.95;
        i = 0;
    }
}

/* ---- the channels: each paints a picture whose answer is `a`, a colour or a number, and asks for it
 * first ---- */

static void ask(SynthItem *it, const char *answer, const char *question, ...)
    __attribute__((format(printf, 3, 4)));

static void ask(SynthItem *it, const char *answer, const char *question, ...)
{
    va_list list;
    REQUIRE(it->turns < SYNTH_TURNS, "synth: more than %d turns", SYNTH_TURNS);
    SynthTurn *t = &it->turn[it->turns++];
    va_start(list, question);
    vsnprintf(t->question, sizeof t->question, question, list);
    va_end(list);
    snprintf(t->answer, sizeof t->answer, "%s", answer);
}

/* Two figures, one on each side; the question names one by its side. */
static Status paint_colour(SynthItem *it, Dice *d, int a)
{
    int side = below(d, COUNT(sides)), down = side / 2, k = other_colour(d, a);
    Figure f[2];
    TRY(open_picture(it, d, down ? 0.5 : 1.25, down ? 0.8 : 2));
    Canvas *c = &it->picture[0];
    for (int i = 0; i < 2; i++) {
        double along = (i ? 0.75 : 0.25) + between(d, -0.02, 0.02), across = between(d, 0.4, 0.6);
        double r = side_of(c) * between(d, 0.24, 0.28);
        f[i] = (Figure)below(d, FIGURE_N);
        double x = (down ? across : along) * (double)c->w, y = (down ? along : across) * (double)c->h;
        draw_figure(c, f[i], x, y, r, 0, shade_of(d, i == side % 2 ? a : k));
    }
    ask(it, synth_colour[a].name, "What colour is the %s shape?", sides[side]);
    ask(it, synth_colour[k].name, "What colour is the %s shape?", sides[side ^ 1]);
    ask(it, figures[f[side % 2]], "Which shape is the %s one?", sides[side]);
    ask(it, figures[f[!(side % 2)]], "Which shape is the %s one?", sides[side ^ 1]);
    return OK;
}

static Status paint_shape(SynthItem *it, Dice *d, int a)
{
    int k = one_of(d, &d->palette.asked);
    TRY(open_picture(it, d, 0.88, 1.14));
    Canvas *c = &it->picture[0];
    double x = between(d, 0.46, 0.54) * (double)c->w, y = between(d, 0.46, 0.54) * (double)c->h;
    double r = side_of(c) * between(d, 0.4, 0.46);
    draw_figure(c, (Figure)a, x, y, r, 0, shade_of(d, k));
    ask(it, figures[a], "Which shape is this?");
    ask(it, synth_colour[k].name, "What colour is it?");
    return OK;
}

enum { MOST_COUNTED = 4 };

/* At most one figure in each quarter of the picture, so that no two touch. */
static Status paint_count(SynthItem *it, Dice *d, int a)
{
    int64_t quarter[MOST_COUNTED] = { 0, 1, 2, 3 };
    int     k = one_of(d, &d->palette.asked), f = below(d, FIGURE_N);
    char    number[2] = { (char)('1' + a), 0 };
    TRY(open_picture(it, d, 0.7, 1.45));
    Canvas *c = &it->picture[0];
    rng_shuffle(quarter, MOST_COUNTED, d->seed, stream_of("quarters", d->split, (int64_t)roll(d), 0));
    for (int i = 0; i <= a; i++) {
        double x = ((quarter[i] % 2 ? 0.74 : 0.26) + between(d, -0.03, 0.03)) * (double)c->w;
        double y = ((quarter[i] / 2 ? 0.74 : 0.26) + between(d, -0.03, 0.03)) * (double)c->h;
        double r = side_of(c) * between(d, 0.17, 0.2);
        draw_figure(c, (Figure)f, x, y, r, 0, shade_of(d, k));
    }
    ask(it, number, "How many shapes are there?");
    ask(it, synth_colour[k].name, "What colour are they?");
    ask(it, figures[f], "Which shape are they?");
    return OK;
}

static Status paint_place(SynthItem *it, Dice *d, int a)
{
    static const double centre[][2] = { { 0.24, 0.24 }, { 0.76, 0.24 }, { 0.24, 0.76 }, { 0.76, 0.76 },
                                        { 0.5, 0.5 } };
    int k = one_of(d, &d->palette.asked), f = below(d, FIGURE_N);
    TRY(open_picture(it, d, 0.6, 1.7));
    Canvas *c = &it->picture[0];
    double x = (centre[a][0] + between(d, -0.06, 0.06)) * (double)c->w;
    double y = (centre[a][1] + between(d, -0.06, 0.06)) * (double)c->h;
    double r = side_of(c) * between(d, 0.18, 0.22);
    draw_figure(c, (Figure)f, x, y, r, 0, shade_of(d, k));
    ask(it, places[a], "Where is the shape?");
    ask(it, synth_colour[k].name, "What colour is it?");
    ask(it, figures[f], "Which shape is this?");
    return OK;
}

static Status paint_size(SynthItem *it, Dice *d, int a)
{
    double r[2], at[2][2];
    int    k = other_colour(d, a), f = below(d, FIGURE_N);
    TRY(open_picture(it, d, 0.6, 1.7));
    Canvas *c = &it->picture[0];
    r[0] = side_of(c) * between(d, 0.24, 0.29), r[1] = side_of(c) * between(d, 0.12, 0.15);
    scatter(d, c, 2, r, at);
    for (int i = 0; i < 2; i++)
        draw_figure(c, (Figure)f, at[i][0], at[i][1], r[i], 0, shade_of(d, i ? k : a));
    ask(it, synth_colour[a].name, "What colour is the larger shape?");
    ask(it, synth_colour[k].name, "What colour is the smaller shape?");
    ask(it, figures[f], "Which shape are they?");
    return OK;
}

/* Text that fills a share of the picture, near its middle, in a dark colour, which is *ink. */
static void write_text(Canvas *c, Dice *d, const char *text, double share, int *ink)
{
    double cell = fmin((double)c->w * share / draw_text_width(text, 1), (double)c->h * share / GLYPH_H);
    double x = ((double)c->w - draw_text_width(text, cell)) * between(d, 0.4, 0.6);
    double y = ((double)c->h - GLYPH_H * cell) * between(d, 0.4, 0.6);
    *ink = one_of(d, &d->palette.ink);
    draw_text(c, text, x, y, cell, shade_of(d, *ink));
}

static Status paint_digit(SynthItem *it, Dice *d, int a)
{
    char text[2] = { (char)('1' + a), 0 };             /* no 0: at this size it looks like an 8 */
    int  ink;
    TRY(open_picture(it, d, 0.88, 1.14));
    write_text(&it->picture[0], d, text, between(d, 0.8, 0.95), &ink);
    ask(it, text, "Which digit is this?");
    ask(it, synth_colour[ink].name, "What colour is it?");
    return OK;
}

static Status paint_word(SynthItem *it, Dice *d, int a)
{
    int ink;
    TRY(open_picture(it, d, 1.85, 2.15));
    write_text(&it->picture[0], d, words[a], between(d, 0.85, 0.95), &ink);
    ask(it, words[a], "Which word is written?");
    ask(it, synth_colour[ink].name, "What colour is it?");
    return OK;
}

static Status paint_pair(SynthItem *it, Dice *d, int a)
{
    int asked = below(d, 2), k[2], f[2];
    k[asked] = a, k[!asked] = other_colour(d, a);
    for (int i = 0; i < 2; i++) {
        double r, at[1][2];
        TRY(open_picture(it, d, 0.7, 1.45));
        Canvas *c = &it->picture[i];
        r = side_of(c) * between(d, 0.32, 0.4), f[i] = below(d, FIGURE_N);
        scatter(d, c, 1, &r, at);
        draw_figure(c, (Figure)f[i], at[0][0], at[0][1], r, 0, shade_of(d, k[i]));
    }
    ask(it, synth_colour[a].name, "What colour is in the %s picture?", ordinals[asked]);
    ask(it, figures[f[asked]], "Which shape is in the %s picture?", ordinals[asked]);
    ask(it, figures[f[!asked]], "Which shape is in the %s picture?", ordinals[!asked]);
    ask(it, synth_colour[k[!asked]].name, "What colour is in the %s picture?", ordinals[!asked]);
    return OK;
}

/* Rows of three different words; a fifth of all rows is held out. The question asks for the first or last
 * word. */
static bool usable(const int w[3], SynthSplit split)
{
    bool held_out = (w[0] + 2 * w[1] + 3 * w[2]) % 5 == 0;
    return w[0] != w[1] && w[0] != w[2] && w[1] != w[2] && held_out == (split == SYNTH_EVAL);
}

static Status ask_text(SynthItem *it, Dice *d, int a)
{
    int w[3], asked = 2 * below(d, 2);
    do for (int i = 0; i < 3; i++) w[i] = i == asked ? a : below(d, COUNT(words));
    while (!usable(w, d->split));
    ask(it, words[a], "%s %s %s. Which word is %s?", words[w[0]], words[w[1]], words[w[2]],
        asked ? "last" : "first");
    ask(it, words[w[2 - asked]], "Which word is %s?", asked ? "first" : "last");
    return OK;
}

/* answers 0: as many as the set has colours to ask for. written: needs a colour to write in. */
static const struct Channel {
    const char *name;
    int         answers, pictures;
    bool        written;
    Status    (*paint)(SynthItem *it, Dice *d, int a);
} channels[] = {
    { "colour", 0,              1, false, paint_colour  },
    { "shape",  FIGURE_N,       1, false, paint_shape   },
    { "count",  MOST_COUNTED,   1, false, paint_count   },
    { "place",  COUNT(places),  1, false, paint_place   },
    { "size",   0,              1, false, paint_size    },
    { "digit",  9,              1, true,  paint_digit   },
    { "word",   COUNT(words),   1, true,  paint_word    },
    { "pair",   0,              2, false, paint_pair    },
    { "text",   COUNT(words),   0, false, ask_text },
};

/* A set about some colours has the channels that can show them. */
static bool has_channel(const SynthChoice *c, const Palettes *p, const struct Channel *ch)
{
    return !c->about || (ch->pictures && (p->ink.n || !ch->written));
}

int synth_channels(const SynthChoice *c)
{
    Palettes p;
    int n = 0;
    colours_mix(&p, c);
    for (int i = 0; i < COUNT(channels); i++) n += has_channel(c, &p, &channels[i]);
    return n;
}

/* Row in `channels` of the i-th channel of the set. */
static int channel_at(const SynthChoice *c, const Palettes *p, int i)
{
    int at = 0;
    while (!has_channel(c, p, &channels[at]) || i-- > 0) at++;
    return at;
}

const char *synth_channel(const SynthChoice *c, int i, int *answers, int *pictures)
{
    Palettes p;
    colours_mix(&p, c);
    const struct Channel *ch = &channels[channel_at(c, &p, i)];
    *answers = ch->answers ? ch->answers : p.asked.n, *pictures = ch->pictures;
    return ch->name;
}

/* Items cycle through the channels; within a channel every block of `answers` items has each answer once. */
Status synth_item(SynthItem *it, const SynthSet *set, SynthSplit split, int64_t number)
{
    Dice d = { .seed = set->seed, .stream = stream_of("item", split, number, 0), .split = split };
    int64_t order[16], n = synth_channels(&set->choice), turn = number / n;
    colours_mix(&d.palette, &set->choice);
    int channel = channel_at(&set->choice, &d.palette, (int)(number % n));
    const struct Channel *ch = &channels[channel];
    int64_t answers = ch->answers ? ch->answers : d.palette.asked.n;
    for (int i = 0; i < answers; i++) order[i] = i;
    rng_shuffle(order, answers, set->seed, stream_of("answers", split, channel, turn / answers));
    int a = (int)order[turn % answers];
    it->channel = ch->name, it->turns = it->pictures = 0;
    return ch->paint(it, &d, ch->answers ? a : d.palette.asked.colour[a]);
}

void synth_item_close(SynthItem *it)
{
    for (int i = 0; i < SYNTH_PICTURES; i++) canvas_close(&it->picture[i]);
    *it = (SynthItem){ 0 };
}
