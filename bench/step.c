/* bench/step.c -- `treb bench step`: whole steps of a model on synthetic data, on any backend.
 *
 * The step is the trainer's: forward, backward, norm and clipped AdamW with f32 masters, over a packed stream
 * of random tokens and pictures. FLOPs are those the model needs (ledger), causal attention at half the
 * square, no recompute; utilisation is against the data sheet where the GPU is known, else against a product
 * of this run. The measured time is printed with the predicted one, for the hardware that --hardware names,
 * else for `this` where `treb bench calibrate` has been on this machine.
 *
 * The same steps are timed once more as `treb train` runs them (step_train.c), and on a GPU text also in
 * documents of unequal lengths (step_ragged.c); --brief leaves both out. Joules and the SM clock are those of
 * all timed steps.
 *
 * With --lora the weights are frozen and adapters train. --floor then measures the same step once more with
 * an adapter on the lowest of these modules alone: the gradient passes through the same frozen weights, so
 * that step is a lower bound for any set of adapters. */
#include "bench/bench.h"
#include "bench/step.h"
#include "cli/command.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/rng.h"
#include "model/family.h"
#include "model/presets.h"
#include "train/progress.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Tokens as text has them, the n-th most frequent 1/n as often as the first: few experts get many rows. */
static void draw_words(StepBench *b)
{
    double V = (double)b->shape.text.V;
    for (int64_t i = 0; i < b->stream.tokens; i++) {
        int32_t *id = &b->stream.ids[i];
        if (*id == b->stream.shape.image_token || *id == b->stream.shape.video_token) continue;
        *id = (int32_t)exp((double)rng_uniform(13, 0, (uint64_t)i) * log(V - 1)) - 1;
        if (*id == b->stream.shape.image_token || *id == b->stream.shape.video_token) *id = 0;
    }
}

/* Rows of the busiest expert of any layer over the mean. */
static double busiest(StepBench *b)
{
    int32_t off[1024];
    double  most = 0;
    for (int64_t l = 0; l < b->shape.text.L; l++) {
        const MoeAct *a = decoder_moe(&b->e.model.layer[l]) ? b->e.act->layer[l].ffn : NULL;
        Tensor t = a ? a->offsets : (Tensor){ 0 };
        if (!t_has(t) || t_count(t) > 1024) continue;
        backend_fetch(&b->e.be, off, t);
        for (int64_t e = 0, E = t_count(t) - 1; e < E && off[E]; e++) {
            double x = (double)(off[e + 1] - off[e]) * (double)E / off[E];
            if (x > most) most = x;
        }
    }
    return most;
}

OptimConf step_optim(int64_t number)
{
    return (OptimConf){ .adam = { .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f,
                                  .max_norm = 1.0f, .step = number } };
}

static Status step(StepBench *b)
{
    int64_t   number = ++b->steps;
    OptimConf o = step_optim(number);
    Ledger   *l = &b->e.be.ledger;
    double    t0 = clock_now();
    ledger_clear(l);
    ledger_start(l);
    engine_begin_step(&b->e, (int)b->micro);
    b->host = clock_now() - t0;
    b->fwd = b->bwd = 0, b->e.dropout_seed = (uint64_t)number;
    for (int64_t i = 0; i < b->micro; i++) {
        double begun = clock_now();
        engine_forward(&b->e, 1.0f / (float)(b->micro * b->stream.supervised));
        b->host += clock_now() - begun;
        TRY(engine_read_losses(&b->e, &b->losses));
        double t1 = clock_now();
        engine_backward(&b->e);
        b->host += clock_now() - t1;
        if (number == 2 && b->e.be.device->state) b->e.be.device->state(b->state, sizeof b->state);
        TRY(backend_sync(&b->e.be));
        b->fwd += t1 - t0, t0 = clock_now(), b->bwd += t0 - t1;
    }
    engine_update(&b->e, &o);
    ledger_stop(l);
    b->host += clock_now() - t0;
    TRY(backend_sync(&b->e.be));
    b->opt = clock_now() - t0;
    return OK;
}

