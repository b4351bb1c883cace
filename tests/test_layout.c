/* tests/test_layout.c -- layers over stages: every way to specify it, the strings and their errors. */
#include "base/rng.h"
#include "lab.h"
#include "parallel/pipe_layout.h"

/* "E0-2|3-4|…": chunks in order. */
static const char *spelled(const PipeLayout *l)
{
    static char text[4096];
    int at = 0;
    for (int i = 0; i < l->stages * l->chunks; i++) {
        const PipeLayoutChunk *p = &l->piece[i];
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%s%d-%d%s", i ? "|" : "",
                       p->embedding ? "E" : "", p->from, p->to, p->loss ? "L" : "");
    }
    return text;
}

static void expect_cut(PipeLayoutSpec a, const char *want)
{
    PipeLayout l;
    EXPECT_OK(pipe_layout_open(&l, &a));
    if (l.piece) EXPECT(!strcmp(spelled(&l), want), "%s, want %s", spelled(&l), want);
    pipe_layout_close(&l);
    pipe_layout_close(&l);
}

static void expect_broken(PipeLayoutSpec a, int rule, const char *word)
{
    PipeLayout l;
    EXPECT_FAIL(pipe_layout_open(&l, &a), E_CONFIG, word);
    EXPECT(l.rule == rule, "rule %d, want %d: %s", l.rule, rule, status_text());
    pipe_layout_close(&l);
}

static void even(void)
{
    expect_cut((PipeLayoutSpec){ 4, 1, 1, NULL, 0, 0, 0, 0 }, "E0-4L");
    expect_cut((PipeLayoutSpec){ 4, 2, 1, "", 0, 0, 0, 0 }, "E0-2|2-4L");
    expect_cut((PipeLayoutSpec){ 8, 2, 2, "", 0, 0, 0, 0 }, "E0-2|2-4|4-6|6-8L");
    expect_broken((PipeLayoutSpec){ 94, 8, 1, "", 0, 0, 0, 0 }, 25, "parallel.layout = Et*11|(t*12|)*6t*11L");
    expect_broken((PipeLayoutSpec){ 2, 4, 1, "", 0, 0, 0, 0 }, 25, "parallel.layout = E|(t|)*2L");
}

static void counted(void)
{
    expect_cut((PipeLayoutSpec){ 94, 8, 1, "", 0, 0, true, true },
               "E0-11|11-23|23-35|35-47|47-59|59-71|71-83|83-94L");
    expect_cut((PipeLayoutSpec){ 7, 2, 2, "", 0, 0, true, false }, "E0-1|1-3|3-5|5-7L");
    expect_cut((PipeLayoutSpec){ 3, 4, 1, "", 0, 0, false, true }, "E0-1|1-2|2-3|3-3L");
    expect_broken((PipeLayoutSpec){ 8, 4, 1, "", 0, 0, true, false }, 25,
                  "and the embedding, which counts as one, are not");
}

static void ends(void)
{
    expect_cut((PipeLayoutSpec){ 10, 4, 1, "", 1, 3, 0, 0 }, "E0-1|1-4|4-7|7-10L");
    expect_cut((PipeLayoutSpec){ 10, 4, 1, "", 1, 0, 0, 0 }, "E0-1|1-4|4-7|7-10L");
    expect_cut((PipeLayoutSpec){ 10, 4, 1, "", 0, 4, 0, 0 }, "E0-2|2-4|4-6|6-10L");
    expect_cut((PipeLayoutSpec){ 12, 2, 2, "", 4, 8, 0, 0 }, "E0-2|2-6|6-8|8-12L");
    expect_cut((PipeLayoutSpec){ 40, 2, 1, "", 16, 24, 0, 0 }, "E0-16|16-40L");
    expect_broken((PipeLayoutSpec){ 10, 4, 1, "", 1, 4, 0, 0 }, 25, "leave 5 for 2 stages");
    expect_broken((PipeLayoutSpec){ 10, 2, 1, "", 5, 6, 0, 0 }, 25, "leave -1 for 0 stages");
    expect_broken((PipeLayoutSpec){ 10, 4, 2, "", 1, 3, 0, 0 }, 25, "which is no multiple");
    expect_broken((PipeLayoutSpec){ 10, 1, 1, "", 3, 0, 0, 0 }, 25, "which is no multiple");
    expect_broken((PipeLayoutSpec){ 10, 4, 1, "", 1, 3, true, 0 }, 26, "set one of them");
    expect_broken((PipeLayoutSpec){ 10, 4, 1, "Et*10L", 1, 0, 0, 0 }, 26, "set one of them");
}

