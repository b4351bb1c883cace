/* cli/data_pack.c -- `treb data pack`: renders the data of a recipe into shards that a run maps; see
 * data/format_bin.h. Text is tokenised and truncated, sizes are stored, pictures stay encoded or are
 * decoded. */
#include "cli/data.h"

#include "base/clock.h"
#include "base/folder.h"
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "data/format_bin.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 };                 /* samples rendered in parallel, then written in order */

typedef struct PackArgs { int64_t shard_mb; bool decoded; } PackArgs;

typedef struct Packing {
    const DataSetup *setup;
    DataView         view;
    const char      *out, *name;      /* folder; "train" or "eval" */
    const PackArgs  *args;
    Sample           sample[BLOCK];
    Status           status[BLOCK];
    char            *error[BLOCK];
    int64_t          first;           /* position of sample[0] */
    SampleScratch   *scratch;         /* one for each thread */
    int              scratches;
    pthread_mutex_t  lock;
    ThreadPool             pool;
    BinWriter        writer;
    FILE            *quarantine;
    int64_t          shards, samples, tokens, bytes, dropped, bad;
} Packing;

static Status load_one(void *arg, int64_t i)
{
    Packing      *p = arg;
    SampleScratch t;
    pthread_mutex_lock(&p->lock);
    t = p->scratch[--p->scratches];
    pthread_mutex_unlock(&p->lock);
    p->status[i] =
        sample_load(&p->sample[i], &t, &p->view.sample, dataset_id(&p->view.data, 0, p->first + i));
    if (p->status[i]) p->error[i] = strdup(status_text());
    pthread_mutex_lock(&p->lock);
    p->scratch[p->scratches++] = t;
    pthread_mutex_unlock(&p->lock);
    return OK;
}

static Status shard_finish(Packing *p)
{
    if (!p->writer.file) return OK;
    p->bytes += (int64_t)p->writer.at;
    return bin_writer_finish(&p->writer, p->view.settings);
}

static Status shard_next(Packing *p)
{
    char name[64];
    Path path;
    if (p->writer.file && p->writer.at < (uint64_t)p->args->shard_mb << 20) return OK;
    TRY(shard_finish(p));
    snprintf(name, sizeof name, "%s-%05lld.treb", p->name, (long long)p->shards++);
    TRY(path_join(path, p->out, name));
    TRY(bin_writer_open(&p->writer, path));
    return p->writer.decoded = p->args->decoded, OK;
}

static Status skip_bad(Packing *p, Status st, const char *text)
{
    Path path;
    bool skip = !strcmp(p->setup->recipe.data.bad_sample, "skip");
    if (!skip || !sample_is_bad(st))
        return fail(st, "%s%s", text, skip ? "" : "; set data.bad_sample: skip to pack without it");
    if (!p->quarantine) {
        TRY(path_join(path, p->out, "quarantine.jsonl"));
        p->quarantine = fopen(path, "wbe");
    }
    Json *line = json_pack("{ss}", "error", text);
    if (p->quarantine && line) json_dumpf(line, p->quarantine, 0), putc('\n', p->quarantine);
    json_decref(line);
    if (++p->bad < 2 || p->bad * 100 <= p->view.data.pass) return OK;
    return fail(E_DATA, "%lld of %lld samples are bad, more than 1 %%; the latest: %s", (long long)p->bad,
                (long long)p->view.data.pass, text);
}

static Status write_one(Packing *p, int64_t i)
{
    Sample *s = &p->sample[i];
    if (p->status[i]) return skip_bad(p, p->status[i], p->error[i] ? p->error[i] : "");
    if (s->drop) return p->dropped++, OK;
    TRY(shard_next(p));
    Status st = bin_writer_add(&p->writer, s, &p->scratch[0], &p->view.sample);
    if (st && p->writer.broken) return st;
    if (st) {
        char text[1024];
        snprintf(text, sizeof text, "%s: %s", s->record.where, status_text());
        return skip_bad(p, st, text);
    }
    p->samples++, p->tokens += s->size.tokens;
    return OK;
}

static Status pack_block(Packing *p)
{
    int64_t left = p->view.data.pass - p->first, n = left < BLOCK ? left : BLOCK;
    Status  st   = thread_pool_run(&p->pool, n, load_one, p);
    for (int64_t i = 0; i < n; i++) {
        if (!st) st = write_one(p, i);
        sample_close(&p->sample[i]);
        free(p->error[i]);
        p->error[i] = NULL;
    }
    p->first += n;
    return st;
}

