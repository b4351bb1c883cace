/* infer/evaluate.c -- see evaluate.h. Samples are read in blocks and packed into batches that fit the
 * engine's budget; each batch takes one forward pass and as many decode steps as its longest answer has
 * tokens. */
#include "infer/evaluate.h"

#include "base/clock.h"
#include "base/thread_pool.h"
#include "infer/answer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256 };                /* samples read at once, without their pixels */

typedef struct EvalItem {
    Sample  sample;
    int64_t position;                /* in the order of the evaluation */
    Status  status;                  /* of reading the sample or decoding its images, with its text */
    char    text[512];
    int     channel;                 /* row of the result */
    int64_t prompt, end;             /* answer_find; prompt 0: there is no answer to generate */
    int64_t patch, from;             /* first patch and first supervised row in the stream of the batch */
    int64_t supervised;
} EvalItem;

typedef struct Eval {
    const EvalConf *conf;
    Engine         *e;
    EvalResult     *out;
    Dataset         data;
    SampleConf      sc;
    Json           *settings;
    AnswerFinder    finder;
    Generator       gen;
    GenerateConf    sampling;
    Stream          stream;
    ThreadPool            pool;
    int             workers;
    SampleScratch  *scratch;         /* one per worker */
    EvalItem       *item;            /* (BLOCK) sorted by channel */
    int64_t         items, samples;  /* in the block; in the whole evaluation */
    EvalItem       *batch;           /* the documents of the stream, within item */
    int64_t         docs;
    int32_t        *tokens, *asked;  /* (docs) prompt lengths; documents with an answer to generate */
    Ids            *answers;
    FILE           *file;
} Eval;

DecodeCapacity eval_decode_capacity(int64_t max_new, const Budget *b)
{
    int64_t most = b->docs < 64 ? b->docs : 64, tokens = max_new > 0 ? max_new : 1;
    int64_t docs = b->tokens / tokens;           /* limits the KV cache to twice the rows of a batch */
    return (DecodeCapacity){ docs < 1 ? 1 : docs < most ? docs : most, tokens };
}

void eval_result_close(EvalResult *r)
{
    free(r->row);
    *r = (EvalResult){ 0 };
}

/* ---- reading ---- */

static bool skips_bad(const EvalConf *c) { return !strcmp(c->recipe->data.bad_sample, "skip"); }

static Status open_data(Eval *v)
{
    const EvalConf *c = v->conf;
    StreamShape ss = shape_stream(&v->e->model.shape);
    ss.bytes = v->e->byte_pixels;
    TRY(sample_conf(&v->sc, c->recipe, c->tokenizer, &c->patch, &ss, &v->e->conf.budget));
    TRY(sample_settings(&v->sc, &v->settings));
    DatasetConf d = { .sources  = c->sources,
                      .key      = c->key ? c->key : "data.eval",
                      .split    = c->split,
                      .held_out = c->split > 0,
                      .once     = true,
                      .tolerant = skips_bad(c),
                      .seed     = (uint64_t)c->recipe->train.seed,
                      .settings = v->settings,
                      .log      = c->log,
                      .format   = { c->tokenizer, v->sc.max_length } };
    TRY(dataset_open(&v->data, &d));
    v->sc.data = &v->data;
    v->samples = c->max_samples > 0 && c->max_samples < v->data.pass ? c->max_samples : v->data.pass;
    return OK;
}

static Status open_workers(Eval *v)
{
    int64_t docs = v->e->conf.decode.docs;
    v->workers = v->conf->workers > 0 ? v->conf->workers : cpu_count();
    v->scratch = calloc((size_t)v->workers, sizeof *v->scratch);
    v->item    = calloc(BLOCK, sizeof *v->item);
    v->tokens  = calloc((size_t)docs * 2, sizeof *v->tokens);
    v->answers = calloc((size_t)docs, sizeof *v->answers);
    if (!v->scratch || !v->item || !v->tokens || !v->answers) return fail(E_FIT, "no memory to evaluate");
    v->asked = v->tokens + docs;
    for (int i = 0; i < v->workers; i++) TRY(sample_scratch_open(&v->scratch[i], v->conf->tokenizer));
    return thread_pool_open(&v->pool, v->workers - 1);
}

