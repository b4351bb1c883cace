/* infer/evaluate.c -- see evaluate.h. Each batch takes one forward pass and as many decode steps as its
 * longest answer has tokens. All ranks evaluate a batch at a time: a replica that has no sample left takes
 * part with an empty batch where the others need it (decode_in_lockstep). */
#include "infer/evaluate_private.h"

#include "base/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

static Comm *world_of(const Eval *v) { return v->e->mesh.comm[GR_world]; }

/* ---- opening ---- */

/* One thread per core, shared by the ranks of a node. */
static int worker_count(const Eval *v)
{
    int n = v->conf->workers > 0 ? v->conf->workers : cpu_count() / comm_ranks_on_node(world_of(v));
    return n > 0 ? n : 1;
}

static Status open_workers(Eval *v)
{
    int64_t docs = v->e->conf.decode.docs;
    v->workers = worker_count(v);
    v->scratch = calloc((size_t)v->workers, sizeof *v->scratch);
    v->item    = calloc(EVAL_BLOCK, sizeof *v->item);
    v->tokens  = calloc((size_t)docs * 2, sizeof *v->tokens);
    v->answers = calloc((size_t)docs, sizeof *v->answers);
    v->loss    = calloc((size_t)v->e->conf.budget.supervised + 1, sizeof *v->loss);
    if (!v->scratch || !v->item || !v->tokens || !v->answers || !v->loss)
        return fail(E_FIT, "no memory to evaluate");
    v->asked = v->tokens + docs;
    for (int i = 0; i < v->workers; i++) TRY(sample_scratch_open(&v->scratch[i], v->conf->tokenizer));
    return thread_pool_open(&v->pool, v->workers - 1);
}

static Status open_rest(Eval *v)
{
    const EvalConf *c = v->conf;
    TRY(open_workers(v));
    TRY(eval_open_records(v));
    TRY(answer_finder_open(&v->finder, c->tokenizer));
    v->sampling = (GenerateConf){ .max_new = c->max_new, .vocab = tokenizer_size(c->tokenizer) };
    for (int i = 0; i < v->finder.stops; i++) v->sampling.stop[v->sampling.stops++] = v->finder.stop[i];
    TRY(generator_open(&v->gen, v->e));
    return stream_open(&v->stream, &v->sc.stream, &v->e->conf.budget);
}

static Status open_eval(Eval *v)
{
    REQUIRE(v->conf->max_new <= v->e->conf.decode.tokens + 1,
            "evaluate: answers of %lld tokens, capacity for %lld", (long long)v->conf->max_new,
            (long long)v->e->conf.decode.tokens);
    TRY(eval_open_data(v));
    return comm_agree(world_of(v), open_rest(v));
}

static void close_eval(Eval *v)
{
    thread_pool_close(&v->pool);
    for (int64_t i = 0; v->item && i < v->items; i++) eval_item_close(&v->item[i]);
    for (int i = 0; v->scratch && i < v->workers; i++) sample_scratch_close(&v->scratch[i]);
    for (int64_t i = 0; v->answers && i < v->e->conf.decode.docs; i++) ids_close(&v->answers[i]);
    free(v->scratch), free(v->item), free(v->tokens), free(v->answers), free(v->loss);
    eval_close_records(v);
    stream_close(&v->stream);
    generator_close(&v->gen);
    answer_finder_close(&v->finder);
    dataset_close(&v->data);
    json_decref(v->settings);
}

/* ---- batches ---- */

/* Adds a document without its pixels, which eval_read_pixels fills in. */
static Status add_item(Eval *v, EvalItem *x)
{
    VisualSlice   few[16], *slice = few;
    Sample *s = &x->sample;
    if (s->slices > 16 && !(slice = calloc((size_t)s->slices, sizeof *slice)))
        return fail(E_FIT, "no memory for slices");
    for (int64_t i = 0; i < s->slices; i++) slice[i] = (VisualSlice){ s->slice[i].h, s->slice[i].w, NULL };
    x->patch = v->stream.patches, x->slice = v->stream.slices, x->from = v->stream.supervised;
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

static void record_losses(Eval *v)
{
    for (int64_t i = 0; i < v->docs; i++) {
        const EvalItem *x = &v->batch[i];
        EvalRecord *r = &v->record[x->record];
        if (x->bad) continue;
        r->evaluated = 1, r->supervised = x->supervised;
        for (int64_t k = 0; k < x->supervised; k++) r->ce += (double)v->loss[x->from + k];
    }
}

static Status generate_and_score(Eval *v)
{
    int64_t n = 0;
    for (int64_t i = 0; i < v->docs; i++)
        if (v->batch[i].prompt && !v->batch[i].bad) v->asked[n++] = (int32_t)i, v->answers[i].n = 0;
    if (!v->conf->max_new) return OK;
    TRY(generate_answers(&v->gen, &v->sampling, n, v->asked, v->answers));
    for (int64_t i = 0; i < n; i++)
        TRY(eval_score_answer(v, &v->batch[v->asked[i]], &v->answers[v->asked[i]]));
    return OK;
}

static Status run_batch(Eval *v)
{
    if (!v->docs && !decode_in_lockstep(v->e)) return OK;
    for (int64_t i = 0; i < v->docs; i++)
        v->tokens[i] = (int32_t)(v->batch[i].prompt ? v->batch[i].prompt : v->batch[i].sample.ids.n);
    TRY(decode_prompts(&v->gen.decode, &v->stream, v->tokens));
    TRY(decode_row_losses(&v->gen.decode, v->loss));
    record_losses(v);
    return generate_and_score(v);
}

/* Whether some replica has a sample left in this block; none has once a rank was asked to stop. st: of the
 * batch before. */
static Status agree_on_more(Eval *v, Status st, bool left, bool *more)
{
    bool   stop = v->conf->stop && v->conf->stop(v->conf->self);
    double x[3] = { st != OK, left, stop };
    comm_host_max(world_of(v), x, 3);
    v->out->stopped |= x[2] > 0, *more = x[1] > 0 && !v->out->stopped;
    return x[0] > 0 ? comm_agree(world_of(v), st) : OK;
}

static Status run_block(Eval *v)
{
    Status st = OK;
    TRY(eval_read_block(v));
    for (int64_t at = 0;; at += v->docs) {
        bool more;
        TRY(agree_on_more(v, st, at < v->items, &more));
        if (!more) break;
        TRY(comm_agree(world_of(v), fill_batch(v, at)));
        TRY(eval_read_pixels(v));
        st = run_batch(v);
    }
    while (v->items) eval_item_close(&v->item[--v->items]);
    return eval_join_records(v);
}

static Status run_all(Eval *v)
{
    for (; v->block < v->samples && !v->out->stopped; v->block += (int64_t)EVAL_BLOCK * v->replicas)
        TRY(run_block(v));
    v->out->generated = v->gen.tokens;
    comm_host_sum64(v->e->mesh.comm[GR_dp], &v->out->generated, 1);
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

static Status close_file(Eval *v, Status st)
{
    if (v->file && fclose(v->file) && !st)
        st = fail(E_IO, "%s: cannot be written: %s", v->conf->samples, strerror(errno));
    return st;
}

Status evaluate_model(Engine *e, const EvalConf *conf, EvalResult *out)
{
    Eval   v = { .conf = conf, .e = e, .out = out, .replica = e->mesh.at[AX_DP],
                 .replicas = e->mesh.size[AX_DP] };
    double start = clock_now();
    *out = (EvalResult){ 0 };
    Status st = open_eval(&v);
    if (!st) st = run_all(&v);
    st = comm_agree(world_of(&v), close_file(&v, st));
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
