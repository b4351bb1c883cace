/* bench/decode.c -- `treb bench decode`: tokens a second with a cache, against the time to read the
 * weights that one step must read at least once. */
#include "bench/bench.h"
#include "cli/command.h"

#include "base/clock.h"
#include "engine/decode.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct DecodeBench {
    const char *model, *dtype_name;
    ModelShape shape;
    Stream     stream;
    Engine     e;
    Decode     d;
    int64_t    docs, prompt, tokens;
    DType      dtype;
    double     prefill, each;              /* seconds of the prompts; of one step, the median */
} DecodeBench;

static Status open_bench(DecodeBench *b)
{
    StreamShape ss   = shape_stream(&b->shape);
    Budget      bud  = { .tokens = b->docs * b->prompt, .docs = b->docs, .supervised = b->docs * b->prompt };
    EngineConf  conf = { .backend = "cpu", .dtype = b->dtype, .budget = bud,
                         .decode = { b->docs, b->tokens } };
    policy_default(conf.policy);
    TRY(stream_open(&b->stream, &ss, &bud));
    TRY(stream_synthetic(&b->stream, b->prompt, 0, 0, 0, b->shape.text.V, 11));
    TRY(engine_open(&b->e, &b->shape, &conf, &b->stream));
    TRY(model_init(&b->e.model, &b->e.be, 5));
    engine_publish_weights(&b->e);
    return decode_open(&b->d, &b->e);
}


static Status run(DecodeBench *b)
{
    int32_t *doc = calloc((size_t)b->docs * 2, sizeof *doc), *id = doc + b->docs;
    double  *time = calloc((size_t)b->tokens, sizeof *time), start = clock_now();
    Status st =
        doc && time ? decode_prompts(&b->d, &b->stream, NULL) : fail(E_FIT, "no memory for the times");
    b->prefill = clock_now() - start;
    for (int64_t i = 0; !st && i < b->docs; i++) doc[i] = (int32_t)i;
    for (int64_t t = 0; !st && t < b->tokens; t++) {
        for (int64_t i = 0; i < b->docs; i++) id[i] = (int32_t)((t * 31 + i * 17) % 1000 % b->shape.text.V);
        start   = clock_now();
        st      = decode_step(&b->d, b->docs, doc, id);
        time[t] = clock_now() - start;
    }
    if (!st) b->each = bench_middle(time, b->tokens);
    free(doc), free(time);
    return st;
}

/* Weights that a step reads: all but the embedding table, the tower, and the experts that no token chose. */
static double step_bytes(const DecodeBench *b)
{
    const Model *m = &b->e.model;
    double n = 0, chosen = (double)(b->docs * b->shape.text.K), E = (double)b->shape.text.E;
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        if (p->group != G_LLM || (p == m->embed && m->head.w != m->embed)) continue;
        double share = p->form == FORM_ROWS || chosen >= E ? 1 : chosen / E;
        n += share * (double)param_count(p) * (double)dtype_size(b->dtype);
    }
    return n;
}

static Status report(DecodeBench *b)
{
    Arena a;
    TRY(backend_arena_open(&b->e.be, &a, "bench", (size_t)300 << 20));
    Ceiling top;
    TRY(bench_ceiling(&top, &b->e.be, &a, F32));
    backend_arena_close(&b->e.be, &a);
    double bytes = step_bytes(b), floor = bytes / (top.gbs * 1e9);
    printf("%s  %lld parameters, %s, %lld documents of %lld tokens, %lld more each\n", b->shape.family,
           (long long)params_count(&b->e.model.params), dtype_name(b->dtype), (long long)b->docs,
           (long long)b->prompt, (long long)b->tokens);
    printf("prompts %.1f ms  %.0f tokens/s\n", b->prefill * 1e3, (double)(b->docs * b->prompt) / b->prefill);
    printf("step %.2f ms  %.1f tokens/s  %.2f x of its floor: %.1f MB of weights at %.1f GB/s take %.2f ms\n",
           b->each * 1e3, (double)b->docs / b->each, b->each / floor, bytes / 1e6, top.gbs, floor * 1e3);
    return OK;
}

static const Option options[] = {
    OPTION_TEXT(DecodeBench, model, "--model", "DIR|PRESET", "a small built-in model unless given"),
    OPTION_INT(DecodeBench, docs, "--docs", "N", 1, 4096, "documents decoded together (default 1)"),
    OPTION_INT(DecodeBench, prompt, "--prompt", "N", 2, 1 << 20, "tokens of a prompt (default 256)"),
    OPTION_INT(DecodeBench, tokens, "--tokens", "N", 1, 1 << 20, "tokens to decode (default 64)"),
    OPTION_TEXT(DecodeBench, dtype_name, "--dtype", "f32|bf16", "of weights and activations (default f32)"),
    OPTION_END
};

static Status run_decode(int argc, char **argv)
{
    DecodeBench b = { .docs = 1, .prompt = 256, .tokens = 64, .dtype_name = "f32" };
    TRY(options_parse(argc, argv, options, &b, NULL));
    TRY(option_dtype("--dtype", b.dtype_name, &b.dtype));
    TRY(bench_model(&b.shape, b.model, 0));
    Status st = open_bench(&b);
    if (!st) st = run(&b);
    if (!st) st = report(&b);
    decode_close(&b.d);
    engine_close(&b.e);
    stream_close(&b.stream);
    return st;
}

static const Usage usage = {
    .args    = "",
    .options = options,
};

const Command bench_decode = {
    .name  = "decode",
    .help  = "prompts and single decoding steps against the reading of the weights",
    .run   = run_decode,
    .usage = USAGE(&usage),
};