static Status open_eval(Eval *v)
{
    const EvalConf *c = v->conf;
    REQUIRE(c->max_new <= v->e->conf.decode.tokens + 1, "evaluate: answers of %lld tokens, capacity for %lld",
            (long long)c->max_new, (long long)v->e->conf.decode.tokens);
    TRY(open_data(v));
    TRY(open_workers(v));
    TRY(answer_finder_open(&v->finder, c->tokenizer));
    v->sampling = (GenerateConf){ .max_new = c->max_new, .vocab = tokenizer_size(c->tokenizer), .stops = 2,
                                  .stop = { v->finder.token.im_end, v->finder.token.endoftext } };
    TRY(generator_open(&v->gen, v->e));
    TRY(stream_open(&v->stream, &v->sc.stream, &v->e->conf.budget));
    if (c->samples && !(v->file = fopen(c->samples, "w")))
        return fail(E_IO, "%s: cannot be written: %s", c->samples, strerror(errno));
    return OK;
}

static void item_close(EvalItem *x)
{
    sample_close(&x->sample);
    *x = (EvalItem){ 0 };
}

static void close_eval(Eval *v)
{
    thread_pool_close(&v->pool);
    for (int64_t i = 0; v->item && i < v->items; i++) item_close(&v->item[i]);
    for (int i = 0; v->scratch && i < v->workers; i++) sample_scratch_close(&v->scratch[i]);
    for (int64_t i = 0; v->answers && i < v->e->conf.decode.docs; i++) ids_close(&v->answers[i]);
    free(v->scratch), free(v->item), free(v->tokens), free(v->answers);
    stream_close(&v->stream);
    generator_close(&v->gen);
    answer_finder_close(&v->finder);
    dataset_close(&v->data);
    json_decref(v->settings);
}

static void set_error(EvalItem *x, Status st)
{
    x->status = st;
    snprintf(x->text, sizeof x->text, "%s", status_text());
}

/* Worker w reads every workers-th item. The error of a sample is recorded in its item. */
static Status read_items(void *arg, int64_t w)
{
    Eval *v = arg;
    for (int64_t i = w; i < v->items; i += v->workers) {
        EvalItem *x = &v->item[i];
        int64_t position = x->position * v->data.pass / v->samples; /* all, or evenly spread */
        Status st = sample_load(&x->sample, &v->scratch[w], &v->sc, dataset_id(&v->data, 0, position));
        if (st) set_error(x, st);
        else if (!answer_find(&v->finder, &x->sample.ids, &x->prompt, &x->end)) x->prompt = 0;
    }
    return OK;
}

/* The channel that the sample's JSON names, else that of its data source. */
static const char *channel_of(const Eval *v, const Sample *s)
{
    const Json *own = s->json ? json_object_get(s->json, "channel") : NULL;
    return json_is_string(own) ? json_string_value(own)
                               : dataset_channel(&v->data, dataset_file(&v->data, s->id)->source);
}

static Status channel_row(EvalResult *r, const char *name, int *row)
{
    char cut[sizeof r->total.channel];
    snprintf(cut, sizeof cut, "%s", name);
    for (*row = 0; *row < r->rows; ++*row)
        if (!strcmp(r->row[*row].channel, cut)) return OK;
    EvalRow *more = realloc(r->row, (size_t)(r->rows + 1) * sizeof *more);
    if (!more) return fail(E_FIT, "no memory for %d channels", r->rows + 1);
    r->row = more;
    r->row[r->rows] = (EvalRow){ 0 };
    memcpy(r->row[r->rows++].channel, cut, sizeof cut);
    return OK;
}

/* Skips an unusable sample or ends the evaluation, according to data.bad_sample. */
static Status check_item(Eval *v, EvalItem *x)
{
    if (!x->status && !x->sample.drop) return OK;
    bool skip = x->status == OK || (sample_is_bad(x->status) && skips_bad(v->conf));
    if (!skip) return fail(x->status, "%s", x->text);
    if (x->status) log_warn(v->conf->log, "evaluation: %s", x->text);
    v->out->skipped++;
    return OK;
}

static int by_channel(const void *a, const void *b)
{
    const EvalItem *x = a, *y = b;
    return x->channel != y->channel ? (x->channel > y->channel) - (x->channel < y->channel)
                                    : (x->position > y->position) - (x->position < y->position);
}

