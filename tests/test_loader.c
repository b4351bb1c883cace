/* tests/test_loader.c -- the loader: content of streams, order, ranks, resuming, bad samples. */
#include "lab.h"
#include "tinyset.h"

#include "data/loader_private.h"

#include <unistd.h>
#include <zlib.h>

enum { LINES = 120, MANY = 400 };

static TinySet set;

static Loader *open_or_die(const LoaderConf *c, const Json *state)
{
    Loader *l = NULL;
    Status  st = loader_open(&l, c, state);
    REQUIRE(!st, "%s", status_text());
    return l;
}

/* Counts of every sample over the steps of `passes` passes. */
static int64_t count_samples(const LoaderConf *c, double passes, int *count, int64_t *steps)
{
    Loader    *l = open_or_die(c, NULL);
    LoaderStep s = { 0 };
    int64_t    docs = 0;
    for (*steps = 0; s.epoch < passes; ++*steps) {
        Status st = loader_next(l, &s);
        REQUIRE(!st && s.micro, "%s", st ? status_text() : "ended");
        for (int k = 0; k < c->micro; k++)
            for (int64_t d = 0; d < s.micro[k]->docs; d++) count[s.doc[k][d].sample]++, docs++;
    }
    EXPECT(s.epoch == passes, "a pass ends on a step: %g", s.epoch);
    loader_close(l);
    return docs;
}

static void each_sample_once(void)
{
    int         count[LINES] = { 0 };
    int64_t     steps;
    LoaderSteps counted;
    count_samples(&set.conf, 3, count, &steps);
    for (int i = 0; i < LINES; i++) EXPECT(count[i] == 3, "sample %d came %d times", i, count[i]);
    Loader *l = open_or_die(&set.conf, NULL);
    EXPECT(loader_samples(l) == LINES, "samples");
    EXPECT_OK(loader_steps(l, 3, &counted));
    EXPECT(counted.steps == steps && !counted.estimated, "%lld steps counted, %lld taken",
           (long long)counted.steps, (long long)steps);
    loader_close(l);
}

/* A few samples of many give the number of steps within its error; a loader that has measured or taken other
 * samples before gives the same number. */
static void steps_are_estimated_from_a_few_samples(void)
{
    Config      cfg  = set.cfg;
    LoaderConf  conf = set.conf;
    LoaderSteps all, few, again;
    LoaderStep  step;
    conf.recipe              = &cfg;
    cfg.data.measure_samples = 0;
    Loader *l                = open_or_die(&conf, NULL);
    EXPECT_OK(loader_steps(l, 40, &all));
    cfg.data.measure_samples = LINES / 5;
    EXPECT_OK(loader_steps(l, 40, &again));
    loader_close(l);
    l = open_or_die(&conf, NULL);
    EXPECT_OK(loader_next(l, &step));
    EXPECT_OK(loader_steps(l, 40, &few));
    loader_close(l);
    double off = fabs((double)few.steps / (double)all.steps - 1);
    EXPECT(few.estimated && !all.estimated && few.within > 0.01 && few.within < 1, "%g", few.within);
    EXPECT(off < 2 * few.within, "%lld estimated, %lld counted, within %g", (long long)few.steps,
           (long long)all.steps, few.within);
    EXPECT(few.steps == again.steps && few.within == again.within, "%lld, then %lld", (long long)few.steps,
           (long long)again.steps);
}

/* Builds a stream from its list of samples, one after the other, without the loader. */
static uint64_t rebuild(const LoaderConf *c, const LoaderDoc *from, int64_t docs)
{
    Dataset       data;
    SampleConf    conf;
    SampleScratch t;
    Stream        s;
    DatasetConf   d = { .sources = c->sources, .key = "data.train" };
    EXPECT_OK(dataset_open(&data, &d));
    EXPECT_OK(sample_conf(&conf, c->recipe, c->tokenizer, &c->patch, &c->shape, &c->budget));
    conf.data = &data;
    EXPECT_OK(sample_scratch_open(&t, c->tokenizer));
    StreamShape shape = c->shape;
    shape.bytes = true;
    EXPECT_OK(stream_open(&s, &shape, &c->budget));
    for (int64_t i = 0; i < docs; i++) {
        Sample m;
        VisualSlice  slice[8];
        EXPECT_OK(sample_load(&m, &t, &conf, from[i].sample));
        for (int64_t k = 0; k < m.slices; k++) {
            void *px = malloc((size_t)(m.slice[k].h * m.slice[k].w * TINY_DIM));
            EXPECT_OK(sample_pixels(px, true, &m, &t, &conf, k));
            slice[k] = (VisualSlice){ m.slice[k].h, m.slice[k].w, px };
        }
        Document doc = { m.ids.n, m.ids.v, m.targets.v, m.slices, slice };
        EXPECT_OK(stream_add(&s, &doc));
        for (int64_t k = 0; k < m.slices; k++) free((void *)slice[k].pixels);
        sample_close(&m);
    }
    uint64_t h = stream_hash(&s, 1);
    stream_close(&s);
    sample_scratch_close(&t);
    dataset_close(&data);
    return h;
}

