/* cli/bench_step.c -- `treb bench step`: a whole forward, backward and update of a model on synthetic data.
 */
#include "cli/bench.h"
#include "cli/options.h"

#include "base/clock.h"
#include "model/family.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The model when none is named: small enough for two cores, with every part of the large one. */
static const char small[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 8000, \"video_token_id\": 8001, "
    "\"tie_word_embeddings\": false,"
    " \"text_config\": {\"vocab_size\": 8192, \"hidden_size\": 512, \"num_hidden_layers\": 8, "
    "\"num_attention_heads\": 8,"
    "  \"num_key_value_heads\": 2, \"head_dim\": 64, \"intermediate_size\": 1536, \"moe_intermediate_size\": "
    "192,"
    "  \"num_experts\": 16, \"num_experts_per_tok\": 4, \"rope_theta\": 5000000,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [12, 10, 10]}},"
    " \"vision_config\": {\"depth\": 6, \"hidden_size\": 256, \"intermediate_size\": 1024, \"num_heads\": 4, "
    "\"patch_size\": 16,"
    "  \"num_position_embeddings\": 2304, \"out_hidden_size\": 512, \"deepstack_visual_indexes\": [1, 3]}}";

Status bench_model(ModelShape *s, const char *path)
{
    Json *hf;
    if (path) return shape_load(s, path);
    TRY(json_parse(&hf, small, sizeof small - 1, "the built-in model"));
    Status st = shape_read(s, hf, "the built-in model");
    json_decref(hf);
    return st;
}

typedef struct StepBench {
    ModelShape shape;
    Stream     stream;
    Engine     e;
    int64_t    tokens, doc, images, grid, repeats;
    DType      dtype;
    bool       json;
    double     fwd, bwd, opt;                                /* seconds of the last step */
    Losses     losses;
} StepBench;

static Status step(StepBench *b, int64_t number)
{
    OptimConf o = { .adam = { 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, number } };
    double t0 = clock_now();
    model_zero_grad(&b->e.model, &b->e.be);
    engine_forward(&b->e, 1.0f / (float)b->stream.supervised);
    TRY(engine_losses(&b->e, &b->losses));
    double t1 = clock_now();
    engine_backward(&b->e);
    TRY(backend_sync(&b->e.be));
    double t2 = clock_now();
    engine_update(&b->e, &o);
    TRY(backend_sync(&b->e.be));
    b->fwd = t1 - t0, b->bwd = t2 - t1, b->opt = clock_now() - t2;
    return OK;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}
static double median(double *v, int64_t n) { return qsort(v, (size_t)n, sizeof *v, by_value), v[n / 2]; }

static Status open_bench(StepBench *b)
{
    StreamShape ss = shape_stream(&b->shape);
    int64_t patches = b->images * b->grid * b->grid;
    Budget      bud     = {
                 .tokens = b->tokens, .patches = patches, .docs = b->tokens / b->doc, .supervised = b->tokens
    };
    EngineConf conf = { .backend   = "cpu",
                        .dtype     = b->dtype,
                        .budget    = bud,
                        .aux       = AUX_LAYER,
                        .aux_coeff = 1e-3f,
                        .train     = true };
    policy_default(conf.policy);
    TRY(stream_open(&b->stream, &ss, &bud));
    TRY(stream_synthetic(&b->stream, b->doc, b->images, b->grid, b->grid, b->shape.text.V, 11));
    TRY(engine_open(&b->e, &b->shape, &conf, &b->stream));
    TRY(model_init(&b->e.model, &b->e.be, 5));
    engine_upload(&b->e, &b->stream);
    return OK;
}

static double model_flops(const Ledger *l)
{
    double f = 0;
    for (int i = 0; i < PART_N; i++) f += l->by_part[i].flops;
    return f;
}

static size_t bytes_of(const Engine *e)
{
    size_t n = 0;
    for (int i = 0; i < ARENA_N; i++) n += e->arena[i].peak;
    return n;
}

/* What an arena held at its highest, the large labels by name. */
static void print_arena(const Arena *a, size_t plan)
{
    printf("  %-8s %9.1f MiB %s", a->name, (double)a->peak / (1 << 20), a->peak == plan ? "" : " differs from the plan");
    for (int i = 0; i < a->labels; i++)
        if (a->label[i].at_peak * 20 > a->peak)
            printf("  %s %.0f %%", a->label[i].name, 100.0 * (double)a->label[i].at_peak / (double)a->peak);
    putchar('\n');
}

static void print_human(const StepBench *b, double first, double fwd, double bwd, double opt, Ceiling top)
{
    const Ledger *l = &b->e.plan.ledger;
    double f = model_flops(l), rate = f / (fwd + bwd) / 1e9;
    printf("%s  %lld tokens, %lld patches, %lld parameters, %s\n", b->shape.family, (long long)b->tokens,
           (long long)b->stream.patches, (long long)params_count(&b->e.model.params), dtype_name(b->dtype));
    printf("forward %.1f ms  backward %.1f ms  forward+backward %.1f ms  AdamW %.1f ms  first step %.2fx\n",
           fwd * 1e3, bwd * 1e3, (fwd + bwd) * 1e3, opt * 1e3, first / (fwd + bwd + opt));
    printf("%.0f tokens/s  model work %.1f GFLOP: vision %.0f %%  merger %.0f %%  decoder %.0f %%  head %.0f "
           "%%\n",
           (double)b->tokens / (fwd + bwd + opt), f / 1e9, 100 * l->by_part[PART_VISION].flops / f,
           100 * l->by_part[PART_MERGER].flops / f, 100 * l->by_part[PART_DECODER].flops / f,
           100 * l->by_part[PART_HEAD].flops / f);
    printf("%.1f GFLOP/s over forward+backward, %.0f %% of sgemm's %.1f GFLOP/s in this run\n", rate,
           100 * rate / top.gflops, top.gflops);
    printf("memory %.1f MiB, plan and run alike\n", (double)bytes_of(&b->e) / (1 << 20));
    for (int i = 0; i < ARENA_N; i++) print_arena(&b->e.arena[i], b->e.plan.bytes[i]);
}

static void print_json(const StepBench *b, double first, double fwd, double bwd, double opt, Ceiling top)
{
    double f = model_flops(&b->e.plan.ledger);
    Json  *o =
        json_pack("{s:s, s:s, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "label", "benchmark-only", "dtype",
                  dtype_name(b->dtype), "tokens", (json_int_t)b->tokens, "forward_s", fwd, "backward_s", bwd,
                  "update_s", opt, "first_step_s", first, "gflops", f / (fwd + bwd) / 1e9, "sgemm_gflops",
                  top.gflops, "mib", (double)bytes_of(&b->e) / (1 << 20));
    json_dumpf(o, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(o);
}

static Status run(StepBench *b)
{
    double fwd[99], bwd[99], opt[99], first = 0;
    TRY(open_bench(b));
    for (int64_t i = 0; i <= b->repeats; i++) {
        TRY(step(b, i + 1));
        if (!i) first = b->fwd + b->bwd + b->opt;
        else    fwd[i - 1] = b->fwd, bwd[i - 1] = b->bwd, opt[i - 1] = b->opt;
    }
    double f = median(fwd, b->repeats), w = median(bwd, b->repeats), o = median(opt, b->repeats);
    Arena a;
    TRY(backend_arena_open(&b->e.be, &a, "bench", (size_t)300 << 20));
    Ceiling top = bench_ceiling(&b->e.be, &a);
    backend_arena_close(&b->e.be, &a);
    (b->json ? print_json : print_human)(b, first, f, w, o, top);
    return OK;
}

Status bench_step(int argc, char **argv)
{
    StepBench b = { 0 };
    const char *model = NULL, *tokens = "2048", *doc = "512", *images = "4", *grid = "16", *repeat = "7",
               *dtype      = "f32";
    const Option options[] = {
        { "--model", &model, NULL },   { "--tokens", &tokens, NULL }, { "--doc", &doc, NULL },
        { "--images", &images, NULL }, { "--grid", &grid, NULL },     { "--repeat", &repeat, NULL },
        { "--dtype", &dtype, NULL },   { "--json", NULL, &b.json },   { 0 },
    };
    TRY(options_parse(argc, argv, options, NULL, 0));
    TRY(option_int("--tokens", tokens, 1, 1 << 24, &b.tokens));
    TRY(option_int("--doc", doc, 2, b.tokens, &b.doc));
    TRY(option_int("--images", images, 0, 1 << 20, &b.images));
    TRY(option_int("--grid", grid, 2, 1024, &b.grid));
    TRY(option_int("--repeat", repeat, 1, 98, &b.repeats));
    TRY(dtype_parse(&b.dtype, dtype));
    if (b.dtype != F32 && b.dtype != BF16) return fail(E_CONFIG, "--dtype %s: f32 or bf16", dtype);
    TRY(bench_model(&b.shape, model));
    Status st = run(&b);
    engine_close(&b.e);
    stream_close(&b.stream);
    return st;
}