/* Reads the next block, removes unusable samples and sorts the rest by channel. */
static Status read_block(Eval *v, int64_t from)
{
    int64_t kept = 0, n = v->samples - from < BLOCK ? v->samples - from : BLOCK;
    for (v->items = 0; v->items < n; v->items++)
        v->item[v->items] = (EvalItem){ .position = from + v->items };
    TRY(thread_pool_run(&v->pool, v->workers, read_items, v));
    for (int64_t i = 0; i < n; i++) {
        EvalItem *x = &v->item[i];
        TRY(check_item(v, x));
        if (x->status || x->sample.drop) { item_close(x); continue; }
        TRY(channel_row(v->out, channel_of(v, &x->sample), &x->channel));
        if (kept != i) v->item[kept] = *x, *x = (EvalItem){ 0 };
        kept++;
    }
    v->items = kept;
    qsort(v->item, (size_t)kept, sizeof *v->item, by_channel);
    return OK;
}

/* ---- batches ---- */

/* Adds a document without its pixels, which load_pixels fills in. */
static Status add_item(Eval *v, EvalItem *x)
{
    VisualSlice   few[16], *slice = few;
    Sample *s = &x->sample;
    if (s->slices > 16 && !(slice = calloc((size_t)s->slices, sizeof *slice)))
        return fail(E_FIT, "no memory for slices");
    for (int64_t i = 0; i < s->slices; i++) slice[i] = (VisualSlice){ s->slice[i].h, s->slice[i].w, NULL };
    x->patch = v->stream.patches, x->from = v->stream.supervised;
    Document d = { s->ids.n, s->ids.v, s->targets.v, s->slices, slice };
    Status st = stream_add(&v->stream, &d);
    x->supervised = v->stream.supervised - x->from;
    if (slice != few) free(slice);
    return st;
}

/* Adds documents starting at item `from` until one does not fit. */
static Status fill_batch(Eval *v, int64_t from)
{
    stream_clear(&v->stream);
    v->batch = v->item + from, v->docs = 0;
    while (from + v->docs < v->items && v->docs < v->e->conf.decode.docs) {
        EvalItem *x = &v->batch[v->docs];
        Status st = add_item(v, x);
        if (st == E_FIT && v->docs) return OK;
        TRY_CTX(st, "%s", x->sample.record.where);
        v->docs++;
    }
    return OK;
}

static Status load_pixels(void *arg, int64_t w)
{
    Eval *v = arg;
    for (int64_t i = w; i < v->docs; i += v->workers) {
        EvalItem *x = &v->batch[i];
        int64_t at = x->patch;
        Status  st = OK;
        for (int64_t k = 0; !st && k < x->sample.slices; k++) {
            st = sample_pixels(stream_patch(&v->stream, at), v->stream.shape.bytes, &x->sample,
                               &v->scratch[w], &v->sc, k);
            at += (int64_t)x->sample.slice[k].h * x->sample.slice[k].w;
        }
        if (st) set_error(x, st);
    }
    return OK;
}

/* Adds the loss of each channel: its documents are adjacent in the batch, and so are
 * their supervised rows. */
static Status add_losses(Eval *v)
{
    for (int64_t i = 0, k; i < v->docs; i = k) {
        int64_t  n = 0;
        double   ce = 0;
        EvalRow *row = &v->out->row[v->batch[i].channel];
        for (k = i; k < v->docs && v->batch[k].channel == v->batch[i].channel && !v->batch[k].status; k++)
            n += v->batch[k].supervised;
        if (k == i) { k++; continue; }                       /* its images could not be decoded */
        if (n) TRY(decode_loss(&v->gen.decode, v->batch[i].from, n, &ce));
        row->samples += k - i, row->supervised += n, row->ce += ce;
    }
    return OK;
}

static bool wants_line(const Eval *v, const EvalItem *x)
{
    int64_t lines = v->conf->sample_lines, at = x->position;
    return v->file && (lines <= 0 || (at + 1) * lines / v->samples > at * lines / v->samples);
}