static void streams_hold_their_samples(void)
{
    Loader    *l = open_or_die(&set.conf, NULL);
    LoaderStep s;
    for (int i = 0; i < 6; i++) {
        EXPECT_OK(loader_next(l, &s));
        for (int k = 0; k < set.conf.micro; k++)
            EXPECT(rebuild(&set.conf, s.doc[k], s.micro[k]->docs) == stream_hash(s.micro[k], 1),
                   "step %d stream %d", i, k);
        EXPECT(s.tokens == s.micro[0]->tokens + s.micro[1]->tokens &&
                   s.samples == s.micro[0]->docs + s.micro[1]->docs,
               "sums");
    }
    loader_close(l);
}

static void workers_change_nothing(void)
{
    uint64_t   want[40];
    LoaderConf c = set.conf;
    for (int workers = 1; workers <= 4; workers += 3) {
        LoaderStep s;
        c.workers = workers;
        Loader *l = open_or_die(&c, NULL);
        for (int i = 0; i < 40; i++) {
            EXPECT_OK(loader_next(l, &s));
            uint64_t h = step_hash(&s, c.micro);
            if (workers == 1) want[i] = h;
            EXPECT(h == want[i], "step %d differs with %d workers", i, workers);
        }
        loader_close(l);
    }
}

/* The state after writing and reading it as text, as a checkpoint does. */
static Json *saved(Loader *l)
{
    Json *state, *again;
    EXPECT_OK(loader_state(l, &state));
    char *text = json_dumps(state, 0);
    EXPECT_OK(json_parse(&again, text, strlen(text), "state"));
    free(text);
    json_decref(state);
    return again;
}

static void resumes_at_every_step(void)
{
    enum { RESUMED = 30 };
    uint64_t   want[RESUMED + 2];
    Json      *state[RESUMED];
    LoaderStep s;
    Loader    *l = open_or_die(&set.conf, NULL);
    for (int i = 0; i < RESUMED + 2; i++) {
        if (i < RESUMED) state[i] = saved(l);
        EXPECT_OK(loader_next(l, &s));
        want[i] = step_hash(&s, set.conf.micro);
    }
    loader_close(l);
    for (int i = 0; i < RESUMED; i++) {
        l = open_or_die(&set.conf, state[i]);
        for (int k = 0; k < 2; k++) {
            EXPECT_OK(loader_next(l, &s));
            EXPECT(step_hash(&s, set.conf.micro) == want[i + k], "resumed at %d, step %d differs", i, i + k);
        }
        loader_close(l);
        json_decref(state[i]);
    }
}

static void write_csv(const char *path, int rows)
{
    FILE *f = fopen(path, "w");
    fprintf(f, "question,answer\n");
    for (int i = 0; i < rows; i++) fprintf(f, "\"what, %d?\",answer %d\n", i, i * i);
    fclose(f);
}

static void write_gz(const char *path, int lines)
{
    char   line[1024];
    gzFile f = gzopen(path, "wb");
    for (int i = 0; i < lines; i++) tiny_line(line, sizeof line, i), gzprintf(f, "%s\n", line);
    gzclose(f);
}

