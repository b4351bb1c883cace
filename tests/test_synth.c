/* tests/test_synth.c -- the demo set: balanced answers, pictures that show the answer, reproducible; and
 * its files. */
#include "lab.h"
#include "base/folder.h"
#include "base/json.h"
#include "data/image.h"
#include "data/media.h"
#include "demo/synth.h"

/* ROUNDS: a multiple of 4, 5, 6, 8, 9. */
enum { SEED = 11, ROUNDS = 360, KINDS = 16, ANSWERS = 16, QUESTIONS = 64 };

static const SynthSet plain = { .seed = SEED }, later = { .seed = SEED + 1 };
static const SynthChoice every;

static int channel_of(const char *name)
{
    int a, p, i = 0;
    while (i < synth_channels(&every) && strcmp(synth_channel(&every, i, &a, &p), name)) i++;
    return i;
}

static int place_of(char (*list)[SYNTH_TEXT_CAP], int *n, int most, const char *text)
{
    int i = 0;
    while (i < *n && strcmp(list[i], text)) i++;
    if (i == *n && *n < most) strcpy(list[(*n)++], text);
    return i;
}

/* How often each answer was given to each question of a channel. */
typedef struct Tally {
    char question[QUESTIONS][SYNTH_TEXT_CAP], answer[ANSWERS][SYNTH_TEXT_CAP];
    int  questions, answers, items, count[QUESTIONS][ANSWERS];
} Tally;

static void tally(Tally *t, SynthSplit split, int64_t rounds)
{
    SynthItem it = { 0 };
    for (int64_t i = 0; i < rounds * synth_channels(&every); i++) {
        EXPECT_OK(synth_item(&it, &plain, split, i));
        Tally *k = &t[channel_of(it.channel)];
        int q = place_of(k->question, &k->questions, QUESTIONS - 1, it.turn[0].question);
        k->count[q][place_of(k->answer, &k->answers, ANSWERS, it.turn[0].answer)]++, k->items++;
    }
    synth_item_close(&it);
}

static void answers_are_balanced(void)
{
    static Tally t[KINDS];
    tally(t, SYNTH_TRAIN, ROUNDS);
    for (int c = 0; c < synth_channels(&every); c++) {
        int answers, pictures;
        const char *name = synth_channel(&every, c, &answers, &pictures);
        EXPECT(t[c].items == ROUNDS && t[c].answers == answers, "%s: %d items, %d answers", name, t[c].items,
               t[c].answers);
        for (int a = 0; a < answers; a++) {
            int n = 0;
            for (int q = 0; q < QUESTIONS; q++) n += t[c].count[q][a];
            EXPECT(n == ROUNDS / answers, "%s: %s %d times", name, t[c].answer[a], n);
        }
    }
}

/* The best guess for each wording, learned on one split, is no better than chance on the other. */
static void questions_tell_nothing(void)
{
    static Tally seen[KINDS], held[KINDS];
    tally(seen, SYNTH_TRAIN, ROUNDS);
    tally(held, SYNTH_EVAL, ROUNDS);
    for (int c = 0; c < synth_channels(&every); c++) {
        int answers, pictures, right = 0;
        const char *name = synth_channel(&every, c, &answers, &pictures);
        if (!pictures) continue;
        for (int q = 0; q < held[c].questions; q++) {
            int from = place_of(seen[c].question, &seen[c].questions, QUESTIONS, held[c].question[q]),
                best = 0;
            for (int a = 1; a < answers; a++)
                best = seen[c].count[from][a] > seen[c].count[from][best] ? a : best;
            right += held[c].count[q][place_of(held[c].answer, &held[c].answers, ANSWERS,
                                               seen[c].answer[best])];
        }
        double p = 1.0 / answers, noise = sqrt(p * (1 - p) / ROUNDS);
        EXPECT((double)right / ROUNDS < p + 4 * noise, "%s: %d of %d, chance %g", name, right, ROUNDS, p);
    }
}

