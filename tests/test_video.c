/* tests/test_video.c -- video files: chosen frames, rates, ids, grids and pixels as transformers' processor
 * has them (tests/video, written by tools/make_video_cases.py); damaged files; frames in order. */
#include "lab.h"

#include "data/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATCH = 16, DIM = 3 * 2 * PATCH * PATCH };

/* One line of a file, opened as a sample. */
typedef struct Clip {
    Config        recipe;
    Tokenizer    *tokenizer;
    Source        source;
    SourceList    list;
    Dataset       data;
    SampleConf    conf;
    SampleScratch scratch;
    Sample        s;
} Clip;

static Json *cases;

static void clip_close(Clip *k)
{
    sample_close(&k->s);
    sample_scratch_close(&k->scratch);
    dataset_close(&k->data);
    tokenizer_close(k->tokenizer);
    config_close(&k->recipe);
}

/* A conversation about tests/video/name, or about the file `name` where that is a path. */
static void write_line(const char *path, const char *name, const char *more)
{
    char  folder[400];
    FILE *f = fopen(path, "w");
    REQUIRE(f && getcwd(folder, sizeof folder), "cannot write %s", path);
    fprintf(
        f,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"<video>What?\"},{\"role\":\"assistant\",\"content\":"
        "\"It runs.\"}],\"videos\":[\"%s%s%s\"]%s}\n",
        *name == '/' ? "" : folder, *name == '/' ? "" : "/tests/video/", name, more);
    fclose(f);
}

static Status clip_open(Clip *k, const char *name, const char *more)
{
    static const Budget all = { .tokens = 8192, .patches = 1 << 20, .docs = 1, .supervised = 8192 };
    char path[400];
    *k = (Clip){ 0 };
    snprintf(path, sizeof path, "%s/line.jsonl", lab_tmp());
    write_line(path, name, more);
    config_default(&k->recipe);
    k->recipe.video.max_pixels = 200000;
    TRY(tokenizer_open(&k->tokenizer, "tests/gold_text"));
    StreamShape stream = { tokenizer_id(k->tokenizer, "<|image_pad|>"),
                           tokenizer_id(k->tokenizer, "<|video_pad|>"), 2, DIM, false };
    PatchShape  patch = { .patch = PATCH, .frames = 2, .merge = 2, .channels = 3 };
    TRY(sample_conf(&k->conf, &k->recipe, k->tokenizer, &patch, &stream, &all));
    k->conf.chat.video_outer = true;
    k->source = (Source){ .path = path, .weight = 1, .channel = "" };
    k->list   = (SourceList){ &k->source, 1 };
    DatasetConf d = { .sources = &k->list, .key = "data.train", .once = true,
                      .format = { k->tokenizer, k->conf.max_length } };
    TRY(dataset_open(&k->data, &d));
    k->conf.data = &k->data;
    TRY(sample_scratch_open(&k->scratch, k->tokenizer));
    return sample_load(&k->s, &k->scratch, &k->conf, 0);
}

static int64_t number_at(const Json *o, const char *key, size_t i)
{
    return json_integer_value(json_array_get(json_object_get(o, key), i));
}

static void expect_layout(const Sample *s, const Json *want, const char *name)
{
    const Json *ids = json_object_get(want, "ids");
    bool        same = (size_t)s->ids.n == json_array_size(ids);
    for (int64_t i = 0; i < s->ids.n && same; i++) same = s->ids.v[i] == number_at(want, "ids", (size_t)i);
    EXPECT(same, "%s: ids differ (%lld)", name, (long long)s->ids.n);
    EXPECT(s->slices == number_at(want, "grid", 0) && s->slice[0].h == number_at(want, "grid", 1) &&
               s->slice[0].w == number_at(want, "grid", 2), "%s: %lld slices of %d x %d", name,
           (long long)s->slices, s->slice[0].h, s->slice[0].w);
    const Media *m = &s->chat.media[0];
    EXPECT((size_t)m->frames == json_array_size(json_object_get(want, "frames")), "%s: %d frames", name,
           m->frames);
    for (int i = 0; i < m->frames; i++)
        EXPECT(s->frame[m->first + i].nth - 1 == number_at(want, "frames", (size_t)i), "%s: frame %d is %lld",
               name, i, (long long)s->frame[m->first + i].nth - 1);
}