static void write_videos(const char *path)
{
    static const char *const clips[] = { "ntsc_h264.mp4", "slow_vp8.webm", "fifteen_mpeg4.avi",
                                         "one_flv1.flv" };
    char  folder[400];
    FILE *f = fopen(path, "w");
    REQUIRE(f && getcwd(folder, sizeof folder), "%s", path);
    for (int i = 0; i < 8; i++)
        fprintf(f, "{\"messages\":[{\"role\":\"user\",\"content\":\"<video>%d?\"},{\"role\":\"assistant\","
                "\"content\":\"yes\"}],\"videos\":[\"%s/tests/video/%s\"]}\n", i, folder, clips[i % 4]);
    fclose(f);
}

/* Parquet, compressed, CSV and video rows in one mixture: a resumed run has the same samples and pixels, with
 * any number of workers. */
static void resumes_with_every_reader(void)
{
    enum { TAKEN = 6 };
    static const char *const names[] = { "a.csv", "b.jsonl.gz", "", "d.jsonl" };
    char       path[4][400];
    LoaderConf c = set.conf;
    LoaderStep s;
    Json      *state[TAKEN];
    uint64_t   want[TAKEN];
    Source     kept[4];
    memcpy(kept, set.source, sizeof kept);
    for (int i = 0; i < 4; i++) {
        snprintf(path[i], sizeof path[i], "%s/%s", set.dir, names[i]);
        set.source[i].path = i == 2 ? "tests/parquet/snappy-dictionary.parquet" : path[i];
    }
    write_csv(path[0], 40), write_gz(path[1], 30), write_videos(path[3]);
    SourceList all = { set.source, video_file_readable() ? 4 : 3 };
    c.sources = &all;
    set.cfg.video.max_frames = 8;
    Loader *l = open_or_die(&c, NULL);
    for (int i = 0; i < TAKEN; i++) {
        state[i] = saved(l);
        EXPECT_OK(loader_next(l, &s));
        want[i] = step_hash(&s, c.micro);
    }
    loader_close(l);
    for (int i = 0; i < TAKEN; i++) {
        c.workers = 1 + i % 3;
        l = open_or_die(&c, state[i]);
        EXPECT_OK(loader_next(l, &s));
        EXPECT(step_hash(&s, c.micro) == want[i], "resumed at %d: the step differs", i);
        loader_close(l);
        json_decref(state[i]);
    }
    set.cfg.video.max_frames = 768;
    memcpy(set.source, kept, sizeof kept);
}

/* The peeked stream is the next stream and is not refilled in between: uploads ahead of the step rely on
 * it. Memory is pinned and unpinned equally often. */
static int  pins;
static void count_pins(void *p, size_t bytes, bool on) { pins += p && bytes ? on ? 1 : -1 : 1000; }

static void peeks_at_the_next(void)
{
    LoaderConf c = set.conf;
    LoaderStep s;
    pins = 0, c.pin = count_pins;
    Loader *l = open_or_die(&c, NULL);
    for (int i = 0; i < 12; i++) {
        const Stream *next = loader_peek(l, true);
        int64_t fills = next ? next->fills : 0, tokens = next ? next->tokens : 0;
        EXPECT_OK(loader_next(l, &s));
        EXPECT(next == s.micro[0] && next->fills == fills && next->tokens == tokens, "step %d is another", i);
    }
    EXPECT(pins > 0, "nothing was pinned");
    loader_close(l);
    EXPECT(pins == 0, "%d pieces of memory are still pinned", pins);
}

/* Four ranks of one micro-batch and one rank of four get the same documents in every step, also after the
 * four resumed from the state of the one. */
static void ranks_share_each_step(void)
{
    LoaderConf one = set.conf, part = set.conf;
    Loader    *whole, *rank[4];
    LoaderStep s;
    one.micro = 4, part.micro = 1, part.ranks = 4, part.workers = 1;
    whole = open_or_die(&one, NULL);
    for (int r = 0; r < 4; r++) part.rank = r, rank[r] = open_or_die(&part, NULL);
    for (int i = 0; i < 12; i++) {
        int count[LINES] = { 0 };
        if (i == 5) {
            Json *state = saved(whole);
            for (int r = 0; r < 4; r++)
                loader_close(rank[r]), part.rank = r, rank[r] = open_or_die(&part, state);
            json_decref(state);
        }
        EXPECT_OK(loader_next(whole, &s));
        for (int k = 0; k < 4; k++)
            for (int64_t d = 0; d < s.micro[k]->docs; d++) count[s.doc[k][d].sample]++;
        for (int r = 0; r < 4; r++) {
            EXPECT_OK(loader_next(rank[r], &s));
            for (int64_t d = 0; d < s.micro[0]->docs; d++) count[s.doc[0][d].sample]--;
        }
        for (int k = 0; k < LINES; k++) EXPECT(count[k] == 0, "step %d sample %d: %+d", i, k, count[k]);
    }
    loader_close(whole);
    for (int r = 0; r < 4; r++) loader_close(rank[r]);
}