static uint64_t hash(const Canvas *c)
{
    uint64_t h = 0xcbf29ce484222325ull ^ (uint64_t)(c->h << 20 ^ c->w);
    for (int64_t i = 0; i < c->h * c->w * 3; i++) h = (h ^ c->rgb[i]) * 0x100000001b3ull;
    return h;
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* An item drawn alone equals the item drawn in sequence; no picture occurs twice, in one split or in both. */
static void a_pure_function(void)
{
    enum { N = 270 };
    static uint64_t seen[2 * N * SYNTH_PICTURES];
    int n = 0, same = 0, order = 0;
    SynthItem it = { 0 }, alone = { 0 };
    for (int64_t i = 0; i < 2 * N; i++) {
        EXPECT_OK(synth_item(&it, &plain, i < N ? SYNTH_TRAIN : SYNTH_EVAL, i % N));
        EXPECT_OK(synth_item(&alone, &plain, i < N ? SYNTH_TRAIN : SYNTH_EVAL, i % N));
        EXPECT(!strcmp(it.turn[0].question, alone.turn[0].question) &&
               !strcmp(it.turn[0].answer, alone.turn[0].answer), "item %d", (int)i);
        for (int k = 0; k < it.pictures; k++) {
            EXPECT(hash(&it.picture[k]) == hash(&alone.picture[k]), "picture %d of item %d", k, (int)i);
            seen[n++] = hash(&it.picture[k]);
        }
        EXPECT_OK(synth_item(&alone, &later, i < N ? SYNTH_TRAIN : SYNTH_EVAL, i % N));
        order += !strcmp(it.turn[0].answer, alone.turn[0].answer);
    }
    qsort(seen, (size_t)n, sizeof *seen, by_value);
    for (int i = 1; i < n; i++) same += seen[i] == seen[i - 1];
    EXPECT(!same, "%d pictures come twice", same);
    EXPECT(order < N, "another seed is another set: %d answers alike", order);
    synth_item_close(&it), synth_item_close(&alone);
    synth_item_close(&it);
}

/* ---- the answer, computed from the pixels ---- */

/* Backgrounds are grey; figures are coloured, nearly black or nearly white. */
static bool is_figure(const uint8_t *p)
{
    int lo = p[0] < p[1] ? p[0] : p[1], hi = p[0] > p[1] ? p[0] : p[1];
    lo = lo < p[2] ? lo : p[2], hi = hi > p[2] ? hi : p[2];
    return hi - lo > 24 || hi < 110 || lo > 225;
}

/* Connected components with 8 neighbours; components of fewer than 4 pixels are edges, not figures. */
static int pieces(const Canvas *c)
{
    int64_t n = c->h * c->w, top = 0;
    uint8_t *left = malloc((size_t)n);
    int64_t *stack = malloc((size_t)n * 8 * sizeof *stack);
    int found = 0;
    for (int64_t i = 0; i < n; i++) left[i] = is_figure(c->rgb + 3 * i);
    for (int64_t i = 0; i < n; i++) {
        int size = 0;
        for (stack[top++] = i; top > 0;) {
            int64_t at = stack[--top], y = at / c->w, x = at % c->w;
            if (!left[at]) continue;
            left[at] = 0, size++;
            for (int64_t v = y - 1; v <= y + 1; v++)
                for (int64_t u = x - 1; u <= x + 1; u++)
                    if (v >= 0 && v < c->h && u >= 0 && u < c->w && left[v * c->w + u])
                        stack[top++] = v * c->w + u;
        }
        found += size >= 4;
    }
    free(left), free(stack);
    return found;
}

static void middle(const Canvas *c, double *y, double *x)
{
    double n = 0, sy = 0, sx = 0;
    for (int64_t i = 0; i < c->h * c->w; i++)
        if (is_figure(c->rgb + 3 * i)) n++, sy += (double)(i / c->w) + 0.5, sx += (double)(i % c->w) + 0.5;
    *y = sy / n / (double)c->h, *x = sx / n / (double)c->w;
}

/* The most frequent colour of the picture. */
static const char *colour_of(const Canvas *c)
{
    int r = 0, g = 0, b = 0, n = 0;
    for (int64_t i = 0; i < c->h * c->w; i++) {
        const uint8_t *p = c->rgb + 3 * i;
        if (is_figure(p)) r += p[0], g += p[1], b += p[2], n++;
    }
    if (!n) return "nothing";
    r /= n, g /= n, b /= n;
    if (r > 200 && g > 200 && b > 200) return "white";
    if (r < 60 && g < 60 && b < 60)    return "black";
    if (r > 190 && b < 90) return g > 165 ? "yellow" : g > 95 ? "orange" : "red";
    if (b > 130 && b > r && b > g) return r > g + 40 ? "purple" : "blue";
    return g > r && g > b ? "green" : "unknown";
}

static void pictures_show_the_answer(void)
{
    SynthItem it = { 0 };
    for (int64_t i = 0; i < 60 * synth_channels(&every); i++) {
        EXPECT_OK(synth_item(&it, &plain, SYNTH_EVAL, i));
        if (!strcmp(it.channel, "count"))
            EXPECT(pieces(&it.picture[0]) == atoi(it.turn[0].answer), "%d: %s, %d found", (int)i,
                   it.turn[0].answer, pieces(&it.picture[0]));
        if (!strcmp(it.channel, "colour") && pieces(&it.picture[0]) == 1)
            EXPECT(!strcmp(colour_of(&it.picture[0]), it.turn[0].answer), "%d: %s, looks %s", (int)i,
                   it.turn[0].answer, colour_of(&it.picture[0]));
        if (!strcmp(it.channel, "pair")) {
            const char *looks = colour_of(&it.picture[strstr(it.turn[0].question, "second") != NULL]);
            EXPECT(!strcmp(looks, it.turn[0].answer), "%d: %s, looks %s", (int)i, it.turn[0].answer, looks);
        }
        if (!strcmp(it.channel, "place")) {
            double y, x;
            middle(&it.picture[0], &y, &x);
            bool centre = fabs(y - 0.5) < 0.13 && fabs(x - 0.5) < 0.13;
            EXPECT(centre == !strcmp(it.turn[0].answer, "centre"), "%d: %s at %g, %g", (int)i,
                   it.turn[0].answer, y, x);
            EXPECT(centre || (strstr(it.turn[0].answer, y < 0.5 ? "top" : "bottom") &&
                              strstr(it.turn[0].answer, x < 0.5 ? "left" : "right")),
                   "%d: %s at %g, %g", (int)i, it.turn[0].answer, y, x);
        }
        if (!strcmp(it.channel, "text"))
            EXPECT(!it.pictures && strstr(it.turn[0].question, it.turn[0].answer), "%s: %s",
                   it.turn[0].question, it.turn[0].answer);
    }
    synth_item_close(&it);
}

/* Items of the text channel are held out by their row of words. */
static void rows_are_held_out(void)
{
    static char seen[ROUNDS][SYNTH_TEXT_CAP];
    SynthItem it = { 0 };
    for (int s = 0; s < SYNTH_SPLITS; s++)
        for (int i = 0; i < ROUNDS; i++) {
            EXPECT_OK(synth_item(&it, &plain, (SynthSplit)s,
                                 (int64_t)i * synth_channels(&every) + channel_of("text")));
            EXPECT(!strcmp(it.channel, "text") && it.turns == 2, "%s", it.channel);
            char *row = it.turn[0].question;
            row[strcspn(row, ".")] = 0;
            if (s == SYNTH_TRAIN) strcpy(seen[i], row);
            for (int k = 0; s == SYNTH_EVAL && k < ROUNDS; k++)
                EXPECT(strcmp(seen[k], row), "%s is in both", row);
        }
    synth_item_close(&it);
}

/* ---- chosen colours ---- */

static uint32_t bits_of(const char *list)
{
    uint32_t bits = 0;
    EXPECT_OK(colours_parse(&bits, "--colours", list));
    return bits;
}

/* Pixels within the shades of a colour; the shades of two colours do not overlap. */
static int pixels_of(const Canvas *c, int colour)
{
    Rgb want = synth_colour[colour].rgb;
    int n = 0;
    for (int64_t i = 0; i < c->h * c->w; i++) {
        const uint8_t *p = c->rgb + 3 * i;
        n += abs(p[0] - want.r) <= 8 && abs(p[1] - want.g) <= 8 && abs(p[2] - want.b) <= 8;
    }
    return n;
}

/* Counts questions and answers that name the colour, and pictures that show it. */
static void look_for(const SynthItem *it, int colour, int *named, int *shown)
{
    for (int i = 0; i < it->turns; i++)
        *named += strstr(it->turn[i].question, synth_colour[colour].name) ||
                  strstr(it->turn[i].answer, synth_colour[colour].name);
    for (int i = 0; i < it->pictures; i++) *shown += pixels_of(&it->picture[i], colour) > 12;
}

static void a_colour_is_left_out(void)
{
    SynthItem it = { 0 };
    for (int colour = 0; colour < SYNTH_COLOURS; colour++) {
        SynthSet set = { SEED, { .without = bits_of(synth_colour[colour].name) } };
        int named = 0, shown = 0, others = 0, seen = 0, answers, pictures;
        for (int64_t i = 0; i < 60 * synth_channels(&set.choice); i++) {
            EXPECT_OK(synth_item(&it, &set, SYNTH_TRAIN, i));
            look_for(&it, colour, &named, &shown);
            look_for(&it, (colour + 1) % SYNTH_COLOURS, &others, &seen);
        }
        EXPECT(!named && !shown, "%s: named %d times, shown %d", synth_colour[colour].name, named, shown);
        EXPECT(others && seen, "the next colour is in the set");
        synth_channel(&set.choice, 0, &answers, &pictures);
        EXPECT(synth_channels(&set.choice) == synth_channels(&every) && answers == SYNTH_COLOURS - 1,
               "%d answers", answers);
    }
    synth_item_close(&it);
}

/* In every channel the picture shows the colour, and it is the answer to the first question on colours. */
static void a_set_about_a_colour(void)
{
    SynthItem it = { 0 };
    for (int colour = 0; colour < SYNTH_COLOURS; colour++) {
        SynthSet set = { SEED, { .about = bits_of(synth_colour[colour].name) } };
        int channels = synth_channels(&set.choice), beside = 0, pixels = 0;
        for (int64_t i = 0; i < 20 * channels; i++) {
            int named = 0, shown = 0;
            EXPECT_OK(synth_item(&it, &set, SYNTH_EVAL, i));
            look_for(&it, colour, &named, &shown);
            look_for(&it, (colour + 1) % SYNTH_COLOURS, &beside, &pixels);
            EXPECT(named && shown, "%s, item %d of %s: named %d, shown %d", synth_colour[colour].name, (int)i,
                   it.channel, named, shown);
            if (!strncmp(it.turn[0].question, "What colour", 11))
                EXPECT(!strcmp(it.turn[0].answer, synth_colour[colour].name), "%s", it.turn[0].answer);
        }
        EXPECT(beside && pixels, "beside others");
        EXPECT(channels == (synth_colour[colour].ink ? 8 : 6), "%d channels", channels);
    }
    synth_item_close(&it);
}

static void choices_are_checked(void)
{
    uint32_t bits;
    char text[COLOURS_CAP];
    EXPECT(!strcmp(colours_text(text, bits_of("white,red")), "red, white"), "%s", text);
    EXPECT_FAIL(colours_parse(&bits, "--about", "red,gren"), E_CONFIG, "red,gren: 'gren' is no colour");
    EXPECT_FAIL(colours_parse(&bits, "--about", "pink"), E_CONFIG, "there are red, green");
    EXPECT_FAIL(colours_parse(&bits, "--about", ""), E_CONFIG, "--about");
    SynthChoice c = { bits_of("red,blue"), bits_of("blue,green") };
    EXPECT_FAIL(colours_check(&c), E_CONFIG, "about green, blue cannot be without blue");
    c = (SynthChoice){ bits_of("red,green,yellow,purple,orange,black,white"), 0 };
    EXPECT_FAIL(colours_check(&c), E_CONFIG, "two must be left");
    c = (SynthChoice){ bits_of("red,blue,purple,black"), 0 };
    EXPECT_FAIL(colours_check(&c), E_CONFIG, "one of these must be left");
    c = (SynthChoice){ bits_of("red,blue,purple"), bits_of("green,white") };
    EXPECT_OK(colours_check(&c));
}

/* ---- files ---- */

static Json *line_of(const char *dir, const char *name, int number)
{
    Path path;
    char text[1024];
    Json *o = NULL;
    EXPECT_OK(path_join(path, dir, name));
    FILE *f = fopen(path, "r");
    for (int i = 0; f && i <= number; i++)
        if (!fgets(text, sizeof text, f)) fclose(f), f = NULL;
    if (!f) return NULL;
    fclose(f);
    EXPECT_OK(json_parse(&o, text, strlen(text), name));
    return o;
}

static const char *content(const Json *o, size_t turn)
{
    return json_string_value(json_object_get(json_array_get(json_object_get(o, "messages"), turn),
                                             "content"));
}

static void expect_pictures(const char *dir, const Json *o)
{
    const Json *images = json_object_get(o, "images");
    const char *text = content(o, 0);
    for (size_t i = 0; i < json_array_size(images); i++) {
        Path path;
        MediaMap m = { 0 };
        Image im = { 0 };
        EXPECT_OK(path_join(path, dir, json_string_value(json_array_get(images, i))));
        EXPECT_OK(media_map(&m, path));
        EXPECT_OK(image_decode(&im, m.bytes, m.len, NULL, path));
        EXPECT(im.h >= 16 && im.w >= 16 && im.h <= 256 && im.w <= 256, "%d x %d", (int)im.h, (int)im.w);
        EXPECT(!strncmp(text, "<image>", 7), "as many placeholders as pictures");
        text += 7;
        media_unmap(&m), image_close(&im);
    }
    EXPECT(!strstr(text, "<image>"), "as many placeholders as pictures");
}

static bool same_file(const char *a, const char *b, const char *name)
{
    Path pa, pb;
    MediaMap ma = { 0 }, mb = { 0 };
    EXPECT_OK(path_join(pa, a, name));
    EXPECT_OK(path_join(pb, b, name));
    EXPECT_OK(media_map(&ma, pa));
    EXPECT_OK(media_map(&mb, pb));
    bool same = ma.len == mb.len && !memcmp(ma.bytes, mb.bytes, ma.len);
    media_unmap(&ma), media_unmap(&mb);
    return same;
}

static void files(void)
{
    Path a, b;
    EXPECT_OK(path_join(a, lab_tmp(), "a"));
    EXPECT_OK(path_join(b, lab_tmp(), "b"));
    SynthConf conf = { a, { 27, 36 }, plain };
    bool drawn;
    EXPECT_OK(synth_write(&conf, &drawn));
    EXPECT(drawn, "the set was drawn");
    EXPECT_OK(synth_write(&conf, &drawn));
    EXPECT(!drawn, "a complete set is drawn again");
    for (int i = 0, blind = 0; i < 36; i++) {
        Json *o = line_of(a, "eval.jsonl", i);
        expect_pictures(a, o);
        const Json *images = json_object_get(o, "images");
        if (json_array_size(images)) {
            Json *other = line_of(a, "eval_blind.jsonl", blind++);
            EXPECT(!strcmp(content(o, 0), content(other, 0)) && !strcmp(content(o, 1), content(other, 1)),
                   "the same question");
            EXPECT(!json_equal(images, json_object_get(other, "images")), "other pictures");
            expect_pictures(a, other);
            json_decref(other);
        } else {
            EXPECT(!strcmp(json_string_value(json_object_get(o, "channel")), "text"),
                   "text only, by its channel");
        }
        json_decref(o);
    }
    EXPECT(!line_of(a, "eval_blind.jsonl", 32) && !line_of(a, "train.jsonl", 27), "no line too many");
    conf.dir = b;
    EXPECT_OK(synth_write(&conf, &drawn));
    EXPECT(same_file(a, b, "train.jsonl") && same_file(a, b, "eval_blind.jsonl"), "lines again");
    Json *o = line_of(a, "train.jsonl", 0);
    EXPECT(same_file(a, b, json_string_value(json_array_get(json_object_get(o, "images"), 0))),
           "pictures again");
    json_decref(o);
    conf.set.choice.without = bits_of("green");
    EXPECT_FAIL(synth_write(&conf, &drawn), E_CONFIG, "another set");
    conf.set = later;
    EXPECT_FAIL(synth_write(&conf, &drawn), E_CONFIG, "another set");
    conf.dir = lab_tmp();
    EXPECT_FAIL(synth_write(&conf, &drawn), E_CONFIG, "not empty");
    conf.items[SYNTH_EVAL] = 5;
    EXPECT_FAIL(synth_write(&conf, &drawn), E_CONFIG, "at least 18");
    folder_remove(lab_tmp());
}

int main(void)
{
    RUN(answers_are_balanced);
    RUN(questions_tell_nothing);
    RUN(a_pure_function);
    RUN(pictures_show_the_answer);
    RUN(rows_are_held_out);
    RUN(a_colour_is_left_out);
    RUN(a_set_about_a_colour);
    RUN(choices_are_checked);
    RUN(files);
    return lab_report();
}