static double patch_mean(const uint8_t *patch, int part)
{
    double sum = 0;
    for (int i = 0; i < PATCH * PATCH; i++) sum += patch[part * PATCH * PATCH + i];
    return sum / (PATCH * PATCH);
}

/* Mean levels of patches within 3 of the reference's, within 1 on average: another version of the library
 * converts colours with other roundings. */
static void expect_levels(Clip *k, const Json *want, const char *name)
{
    const Json *levels = json_object_get(want, "levels");
    const RecordSlice *v = k->s.slice;
    int64_t     patches = (int64_t)v->h * v->w;
    uint8_t    *pixels = malloc((size_t)(patches * DIM));
    double      worst = 0, sum = 0;
    size_t      n = 0;
    for (int64_t i = 0; i < k->s.slices; i++) {
        EXPECT_OK(sample_pixels(pixels, true, &k->s, &k->scratch, &k->conf, i));
        for (int64_t p = 0; p < patches * 6; p++, n++) {
            double d = fabs(patch_mean(pixels + p / 6 * DIM, (int)(p % 6)) -
                            json_number_value(json_array_get(levels, n)));
            worst = fmax(worst, d), sum += d;
        }
    }
    EXPECT(n == json_array_size(levels) && worst < 3 && sum < (double)n,
           "%s: levels differ by %.2f, %.2f on average", name, worst, sum / (double)n);
    free(pixels);
}

static void equals_reference(void)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const Json *want = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(want, "file"));
        char        path[200];
        VideoInfo   info = { 0 };
        Clip        k;
        snprintf(path, sizeof path, "tests/video/%s", name);
        EXPECT_OK(video_file_info(&info, &(VideoSource){ .path = path, .what = path }));
        EXPECT(info.frames == json_integer_value(json_object_get(want, "total")), "%s: %lld frames", name,
               (long long)info.frames);
        EXPECT(fabs(info.fps / json_number_value(json_object_get(want, "fps")) - 1) < 1e-9, "%s: %.9g fps",
               name, info.fps);
        EXPECT_OK(clip_open(&k, name, ""));
        expect_layout(&k.s, want, name);
        expect_levels(&k, want, name);
        clip_close(&k);
    }
}

/* A rate in the line is the rate to sample at; limits of the recipe hold. */
static void rates_and_limits(void)
{
    Clip k;
    EXPECT_OK(clip_open(&k, "slow_vp8.webm", ",\"fps\":1"));
    EXPECT(k.s.chat.media[0].frames == 5, "%d frames at 1 a second", k.s.chat.media[0].frames);
    k.conf.video.max_frames = 4;
    sample_close(&k.s);
    EXPECT_OK(sample_load(&k.s, &k.scratch, &k.conf, 0));
    EXPECT(k.s.chat.media[0].frames == 4, "%d frames of at most 4", k.s.chat.media[0].frames);
    clip_close(&k);
}

/* Frames may be asked for again and backwards: the file is opened anew. A packed frame has the same
 * pixels. */