static void weights_and_limits(void)
{
    int     count[4 * LINES] = { 0 }, sum[4] = { 0 };
    int64_t steps;
    set.source[1].weight = 0.5, set.source[2].weight = 2, set.source[3].max_samples = 7;
    set.cfg.data.train.n = 4;
    count_samples(&set.conf, 2, count, &steps);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < LINES; k++) sum[i] += count[i * LINES + k];
    EXPECT(sum[0] == 2 * LINES && sum[1] == LINES && sum[2] == 4 * LINES && sum[3] == 14, "%d %d %d %d",
           sum[0], sum[1], sum[2], sum[3]);
    for (int k = 0; k < LINES; k++)
        EXPECT(count[LINES + k] == 1 && count[2 * LINES + k] == 4,
               "two passes with weight 0.5 draw every sample once");
    for (int k = 0; k < 7; k++) EXPECT(count[3 * LINES + k] == 2, "max_samples takes the first samples");
    set.source[1].weight = set.source[2].weight = 1, set.source[3].max_samples = 0;
    set.cfg.data.train.n = 1;
}

static void split_is_disjoint(void)
{
    int        train[LINES] = { 0 }, held[LINES] = { 0 }, helds = 0;
    int64_t    steps;
    LoaderConf c = set.conf;
    set.cfg.eval.split = 0.1;
    count_samples(&c, 1, train, &steps);
    c.held_out = c.once = true;
    count_samples(&c, 1, held, &steps);
    for (int i = 0; i < LINES; i++) {
        EXPECT(train[i] + held[i] == 1, "sample %d: %d times in training, %d held out", i, train[i], held[i]);
        helds += held[i];
    }
    EXPECT(helds == LINES / 10, "%d held out", helds);
    set.cfg.eval.split = 0;
}

static void one_pass_ends_and_rewinds(void)
{
    LoaderConf c = set.conf;
    LoaderStep s;
    uint64_t   first[200];
    c.once = true;
    Loader *l = open_or_die(&c, NULL);
    for (int again = 0; again < 3; again++) {
        int64_t     docs = 0, steps = 0;
        LoaderSteps counted;
        for (;; steps++) {
            EXPECT_OK(loader_next(l, &s));
            if (!s.micro) break;
            docs += s.samples;
            if (again == 0) first[steps] = step_hash(&s, c.micro);
            EXPECT(first[steps] == step_hash(&s, c.micro), "step %lld of pass %d", (long long)steps, again);
            if (again == 1 && steps == 2) break;
        }
        EXPECT(again == 1 || docs == LINES, "%lld documents", (long long)docs);
        EXPECT_OK(loader_steps(l, 1, &counted));
        EXPECT(again == 1 || counted.steps == steps, "%lld counted, %lld taken", (long long)counted.steps,
               (long long)steps);
        if (again != 1) EXPECT_OK(loader_next(l, &s));
        EXPECT(again == 1 || !s.micro, "a step after the end");
        EXPECT_OK(loader_rewind(l));
    }
    loader_close(l);
}

/* Runs a loader to the end of its one pass; `docs` counts the documents handed out. */
static void run_pass(Loader *l, int64_t *docs)
{
    LoaderStep s;
    for (*docs = 0;; *docs += s.samples) {
        EXPECT_OK(loader_next(l, &s));
        if (!s.micro) return;
    }
}

static int64_t loads(const Loader *l)
{
    int64_t n = 0;
    for (int i = 0; i < l->workers; i++) n += l->scratch[i].loads;
    return n;
}

/* Measuring and filling share one load; a later pass knows the sizes and loads what it fills; a resumed pass
 * loads what is left of it. */
