/* tests/test_analytic.c -- the analytic model against reference numbers: parameters, FLOPs of a token, bytes
 * of a layer, small runs; against built models, parameter by parameter, and against the dry run. Measurements
 * of other trainers are in test_published.c. */
#include "analyticlab.h"
#include "base/rng.h"
#include "model/model.h"
#include "model/presets.h"
#include "plan/dryrun.h"

#include <time.h>

static void models_have_their_size(void)
{
    static const struct { const char *name; int mtp; double dense, experts, embed, active, short_, long_;
    } rows[] = {
        { "qwen3-30b-a3b",      0, 0.919,  28.991,   0.622, 3.353,  23.01,  27.84 },
        { "qwen3-235b-a22b",    0, 6.753,  227.096,  1.245, 22.191, 148.03, 166.96 },
        { "deepseek-v3",        0, 15.264, 653.909,  1.853, 37.55,  249.81, 280.51 },
        { "deepseek-v3",        1, 15.600, 665.183,  1.853, 0,      259.99, 291.20 },
        { "kimi-k2",            0, 9.373,  1014.686, 2.349, 32.86,  204.48, 219.83 },
        { "moonlight-16b-a3b",  0, 0.894,  14.395,   0.671, 2.915,  17.15,  18.85 },
        { "mixtral-8x7b",       0, 1.343,  45.097,   0.262, 12.880, 79.71,  82.93 },
        { "olmoe-7b-1b",        0, 0.271,  6.442,    0.206, 1.282,  7.87,   8.67 },
        { "glm-4.5",            0, 15.281, 335.96,   1.552, 33.63,  224.5,  0 },
        { "glm-4.5-air",        0, 5.953,  99.66,    1.242, 13.42,  90.6,   0 },
        { "gpt-oss-120b",       0, 0.969,  114.70,   1.158, 5.71,   32.63,  0 },
        { "qwen3-next-80b-a3b", 0, 1.743,  77.309,   0.622, 3.875,  22.74,  23.95 },
        { "qwen3.5-35b-a3b",    0, 1.431,  32.21,    1.017, 3.455,  18.94,  0 },
        { "qwen3.5-35b-a3b",    1, 1.471,  33.02,    1.017, 0,      22.47,  0 },
        { "qwen3.5-397b-a17b",  0, 7.765,  386.55,   2.034, 17.35,  101.4,  0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ModelRow m = *model_row(rows[i].name);
        m.text.mtp = rows[i].mtp;
        ModelCounts n = analytic_params(&m);
        near(m.name, n.dense / 1e9, rows[i].dense, 2e-3);             /* as many digits as the table has */
        near(m.name, n.experts / 1e9, rows[i].experts, 1e-4);
        near(m.name, n.embed / 1e9, rows[i].embed, 1e-3);
        if (rows[i].active) near(m.name, n.active / 1e9, rows[i].active, 1e-3);
        near(m.name, analytic_flops_token(&m, 4096) / 1e9, rows[i].short_, 1e-3);
        if (rows[i].long_) near(m.name, analytic_flops_token(&m, 8192) / 1e9, rows[i].long_, 1e-3);
    }
}

/* Every row that names a preset has that preset's parameters, to the last one. */
static void rows_are_the_presets(void)
{
    int built = 0;
    for (int i = 0; model_row_at(i); i++) {
        const ModelRow *m = model_row_at(i);
        Json *hf = NULL;
        ModelShape s = { 0 };
        Model whole = { 0 };
        if (!m->preset) continue;
        EXPECT_OK(preset_config(&hf, m->preset));
        EXPECT_OK(shape_read(&s, hf, m->preset));
        EXPECT_OK(model_open(&whole, &s, NULL));
        EXPECT(params_count(&whole.params) == (int64_t)analytic_params(m).total, "%s: %lld, analytic %.0f",
               m->name, (long long)params_count(&whole.params), analytic_params(m).total);
        model_close(&whole);
        json_decref(hf);
        built++;
    }
    EXPECT(built == 21, "%d rows can be built", built);
}

static void names_are_understood(void)
{
    static const char *const names[][2] = {
        { "Qwen/Qwen3-VL-30B-A3B-Instruct", "qwen3-vl-30b-a3b" }, { "zai-org/GLM-4.5-Air", "glm-4.5-air" },
        { "zai-org/GLM-4.5", "glm-4.5" },              { "deepseek-ai/DeepSeek-R1", "deepseek-v3" },
        { "allenai/OLMoE-1B-7B-0924", "olmoe-7b-1b" },            { "Qwen3-30B-A3B", "qwen3-30b-a3b" },
        { "Qwen/Qwen3.6-35B-A3B", "qwen3.5-35b-a3b" },            { "openai/gpt-oss-20b", "gpt-oss-20b" },
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const ModelRow *m = model_row(names[i][0]);
        EXPECT(m && !strcmp(m->name, names[i][1]), "%s is %s", names[i][0], m ? m->name : "nothing");
    }
    EXPECT(!model_row("qwen3") && !model_row("qwen3-vl-31b") && !model_row("") && !model_row("deepseek-v9"),
           "a name that is none");
    EXPECT(!model_row_at(-1) && !model_row_at(1000), "past the ends");
}

static void other_conventions(void)
{
    const ModelRow *m = model_row("qwen3-vl-30b-a3b");
    near("all pairs, the tower on every token", analytic_flops_full(m, 12288) / 1e9, 50.47, 2e-4);
    near("causal half", analytic_flops_token(m, 12288) / 1e9, 32.67, 2e-4);
    near("28 x 28 patches", analytic_flops_vision(m, 784, false) / 1e12, 2.31, 2e-3);
    near("of a visual token", analytic_flops_vision(m, 784, false) / 196 / 1e9, 11.8, 5e-3);
    near("30 x 40", analytic_flops_vision(m, 1200, false) / 300 / 1e9, 12.4, 5e-3);
    near("64 x 64", analytic_flops_vision(m, 4096, false) / 1024 / 1e9, 16.7, 5e-3);
    near("frozen", analytic_flops_vision(m, 784, true) * 3, analytic_flops_vision(m, 784, false), 1e-12);
    near("towers", analytic_params(m).vision / 1e9, 0.538, 2e-3);
    near("towers", analytic_params(model_row("qwen3-vl-235b-a22b")).vision / 1e9, 0.576, 2e-3);
}

static void layers_have_their_bytes(void)
{
    Task q = task("qwen3-30b-a3b", 16, 1024, 2, 4), d = task("deepseek-v3", 256, 4096, 4, 4),
         l = task("moonlight", 8, 4, 2, 2);
    Candidate one = way(1, 1, 16, 1), two = way(2, 1, 8, 1);
    LayerClass gqa = { .kinds = { ATTENTION_GQA, FFN_MOE } }, mla = { .kinds = { ATTENTION_MLA, FFN_MOE } };
    LayerBytes b;
    analytic_layer(&b, &q, &one, gqa);
    near("residuals", (b.of[L_INPUT] + b.of[L_RESID]) / 1e6, 2 * 16.8, 3e-3);
    near("norms", (b.of[L_NORM] + b.of[L_MLP_NORM]) / 1e6, 2 * 16.8, 3e-3);
    near("qkv", b.of[L_QKV] / 1e6, 41.9, 2e-3);
    near("rotated", b.of[L_ROPE] / 1e6, 37.7, 2e-3);
    near("core", b.of[L_CORE] / 1e6, 33.6, 2e-3);
    near("router", b.of[L_LOGITS] / 1e6, 4.7, 5e-3);
    near("input", b.of[L_DISPATCH] / 1e6, 134.2, 1e-3);
    near("fc1", b.of[L_GATE_UP] / 1e6, 100.7, 1e-3);
    near("act", b.of[L_ACT] / 1e6, 50.3, 1e-3);
    near("a layer of 30B", analytic_layer_kept(&b, &q, 0) / 1e6, 470.8, 1e-3);
    analytic_layer(&b, &d, &one, mla);
    near("up", b.of[L_UP_PROJ] / 1e6, 402.7 + 134.2, 1e-3);
    near("low", b.of[L_LATENT] / 1e6, 2 * 12.6 + 8.9, 2e-3);
    near("shared", (b.of[L_SHARED_UP] + b.of[L_SHARED_ACT]) / 1e6, 50.4, 2e-3);
    near("both norms", (b.of[L_NORM] + b.of[L_MLP_NORM]) / 1e6, 117, 5e-3);
    near("act", b.of[L_ACT] / 1e6, 134, 5e-3);
    near("a layer of DeepSeek", analytic_layer_kept(&b, &d, 0) / 1e6, 1874, 1e-3);
    d.keep_fc2 = true;
    analytic_layer(&b, &d, &one, mla);
    near("output of the experts", b.fc2 / 1e6, 470, 2e-3);
    analytic_layer(&b, &l, &two, mla);
    near("a layer of Moonlight", analytic_layer_kept(&b, &l, 0) / 1e6, 270.0, 1e-3);   /* latents by rows */
}

/* Without exchange buffers and context, as the reference is. */
static double gb(const Task *t, const Candidate *c, int stage)
{
    StageMemory s;
    analytic_memory(&s, t, c, stage);
    EXPECT(fabs(s.weights + s.grads + s.optimizer + s.activations + s.logits + s.vision + s.buffers + s.fixed
                - s.total) < 1, "the parts of stage %d are not the whole", stage);
    return (s.total - s.buffers - s.fixed) / 1e9;
}

/* Bytes of the fullest stage; hw: and seconds of a step. */
static double dry_peak(const char *recipe, int n, char **with, int ranks, const Hardware *hw, double *step)
{
    Config cfg;
    DryRun d = { 0 };
    char *all[8] = { "device.backend=cuda", "moe.rank_capacity=1" };
    for (int i = 0; i < n; i++) all[2 + i] = with[i];
    EXPECT_OK(config_open(&cfg, recipe, n + 2, all));
    EXPECT_OK(dryrun_open(&d, &cfg, ranks, hw ? hardware_node(hw, ranks) : 8, hw));
    double peak = (double)dryrun_peak(&d, NULL);
    if (step) *step = d.step.step;
    dryrun_close(&d);
    config_close(&cfg);
    return peak;
}

/* Where routing is even, the analytic model is within 5 % of the dry run's memory and within 15 % of its
 * time, on the same row of hardware. */
static void analytic_is_near_the_dry_run(void)
{
    static const struct {
        const char *recipe, *preset, *hw; int ranks, master; int64_t seq, gbs, patches; Candidate c;
        char *as;                                            /* in place of what the recipe says */
    } rows[] = {
        { "recipes/qwen3-30b-a3b-16-h100.yaml", "Qwen3-30B-A3B", "h100", 16, 2, 4096, 1024, 0,
          { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 16, .etp = 1, .mbs = 1, .zero = 1, .overlap = true,
            .dispatch = DISPATCHER_hybridep }, "moe.overlap=true" },
        { "recipes/qwen3-30b-a3b-16-h100-32k.yaml", "Qwen3-30B-A3B", "h100", 16, 4, 32768, 32, 0,
          { .tp = 8, .cp = 2, .pp = 1, .vpp = 1, .ep = 8, .etp = 1, .mbs = 1, .zero = 1,
            .recompute = RE_FULL, .dispatch = DISPATCHER_peer }, "memory.recompute=full" },
        { "recipes/qwen3-235b-a22b-256-h100.yaml", "Qwen3-235B-A22B", "h100", 256, 2, 4096, 8192, 0,
          { .tp = 2, .cp = 1, .pp = 8, .vpp = 4, .ep = 32, .etp = 1, .mbs = 1, .zero = 1, .overlap = true,
            .recompute = RE_MOE_ACT | RE_NORM, .dispatch = DISPATCHER_deepep_peer }, NULL },
        { "recipes/qwen3-235b-a22b-128-gb200-128k.yaml", "Qwen3-235B-A22B", "gb200", 128, 4, 131072, 64, 0,
          { .tp = 4, .cp = 4, .pp = 4, .vpp = 12, .ep = 32, .etp = 1, .mbs = 1, .zero = 1,
            .recompute = RE_MOE_ACT | RE_NORM, .dispatch = DISPATCHER_hybridep },
          "memory.recompute=[moe_act,layernorm]" },
        { "recipes/qwen3-vl-30b-a3b-8-h200-3d.yaml", "Qwen3-VL-30B-A3B", "h200", 8, 2, 8192, 64, 32768,
          { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 8, .etp = 1, .mbs = 1, .zero = 1,
            .recompute = RE_MOE_ACT | RE_NORM | RE_VISION }, NULL },
        { "recipes/qwen3-vl-30b-a3b-8-h200-fsdp.yaml", "Qwen3-VL-30B-A3B", "h200", 8, 4, 8192, 64, 32768,
          { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 4, .etp = 1, .mbs = 1, .zero = 3,
            .recompute = RE_MOE_ACT | RE_NORM | RE_VISION }, NULL },
        { "recipes/qwen3-vl-30b-a3b-8-h200-fsdp.yaml", "Qwen3-VL-30B-A3B", "h200", 8, 4, 8192, 64, 32768,
          { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 4, .etp = 1, .mbs = 1, .zero = 3, .overlap = true,
            .recompute = RE_MOE_ACT | RE_NORM | RE_VISION }, "moe.overlap=true" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char preset[64];
        char *with[] = { preset, rows[i].as };
        Task t = task(rows[i].preset, rows[i].ranks, rows[i].gbs, 4, 4);
        snprintf(preset, sizeof preset, "model.preset=%s", rows[i].preset);
        EXPECT_OK(hardware_find(&t.hw, rows[i].hw));
        t.seq = rows[i].seq, t.patches = rows[i].patches, t.unfused_logits = t.foreign = false;
        t.master_bytes = rows[i].master;
        int    more = rows[i].as ? 2 : 1;
        double seconds, peak = dry_peak(rows[i].recipe, more, with, rows[i].ranks, &t.hw, &seconds);
        StepTime s;
        analytic_time(&s, &t, &rows[i].c);
        near(rows[i].recipe, analytic_peak(&t, &rows[i].c, NULL) - t.hw.fixed, peak, 0.05);
        near(rows[i].recipe, s.step, seconds, 0.15);
    }
}

/* Every word of memory.recompute drops as many bytes as in the trainer, of the tower too. */
static void words_drop_as_much(void)
{
    static const struct { const char *word; unsigned bit; } rows[] = {
        { "",     0 },                    { "core_attn", RE_CORE },         { "layernorm", RE_NORM },
        { "moe_act", RE_MOE_ACT },        { "moe_dispatch", RE_MOE_DISPATCH }, { "moe", RE_MOE },
        { "vision", RE_VISION },          { "full", RE_FULL },
    };
    Task t = task("qwen3-vl-30b-a3b", 8, 64, 4, 4);
    Candidate c = way(1, 1, 8, 1);
    EXPECT_OK(hardware_find(&t.hw, "h200"));
    t.seq = 8192, t.patches = 32768, t.unfused_logits = t.foreign = false;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char words[64];
        char *with[] = { "model.preset=Qwen3-VL-30B-A3B", "optim.master=float32", words };
        snprintf(words, sizeof words, "memory.recompute=[%s]", rows[i].word);
        c.recompute = rows[i].bit;
        near(rows[i].word, analytic_peak(&t, &c, NULL) - t.hw.fixed,
             dry_peak("recipes/qwen3-vl-30b-a3b-8-h200-3d.yaml", 3, with, 8, NULL, NULL), 0.01);
    }
}

/* Narrow and offloaded optimizer states take as many bytes as in the trainer. */
static void states_take_as_much(void)
{
    static const struct { char *word; double moment; int master; double offload; } rows[] = {
        { "optim.state_dtype=int8", 1 + 4.0 / 256, 4, 0 },
        { "optim.master=split", 4, 2, 0 },           { "optim.state_dtype=bfloat16", 2, 4, 0 },
        { "memory.optimizer_offload=0.5", 4, 4, 0.5 }, { "memory.optimizer_offload=1", 4, 4, 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *with[] = { "model.preset=Qwen3-30B-A3B", "optim.master=float32", rows[i].word };
        Task t = task("qwen3-30b-a3b", 16, 1024, 4, 4);
        Candidate c = way(1, 1, 16, 1);
        EXPECT_OK(hardware_find(&t.hw, "h100"));
        t.moment_bytes = rows[i].moment, t.master_bytes = rows[i].master, c.offload = rows[i].offload;
        t.unfused_logits = t.foreign = false;
        near(rows[i].word, analytic_peak(&t, &c, NULL) - t.hw.fixed,
             dry_peak("recipes/qwen3-30b-a3b-16-h100.yaml", 3, with, 16, NULL, NULL), 0.01);
    }
}

static void small_worlds(void)
{
    Task q = task("qwen3-30b-a3b", 8, 512, 2, 4), m = task("moonlight", 8, 512, 4, 4);
    Task o = task("olmoe", 8, 512, 4, 4), x = task("mixtral-8x7b", 32, 512, 4, 4);
    Candidate c = way(1, 1, 8, 1), two = way(1, 1, 8, 2), four = way(1, 1, 8, 4), eight = way(1, 1, 8, 8);
    Candidate alone = way(1, 1, 1, 1), pipe = way(1, 4, 8, 1);
    near("30B", gb(&q, &c, 0), 92.8, 1e-3);
    near("30B, two", gb(&q, &two, 0), 119.1, 1e-3);
    near("30B, four", gb(&q, &four, 0), 171.8, 1e-3);
    near("30B, eight", gb(&q, &eight, 0), 277.1, 1e-3);
    q.grad_bytes = 4;
    near("30B, f32 gradients", gb(&q, &c, 0), 103.1, 1e-3);
    q.grad_bytes = q.moment_bytes = 2;
    near("30B, bf16 moments", gb(&q, &c, 0), 77.5, 1e-3);
    c.recompute = RE_MOE_ACT | RE_NORM;
    near("30B, less kept", gb(&q, &c, 0), 73.5, 1e-3);
    c.recompute = 0;
    near("Moonlight", gb(&m, &c, 0), 62.7, 3e-3);
    m.grad_bytes = 2;
    near("Moonlight, bf16 gradients", gb(&m, &c, 0), 56.0, 3e-3);
    near("OLMoE", gb(&o, &four, 0), 55.4, 1e-3);
    o.gpus = 1;
    near("OLMoE alone", gb(&o, &alone, 0), 133.9, 1e-3);
    near("Mixtral", gb(&x, &pipe, 0), 60.6, 1e-3);
}

/* 80 GB GPUs do not hold GLM-4.5-Air this way, nor the 30B model with f32 gradients on eight of them. */
static void what_does_not_fit(void)
{
    Task g = task("glm-4.5-air", 32, 512, 4, 4), q = task("qwen3-30b-a3b", 8, 512, 4, 4);
    Candidate pipe = way(1, 4, 8, 1), c = way(1, 1, 8, 1);
    int stage = -1;
    EXPECT_OK(hardware_find(&g.hw, "h100"));
    q.hw = g.hw;
    EXPECT(analytic_peak(&g, &pipe, &stage) > g.hw.capacity && stage == 0, "GLM-4.5-Air: stage %d", stage);
    EXPECT(analytic_peak(&q, &c, NULL) > q.hw.capacity, "30B with f32 gradients");
    g.gpus = 256, pipe.recompute = RE_FULL, g.moment_bytes = 2;       /* more replicas, full recompute */
    EXPECT(analytic_peak(&g, &pipe, NULL) < g.hw.capacity, "GLM-4.5-Air over 256 GPUs");
}

/* The more is dropped, the less is held and the longer it takes. */
static void recompute_trades(void)
{
    static const unsigned each[] = { RE_CORE, RE_NORM, RE_MOE_ACT, RE_MOE_DISPATCH, RE_MOE, RE_SHARED,
                                     RE_UP_PROJ, RE_MLP, RE_FULL };
    Task t = task("deepseek-v3", 256, 4096, 2, 2);
    Candidate c = way(1, 1, 64, 1), none = c;
    StepTime before, after;
    EXPECT_OK(hardware_find(&t.hw, "gb200"));
    analytic_time(&before, &t, &none);
    for (size_t i = 0; i < sizeof each / sizeof *each; i++) {
        c.recompute = each[i];
        analytic_time(&after, &t, &c);
        EXPECT(analytic_peak(&t, &c, NULL) < analytic_peak(&t, &none, NULL), "%x holds as much", each[i]);
        EXPECT(after.step > before.step && after.replay > 0, "%x costs nothing", each[i]);
    }
    near("full", after.step / before.step, 4.0 / 3, 0.1);
}

static void sharding_and_pictures(void)
{
    Task t = task("qwen3-vl-30b-a3b", 64, 512, 4, 4);
    Candidate c = way(1, 1, 8, 1);
    double last = 1e30, vision;
    StageMemory s;
    StepTime text, seen, frozen;
    EXPECT_OK(hardware_find(&t.hw, "h200"));
    for (c.zero = 0; c.zero <= 3; c.zero++) {
        double peak = analytic_peak(&t, &c, NULL);
        EXPECT(peak < last, "zero %d takes %.1f GB, one less %.1f", c.zero, peak / 1e9, last / 1e9);
        last = peak;
    }
    c.zero = 1;
    analytic_time(&text, &t, &c);
    t.patches = 784;
    analytic_memory(&s, &t, &c, 0);
    near("a picture of 28 x 28", s.vision / 1e9, 0.79, 0.05);
    vision = s.vision, analytic_time(&seen, &t, &c);
    t.frozen_vision = true;
    analytic_memory(&s, &t, &c, 0);
    analytic_time(&frozen, &t, &c);
    EXPECT(s.vision < vision / 10 && text.step < frozen.step && frozen.step < seen.step, "frozen costs less");
    c.recompute = RE_VISION, t.frozen_vision = false;
    analytic_memory(&s, &t, &c, 0);
    EXPECT(s.vision < vision / 4, "a recomputed tower");
}

/* A ring over the network is long; exchanging heads inside the domain first makes it short. */
static void heads_before_the_ring(void)
{
    Task t = task("deepseek-v3", 256, 64, 2, 2);
    Candidate ring = way(1, 8, 32, 1), two;
    StepTime plain, levels;
    EXPECT_OK(hardware_find(&t.hw, "h100"));
    t.seq = 131072, ring.cp = 32, ring.vpp = 4, two = ring;
    two.cp_inner = analytic_cp_inner(&t, 1, 32);
    EXPECT(two.cp_inner == 8, "%d ranks exchange heads", two.cp_inner);
    analytic_time(&plain, &t, &ring);
    analytic_time(&levels, &t, &two);
    EXPECT(levels.cp < plain.cp / 4, "%.1f s exposed, by a ring %.1f", levels.cp, plain.cp);
    t.model = model_row("qwen3-30b-a3b");
    EXPECT(analytic_cp_inner(&t, 1, 8) == 1 && analytic_cp_inner(&t, 1, 16) == 4 &&
           analytic_cp_inner(&t, 4, 16) == 1,
           "four kv heads");
}

static struct { uint64_t seed, at; } dice_;

static int draw(int n) { return (int)(rng_u32(dice_.seed, 1, dice_.at++) % (uint32_t)n); }
static int power(int n) { return 1 << draw(n); }

/* Whatever is asked, numbers come back that are numbers, and no share of the peak above it. */
static void any_candidate(void)
{
    const char *given = getenv("TREB_SEED");
    int models = 0, gpus = 0, bad = 0;
    dice_.seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL) * 1000003u;
    while (model_row_at(models)) models++;
    while (hardware_at(gpus)) gpus++;
    for (int i = 0; i < 20000; i++) {
        Candidate c = { .tp = power(4), .cp = power(7), .pp = power(6), .vpp = 1 + draw(12), .ep = power(8),
                        .etp = power(3), .mbs = power(5), .zero = draw(4), .recompute = (unsigned)draw(1024),
                        .offload = draw(5) / 4.0, .overlap = draw(2), .dispatch = (DispatcherId)draw(3),
                        .cp_inner = draw(9) };
        Task t = task(model_row_at(draw(models))->name, power(13), power(14), power(2) * 2, power(2) * 2);
        StepTime s;
        EXPECT_OK(hardware_find(&t.hw, hardware_at(draw(gpus))));
        t.seq = 1024 * power(9), t.patches = 4 * draw(10000), t.picture = 4 * draw(1000);
        t.precision = (Precision)draw(3), t.imbalance = 1 + draw(3), t.unfused_logits = draw(2);
        t.frozen_vision = draw(2), t.fp8_stash = draw(2), t.fp8_weights = draw(2);
        analytic_time(&s, &t, &c);
        double peak = analytic_peak(&t, &c, NULL);
        bad += !(isfinite(peak) && peak > t.hw.fixed && isfinite(s.step) && s.step > 0);
        bad += !(s.mfu > 0 && s.mfu < 1);
    }
    EXPECT(!bad, "%d of 20000 are no numbers; TREB_SEED=%llu", bad, (unsigned long long)dice_.seed);
}

static void their_estimate(void)
{
    Task t = task("qwen3-30b-a3b", 16, 1024, 4, 4);
    Candidate c = way(1, 1, 16, 1);
    MegatronEstimate lm = analytic_megatron(&t, &c, false);
    MegatronEstimate bridge = analytic_megatron(&t, &c, true), interleaved;
    near("states", lm.state, 3.353e9 * (6 + 12 / 16.0), 1e-3);
    near("activations", bridge.activations, 4096.0 * 2048 * (18 + 4 * 3.0) * 48, 1e-9);
    near("logits", lm.logits, 4.0 * 4096 * (2048 + 151936), 1e-9);
    EXPECT(bridge.total == bridge.state + bridge.activations + bridge.logits, "the sum");
    c = way(1, 4, 4, 1), c.vpp = 3;
    interleaved = analytic_megatron(&t, &c, true);
    near("interleaved", interleaved.activations, bridge.activations * (1 + 3 / 12.0), 1e-9);
}

int main(void)
{
    RUN(models_have_their_size);
    RUN(rows_are_the_presets);
    RUN(names_are_understood);
    RUN(other_conventions);
    RUN(layers_have_their_bytes);
    RUN(small_worlds);
    RUN(analytic_is_near_the_dry_run);
    RUN(words_drop_as_much);
    RUN(states_take_as_much);
    RUN(what_does_not_fit);
    RUN(recompute_trades);
    RUN(sharding_and_pictures);
    RUN(heads_before_the_ring);
    RUN(any_candidate);
    RUN(their_estimate);
    return lab_report();
}