static Budget budget_of(const StepBench *b, const StreamShape *ss)
{
    if (b->photos) return stream_photos_budget(ss, b->photos, 11);
    return (Budget){ .tokens = b->tokens, .patches = b->images * b->grid_h * b->grid_w,
                     .docs = b->tokens / b->doc, .supervised = b->tokens };
}

static void clear_arena(Engine *e, const Arena *a)
{
    int64_t words = (int64_t)(a->cap / sizeof(float));
    op_fill(&e->be, t_wrap(a->base, F32, 1, &words), 0.0f);
}

/* From fresh weights: the routing, and with it the time of a step, changes from step to step. */
static Status begin_training(StepBench *b)
{
    b->steps = 0;
    clear_arena(&b->e, &b->e.arena[A_OPTIM]);
    TRY(model_init(&b->e.model, &b->e.be, 5));
    engine_publish_weights(&b->e);
    engine_upload(&b->e, &b->stream);
    return backend_sync(&b->e.be);                           /* the first step does not pay for the start */
}

static Status open_bench(StepBench *b)
{
    double      from = clock_now();
    StreamShape ss = shape_stream(&b->shape);
    Budget      bud = budget_of(b, &ss);
    EngineConf  conf = { .backend = b->backend, .dtype = b->dtype, .budget = bud, .aux = AUX_LAYER,
                         .aux_coeff = 1e-3f, .train = true,
                         .deterministic = b->repeat, .graphs = step_all_graphs(b),
                         .store = b->store };
    memcpy(conf.policy, b->policy, sizeof conf.policy);
    conf.precision = b->precision, conf.fp8_weight_cache = true, conf.fp8_keep_wide = !b->codes_alone;
    conf.base = b->base_quant, conf.panel_elems = b->panel << 20;
    conf.full = b->full, conf.lora = b->lora, conf.ranks.micro = (int)b->micro;
    ss.bytes = true;
    TRY(stream_open(&b->stream, &ss, &bud));
    if (b->photos) TRY(stream_photos(&b->stream, b->photos, b->shape.text.V, 11));
    else TRY(stream_synthetic(&b->stream, b->doc, b->images, b->grid_h, b->grid_w, b->shape.text.V, 11));
    if (b->zipf) draw_words(b);
    b->tokens = bud.tokens;
    TRY(engine_open(&b->e, &b->shape, &conf, &b->stream));
    b->start = clock_now() - from;
    TRY(begin_training(b));
    b->ready = clock_now() - from;
    return OK;
}

/* Without --hardware the row `this` may be absent or of another machine. */
static Status find_hardware(StepBench *b)
{
    char path[4096];
    if (*b->hw.id)   return OK;                              /* given */
    if (b->hardware) return hardware_find(&b->hw, b->hardware);
    bool there = !hardware_file(path, sizeof path) && !access(path, R_OK) && !hardware_load(&b->hw, path);
    if (!there || strcmp(b->hw.backend, b->backend) || strcmp(b->hw.dtype, dtype_name(b->dtype)))
        b->hw = (Hardware){ 0 };
    return OK;
}

static Status predict(StepBench *b)
{
    EngineConf conf = b->e.conf;
    EnginePlan plan;
    Timeline     *price;
    StepAsk    ask;
    Load       load = load_of(&b->stream);
    TRY(find_hardware(b));
    if (!*b->hw.id) return OK;
    TRY(timeline_open(&price, &b->hw, &conf, USUAL_UNEVEN));
    conf.meter = timeline_listener(price);
    Status st = engine_plan(&plan, &b->shape, &conf, &b->stream);
    timeline_close(price, &b->expected);
    TRY(st);
    conf.ranks.micro = (int)b->micro;
    TRY(timeline_ask(&ask, &b->hw, &conf, &b->shape, &load, 1));
    return timeline_step(&b->predicted, &ask, &b->expected, 1, NULL);
}

enum { MOST_REPEATS = 99 };

static double model_flops(const Ledger *l)
{
    double f = 0;
    for (int i = 0; i < PART_N; i++) f += l->by_part[i].flops;
    return f;
}