static void samples_are_loaded_once_in_a_pass(void)
{
    LoaderConf c = set.conf;
    LoaderStep s;
    int64_t    docs, mine;
    c.once = true;
    Loader *l = open_or_die(&c, NULL);
    EXPECT_OK(loader_next(l, &s));
    mine = s.samples;
    Json *state = saved(l);
    run_pass(l, &docs);
    EXPECT(mine + docs == LINES && loads(l) == LINES, "%lld loads of %d samples", (long long)loads(l), LINES);
    EXPECT(l->cache.bytes == 0, "%zu bytes are left in the cache", l->cache.bytes);
    EXPECT_OK(loader_rewind(l));
    run_pass(l, &docs);
    EXPECT(loads(l) == 2 * LINES, "%lld loads in two passes", (long long)loads(l));
    loader_close(l);
    l = open_or_die(&c, state);
    run_pass(l, &docs);
    EXPECT(docs == LINES - mine && loads(l) == docs, "%lld loads for %lld documents after resuming",
           (long long)loads(l), (long long)docs);
    loader_close(l);
    json_decref(state);
}

/* A rank measures all samples and fills its own; those of other ranks do not stay in the cache. */
static void a_rank_loads_once(void)
{
    LoaderConf c = set.conf;
    int64_t    docs, again;
    c.once = true, c.micro = 1, c.ranks = 4, c.rank = 1;
    Loader *l = open_or_die(&c, NULL);
    run_pass(l, &docs);
    EXPECT(docs < LINES && loads(l) == LINES, "%lld loads", (long long)loads(l));
    EXPECT(l->cache.bytes == 0, "%zu bytes are left in the cache", l->cache.bytes);
    EXPECT_OK(loader_rewind(l));
    run_pass(l, &again);
    EXPECT(again == docs && loads(l) == LINES + docs, "%lld loads in two passes", (long long)loads(l));
    loader_close(l);
}

/* A full cache refuses samples, and streams are the same. */
static void a_full_cache_changes_nothing(void)
{
    uint64_t   want[20];
    LoaderConf c = set.conf;
    LoaderStep s;
    for (int small = 0; small < 2; small++) {
        Loader *l = open_or_die(&c, NULL);
        pthread_mutex_lock(&l->lock);
        if (small) l->cache.limit = 0;
        pthread_mutex_unlock(&l->lock);
        for (int i = 0; i < 20; i++) {
            EXPECT_OK(loader_next(l, &s));
            if (!small) want[i] = step_hash(&s, c.micro);
            EXPECT(step_hash(&s, c.micro) == want[i], "step %d", i);
        }
        EXPECT(!small || loads(l) > LINES, "%lld loads", (long long)loads(l));
        loader_close(l);
    }
}

/* Writes `lines` good lines with the n given lines spread evenly between them. */
static void with_bad(const char *path, int lines, const char *const *bad, int n)
{
    FILE *f = fopen(path, "wb");
    char  line[1024];
    for (int i = 0; i < lines; i++) {
        tiny_line(line, sizeof line, i);
        fprintf(f, "%s\n", line);
        for (int k = 0; k < n; k++)
            if (i == (k + 1) * lines / (n + 1)) fprintf(f, "%s\n", bad[k]);
    }
    fclose(f);
}

static int lines_of(const char *path, const char *word)
{
    FILE *f = fopen(path, "rb");
    char  line[4096];
    int   n = 0;
    while (f && fgets(line, sizeof line, f)) n += strstr(line, word) != NULL;
    if (f) fclose(f);
    return n;
}

static const char *const bad_lines[] = {
    "{\"messages\": [",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"<image>x\"},{\"role\":\"assistant\",\"content\":\"y\"}],"
    "\"images\":[\"none.png\"]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"<image>x\"},{\"role\":\"assistant\",\"content\":\"y\"}],"
    "\"images\":[\"cut.jpg\"]}",
    "{\"messages\":[{\"role\":\"user\",\"content\":\"<image>x\"},{\"role\":\"assistant\",\"content\":\"y\"}],"
    "\"images\":[]}",
};

static void make_cut_picture(void)
{
    char  path[512];
    Bytes b = tiny_picture(3);
    snprintf(path, sizeof path, "%s/cut.jpg", set.dir);
    tiny_write(path, b.v, b.n - b.n / 3);                   /* its header is complete */
    free(b.v);
}