static void frames_in_any_order(void)
{
    Clip     k;
    uint8_t *a = malloc(64 * DIM), *b = malloc(64 * DIM);
    EXPECT_OK(clip_open(&k, "ntsc_h264.mp4", ""));
    EXPECT_OK(sample_pixels(a, true, &k.s, &k.scratch, &k.conf, 0));
    EXPECT_OK(sample_pixels(b, true, &k.s, &k.scratch, &k.conf, 2));
    EXPECT_OK(sample_pixels(b, true, &k.s, &k.scratch, &k.conf, 0));
    EXPECT(!memcmp(a, b, (size_t)(k.s.slice[0].h * k.s.slice[0].w) * DIM), "the first slice differs");
    const void *png;
    size_t      len;
    Image       again = { 0 };
    EXPECT_OK(sample_bytes(&png, &len, &k.s, &k.scratch, &k.conf, k.s.slice[1].a));
    EXPECT_OK(image_decode(&again, png, len, NULL, "frame"));
    EXPECT(again.h == 64 && again.w == 96 && !memcmp(again.rgb, k.scratch.resized[0].rgb, 64 * 96 * 3),
           "the frame as a file has other pixels");
    image_close(&again);
    clip_close(&k);
    free(a), free(b);
}

static void copy_damaged(const char *to, const char *name, size_t keep, size_t flip)
{
    char   path[200];
    static char bytes[1 << 16];
    snprintf(path, sizeof path, "tests/video/%s", name);
    FILE  *f = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    if (keep < n) n = keep;
    for (size_t i = flip; flip && i < n; i += flip) bytes[i] ^= 0x5a;
    f = fopen(to, "wb");
    REQUIRE(f && fwrite(bytes, 1, n, f) == n && !fclose(f), "cannot write %s", to);
}

/* Cut and flipped files are refused or read, and never end the program. */
static void damaged_files(void)
{
    char   to[300];
    int    bad = 0;
    Clip   k;
    snprintf(to, sizeof to, "%s/damaged.mp4", lab_tmp());
    for (size_t i = 0; i < json_array_size(cases); i++)
        for (size_t how = 0; how < 4; how++) {
            const char *name = json_string_value(json_object_get(json_array_get(cases, i), "file"));
            copy_damaged(to, name, how < 2 ? 200 + 2500 * how : 1 << 16, how < 2 ? 0 : 37 * how * how * how);
            Status st = clip_open(&k, to, "");
            uint8_t *pixels = st ? NULL : malloc((size_t)k.s.slice[0].h * (size_t)k.s.slice[0].w * DIM);
            for (int64_t s = 0; !st && s < k.s.slices; s++)
                st = sample_pixels(pixels, true, &k.s, &k.scratch, &k.conf, s);
            EXPECT(!st || sample_is_bad(st), "%s: status %d: %s", name, st, status_text());
            bad += st != OK;
            free(pixels);
            clip_close(&k);
        }
    EXPECT(bad > 12, "%d damaged files are refused", bad);
    remove(to);
}

static void refuses(void)
{
    static const struct { const char *name, *words; } rows[] = {
        { "cases.json", "not a video that is read here" },
        { "none.mp4", "No such file" },
        { "/dev/null", "not a regular file" },
    };
    Clip k;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Status st = clip_open(&k, rows[i].name, "");
        EXPECT(sample_is_bad(st) && strstr(status_text(), rows[i].words), "%s: %s", rows[i].name,
               status_text());
        clip_close(&k);
    }
}

/* Without the libraries a video file is refused with the way out. */
static void says_what_is_missing(void)
{
    Clip   k;
    Status st = clip_open(&k, "ntsc_h264.mp4", "");
    EXPECT(st == E_DATA && strstr(status_text(), "ffmpeg -i FILE"), "%s", status_text());
    clip_close(&k);
}

int main(void)
{
    char path[300];
    if (!video_file_readable()) {
        RUN(says_what_is_missing);
        printf("  skip video files: FFmpeg's libraries are not built in, or not on this machine\n");
        return lab_report();
    }
    REQUIRE(!json_load(&cases, "tests/video/cases.json"), "%s", status_text());
    RUN(equals_reference);
    RUN(rates_and_limits);
    RUN(frames_in_any_order);
    RUN(damaged_files);
    RUN(refuses);
    json_decref(cases);
    snprintf(path, sizeof path, "%s/line.jsonl", lab_tmp());
    remove(path), rmdir(lab_tmp());
    return lab_report();
}
