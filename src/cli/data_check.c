/* cli/data_check.c -- `treb data check`: checks that a run can use all of its data. Every record is read,
 * every conversation rendered, every picture decoded. Bad samples are listed by file and line, and the
 * exit code is then 4. The summary has the numbers of a run: lengths, budgets, steps per epoch. */
#include "cli/data.h"

#include "base/clock.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "data/chat_template.h"
#include "data/index.h"
#include "data/record_form.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 40, BAR = 40, MOST_NAMED = 20, BLOCK = 8 };

typedef struct SampleResult {
    DocSize size;
    int     pictures;
    bool    drop, over, bad;
    char   *error;
} SampleResult;

typedef struct DataCheck {
    const char      *key;
    const DataSetup *setup;
    DataView         view;
    SampleResult           *found;
    pthread_mutex_t  lock;
    SampleScratch   *free;
    int              frees;
    int64_t          done;
    double           megapixels, begun, seconds;
    /* sums over found */
    int64_t          good, bad, over, dropped, unsupervised, pictures, tokens, patches, supervised;
    int64_t          token_bucket[BUCKETS], patch_bucket[BUCKETS];
    PassTotals         totals;
    UnusedKeys              unused;
    int64_t          pass;
} DataCheck;

static Status pictures_decode(const Sample *s, SampleScratch *t, const SampleConf *c, double *pixels)
{
    for (int64_t i = 0; i < s->slices; i++)
        for (int k = 0; k < 2; k++) {
            int frame = k ? s->slice[i].b : s->slice[i].a;
            if (frame < 0 || (k && frame == s->slice[i].a)) continue;
            TRY(sample_picture(&t->decoded[0], s, t, c, frame));
            *pixels += (double)t->decoded[0].h * (double)t->decoded[0].w;
        }
    return OK;
}

static Status sample_check(SampleResult *f, SampleScratch *t, const SampleConf *c, int64_t id, double *pixels,
                           UnusedKeys *unused)
{
    Sample s;
    Status st = sample_load(&s, t, c, id);
    f->over = s.over;
    if (!st) {
        if (s.json) unused_keys_add(unused, s.json, c->chat.template ? c->chat.template->source : NULL);
        *f = (SampleResult){ .size = s.size, .pictures = (int)s.slices, .drop = s.drop };
        st = pictures_decode(&s, t, c, pixels);
        if (st) st = wrap(st, "%s", s.record.where);
        sample_close(&s);
    }
    if (st && !sample_is_bad(st)) return st;
    if (st) f->bad = true, f->error = strdup(status_text());
    return OK;
}

static void progress(const DataCheck *c, bool end)
{
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, end ? "\r%60s\r" : "\r%s: %lld of %lld", end ? "" : c->key, (long long)c->done,
            (long long)c->view.data.samples);
}

static Status check_block(void *arg, int64_t block)
{
    DataCheck    *c = arg;
    SampleScratch t = { 0 };
    int64_t       all = c->view.data.samples, end = (block + 1) * BLOCK < all ? (block + 1) * BLOCK : all;
    double        pixels = 0;
    UnusedKeys    unused = { 0 };
    Status        st = OK;
    pthread_mutex_lock(&c->lock);
    bool reused = c->frees > 0;
    if (reused) t = c->free[--c->frees];
    pthread_mutex_unlock(&c->lock);
    if (!reused) st = sample_scratch_open(&t, c->setup->model.tokenizer);
    for (int64_t i = block * BLOCK; !st && i < end; i++)
        st = sample_check(&c->found[i], &t, &c->view.sample, i, &pixels, &unused);
    pthread_mutex_lock(&c->lock);
    c->free[c->frees++] = t;
    c->done += end - block * BLOCK, c->megapixels += pixels / 1e6;
    unused_keys_join(&c->unused, &unused);
    if (block % 16 == 0) progress(c, false);
    pthread_mutex_unlock(&c->lock);
    return st;
}

static Status check_all(DataCheck *c)
{
    ThreadPool    pool = { 0 };
    int64_t n = c->view.data.samples;
    int     workers = cpu_count();
    c->found = calloc((size_t)n + 1, sizeof *c->found);
    c->free  = calloc((size_t)workers + 1, sizeof *c->free);
    c->begun = clock_now();
    pthread_mutex_init(&c->lock, NULL);
    Status st = c->found && c->free ? thread_pool_open(&pool, workers - 1)
                                    : fail(E_FIT, "no memory to check %lld samples", (long long)n);
    if (!st) st = thread_pool_run(&pool, (n + BLOCK - 1) / BLOCK, check_block, c);
    thread_pool_close(&pool);
    progress(c, true);
    pthread_mutex_destroy(&c->lock);
    c->seconds = clock_now() - c->begun;
    return st;
}

/* Bucket b holds 2^(b-1) … 2^b - 1. */
static int bucket_of(int64_t n) { return n > 0 ? 64 - __builtin_clzll((unsigned long long)n) : 0; }