static void bad_samples_end_the_run(void)
{
    static const char *const words[] = { "not JSON", "none.png", "cut.jpg", "images: 0 listed" };
    make_cut_picture();
    for (int i = 0; i < 4; i++) {
        LoaderConf c = set.conf;
        LoaderStep s;
        Status     st = OK;
        c.once = true;
        with_bad(set.path, LINES, &bad_lines[i], 1);
        Loader *l = open_or_die(&c, NULL);
        for (s.micro = NULL; !st;) {
            st = loader_next(l, &s);
            if (!s.micro) break;
        }
        EXPECT(st && strstr(status_text(), words[i]) && strstr(status_text(), "train.jsonl:62:") &&
                   strstr(status_text(), "skip"),
               "%s", st ? status_text() : "no error");
        EXPECT(loader_next(l, &s) == st, "it stays so");
        loader_close(l);
    }
    tiny_jsonl(set.path, LINES);
}

static void bad_samples_are_skipped(void)
{
    LoaderConf c = set.conf;
    LoaderStep s;
    char       path[512];
    int        count[MANY + 4] = { 0 };
    uint64_t   want[64];
    make_cut_picture();
    snprintf(path, sizeof path, "%s/quarantine.jsonl", set.dir);
    with_bad(set.path, MANY, bad_lines, 4);
    set.cfg.data.bad_sample = "skip";
    c.quarantine = path;
    for (int workers = 1; workers < 5; workers += 3) {
        c.workers = workers;
        remove(path);
        Loader *l = open_or_die(&c, NULL);
        for (int i = 0; i < 64; i++) {
            EXPECT_OK(loader_next(l, &s));
            uint64_t h = step_hash(&s, c.micro) + (uint64_t)s.skipped;
            if (workers == 1) want[i] = h;
            EXPECT(want[i] == h, "step %d", i);
            for (int k = 0; workers == 1 && s.epoch <= 1 && k < c.micro; k++)
                for (int64_t d = 0; d < s.micro[k]->docs; d++) count[s.doc[k][d].sample]++;
            if (s.epoch == 1) EXPECT(s.skipped == 4, "%lld skipped", (long long)s.skipped);
        }
        EXPECT(s.epoch > 1, "%g passes", s.epoch);
        EXPECT(lines_of(path, "\"epoch\": 0") == 4 && lines_of(path, "cut.jpg") >= 1 &&
                   lines_of(path, "train.jsonl:") >= 4,
               "quarantine");
        loader_close(l);
    }
    int once = 0, never = 0;
    for (int i = 0; i < MANY + 4; i++) once += count[i] == 1, never += count[i] == 0;
    EXPECT(once == MANY && never == 4, "%d once, %d never", once, never);
    set.cfg.data.bad_sample = "error";
    tiny_jsonl(set.path, LINES);
}

static void too_many_bad_ones(void)
{
    LoaderConf c = set.conf;
    LoaderStep s;
    Status     st = OK;
    with_bad(set.path, LINES, bad_lines, 2);
    set.cfg.data.bad_sample = "skip";
    Loader *l = open_or_die(&c, NULL);
    for (int i = 0; !st && i < 100; i++) st = loader_next(l, &s);
    EXPECT(st == E_DATA && strstr(status_text(), "2 of 122 samples are bad, more than 1 %"), "%s",
           st ? status_text() : "no error");
    loader_close(l);
    with_bad(set.path, 20, bad_lines, 1);                   /* a single bad sample never ends a run */
    l = open_or_die(&c, NULL);
    for (int i = 0; i < 10; i++) EXPECT_OK(loader_next(l, &s));
    EXPECT(s.skipped >= 1, "skipped");
    loader_close(l);
    set.cfg.data.bad_sample = "error";
    tiny_jsonl(set.path, LINES);
}

