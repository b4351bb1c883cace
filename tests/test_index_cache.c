/* Sizes of samples between starts: what the key depends on, files that are damaged, steps; and the text of
 * progress. */
#include "lab.h"
#include "base/folder.h"
#include "base/meter.h"
#include "data/index_cache.h"
#include "data/line_index.h"
#include "tinyset.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static TinySet set;

static Loader *open_loader(void)
{
    Loader *l = NULL;
    REQUIRE(!loader_open(&l, &set.conf, NULL), "%s", status_text());
    return l;
}

/* The conf and the dataset of a loader on the set. */
typedef struct Opened {
    Dataset    data;
    SampleConf conf;
} Opened;

static void open_conf(Opened *o)
{
    const LoaderConf *c = &set.conf;
    DatasetConf       d = {
              .sources = c->sources, .key = "data.train", .seed = 1, .format = { c->tokenizer, 400 }
    };
    REQUIRE(!sample_conf(&o->conf, c->recipe, c->tokenizer, &c->patch, &c->shape, &c->budget), "%s",
            status_text());
    REQUIRE(!dataset_open(&o->data, &d), "%s", status_text());
    o->conf.data = &o->data;
}

static void the_key_follows_files_and_settings(void)
{
    Opened                o;
    char                  key[CACHE_KEY], same[CACHE_KEY], other[CACHE_KEY];
    const struct timespec later[2] = { { .tv_sec = 1e9 }, { .tv_sec = 1e9, .tv_nsec = 1 } };
    open_conf(&o);
    EXPECT_OK(index_cache_key(key, &o.conf));
    EXPECT_OK(index_cache_key(same, &o.conf));
    EXPECT(!strcmp(key, same), "%s %s", key, same);
    o.conf.max_length--;
    EXPECT_OK(index_cache_key(other, &o.conf));
    EXPECT(strcmp(key, other), "max_length");
    o.conf.max_length++, o.conf.picture.max_pixels *= 2;
    EXPECT_OK(index_cache_key(other, &o.conf));
    EXPECT(strcmp(key, other), "max_pixels");
    o.conf.picture.max_pixels /= 2;
    EXPECT(!utimensat(AT_FDCWD, set.path, later, 0), "%s", set.path);
    EXPECT_OK(index_cache_key(other, &o.conf));
    EXPECT(strcmp(key, other), "time of change");
    dataset_close(&o.data);
}

static void flip_byte(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    REQUIRE(f, "%s", path);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET), fputc(c ^ 1, f), fclose(f);
}

static void damaged_files_are_not_read(void)
{
    enum { N = 100 };
    const char *key = "0123456789abcdef0123456789abcdef";
    Index       a, b;
    Path        path;
    EXPECT_OK(index_open(&a, N));
    EXPECT_OK(index_open(&b, N));
    for (int i = 0; i < N; i++) a.row[i] = (IndexRow){ i + 1, 2 * i, i / 2 };
    EXPECT(!index_cache_load(&b, key), "there is none yet");
    EXPECT_OK(index_cache_save(&a, key));
    EXPECT(index_cache_load(&b, key) && !memcmp(a.row, b.row, N * sizeof *a.row), "as saved");
    snprintf(path, sizeof path, "%s/index/%s.sizes", lab_path("cache"), key);
    for (long at = 0; at < 60; at += 7) {
        flip_byte(path, at);
        EXPECT(!index_cache_load(&b, key), "byte %ld is damaged", at);
        flip_byte(path, at);
    }
    b.n--;
    EXPECT(!index_cache_load(&b, key), "of another number of samples");
    b.n++;
    EXPECT(!truncate(path, 500) && !index_cache_load(&b, key), "a part of the file");
    index_close(&a), index_close(&b);
}

/* A loader that finds sizes and steps gives the steps of one that measures. */
static void kept_steps_are_the_counted_ones(void)
{
    Opened  o;
    char    key[CACHE_KEY];
    Loader *l = open_loader();
    LoaderSteps counted, found = { 0 }, with = { 0 };
    EXPECT_OK(loader_steps(l, 2.5, &counted));
    loader_close(l);
    open_conf(&o);
    EXPECT_OK(index_cache_key(key, &o.conf));
    StepsAsk ask = { key, &o.data, 2.5, 1, 1, 0 }, more = ask, estimate = ask;
    more.ranks = 2, estimate.measured = 10;
    EXPECT(!index_cache_load_steps(&found, &ask), "there are none yet");
    EXPECT_OK(index_cache_save_steps(&counted, &ask));
    EXPECT(index_cache_load_steps(&found, &ask) && !memcmp(&found, &counted, sizeof found), "%lld",
           (long long)found.steps);
    EXPECT(!index_cache_load_steps(&with, &more), "of another number of ranks");
    EXPECT(!index_cache_load_steps(&with, &estimate), "an estimate is asked for");
    dataset_close(&o.data);
}