/* The three published examples without their m: 61 or 47 layers, 32, 24 and 16 chunks. */
static void strings(void)
{
    static const struct { const char *text; int layers, stages, chunks; } known[] = {
        { "Et*3|(tt|)*29|L",     61, 8,  4 }, { "Et*3|(tt|)*29|L",     61, 16, 2 },
        { "Et*3|(tt|)*22L",      47, 24, 1 }, { "Et*3|(tt|)*22L",      47, 4,  6 },
        { "Et*4|(t*4|)*14tL",    61, 16, 1 }, { "E,t*4|(t*4,|)*14t,L", 61, 8,  2 },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        PipeLayout l;
        PipeLayoutSpec a = { known[i].layers, known[i].stages, 1, known[i].text, 0, 0, 0, 0 };
        EXPECT_OK(pipe_layout_open(&l, &a));
        EXPECT(l.chunks == known[i].chunks, "%s: %d chunks", a.string, l.chunks);
        pipe_layout_close(&l);
        a.chunks = known[i].chunks;
        EXPECT_OK(pipe_layout_open(&l, &a));
        pipe_layout_close(&l);
    }
    expect_cut((PipeLayoutSpec){ 3, 2, 1, "E|t|t|tL", 0, 0, 0, 0 }, "E0-0|0-1|1-2|2-3L");
    expect_cut((PipeLayoutSpec){ 3, 3, 1, "Et*3||L", 0, 0, 0, 0 }, "E0-3|3-3|3-3L");
    expect_cut((PipeLayoutSpec){ 4, 2, 1, "E(t)*2|(t*1)*2L", 0, 0, 0, 0 }, "E0-2|2-4L");
    expect_cut((PipeLayoutSpec){ 2, 2, 1, "Et*0|ttL", 0, 0, 0, 0 }, "E0-0|0-2L");
}

static void broken_strings(void)
{
    static const struct { const char *text; int rule; const char *word; } bad[] = {
        { "Et*3|(tt|)*29m|L", 29, "no model here has one" },   { "Et|tt|tL",   28, "has 3 chunks" },
        { "Et*4",             29, "one L" },                   { "t*4L",       29, "one E" },
        { "tEt*3L",           29, "one E" },                   { "Et*2LttL",   29, "one L" },
        { "EEt*4L",           29, "one E" },                   { "Et*5|L",     29, "5 t and the model" },
        { "Ex|L",             29, "E t m L" },                 { "E(t(t)*2)*2L", 29, "do not nest" },
        { "E(tt|L",           29, "without its )" },           { "Ett)*2L",    29, "without its (" },
        { "E(tt)L",           29, "followed by *" },           { "Et*|L",      29, "must follow *" },
        { "Et*(4)*1L",        29, "must follow *" },           { "Et*99999999999L", 29, "must follow" },
        { "E(t*60000)*60000L", 29, "more than 65536" },        { "*3",         29, "may hold" },
        { "(|)*65535(|)*65535", 29, "more than 65536" },       { "|",          29, "one E" },
        { "Et t|ttL",         29, "may hold" },                { "()*9",       29, "one E" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect_broken((PipeLayoutSpec){ 4, 2, 1, bad[i].text, 0, 0, 0, 0 }, bad[i].rule, bad[i].word);
    expect_broken((PipeLayoutSpec){ 4, 2, 3, "Et|t|t|tL", 0, 0, 0, 0 }, 28, "parallel.vpp = 3 need 6");
}

/* Any text gives a layout or an error, and a layout has all layers. */
static void random_strings(void)
{
    static const char signs[] = "EEttttttmL|||,()**0123 x";
    for (uint64_t i = 0; i < 20000; i++) {
        char text[40];
        PipeLayout l;
        int n = (int)rng_below(1, i, 0, sizeof text), layers = 0;
        for (int k = 0; k < n; k++) text[k] = signs[rng_below(2, i, (uint64_t)k, sizeof signs - 1)];
        text[n ? n - 1 : 0] = 0;
        PipeLayoutSpec a = { 1 + (int)(i % 5), 1 + (int)(i % 3), 1, text, 0, 0, 0, 0 };
        if (pipe_layout_open(&l, &a)) continue;
        for (int k = 0; k < l.stages * l.chunks; k++) layers += l.piece[k].to - l.piece[k].from;
        EXPECT(layers == l.layers, "%s: %d of %d", text, layers, l.layers);
        pipe_layout_close(&l);
    }
}

/* The suggested string is legal, for any number of layers. */
static void suggestions(void)
{
    for (int layers = 1; layers <= 40; layers++)
        for (int stages = 1; stages <= 8; stages++)
            for (int chunks = 1; chunks <= 4; chunks++) {
                char text[128];
                PipeLayout l;
                pipe_layout_suggest(text, sizeof text, layers, stages, chunks);
                PipeLayoutSpec a = { layers, stages, chunks, text, 0, 0, 0, 0 };
                EXPECT_OK(pipe_layout_open(&l, &a));
                int n = stages * chunks, least = layers, most = 0;
                for (int i = 0; i < n && l.piece; i++) {
                    int size = l.piece[i].to - l.piece[i].from;
                    least = size < least ? size : least, most = size > most ? size : most;
                }
                EXPECT(l.chunks == chunks && most - least <= 1, "%s: %d to %d", text, least, most);
                pipe_layout_close(&l);
            }
}

static void printed(void)
{
    char *text = NULL;
    size_t len;
    PipeLayout l;
    FILE *f = open_memstream(&text, &len);
    EXPECT_OK(pipe_layout_open(&l, &(PipeLayoutSpec){ 6, 2, 2, "Et|tt||t*3L", 0, 0, 0, 0 }));
    pipe_layout_print(f, &l);
    fclose(f);
    EXPECT(strstr(text, "      0   E 0    -    \n") && strstr(text, "      1   1-2    3-5 L\n"), "%s", text);
    pipe_layout_close(&l);
    free(text);
}

int main(void)
{
    RUN(even);
    RUN(counted);
    RUN(ends);
    RUN(strings);
    RUN(broken_strings);
    RUN(random_strings);
    RUN(suggestions);
    RUN(printed);
    return lab_report();
}