static void lengths_and_budgets(void)
{
    LoaderConf c = set.conf;
    LoaderStep s;
    Loader    *l;
    int        count[LINES] = { 0 };
    int64_t    steps;
    set.cfg.data.max_length = 120;
    l = open_or_die(&c, NULL);
    EXPECT_FAIL(loader_next(l, &s), E_DATA, "data.max_length is 120");
    loader_close(l);
    set.cfg.data.truncation = "delete";
    int64_t left = count_samples(&c, 1, count, &steps);
    EXPECT(left > 10 && left < LINES, "%lld of %d are short enough", (long long)left, LINES);
    set.cfg.data.truncation = "right";
    memset(count, 0, sizeof count);
    EXPECT(count_samples(&c, 1, count, &steps) > left,
           "truncated samples stay where a supervised token is left");
    set.cfg.data.truncation = "error", set.cfg.data.max_length = 600;
    c.budget.tokens = 100;
    l = open_or_die(&c, NULL);
    EXPECT_FAIL(loader_next(l, &s), E_DATA, "raise train.micro_tokens");
    loader_close(l);
    c.budget.tokens = 700, c.budget.patches = 200;
    l = open_or_die(&c, NULL);
    EXPECT_FAIL(loader_next(l, &s), E_DATA, "raise train.micro_patches");
    loader_close(l);
    c.shape.image_token = -1;
    l = open_or_die(&c, NULL);
    EXPECT_FAIL(loader_next(l, &s), E_DATA, "no vision encoder");
    loader_close(l);
}

/* Fewer documents than micro-batches: the streams without a document are empty and valid. */
static void empty_micro_batches(void)
{
    LoaderConf c = set.conf;
    LoaderStep s;
    FILE      *f = fopen(set.path, "wb");
    fprintf(f, "\n{\"messages\":[{\"role\":\"user\",\"content\":\"no answer\"}]}\n\n\n{\"text\":\"plain "
               "words\"}\n\n");
    fclose(f);
    c.micro = 4;
    Loader *l = open_or_die(&c, NULL);
    for (int i = 0; i < 3; i++) {
        int64_t empty = 0, silent = 0;
        EXPECT_OK(loader_next(l, &s));
        for (int k = 0; k < 4; k++)
            empty += !s.micro[k]->docs, silent += s.micro[k]->docs && !s.micro[k]->supervised;
        EXPECT(empty == 2 && silent == 1 && s.samples == 2 && s.patches == 0 && s.epoch == i + 1, "step %d",
               i);
    }
    loader_close(l);
    tiny_jsonl(set.path, LINES);
}

static void refuses_to_open(void)
{
    Loader    *l;
    LoaderConf c = set.conf;
    Json      *state = json_pack("{si si}", "version", 1, "seed", 41);
    EXPECT_FAIL(loader_open(&l, &c, state), E_CONFIG, "train.seed was 41");
    json_decref(state);
    set.source[0].path = "nowhere/*.jsonl";
    EXPECT_FAIL(loader_open(&l, &c, NULL), E_IO, "nowhere/*.jsonl");
    set.source[0].path = "tests/run.sh";
    EXPECT_FAIL(loader_open(&l, &c, NULL), E_CONFIG, ".jsonl");
    set.source[0].path = set.path;
    set.cfg.data.train.n = 0;
    EXPECT_FAIL(loader_open(&l, &c, NULL), E_CONFIG, "data.eval: not set");
    set.cfg.data.train.n = 1;
    c.shape.image_token = 5;
    EXPECT_FAIL(loader_open(&l, &c, NULL), E_CONFIG, "name the tokenizer of this model");
    EXPECT(!l, "the loader is closed");
}

/* Lines with flipped bits, truncated lines and random bytes: each is good or counted as bad, and none is
 * fatal. */
