/* tests/test_picture_limits.c -- sizes of pictures and videos: keys of the recipe, the model's processor
 * files, budgets. */
#include "lab.h"

#include "checkpoint/picture_limits.h"
#include "data/image.h"
#include "data/video.h"

#include <string.h>
#include <sys/stat.h>

static const VisionShape tower = { .depth = 2, .channels = 3, .patch = 16, .frames = 2, .merge = 2 };
static char model[300], adapter[300];

static void write_file(const char *dir, const char *name, const char *text)
{
    char  path[400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    remove(path);
    if (!text) return;
    FILE *f = fopen(path, "w");
    REQUIRE(f && fputs(text, f) >= 0 && !fclose(f), "cannot write %s", path);
}

static Status limits(Config *c, const char *keys)
{
    config_default(c);
    TRY(config_parse(c, keys, strlen(keys), "recipe"));
    return picture_limits_read(c, model, adapter, &tower);
}

#define EXPECT_BOUNDS(keys, least, most)                                                                     \
    do {                                                                                                     \
        EXPECT_OK(limits(&c, keys));                                                                         \
        EXPECT(c.image.min_pixels == (least) && c.image.max_pixels == (most), "%lld to %lld",                \
               (long long)c.image.min_pixels, (long long)c.image.max_pixels);                                \
        config_close(&c);                                                                                    \
    } while (0)

/* Both forms of the file; old keys win over size; keys of the recipe win over the file; an adapter's file
 * wins over that of its base model. */
static void files_and_keys(void)
{
    Config c;
    EXPECT_BOUNDS("{}", 65536, 16777216);
    write_file(model, "preprocessor_config.json",
               "{\"size\": {\"shortest_edge\": 1024, \"longest_edge\": 4096}}");
    EXPECT_BOUNDS("{}", 1024, 4096);
    EXPECT_BOUNDS("image: {max_pixels: 9000}", 1024, 9000);
    write_file(model, "preprocessor_config.json",
               "{\"min_pixels\": 3136, \"max_pixels\": 12845056, \"size\": "
               "{\"shortest_edge\": 1024, \"longest_edge\": 4096}, \"patch_size\": 16, \"merge_size\": 2}");
    EXPECT_BOUNDS("{}", 3136, 12845056);
    EXPECT_BOUNDS("image: {max_pixels: 2048}", 2048, 2048);
    EXPECT_BOUNDS("image: {min_pixels: 1024, max_pixels: 2048}", 1024, 2048);
    write_file(adapter, "preprocessor_config.json", "{\"max_pixels\": 5000, \"min_pixels\": 4000}");
    EXPECT_BOUNDS("{}", 4000, 5000);
    write_file(adapter, "preprocessor_config.json", NULL);
}

static void refuses(void)
{
    static const struct { const char *text, *words; } bad[] = {
        { "{\"patch_size\": 14}", "patch_size is 14, and config.json says 16" },
        { "{\"merge_size\": 1}", "merge_size is 1" },
        { "{\"temporal_patch_size\": 1}", "temporal_patch_size is 1" },
        { "{\"min_pixels\": 9, \"max_pixels\": 8}", "not a range" },
        { "{\"min_pixels\": 0}", "not a range" },
        { "{\"image_mean\": [0.48, 0.5, 0.5]}", "image_mean is 0.48" },
        { "{\"max_pixels\": \"many\"}", "max_pixels" },
        { "{", "preprocessor_config.json" },
    };
    Config c;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_file(model, "preprocessor_config.json", bad[i].text);
        EXPECT_FAIL(limits(&c, "{}"), E_DATA, bad[i].words);
        config_close(&c);
    }
    write_file(model, "preprocessor_config.json", NULL);
}

static void videos(void)
{
    Config c;
    write_file(model, "video_preprocessor_config.json",
               "{\"size\": {\"shortest_edge\": 8192, \"longest_edge\": 1000000}, "
               "\"fps\": 1, \"min_frames\": 6, \"max_frames\": 20}");
    EXPECT_OK(limits(&c, "video: {max_frames: 30}"));
    EXPECT(c.video.min_pixels == 8192 && c.video.max_pixels == 1000000 && c.video.fps == 1 &&
               c.video.min_frames == 6 && c.video.max_frames == 30, "video keys");
    config_close(&c);
    write_file(model, "video_preprocessor_config.json", "{\"fps\": -1}");
    EXPECT_FAIL(limits(&c, "{}"), E_DATA, "fps = -1");
    config_close(&c);
    write_file(model, "video_preprocessor_config.json", NULL);
}

/* A photograph of 12 megapixels and the longest video fit the default budgets; what the recipe sets stays. */
static void budgets(void)
{
    Log    quiet = { .least = LOG_ERROR };
    Config c;
    EXPECT_OK(limits(&c, "{}"));
    picture_limits_fit(&c, &tower, &quiet);
    PatchShape p = { 16, 2, 2, 3, c.image.min_pixels, c.image.max_pixels };
    int64_t    h = 3000, w = 4000;
    EXPECT_OK(image_fit(&h, &w, &p));
    EXPECT(h * w / 1024 < c.data.max_length && h * w / 256 <= c.train.micro_patches && h * w > 5000000,
           "%lld x %lld", (long long)w, (long long)h);
    p.min_pixels = c.video.min_pixels, p.max_pixels = c.video.max_pixels;
    h = 1080, w = 1920;
    int64_t n = c.video.max_frames;
    EXPECT_OK(video_fit(&h, &w, n, &p));
    EXPECT(n / 2 * (h * w / 1024 + 14) < c.data.max_length * 3 / 4 + 1, "%lld frames of %lld x %lld",
           (long long)n, (long long)w, (long long)h);
    config_close(&c);
    EXPECT_OK(limits(&c, "image: {max_pixels: 16777216}\nvideo: {max_frames: 700}"));
    picture_limits_fit(&c, &tower, &quiet);
    EXPECT(c.image.max_pixels == 16777216 && c.video.max_frames == 700, "keys that are set stay");
    config_close(&c);
    EXPECT_OK(limits(&c, "data: {max_length: 16}"));
    picture_limits_fit(&c, &tower, &quiet);
    EXPECT(c.image.max_pixels == c.image.min_pixels, "never below the least");
    config_close(&c);
}

int main(void)
{
    snprintf(model, sizeof model, "%s/model", lab_tmp());
    snprintf(adapter, sizeof adapter, "%s/adapter", lab_tmp());
    mkdir(model, 0777), mkdir(adapter, 0777);
    RUN(files_and_keys);
    RUN(refuses);
    RUN(videos);
    RUN(budgets);
    rmdir(model), rmdir(adapter), rmdir(lab_tmp());
    return lab_report();
}