/* Steps over the stream that was uploaded. */
static Status time_steps(StepBench *b, StepTimes *out)
{
    double    fwd[MOST_REPEATS], bwd[MOST_REPEATS], opt[MOST_REPEATS], host[MOST_REPEATS];
    double    part[PART_N][MOST_REPEATS];
    StepTimes t = { 0 };
    EnergyMeter meter;
    Status      st = OK;
    TRY(step(b));
    t.first = b->fwd + b->bwd + b->opt;
    energy_start(&meter, &b->e.be);
    for (int64_t i = 0; i < b->repeats && !(st = step(b)); i++) {
        if (!i) t.second = b->fwd + b->bwd + b->opt;
        fwd[i] = b->fwd, bwd[i] = b->bwd, opt[i] = b->opt, host[i] = b->host;
        for (int p = 0; p < PART_N; p++) part[p][i] = b->e.be.ledger.seconds[p];
    }
    t.energy = energy_stop(&meter), t.flops = model_flops(&b->e.be.ledger);
    t.launches = b->e.be.ledger.launches;
    TRY(st);
    t.energy.joules /= (double)b->repeats, t.energy.seconds /= (double)b->repeats;
    t.fwd = bench_middle(fwd, b->repeats), t.bwd = bench_middle(bwd, b->repeats);
    t.opt = bench_middle(opt, b->repeats), t.host = bench_middle(host, b->repeats);
    for (int p = 0; p < PART_N; p++) t.part[p] = bench_middle(part[p], b->repeats);
    t.busiest = busiest(b);
    *out = t;
    PeakFlops peak;
    TRY(peak_flops(&b->e.be, b->dtype, &peak));
    out->peak = peak.flops;
    return OK;
}

static Status open_and_predict(StepBench *b)
{
    TRY(open_bench(b));
    TRY(predict(b));
    return b->ways ? engine_use_graphs(&b->e, b->way[0].bits) : OK;
}

static Status measure_train(StepBench *b, StepTimes *t)
{
    if (b->brief) return OK;
    TRY(step_train(b, t));
    if (!b->json) step_print_train(t);
    return OK;
}

/* Each row is printed when it is measured: a benchmark that is interrupted has shown its first rows. */
static Status measure(StepBench *b, StepTimes *t)
{
    TRY(open_and_predict(b));
    if (!b->json) step_print_start(b);
    TRY(time_steps(b, t));
    if (!b->json) step_print(b, t);
    return measure_train(b, t);
}

/* The other values of --cuda-graph. */
static Status measure_graphs(StepBench *b, const StepTimes *first, Json *o)
{
    for (int i = 1; i < b->ways; i++) {
        StepTimes t = { 0 };
        TRY(engine_use_graphs(&b->e, b->way[i].bits));
        TRY(begin_training(b));
        TRY(time_steps(b, &t));
        if (!o) step_print_graphs(b, &b->way[i], &t, first);
        TRY(measure_train(b, &t));
        if (o) json_object_set_new(o, b->way[i].words, step_json(b, &t));
    }
    return b->ways > 1 ? engine_use_graphs(&b->e, b->way[0].bits) : OK;
}

/* The engine stays as it is: the budgets are those of the even documents. */
static Status measure_ragged(StepBench *b, const StepTimes *even, StepTimes *t)
{
    TRY(step_fill_ragged(b));
    if (b->zipf) draw_words(b);
    TRY(engine_warm_up(&b->e, &b->stream));
    engine_upload(&b->e, &b->stream);
    TRY(time_steps(b, t));
    if (!b->json) step_print_ragged(b, even, t);
    return measure_train(b, t);
}

static void close_bench(StepBench *b)
{
    engine_close(&b->e);
    stream_close(&b->stream);
}

/* The lowest module that has an adapter and a gradient: modules are declared from the pixels on. */
static Status find_lowest(StepBench *b)
{
    const ParamSet *s = &b->e.model.params;
    int i = 0;
    while (i < s->n && !(s->p[i]->lora && (b->stream.patches || s->p[i]->group == G_LLM))) i++;
    if (i == s->n) return fail(E_CONFIG, "--floor: without pictures none of --targets has a gradient");
    b->lowest = (LoraTarget){ .rank = b->lora.rank, .alpha = b->lora.alpha };
    lora_module_name(b->lowest.module, sizeof b->lowest.module, s->p[i], s->p[i]->lora->part[0].piece);
    return OK;
}

