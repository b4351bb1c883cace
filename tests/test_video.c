/* tests/test_video.c -- video files: chosen frames, rates, ids, grids and pixels as transformers' processor
 * has them (tests/video, written by tools/make_video_cases.py); damaged files; frames in order. */
#include "lab.h"

#include "data/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
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

/* ---- MP4 files whose boxes claim more samples than the file has bytes ---- */

enum { ENTRIES = 5200000, MANY_TRACKS = 64, MANY_EDITS = 1024 };

typedef struct Mp4 { uint8_t bytes[1 << 17]; size_t len; } Mp4;

static void put_word(Mp4 *m, uint32_t v)
{
    REQUIRE(m->len + 4 <= sizeof m->bytes, "%zu bytes are too few", sizeof m->bytes);
    for (int shift = 24; shift >= 0; shift -= 8) m->bytes[m->len++] = (uint8_t)(v >> shift);
}

static uint32_t name_word(const char *name)
{
    return (uint32_t)name[0] << 24 | (uint32_t)name[1] << 16 | (uint32_t)name[2] << 8 | (uint32_t)name[3];
}

static size_t box_begin(Mp4 *m, const char *kind)
{
    size_t at = m->len;
    put_word(m, 0);
    put_word(m, name_word(kind));
    return at;
}

static void box_end(Mp4 *m, size_t at)
{
    size_t len = m->len;
    m->len = at;
    put_word(m, (uint32_t)(len - at));
    m->len = len;
}

static void put_box(Mp4 *m, const char *kind, const uint32_t *words, int n)
{
    size_t at = box_begin(m, kind);
    for (int i = 0; i < n; i++) put_word(m, words[i]);
    box_end(m, at);
}

/* A box of n words; those that are not listed are 0. */
#define BOX(m, kind, n, ...) put_box(m, kind, (const uint32_t[n]){ __VA_ARGS__ }, n)

static void put_edits(Mp4 *m, uint32_t n)
{
    size_t edts = box_begin(m, "edts"), elst = box_begin(m, "elst");
    put_word(m, 0), put_word(m, n);
    for (uint32_t i = 0; i < n; i++) put_word(m, 100), put_word(m, 0), put_word(m, 1 << 16);
    box_end(m, elst), box_end(m, edts);
}

/* A track of 16 x 16 pixels without samples of its own; an id of 0 is left out. */
static void put_track(Mp4 *m, uint32_t id, uint32_t edits)
{
    size_t trak = box_begin(m, "trak"), mdia, minf, stbl, stsd;
    if (id) BOX(m, "tkhd", 21, 3, 0, 0, id);
    if (edits) put_edits(m, edits);
    mdia = box_begin(m, "mdia");
    BOX(m, "mdhd", 6, 0, 0, 0, 1000);
    BOX(m, "hdlr", 7, 0, 0, name_word("vide"));
    minf = box_begin(m, "minf"), stbl = box_begin(m, "stbl"), stsd = box_begin(m, "stsd");
    put_word(m, 0), put_word(m, 1);
    BOX(m, "jpeg", 20, 0, 1, 0, 0, 0, 0, 16 << 16 | 16, 72 << 16, 72 << 16, 0, 1 << 16, [18] = 24);
    box_end(m, stsd);
    BOX(m, "stts", 2, 0);
    BOX(m, "stsc", 2, 0);
    BOX(m, "stsz", 3, 0);
    BOX(m, "stco", 2, 0);
    box_end(m, stbl), box_end(m, minf), box_end(m, mdia), box_end(m, trak);
}

/* A fragment with `samples` samples of 10 bytes for each of so many tracks. */
static void put_fragment(Mp4 *m, uint32_t tracks, uint32_t samples)
{
    size_t moof = box_begin(m, "moof");
    BOX(m, "mfhd", 2, 0, 1);
    for (uint32_t id = 1; id <= tracks; id++) {
        size_t traf = box_begin(m, "traf");
        BOX(m, "tfhd", 2, 0x020000, id);
        BOX(m, "trun", 2, 0, samples);
        box_end(m, traf);
    }
    box_end(m, moof);
}

static Status info_of(const Mp4 *m)
{
    VideoInfo info;
    return video_file_info(&info, &(VideoSource){ .bytes = m->bytes, .len = m->len, .what = "claims" });
}

static void put_start(Mp4 *m)
{
    m->len = 0;
    BOX(m, "ftyp", 3, name_word("iso5"), 512, name_word("iso5"));
}

static Status open_claims(uint32_t first, uint32_t tracks, uint32_t samples, uint32_t edits)
{
    static Mp4 m;
    size_t     moov, mvex;
    put_start(&m);
    moov = box_begin(&m, "moov");
    BOX(&m, "mvhd", 25, 0, 0, 0, 1000);
    for (uint32_t id = first; id <= tracks; id++) put_track(&m, id, edits);
    mvex = box_begin(&m, "mvex");
    for (uint32_t id = 1; id <= tracks; id++) BOX(&m, "trex", 6, 0, id, 1, 100, 10, 0);
    box_end(&m, mvex), box_end(&m, moov);
    put_fragment(&m, tracks, samples);
    BOX(&m, "mdat", 100, 0);
    return info_of(&m);
}

static Status open_compressed(void)
{
    static Mp4 m;
    size_t     moov, cmov;
    put_start(&m);
    moov = box_begin(&m, "moov"), cmov = box_begin(&m, "cmov");
    BOX(&m, "dcom", 1, name_word("zlib"));
    BOX(&m, "cmvd", 16, 1000);
    box_end(&m, cmov), box_end(&m, moov);
    return info_of(&m);
}

/* Each sample that is claimed takes memory for its place in the index, and time for each edit. */
static void claims_are_bounded(void)
{
    struct rusage used;
    EXPECT_OK(open_claims(1, MANY_TRACKS, 5, 0));
    EXPECT_OK(open_claims(1, 1, 5, MANY_EDITS));
    EXPECT_FAIL(open_claims(1, MANY_TRACKS + 1, 5, 0), E_DATA, "not a video that is read here");
    EXPECT_FAIL(open_claims(1, 1, 5, MANY_EDITS + 1), E_DATA, "too many edits");
    EXPECT_FAIL(open_claims(0, 3, 5, 0), E_DATA, "has no id");
    EXPECT_FAIL(open_compressed(), E_DATA, "compressed");
    EXPECT_FAIL(open_claims(1, 1, 1 << 25, 0), E_DATA, "not a video that is read here");
    EXPECT_FAIL(open_claims(1, MANY_TRACKS, ENTRIES, 0), E_DATA, "too many entries");
    getrusage(RUSAGE_SELF, &used);
    EXPECT(used.ru_maxrss < 2 << 20, "%ld KiB of memory", used.ru_maxrss);
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
    RUN(claims_are_bounded);
    json_decref(cases);
    snprintf(path, sizeof path, "%s/line.jsonl", lab_tmp());
    remove(path), rmdir(lab_tmp());
    return lab_report();
}