static bool same_offsets(const Offsets *a, const Offsets *b)
{
    return a->n == b->n && (!a->n || !memcmp(a->v, b->v, (size_t)a->n * sizeof *a->v));
}

static void the_file_in_cache(Path path, const char *end)
{
    char command[PATH_MAX + 100];
    snprintf(command, sizeof command, "ls -t %s/index/*%s | head -n 1", lab_path("cache"), end);
    FILE *f = popen(command, "r");
    REQUIRE(f && fgets(path, PATH_MAX, f), "%s", command);
    path[strcspn(path, "\n")] = 0;
    pclose(f);
}

/* Lines as they were found; not those of a file that has changed, nor from a damaged file. */
static void lines_are_kept(void)
{
    const char *text = "\n{\"text\": \"a\"}\n\n  \n{\"text\": \"bb\"}\n{\"text\": \"c\"}";
    FormatFile  f;
    LineIndex   kept = { 0 };
    Path        path, cached;
    snprintf(path, sizeof path, "%s", lab_path("lines.jsonl"));
    tiny_write(path, text, strlen(text));
    EXPECT_OK(format_open(&f, path, &(FormatConf){ 0 }));
    const LineIndex *found = f.self;
    EXPECT(!line_index_load(&kept, &f), "nothing is kept yet");
    line_index_save(found, &f);
    EXPECT(line_index_load(&kept, &f), "kept");
    EXPECT(found->from.n == 3 && found->blank.n == 3 && same_offsets(&kept.from, &found->from) &&
               same_offsets(&kept.to, &found->to) && same_offsets(&kept.blank, &found->blank),
           "as found");
    line_index_close(&kept);
    the_file_in_cache(cached, ".lines");
    for (long at = 0; at < 120; at += 5) {
        flip_byte(cached, at);
        EXPECT(!line_index_load(&kept, &f), "byte %ld is damaged", at);
        flip_byte(cached, at);
    }
    const struct timespec later[2] = { { .tv_sec = 1e9 }, { .tv_sec = 1e9, .tv_nsec = 1 } };
    EXPECT(!utimensat(AT_FDCWD, path, later, 0) && !line_index_load(&kept, &f), "time of change");
    format_close(&f);
    unlink(path);
}

/* A whole cache file whose offsets lie outside of the text is not used. */
static void impossible_lines_are_not_used(void)
{
    const char *text = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n";
    FormatFile  f;
    LineIndex   kept = { 0 };
    EXPECT_OK(format_open(&f, (tiny_write(lab_path("two.jsonl"), text, strlen(text)), lab_path("two.jsonl")),
                          &(FormatConf){ 0 }));
    LineIndex *l = f.self;
    for (int i = 0; i < 4; i++) {
        uint64_t *v = i < 2 ? &l->to.v[i] : &l->from.v[i - 2], was = *v;
        *v = i < 2 ? f.len + 1 : l->to.v[i - 2] + 1;
        line_index_save(l, &f);
        EXPECT(!line_index_load(&kept, &f), "offset %d", i);
        *v = was;
    }
    line_index_save(l, &f);
    EXPECT(line_index_load(&kept, &f), "possible ones");
    line_index_close(&kept), format_close(&f);
    unlink(lab_path("two.jsonl"));
}

static void progress_in_words(void)
{
    char  text[METER_TEXT];
    Meter m;
    meter_open(&m, NULL, "measuring samples", METER_COUNT, 10e6);
    m.done = 1200000;
    EXPECT(!strcmp(meter_text(text, &m, 30), "measuring samples: 1.20 M of 10.00 M, 40.0 k/s, 4 min left"),
           "%s", text);
    meter_open(&m, NULL, "hashing", METER_BYTES, 0);
    m.done = 3 << 20;
    EXPECT(!strcmp(meter_text(text, &m, 2), "hashing: 3.0 MiB, 1.5 MiB/s"), "%s", text);
    meter_add(NULL, 5);
}

int main(void)
{
    tiny_set_open(&set, lab_tmp(), 30);
    setenv("TREB_CACHE_DIR", lab_path("cache"), 1);
    RUN(the_key_follows_files_and_settings);
    RUN(damaged_files_are_not_read);
    RUN(kept_steps_are_the_counted_ones);
    RUN(lines_are_kept);
    RUN(impossible_lines_are_not_used);
    RUN(progress_in_words);
    tiny_set_close(&set);
    folder_remove(lab_tmp());
    return lab_report();
}
