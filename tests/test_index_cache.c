/* Sizes of samples between starts: what the key depends on, files that are damaged, steps; and the text of
 * progress. */
#include "lab.h"
#include "base/folder.h"
#include "base/meter.h"
#include "data/index_cache.h"
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
    char                  key[INDEX_KEY], same[INDEX_KEY], other[INDEX_KEY];
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
    char    key[INDEX_KEY];
    int64_t counted, found = 0, with = 0;
    Loader *l = open_loader();
    EXPECT_OK(loader_steps(l, 2.5, &counted));
    loader_close(l);
    open_conf(&o);
    EXPECT_OK(index_cache_key(key, &o.conf));
    StepsAsk ask = { key, &o.data, 2.5, 1, 1 }, more = ask;
    more.ranks = 2;
    EXPECT(!index_cache_load_steps(&found, &ask), "there are none yet");
    EXPECT_OK(index_cache_save_steps(counted, &ask));
    EXPECT(index_cache_load_steps(&found, &ask) && found == counted, "%lld", (long long)found);
    EXPECT(!index_cache_load_steps(&with, &more), "of another number of ranks");
    dataset_close(&o.data);
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
    RUN(progress_in_words);
    tiny_set_close(&set);
    folder_remove(lab_tmp());
    return lab_report();
}