static void sum_up(DataCheck *c)
{
    for (int64_t i = 0; i < c->view.data.samples; i++) {
        const SampleResult *f = &c->found[i];
        c->bad += f->bad, c->over += f->over, c->dropped += !f->bad && f->drop;
        if (f->bad || f->drop) continue;
        c->good++, c->pictures += f->pictures;
        c->unsupervised += c->setup->model.tokenizer && f->size.supervised == 0;
        c->tokens += f->size.tokens, c->patches += f->size.patches, c->supervised += f->size.supervised;
        c->token_bucket[bucket_of(f->size.tokens)]++;
        c->patch_bucket[bucket_of(f->size.patches)]++;
    }
}

/* Packs the first pass as training does: with its order, split and weights. */
static Status pack_pass(DataCheck *c, const SourceList *sources)
{
    DataView  view;
    Index     x = { 0 };
    DataSetup quiet = *c->setup;
    quiet.log.least = LOG_ERROR;                            /* damaged files are reported already */
    TRY(data_view_open(&view, &quiet, sources, c->key, false, true));
    Status st = index_open(&x, view.data.samples);
    if (!st) {
        for (int64_t i = 0; i < view.data.samples; i++) {
            const SampleResult *f = &c->found[i];
            if (!f->bad && !f->drop)
                x.row[i] = (IndexRow){ (int32_t)f->size.tokens, (int32_t)f->size.patches,
                                       (int32_t)f->size.supervised };
        }
        c->pass = view.data.pass;
        st = index_pack_pass(&x, &view.sample, 0, 1, c->setup->micro, &c->totals);
    }
    index_close(&x);
    data_view_close(&view);
    return st;
}

static void print_buckets(const char *what, const int64_t *bucket)
{
    int64_t most = 1;
    int     last = 0;
    for (int b = 0; b < BUCKETS; b++) {
        if (bucket[b] > most) most = bucket[b];
        if (bucket[b]) last = b;
    }
    printf("  %-10s samples\n", what);
    for (int b = 0; b <= last; b++) {
        if (!bucket[b]) continue;
        int64_t from = b ? (int64_t)1 << (b - 1) : 0;
        printf("  %7lld+  %9lld  %.*s\n", (long long)from, (long long)bucket[b],
               (int)((bucket[b] * BAR + most - 1) / most), "########################################");
    }
}

static void print_where(const char *what, const DataCheck *c, bool wanted(const SampleResult *))
{
    int named = 0;
    for (int64_t i = 0; i < c->view.data.samples && named < MOST_NAMED; i++) {
        char where[320];
        if (!wanted(&c->found[i])) continue;
        dataset_where(&c->view.data, i, where, sizeof where);
        printf("    %s: %s\n", where, what);
        named++;
    }
}

static bool is_unsupervised(const SampleResult *f) { return !f->bad && !f->drop && f->size.supervised == 0; }

static void print_epoch(const DataCheck *c)
{
    const PassTotals *p = &c->totals;
    const Budget   *b = &c->setup->budget;
    double tokens = (double)p->bins * (double)b->tokens, patches = (double)p->bins * (double)b->patches;
    printf("  one epoch: %lld steps of %d micro-batch%s of %lld tokens and %lld patches on one rank\n",
           (long long)p->steps, c->setup->micro, c->setup->micro == 1 ? "" : "es", (long long)b->tokens,
           (long long)b->patches);
    printf(
        "             %lld documents; %.1f %% of the token budget and %.1f %% of the patch budget are used\n",
        (long long)p->docs, 100 * (double)p->tokens / tokens,
        patches > 0 ? 100 * (double)p->patches / patches : 0);
}

static void print_check(const DataCheck *c)
{
    const Dataset *d = &c->view.data;
    bool  tokens = c->setup->model.tokenizer != NULL;
    double merge = (double)(c->setup->stream.merge * c->setup->stream.merge), all = (double)c->tokens;
    printf("%s: %lld samples in %lld file%s; %lld good, %lld bad\n", c->key, (long long)d->samples,
           (long long)d->files, d->files == 1 ? "" : "s", (long long)c->good,
           (long long)(c->bad + d->damaged));
    if (tokens && all > 0)
        printf("  %lld tokens, %.1f %% of them visual, %.1f %% supervised\n", (long long)c->tokens,
               100 * (double)c->patches / merge / all, 100 * (double)c->supervised / all);
    else if (!tokens)
        printf("  tokens are not counted without a tokenizer: add model.path=FOLDER\n");
    printf("  %lld pictures and slices of videos, %lld patches; %.1f MP decoded, %.0f samples/s, %.0f MP/s\n",
           (long long)c->pictures, (long long)c->patches, c->megapixels, (double)d->samples / c->seconds,
           c->megapixels / c->seconds);
    const char *word = c->setup->recipe.data.template;
    if (tokens)
        printf("  chat template: %s\n", !c->view.sample.chat.template ? "ChatML"
                                         : strcmp(word, "model")       ? word
                                                                       : "the model's own");
    if (tokens) print_buckets("tokens", c->token_bucket);
    print_buckets("patches", c->patch_bucket);
    printf("  over budget: %lld refused, %lld left out by data.truncation\n", (long long)c->over,
           (long long)c->dropped);
    if (tokens) printf("  without supervised tokens: %lld\n", (long long)c->unsupervised);
    char unused[2048];
    unused_keys_text(&c->unused, unused, sizeof unused);
    if (*unused) printf("  keys that are not used (records): %s\n", unused);
    if (d->unread.n) printf("  files that are not read: %s\n", d->unread.v);
    if (c->unsupervised) print_where("no token is supervised", c, is_unsupervised);
    if (c->totals.steps) print_epoch(c);
    for (int64_t i = 0; i < d->files; i++)
        if (d->file[i].file.damage[0])
            printf("  bad: %s: %s\n", d->file[i].file.path, d->file[i].file.damage);
    for (int64_t i = 0; i < d->samples; i++)
        if (c->found[i].bad) printf("  bad: %s\n", c->found[i].error);
}