static Status score_answer(Eval *v, EvalItem *x, const Ids *got)
{
    EvalRow *row = &v->out->row[x->channel];
    Text  answer = { 0 }, expected = { 0 };
    Json *line = NULL;
    Status st = detokenize(&answer, v->conf->tokenizer, got->v, got->n);
    if (!st) st = detokenize(&expected, v->conf->tokenizer, x->sample.ids.v + x->prompt, x->end - x->prompt);
    bool right = !st && answer_equals(&answer, &expected);
    row->asked++, row->correct += right;
    if (!st && wants_line(v, x))
        st = answer_json(&line, &v->finder, &x->sample, &v->sc, row->channel, &answer, &expected, right);
    if (line && (json_dumpf(line, v->file, JSON_COMPACT) || putc('\n', v->file) == EOF))
        st = fail(E_IO, "%s: cannot be written: %s", v->conf->samples, strerror(errno));
    json_decref(line);
    text_close(&answer), text_close(&expected);
    return st;
}

static Status generate_and_score(Eval *v)
{
    int64_t n = 0;
    for (int64_t i = 0; i < v->docs; i++)
        if (v->batch[i].prompt && !v->batch[i].status) v->asked[n++] = (int32_t)i, v->answers[i].n = 0;
    if (!v->conf->max_new || !n) return OK;
    TRY(generate_answers(&v->gen, &v->sampling, n, v->asked, v->answers));
    for (int64_t i = 0; i < n; i++) TRY(score_answer(v, &v->batch[v->asked[i]], &v->answers[v->asked[i]]));
    return OK;
}

static Status run_batch(Eval *v)
{
    if (!v->conf->blind && v->stream.patches) TRY(thread_pool_run(&v->pool, v->workers, load_pixels, v));
    for (int64_t i = 0; i < v->docs; i++) {
        TRY(check_item(v, &v->batch[i]));
        v->tokens[i] = (int32_t)(v->batch[i].prompt ? v->batch[i].prompt : v->batch[i].sample.ids.n);
    }
    TRY(decode_prompts(&v->gen.decode, &v->stream, v->tokens));
    TRY(add_losses(v));
    return generate_and_score(v);
}

static Status run_all(Eval *v)
{
    for (int64_t from = 0; from < v->samples; from += BLOCK) {
        TRY(read_block(v, from));
        for (int64_t i = 0; i < v->items; i += v->docs) {
            if (v->conf->stop && v->conf->stop(v->conf->self)) return OK;
            TRY(fill_batch(v, i));
            TRY(run_batch(v));
        }
        while (v->items) item_close(&v->item[--v->items]);
    }
    return OK;
}

static void sum_rows(EvalResult *r)
{
    snprintf(r->total.channel, sizeof r->total.channel, "all");
    for (int i = 0; i < r->rows; i++) {
        r->total.samples += r->row[i].samples, r->total.supervised += r->row[i].supervised;
        r->total.asked   += r->row[i].asked,   r->total.correct    += r->row[i].correct;
        r->total.ce      += r->row[i].ce;
    }
}

Status evaluate_model(Engine *e, const EvalConf *conf, EvalResult *out)
{
    Eval   v = { .conf = conf, .e = e, .out = out };
    double start = clock_now();
    *out = (EvalResult){ 0 };
    Status st = open_eval(&v);
    if (!st) st = run_all(&v);
    out->generated = v.gen.tokens;
    if (v.file && fclose(v.file) && !st)
        st = fail(E_IO, "%s: cannot be written: %s", conf->samples, strerror(errno));
    close_eval(&v);
    sum_rows(out);
    out->seconds = clock_now() - start;
    if (st) eval_result_close(out);
    return st;
}

/* A channel without a name has its file's path as its name; the last part is printed. */
static void print_row(FILE *out, const EvalRow *r)
{
    const char *slash = strrchr(r->channel, '/'), *name = slash && slash[1] ? slash + 1 : r->channel;
    fprintf(out, "%-24s %8lld %10lld %9.4f", name, (long long)r->samples, (long long)r->supervised,
            eval_loss(r));
    if (r->asked)
        fprintf(out, " %8.1f %%  %lld of %lld", 100 * eval_accuracy(r), (long long)r->correct,
                (long long)r->asked);
    putc('\n', out);
}

void eval_print(FILE *out, const EvalResult *r)
{
    fprintf(out, "%-24s %8s %10s %9s%s\n", "channel", "samples", "tokens", "loss",
            r->total.asked ? "   accuracy" : "");
    for (int i = 0; i < r->rows; i++) print_row(out, &r->row[i]);
    if (r->rows != 1) print_row(out, &r->total);
    if (r->skipped)
        fprintf(out, "%lld samples were skipped: unreadable or too long\n", (long long)r->skipped);
}