static Status packing_open(Packing *p, const SourceList *sources, const char *key)
{
    int threads = cpu_count();
    TRY(data_view_open(&p->view, p->setup, sources, key, true,
                       !strcmp(p->setup->recipe.data.bad_sample, "skip")));
    p->scratch = calloc((size_t)threads, sizeof *p->scratch);
    if (!p->scratch) return fail(E_FIT, "no memory for %d threads", threads);
    for (; p->scratches < threads; p->scratches++)
        TRY(sample_scratch_open(&p->scratch[p->scratches], p->setup->model.tokenizer));
    return thread_pool_open(&p->pool, threads - 1);
}

static void packing_close(Packing *p)
{
    thread_pool_close(&p->pool);
    bin_writer_abandon(&p->writer);
    for (int i = 0; i < p->scratches; i++) sample_scratch_close(&p->scratch[i]);
    free(p->scratch);
    if (p->quarantine) fclose(p->quarantine);
    data_view_close(&p->view);
}

static Status pack_list(const DataSetup *s, const SourceList *sources, const char *key, const char *name,
                        const char *out, const PackArgs *args)
{
    Packing *p = calloc(1, sizeof *p);
    if (!p) return fail(E_FIT, "no memory to pack");
    *p = (Packing){ .setup = s, .out = out, .name = name, .args = args };
    double from = clock_now();
    pthread_mutex_init(&p->lock, NULL);
    Status st = packing_open(p, sources, key);
    while (!st && p->first < p->view.data.pass) st = pack_block(p);
    if (!st) st = shard_finish(p);
    if (!st && p->samples == 0)
        st = fail(E_DATA, "%s: none of its samples can be used; `treb data check` says why", key);
    double seconds = clock_now() - from;
    if (!st)
        printf("%s: %lld samples, %lld tokens in %lld shard%s of %.1f MB together, %.0f samples/s; %lld left "
               "out for their length, %lld bad\n",
               key, (long long)p->samples, (long long)p->tokens, (long long)p->shards,
               p->shards == 1 ? "" : "s", (double)p->bytes / 1e6, (double)p->samples / seconds,
               (long long)p->dropped, (long long)p->bad);
    packing_close(p);
    pthread_mutex_destroy(&p->lock);
    free(p);
    return st;
}

static Status pack(const DataSetup *s, const char *out, const PackArgs *args)
{
    bool empty;
    if (!s->model.tokenizer) return fail(E_CONFIG,
                                         "data pack: tokenising needs a model; add model.path=FOLDER");
    TRY(folder_is_empty(out, &empty));
    if (!empty) return fail(E_IO, "%s: not empty; name a new folder", out);
    TRY(folder_make(out));
    TRY(pack_list(s, &s->recipe.data.train, "data.train", "train", out, args));
    if (s->recipe.data.eval.n) TRY(pack_list(s, &s->recipe.data.eval, "data.eval", "eval", out, args));
    printf("to use it: data.train[0].path=\"%s/train-*.treb\"\n", out);
    return OK;
}

static const Option options[] = {
    OPTION_INT(PackArgs, shard_mb, "--shard-mb", "N", 1, 1 << 20,
               "megabytes of a shard at most (default 1024)"),
    OPTION_FLAG(PackArgs, decoded, "--decoded", "pictures as pixels of the size that the model reads"),
    OPTION_END
};

/* Takes the last argument that is not an override, and not the recipe, out of plain: the folder to write. */
static const char *take_folder(PlainArgs *plain)
{
    int at = plain->n - 1;
    while (at > 0 && config_is_override(plain->value[at])) at--;
    if (at <= 0) return NULL;
    const char *out = plain->value[at];
    memmove(&plain->value[at], &plain->value[at + 1], (size_t)(plain->n - at - 1) * sizeof *plain->value);
    plain->n--;
    return out;
}

static Status data_pack(int argc, char **argv)
{
    DataSetup s;
    PackArgs  a = { .shard_mb = 1024 };
    PlainArgs plain = { .most = PLAIN_ANY };
    TRY(options_parse(argc, argv, options, &a, &plain));
    const char *out = take_folder(&plain);
    Status      st = OK;
    if (!out)
        st = fail(E_CONFIG, "data pack: name a recipe and a folder to write to; see treb help data");
    if (!st) st = data_setup_open(&s, "data pack", plain.value, plain.n);
    if (!st) {
        st = pack(&s, out, &a);
        data_setup_close(&s);
    }
    plain_args_close(&plain);
    return st;
}

const Usage usage_data_pack = {
    .args    = "recipe.yaml OUT [section.key=value ...]",
    .options = options,
    .notes   = "Writes shards that a run maps into memory. Pictures stay as they are; with --decoded a run "
               "neither decodes nor resizes them, and trains on the same pixels.",
    .sub     = "pack",
    .run     = data_pack,
};
