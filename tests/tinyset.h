/* tests/tinyset.h -- writes a small visual question set: pictures of several formats and sizes, lines of
 * several forms, and the configuration that opens a loader on it. */
#ifndef TESTS_TINYSET_H
#define TESTS_TINYSET_H

#include "base/rng.h"
#include "data/loader.h"
#include "pictures.h"
#include "tiny_tokenizer.h"

#include <sys/stat.h>

enum { TINY_PICTURES = 6, TINY_PATCH = 4, TINY_DIM = 3 * 2 * TINY_PATCH * TINY_PATCH };

typedef struct TinySet {
    char       dir[300], path[400];      /* path: the JSONL */
    Config     cfg;
    Source     source[4];
    Tokenizer *tokenizer;
    LoaderConf conf;
} TinySet;

static inline void tiny_write(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    REQUIRE(f && fwrite(bytes, 1, n, f) == n && !fclose(f), "cannot write %s", path);
}

static inline Bytes tiny_picture(int i)
{
    int      h = 24 + 7 * i, w = 56 - 5 * i;
    uint8_t *rgb = picture_draw(h, w, 3);
    JpegKind jpeg = { .in = JCS_RGB, .stored = JCS_YCbCr, .channels = 3 };
    PngKind  png = { .type = PNG_COLOR_TYPE_RGB, .depth = 8 };
    Bytes    b = i % 3 == 0 ? picture_jpeg(rgb, h, w, jpeg) : i % 3 == 1 ? picture_png(rgb, h, w, png)
                                                                         : picture_webp(rgb, h, w, 3, true);
    free(rgb);
    return b;
}

static inline const char *tiny_picture_name(int i)
{
    static const char *const names[] = { "p0.jpg", "p1.png", "p2.webp", "p3.jpg", "p4.png", "p5.webp" };
    return names[i % TINY_PICTURES];
}

/* Line i: text only, one picture, two pictures, or a video of three frames; answers of many lengths. */
static inline int tiny_line(char *out, size_t cap, int i)
{
    char answer[128];
    int  n = 1 + (int)rng_below(17, 0, (uint64_t)i, 100), a = i % TINY_PICTURES, b = (i + 1) % TINY_PICTURES;
    for (int k = 0; k < n; k++) answer[k] = (char)('a' + (i + k) % 26);
    answer[n] = 0;
    const char *p = tiny_picture_name(a), *q = tiny_picture_name(b);
    switch (i % 5) {
    case 0:
        return snprintf(out, cap, "{\"messages\":[{\"role\":\"user\",\"content\":\"question %d\"},"
                        "{\"role\":\"assistant\",\"content\":\"%s\"}]}", i, answer);
    case 3:
        return snprintf(out, cap, "{\"messages\":[{\"role\":\"user\",\"content\":\"<image><image>and %d\"},"
                        "{\"role\":\"assistant\",\"content\":\"%s\"}],\"images\":[\"%s\",\"%s\"]}", i,
                        answer, p, q);
    case 4:
        return snprintf(out, cap, "{\"messages\":[{\"role\":\"user\",\"content\":\"<video>watch %d\"},"
                        "{\"role\":\"assistant\",\"content\":\"%s\"}],\"videos\":[[\"%s\",\"%s\",\"%s\"]]}",
                        i, answer, p, q, p);
    default:
        return snprintf(out, cap, "{\"conversations\":[{\"from\":\"human\",\"value\":\"<image>\\nlook %d\"},"
                        "{\"from\":\"gpt\",\"value\":\"%s\"}],\"image\":\"%s\"}", i, answer, p);
    }
}

static inline void tiny_jsonl(const char *path, int lines)
{
    FILE *f = fopen(path, "wb");
    char  line[1024];
    REQUIRE(f, "cannot write %s", path);
    for (int i = 0; i < lines; i++) tiny_line(line, sizeof line, i), fprintf(f, "%s\n", line);
    fclose(f);
}

static inline void tiny_conf(TinySet *s)
{
    s->cfg.data.train = s->cfg.data.eval = (SourceList){ s->source, 1 };
    s->cfg.data.eval.n = 0;
    s->cfg.data.max_length = 600, s->cfg.video.max_pixels = 8192;
    s->cfg.image.min_pixels = 1024, s->cfg.image.max_pixels = 4096;
    s->conf = (LoaderConf){
        .sources = &s->cfg.data.train, .recipe = &s->cfg, .tokenizer = s->tokenizer,
        .shape  = { TINY_FIRST + 5, TINY_FIRST + 6, 2, TINY_DIM },
        .patch  = { .patch = TINY_PATCH, .frames = 2, .merge = 2, .channels = 3 },
        .budget = { .tokens = 700, .patches = 1400, .docs = 16, .supervised = 600 },
        .micro = 2, .ranks = 1, .workers = 2,
    };
}

static inline void tiny_set_open(TinySet *s, const char *folder, int lines)
{
    *s = (TinySet){ 0 };
    snprintf(s->dir, sizeof s->dir, "%s/set", folder);
    snprintf(s->path, sizeof s->path, "%s/train.jsonl", s->dir);
    mkdir(s->dir, 0777);
    for (int i = 0; i < TINY_PICTURES; i++) {
        char  path[512];
        Bytes b = tiny_picture(i);
        snprintf(path, sizeof path, "%s/%s", s->dir, tiny_picture_name(i));
        tiny_write(path, b.v, b.n);
        free(b.v);
    }
    tiny_jsonl(s->path, lines);
    config_default(&s->cfg);
    for (int i = 0; i < 4; i++) s->source[i] = (Source){ .path = s->path, .weight = 1, .channel = "" };
    s->tokenizer = tiny_open(folder, TINY_ADDED);
    tiny_conf(s);
}

static inline void tiny_set_close(TinySet *s)
{
    char command[400];
    tokenizer_close(s->tokenizer);
    config_close(&s->cfg);
    snprintf(command, sizeof command, "rm -rf '%s'", s->dir);
    if (system(command)) perror(command);
}

/* A hash of the whole content of a stream. */
static inline uint64_t tiny_hash(const void *v, size_t n, uint64_t h)
{
    const uint8_t *p = v;
    for (size_t i = 0; i < n; i++) h = (h ^ p[i]) * 0x100000001b3ull;
    return h;
}

static inline uint64_t stream_hash(const Stream *s, uint64_t h)
{
    size_t T = (size_t)s->budget.tokens, P = (size_t)s->budget.patches;
    int64_t n[6] = { s->tokens, s->patches, s->docs, s->slices, s->visual, s->supervised };
    h = tiny_hash(n, sizeof n, h);
    h = tiny_hash(s->ids, 4 * T, h), h = tiny_hash(s->pos, 12 * T, h), h = tiny_hash(s->group, 4 * T, h);
    h = tiny_hash(s->start, 4 * ((size_t)s->docs + 1), h);
    h = tiny_hash(s->sup_row, 4 * (size_t)s->supervised, h);
    h = tiny_hash(s->sup_label, 4 * (size_t)s->supervised, h);
    h = tiny_hash(s->pixels, (s->shape.bytes ? 1 : 4) * (size_t)(s->patches * s->shape.patch_dim), h);
    h = tiny_hash(s->cell, 16 * P, h);
    return tiny_hash(s->visual_row, 4 * (P / 4), h);
}

static inline uint64_t step_hash(const LoaderStep *s, int micro)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (int k = 0; s->micro && k < micro; k++) h = stream_hash(s->micro[k], h);
    return h;
}

#endif