/* Weights are there once at a time: the first engine is closed. */
static Status measure_floor(StepBench *b, const StepTimes *t, StepTimes *low)
{
    TRY(find_lowest(b));
    close_bench(b);
    b->lora = (LoraConf){ .rank = b->lora.rank, .alpha = b->lora.alpha, .exact = &b->lowest, .exacts = 1 };
    TRY(open_and_predict(b));
    TRY(time_steps(b, low));
    if (!b->json) step_print_floor(b, t, low);
    return OK;
}

static Status run(StepBench *b)
{
    StepTimes t = { 0 }, low = { 0 }, ragged = { 0 };
    TRY(measure(b, &t));
    Json  *o = b->json ? step_json(b, &t) : NULL;
    Status st = measure_graphs(b, &t, o);
    if (!st && b->ragged) st = measure_ragged(b, &t, &ragged);
    if (!st && b->ragged && b->json) json_object_set_new(o, "ragged", step_json(b, &ragged));
    if (!st && b->floor) st = measure_floor(b, &t, &low);
    if (!st && b->floor && b->json) json_object_set_new(o, "floor", step_json(b, &low));
    if (!st && b->json) json_dumpf(o, stdout, JSON_INDENT(2)), putchar('\n');
    json_decref(o);
    return st;
}

/* The built-in model; on a GPU two layers of Qwen3-VL-30B-A3B. */
static StepBench whole_step(const Hardware *hw, const char *backend, DType d)
{
    bool      gpu = strcmp(backend, "cpu") != 0;
    StepBench b = { .backend = backend, .dtype = d, .hw = *hw, .micro = 1, .images = 4,
                    .tokens = gpu ? 16384 : 2048, .doc = gpu ? 4096 : 512, .grid_h = gpu ? 32 : 16,
                    .grid_w = gpu ? 64 : 16, .layers = gpu ? 2 : 0, .repeats = gpu ? 15 : 3,
                    .cuda_graph = "none" };
    policy_default(b.policy);
    return b;
}

Status bench_together(double *ratio, const Hardware *hw, const char *backend, DType d)
{
    double    t[MOST_REPEATS];
    StepBench b = whole_step(hw, backend, d);
    TRY(bench_model(&b.shape, b.layers ? "Qwen3-VL-30B-A3B" : NULL, b.layers));
    Status st = open_bench(&b);
    if (!st) st = predict(&b);
    for (int64_t i = 0; i <= b.repeats && !st; i++) {
        st = step(&b);
        t[i ? i - 1 : 0] = b.fwd + b.bwd + b.opt;            /* the first is not like the others */
    }
    if (!st) *ratio = bench_middle(t, b.repeats) / b.predicted.step;
    close_bench(&b);
    return st;
}

static Status read_grid(StepBench *b, const char *text)
{
    char       *end;
    const char *w = strchr(text, 'x');
    b->grid_h = strtoll(text, &end, 10);
    bool whole_h = !w || end == w;
    b->grid_w = w ? strtoll(w + 1, &end, 10) : b->grid_h;
    if (!whole_h || *end || b->grid_h < 2 || b->grid_w < 2 || b->grid_h > 1024 || b->grid_w > 1024)
        return fail(E_CONFIG, "--grid %s: patches of a picture, such as 16 or 32x64", text);
    return OK;
}

/* b stays where it is: the target words point into its text. */
static Status read_lora(StepBench *b)
{
    char *rest = NULL;
    if (!b->lora_rank && (b->targets || b->dropout > 0 || b->shared_a || b->floor))
        return fail(E_CONFIG, "--targets, --dropout, --shared-a and --floor are of --lora RANK");
    snprintf(b->text, sizeof b->text, "%s", b->targets ? b->targets : "all-linear");
    for (char *w = strtok_r(b->text, ",", &rest); w && b->words.n < 32; w = strtok_r(NULL, ",", &rest))
        b->word[b->words.n++] = w;
    b->words.item = b->word;
    if (b->lora_rank)
        b->lora = (LoraConf){ .rank     = b->lora_rank,
                                 .alpha    = 2 * (double)b->lora_rank,
                                 .dropout  = b->dropout,
                                 .shared_a = b->shared_a,
                                 .target   = &b->words };
    return OK;
}