static Json *buckets_json(const int64_t *bucket)
{
    Json *a = json_array();
    for (int b = 0; b < BUCKETS; b++)
        if (bucket[b])
            json_array_append_new(a, json_pack("{sI sI}", "from", (json_int_t)(b ? (int64_t)1 << (b - 1) : 0),
                                               "samples", (json_int_t)bucket[b]));
    return a;
}

static Json *check_json(const DataCheck *c)
{
    Json *bad = json_array();
    for (int64_t i = 0; i < c->view.data.files; i++)
        if (c->view.data.file[i].file.damage[0])
            json_array_append_new(bad, json_string(c->view.data.file[i].file.damage));
    for (int64_t i = 0; i < c->view.data.samples; i++)
        if (c->found[i].bad) json_array_append_new(bad, json_string(c->found[i].error));
    return json_pack(
        "{ss sI sI sI sI sI sI sI sI sI sI sI so so so sf sf}", "data", c->key, "samples",
        (json_int_t)c->view.data.samples, "good", (json_int_t)c->good, "over_budget", (json_int_t)c->over,
        "dropped", (json_int_t)c->dropped, "unlearnt", (json_int_t)c->unsupervised, "pictures",
        (json_int_t)c->pictures, "tokens", (json_int_t)c->tokens, "supervised", (json_int_t)c->supervised,
        "patches", (json_int_t)c->patches, "samples_per_epoch", (json_int_t)c->pass, "steps_per_epoch",
        (json_int_t)c->totals.steps, "token_histogram", buckets_json(c->token_bucket), "patch_histogram",
        buckets_json(c->patch_bucket), "bad", bad, "megapixels", c->megapixels, "seconds", c->seconds);
}

static void check_close(DataCheck *c)
{
    for (int64_t i = 0; c->found && i < c->view.data.samples; i++) free(c->found[i].error);
    for (int i = 0; i < c->frees; i++) sample_scratch_close(&c->free[i]);
    free(c->found), free(c->free);
    data_view_close(&c->view);
}

static Status check_list(const DataSetup *s, const SourceList *sources, const char *key, bool train,
                         Json *out, int64_t *bad)
{
    DataCheck c = { .key = key, .setup = s };
    Status st = data_view_open(&c.view, s, sources, key, true, true);
    if (!st) st = check_all(&c);
    if (!st) {
        sum_up(&c);
        *bad += c.bad + c.view.data.damaged;
        if (train && s->model.tokenizer && c.good) st = pack_pass(&c, sources);
    }
    if (!st && out) json_array_append_new(out, check_json(&c));
    else if (!st)   print_check(&c);
    check_close(&c);
    return st;
}

static Status check(const DataSetup *s, bool json)
{
    Json   *out = json ? json_array() : NULL;
    int64_t bad = 0;
    Status  st  = check_list(s, &s->recipe.data.train, s->source ? "files" : "data.train", true, out, &bad);
    if (!st && s->recipe.data.eval.n) st = check_list(s, &s->recipe.data.eval, "data.eval", false, out, &bad);
    if (!st && json) json_dumpf(out, stdout, JSON_INDENT(2)), putchar('\n');
    json_decref(out);
    if (!st && bad)
        st = fail(E_DATA, "%lld bad sample%s or file%s", (long long)bad, bad == 1 ? "" : "s",
                  bad == 1 ? "" : "s");
    return st;
}

typedef struct CheckArgs { bool json; } CheckArgs;

static const Option options[] = {
    OPTION_FLAG(CheckArgs, json, "--json", "print the result as JSON"),
    OPTION_END
};

static Status data_check(int argc, char **argv)
{
    DataSetup s;
    CheckArgs a = { 0 };
    PlainArgs plain = { .most = PLAIN_ANY };
    TRY(options_parse(argc, argv, options, &a, &plain));
    Status st = data_setup_open(&s, "data check", plain.value, plain.n);
    if (!st) {
        st = check(&s, a.json);
        data_setup_close(&s);
    }
    plain_args_close(&plain);
    return st;
}

const Usage usage_data_check = {
    .args    = "recipe.yaml|FILE... [section.key=value ...]",
    .options = options,
    .notes   = "Reads every record and decodes every picture; prints lengths, budgets and steps per epoch. "
               "The exit code is 4 when a record is bad. Files alone are checked without tokens unless "
               "model.path=FOLDER is added.",
    .sub     = "check",
    .run     = data_check,
};