static void thousand_corrupted_lines(void)
{
    LoaderConf c = set.conf;
    LoaderStep s = { 0 };
    FILE      *f = fopen(set.path, "wb");
    char       line[1024];
    int64_t    docs = 0, drawn = 0;
    for (int i = 0; i < 1000; i++) {
        int n = tiny_line(line, sizeof line, i);
        for (int k = 0; k < 1 + i % 4; k++) {
            uint64_t at  = rng_below(3, 1, (uint64_t)(8 * i + k), (uint64_t)n),
                     how = rng_below(3, 2, (uint64_t)(8 * i + k), 3);
            if (how == 0)      line[at] ^= (char)(1 << rng_below(3, 3, (uint64_t)(8 * i + k), 8));
            else if (how == 1) n = (int)at + 1;
            else               line[at] = (char)rng_u32(3, 4, (uint64_t)(8 * i + k));
        }
        fwrite(line, 1, (size_t)n, f), putc('\n', f);
    }
    fclose(f);
    set.cfg.data.bad_sample = "skip";
    for (int from = 0; from < 10;
         from++) { /* the 1 % rule would end the run at once, so samples are loaded one by one */
        Dataset       data;
        SampleConf    conf;
        SampleScratch t;
        DatasetConf   d = { .sources = c.sources, .key = "data.train", .tolerant = true };
        EXPECT_OK(dataset_open(&data, &d));
        EXPECT_OK(sample_conf(&conf, c.recipe, c.tokenizer, &c.patch, &c.shape, &c.budget));
        conf.data = &data;
        EXPECT_OK(sample_scratch_open(&t, c.tokenizer));
        for (int64_t i = from; i < data.samples; i += 10, drawn++) {
            Sample m;
            Status st = sample_load(&m, &t, &conf, i);
            EXPECT(!st || (sample_is_bad(st) && strstr(status_text(), "train.jsonl:")), "%s", status_text());
            docs += !st;
            sample_close(&m);
        }
        sample_scratch_close(&t);
        dataset_close(&data);
    }
    EXPECT(drawn >= 990 && docs > 20 && docs < 700, "%lld of %lld are still good", (long long)docs,
           (long long)drawn);
    Loader *l = open_or_die(&c, NULL);
    Status  st = OK;
    for (int i = 0; !st && i < 100; i++) st = loader_next(l, &s);
    EXPECT(st == E_DATA && strstr(status_text(), "more than 1 %"), "the 1 %% rule does not end the run");
    loader_close(l);
    set.cfg.data.bad_sample = "error";
    tiny_jsonl(set.path, LINES);
}

/* Both forms of the shared set give the same streams; needs the real tokenizer. */
static void shared_vqa(void)
{
    Tokenizer *t;
    uint64_t   hash[2] = { 0 };
    if (access("../shared/data/vqa/train.jsonl", R_OK)) SKIP("no ../shared/data/vqa");
    EXPECT_OK(tokenizer_open(&t, "../shared/data/tokenizer"));
    for (int form = 0; form < 2; form++) {
        LoaderConf c = set.conf;
        LoaderStep s;
        set.source[0].path = form ? "../shared/data/vqa/train_parts.jsonl" : "../shared/data/vqa/train.jsonl";
        set.cfg.data.max_length = 8192, set.cfg.image.min_pixels = 4096, set.cfg.image.max_pixels = 65536;
        c.tokenizer = t, c.once = true, c.micro = 1;
        c.shape = (StreamShape){ .image_token = 151655, .video_token = 151656, .merge = 2,
                                 .patch_dim = 1536 };
        c.patch.patch = 16;
        c.budget = (Budget){ .tokens = 2048, .patches = 4096, .docs = 64, .supervised = 2048 };
        Loader *l = open_or_die(&c, NULL);
        int64_t docs = 0;
        do {
            EXPECT_OK(loader_next(l, &s));
            hash[form] = hash[form] * 31 + step_hash(&s, 1);
            docs += s.samples;
        } while (s.micro);
        EXPECT(docs == 64, "%lld conversations", (long long)docs);
        loader_close(l);
    }
    EXPECT(hash[0] == hash[1], "the two forms of the set differ");
    set.source[0].path = set.path;
    tokenizer_close(t);
}

int main(void)
{
    tiny_set_open(&set, lab_tmp(), LINES);
    RUN(each_sample_once);
    RUN(steps_are_estimated_from_a_few_samples);
    RUN(streams_hold_their_samples);
    RUN(workers_change_nothing);
    RUN(resumes_at_every_step);
    RUN(resumes_with_every_reader);
    RUN(ranks_share_each_step);
    RUN(peeks_at_the_next);
    RUN(weights_and_limits);
    RUN(split_is_disjoint);
    RUN(samples_are_loaded_once_in_a_pass);
    RUN(a_rank_loads_once);
    RUN(a_full_cache_changes_nothing);
    RUN(one_pass_ends_and_rewinds);
    RUN(bad_samples_end_the_run);
    RUN(bad_samples_are_skipped);
    RUN(too_many_bad_ones);
    RUN(lengths_and_budgets);
    RUN(empty_micro_batches);
    RUN(refuses_to_open);
    RUN(thousand_corrupted_lines);
    RUN(shared_vqa);
    tiny_set_close(&set);
    rmdir(lab_tmp());
    return lab_report();
}