/* Those that train.fp8_products has where a recipe lists none. */
static Status default_fp8(StepBench *b)
{
    Config c;
    config_default(&c);
    Status st = precision_set(&b->precision, PREC_FP8, c.train.fp8_products.item, c.train.fp8_products.n);
    config_close(&c);
    return st;
}

static Status read_fp8(StepBench *b)
{
    char        text[256], *rest = NULL;
    const char *word[16];
    int         n = 0;
    if (!b->fp8) return OK;
    if (!strcmp(b->fp8, "default")) return default_fp8(b);
    snprintf(text, sizeof text, "%s", b->fp8);
    for (char *w = strtok_r(text, ",", &rest); w && n < 16; w = strtok_r(NULL, ",", &rest)) word[n++] = w;
    return precision_set(&b->precision, PREC_FP8, word, n);
}

/* Reads the groups of weights of --base: the default of model.base_quant_weights. */
static Status read_base(StepBench *b)
{
    static const char *const word[] = { "experts", "attention", "mlp" };
    if (b->base && !b->lora_rank) return fail(E_CONFIG, "--base %s is of --lora RANK", b->base);
    return base_quant_read(&b->base_quant, b->base ? b->base : "none", word, 3);
}

static const Option options[] = {
    OPTION_TEXT(StepBench, model, "--model", "DIR|PRESET", "a small built-in model unless given"),
    OPTION_INT(StepBench, layers, "--layers", "N", 0, 4096, "of a preset, fewer layers than it has"),
    OPTION_INT(StepBench, tokens, "--tokens", "N", 1, 1 << 24, "tokens of a micro-batch (default 2048)"),
    OPTION_INT(StepBench, doc, "--doc", "N", 2, 1 << 24, "tokens of a document (default 512)"),
    OPTION_INT(StepBench, images, "--images", "N", 0, 1 << 20, "pictures (default 4)"),
    OPTION_TEXT(StepBench, grid, "--grid", "HxW", "patches of a picture, such as 16 or 32x64"),
    OPTION_INT(StepBench, photos, "--photos", "N", 0, 1 << 20,
               "documents of one photograph and a short text instead"),
    OPTION_INT(StepBench, micro, "--micro", "N", 1, 1024, "micro-batches of a step (default 1)"),
    OPTION_FLAG(StepBench, ragged, "--ragged", "documents of unequal lengths as well; without pictures"),
    OPTION_FLAG(StepBench, zipf, "--zipf", "uneven routing, as trained routers have it"),
    OPTION_TEXT(StepBench, backend, "--backend", "NAME", "cpu, cuda or auto (default cpu)"),
    OPTION_TEXT(StepBench, dtype_name, "--dtype", "f32|bf16", "of weights and activations (default f32)"),
    OPTION_TEXT(StepBench, recompute, "--recompute", "WORDS", "as memory.recompute, by commas"),
    OPTION_TEXT(StepBench, offload, "--offload", "WORDS", "as memory.activation_offload, by commas"),
    OPTION_TEXT(StepBench, moments, "--moments", "f32|bf16|int8",
                "of the optimizer's moments, as optim.state_dtype (default f32)"),
    OPTION_TEXT(StepBench, grads, "--grads", "f32|bf16", "of gradients, as optim.grad_dtype (default f32)"),
    OPTION_FLAG(StepBench, store.split, "--split", "masters as weight and remainder"),
    OPTION_REAL(StepBench, store.offload_fraction, "--optimizer-offload", "SHARE", 0, 1,
                "share of the optimizer state on the host (default 0)"),
    OPTION_TEXT(StepBench, fp8, "--fp8", "WORDS",
                "products in fp8_block, as train.fp8_products, by commas; default: those of that key"),
    OPTION_FLAG(StepBench, codes_alone, "--fp8-codes-alone", "as memory.fp8_bf16_weights=false"),
    OPTION_FLAG(StepBench, repeat, "--deterministic", "gradients that repeat to the bit"),
    OPTION_TEXT(StepBench, cuda_graph, "--cuda-graph", "WORDS",
                "as train.cuda_graph, by commas; several by /, compared (default none)"),
    OPTION_TEXT(StepBench, hardware, "--hardware", "ID",
                "predict from this row (default: `this` where there is one)"),
    OPTION_TEXT(StepBench, base, "--base", "fp8|int8|nf4",
                "with --lora: frozen weights of experts, attention and mlp in these codes alone"),
    OPTION_INT(StepBench, panel, "--panel", "N", 1, 65536,
               "with --base: Mi elements decoded at once (default 48)"),
    OPTION_INT(StepBench, lora_rank, "--lora", "RANK", 1, 65536, "freeze the weights and train adapters"),
    OPTION_TEXT(StepBench, targets, "--targets", "WORDS", "of lora.target_modules (default all-linear)"),
    OPTION_REAL(StepBench, dropout, "--dropout", "P", 0, 0.999999, "of adapters (default 0)"),
    OPTION_FLAG(StepBench, shared_a, "--shared-a", "one A for all experts of a layer"),
    OPTION_FLAG(StepBench, floor, "--floor", "measure the step of the frozen weights beside it"),
    OPTION_INT(StepBench, repeats, "--repeat", "N", 1, MOST_REPEATS - 1, "steps to time (default 7)"),
    OPTION_FLAG(StepBench, brief, "--brief", "only steps of even documents, with their parts apart"),
    OPTION_FLAG(StepBench, json, "--json", "print the result as JSON"),
    OPTION_END
};

/* int8: codes by block, which have the type of their bytes here. */
static Status read_moments(StepBench *b)
{
    bool coded = !strcmp(b->moments, "int8");
    if (coded) return b->store.moments = U8, OK;
    if (option_dtype("--moments", b->moments, &b->store.moments))
        return fail(E_CONFIG, "--moments = %s: must be f32, bf16 or int8", b->moments);
    return OK;
}

static Status read_grads(StepBench *b)
{
    TRY(option_dtype("--grads", b->grads, &b->store.grads));
    return b->store.grads == BF16 && b->dtype == F32
               ? fail(E_CONFIG, "--grads bf16: gradients of f32 weights are f32; set --dtype bf16") : OK;
}

static Status read_args(StepBench *b, int argc, char **argv)
{
    TRY(options_parse(argc, argv, options, b, NULL));
    if (b->doc > b->tokens) return fail(E_CONFIG, "--doc is above --tokens: a document fits its micro-batch");
    TRY(step_read_graphs(b, b->cuda_graph));
    TRY(read_grid(b, b->grid));
    policy_default(b->policy);
    TRY(recompute_words(b->policy, &b->full, b->recompute));
    TRY(offload_words(b->policy, b->offload));
    TRY(read_fp8(b));
    TRY(read_base(b));
    TRY(option_dtype("--dtype", b->dtype_name, &b->dtype));
    TRY(read_moments(b));
    TRY(read_grads(b));
    TRY(read_lora(b));
    TRY(bench_model(&b->shape, b->model, b->layers));
    if (!b->shape.vision.depth) b->images = b->photos = 0;
    if (b->ragged && (b->images || b->photos))
        return fail(E_CONFIG, "--ragged: its documents have no pictures; set --images 0");
    b->backend = backend_pick(b->backend);
    b->ragged |= !b->images && !b->photos && b->doc < b->tokens && strcmp(b->backend, "cpu");
    b->ragged &= !b->brief;
    return OK;
}

static Status run_step(int argc, char **argv)
{
    StepBench b = { .tokens = 2048, .doc = 512, .images = 4, .grid = "16", .repeats = 7, .dtype_name = "f32",
                    .micro = 1, .backend = "cpu", .moments = "f32", .grads = "f32", .cuda_graph = "none" };
    TRY(read_args(&b, argc, argv));
    Status st = run(&b);
    close_bench(&b);
    return st;
}

static const Usage usage = {
    .args    = "",
    .options = options,
    .notes   = "Forward, backward and AdamW of a model on synthetic documents and pictures. --model "
               "Qwen3-VL-30B-A3B --layers 8 --backend cuda --dtype bf16 is the proxy of "
               "docs/performance.md.",
};

const Command bench_step = {
    .name  = "step",
    .help  = "whole training steps of a model on synthetic data",
    .run   = run_step,
    .usage = USAGE(&usage),
};
