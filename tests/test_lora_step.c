/* Training steps with adapters: equal results with every memory setting, memory as planned, unchanged base
 * weights, the same dropout mask in recomputation, and no more backward than the adapters need. */
#include "loralab.h"

/* ---- memory settings ---- */

/* Losses, gradients and memory of a step that trains adapters only; a second step starts from what the first
 * left. */
static Left adapter_step(Mode m, DType dtype, double dropout, bool shared, const char *const *word)
{
    Rig  r = { 0 };
    Left l = { 0 };
    EngineConf conf = rig_conf(&r, deep_text, 7);
    select_lora(&r.lora, dropout, shared, word);
    conf.dtype = dtype;
    EXPECT_OK(mode_apply(&conf, m));
    rig_open(&r, conf, 7);
    Engine *e = &r.e;
    fill_b(e, 5);
    l.loss = small_step(e, 0.1f).total;
    engine_begin_step(e, 1);
    ledger_clear(&e->be.ledger);
    engine_forward(e, 0.1f);
    engine_backward(e);
    EXPECT_OK(backend_sync(&e->be));
    expect_planned(e, mode_text(m));
    shard_finish_grads(&e->shard);
    l.bytes = e->arena[A_GRAD].used;
    l.act = engine_arena_peak(e, A_ACT), l.scratch = engine_arena_peak(e, A_SCRATCH);
    l.grads = malloc(l.bytes + 1);
    memcpy(l.grads, e->arena[A_GRAD].base, l.bytes);
    rig_close(&r);
    return l;
}

static const Mode modes[] = {
    { .recompute = "core_attn" }, { .recompute = "norm" }, { .recompute = "qkv" }, { .recompute = "moe_act" },
    { .recompute = "moe_dispatch" }, { .recompute = "moe" }, { .recompute = "mlp" },
    { .recompute = "vision_act" }, { .recompute = "vision" }, { .recompute = "full" },
    { .recompute = "full:3" }, { .recompute = "full:block:2,norm" },
    { .offload = "layer" }, { .offload = "moe" }, { .offload = "vision" },
    { .offload = "attn_norm,moe_act,mlp" },
    { .recompute = "moe_act", .offload = "core_attn,expert_fc1" },
    { .recompute = "full", .offload = "attn_norm" },
};
enum { MODES = sizeof modes / sizeof *modes };

static const char *const upper[] = { "*.layers.5.mlp.experts.*", "*.layers.6.*",
                                     "*.layers.7.self_attn.[qv]_proj", NULL };
static const char *const within[] = { "*.layers.3.self_attn.o_proj", "*.layers.6.mlp.down_proj", NULL };
static const char *const tower[] = { "*.visual.blocks.1.mlp.linear_fc2", "*.visual.merger.linear_fc1", NULL };
static const char *const stack[] = { "*.visual.deepstack_merger_list.1.*", "*.layers.4.mlp.gate", NULL };
static const char *const head[] = { "lm_head", NULL };
static const char *const attention[] = { "all-attention", NULL };
static const char *const experts[] = { "experts", NULL };

static void memory_settings_change_no_result(void)
{
    static const struct { const char *const *word; double dropout; bool shared; DType dtype; } ask[] = {
        { everything, 0.2, false, F32 }, { everything, 0.2, true, BF16 }, { upper, 0, false, F32 },
        { upper, 0.2, true, F32 }, { within, 0, false, F32 }, { tower, 0.2, false, F32 },
        { stack, 0, false, BF16 },
        { head, 0.2, false, F32 }, { attention, 0.2, false, F32 }, { attention, 0, false, BF16 },
        { experts, 0, false, BF16 },
    };
    for (size_t a = 0; a < sizeof ask / sizeof *ask; a++) {
        Left want = adapter_step((Mode){ 0 }, ask[a].dtype, ask[a].dropout, ask[a].shared, ask[a].word);
        for (int i = a > 1 ? (int)a % 3 : 0; i < MODES; i += a > 1 ? 3 : 1) {
            Left got = adapter_step(modes[i], ask[a].dtype, ask[a].dropout, ask[a].shared, ask[a].word);
            expect_same(&got, &want, mode_text(modes[i]));
            left_close(&got);
        }
        left_close(&want);
    }
}

/* With images backward reaches the vision tower, without them only the decoder's lowest adapter: a text-only
 * batch fits in the memory planned for images, and gives the same gradients. */
static void text_fits_in_the_plan_for_images(void)
{
    static const char *const ask[] = { "*.visual.blocks.1.*", "*.layers.4.self_attn.*", "*.layers.6.mlp.*",
                                       NULL };
    static const Mode some[] = { { 0 }, { .recompute = "full:3" }, { .recompute = "moe" },
                                 { .offload = "layer" },
                                 { .recompute = "full:2", .offload = "attn_norm" } };
    char *want = NULL;
    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        Rig r = { 0 };
        EngineConf conf = rig_conf(&r, deep_text, 7);
        Stream text;
        select_lora(&r.lora, 0.1, false, ask);
        EXPECT_OK(mode_apply(&conf, some[i]));
        rig_open(&r, conf, 7);
        fill_b(&r.e, 5);
        small_step(&r.e, 0.1f);
        small_stream(&text, &r.shape, conf.budget, 0, 3, 0);
        engine_upload(&r.e, &text);
        small_step(&r.e, 0.1f);
        EXPECT_OK(backend_sync(&r.e.be));
        size_t bytes = r.e.arena[A_GRAD].used;
        if (!want) want = memcpy(malloc(bytes), r.e.arena[A_GRAD].base, bytes);
        EXPECT(!memcmp(want, r.e.arena[A_GRAD].base, bytes), "%s: gradients differ", mode_text(some[i]));
        for (int k = 0; k < ARENA_N; k++)
            EXPECT(engine_arena_peak(&r.e, k) <= r.e.plan.bytes[k], "%s", mode_text(some[i]));
        stream_close(&text);
        rig_close(&r);
    }
    free(want);
}

/* ---- steps ---- */

static void base_weights_stay(void)
{
    Rig base = { 0 }, with = { 0 };
    EngineConf conf = rig_conf(&base, deep_text, 7);
    rig_conf(&with, deep_text, 7);
    select_lora(&with.lora, 0.1, false, everything);
    rig_open(&base, conf, 7), rig_open(&with, conf, 7);
    Engine *e = &with.e;
    size_t  elements = 0;
    for (int i = 0; i < 3; i++) {
        OptimConf o = { .adam = { 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, i + 1 } };
        small_step(e, 0.1f);
        engine_update(e, &o);
    }
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        if (p->adapter_of) {
            elements += (size_t)t_count(p->shard.w);
            if (is_b(p) && !p->unused)
                EXPECT(dot(p->shard.w.data, p->shard.w.data, t_count(p->shard.w)) > 0, "%s stayed",
                       p->piece[0].name);
            continue;
        }
        const Param *q = named(&base.e.model, p->piece[0].name);
        EXPECT(!memcmp(p->shard.w.data, q->shard.w.data, (size_t)t_bytes(p->shard.w)), "%s changed",
               p->piece[0].name);
        EXPECT(!t_has(p->shard.g) && !t_has(p->shard.m) && !t_has(p->shard.v) && !t_has(p->shard.master),
               "%s has state", p->piece[0].name);
    }
    size_t grid = (size_t)e->model.params.n * ARENA_ALIGN;
    EXPECT(e->arena[A_GRAD].used <= elements * 4 + grid, "%zu bytes of gradients for %zu adapter elements",
           e->arena[A_GRAD].used, elements);
    EXPECT(e->arena[A_OPTIM].used <= elements * 8 + 2 * grid, "%zu bytes of state", e->arena[A_OPTIM].used);
    rig_close(&base), rig_close(&with);
}

static void dropout_depends_on_the_seed(void)
{
    Rig r = { 0 };
    EngineConf conf = rig_conf(&r, smooth_text, 7);
    Losses l[2];
    conf.evaluate = true;
    select_lora(&r.lora, 0.3, false, everything);
    rig_open(&r, conf, 7);
    fill_b(&r.e, 5);
    double one = rig_loss(&r), again = rig_loss(&r);
    r.e.dropout_seed = DROPOUT_SEED + 1;
    double other = rig_loss(&r);
    r.e.dropout_seed = 0;
    double all = rig_loss(&r);
    EXPECT(one == again, "the same seed: %.12g, %.12g", one, again);
    EXPECT(one != other && one != all && other != all, "losses %.12g, %.12g, and with all %.12g", one, other,
           all);
    for (int i = 0; i < 2; i++) {
        r.e.dropout_seed = i ? DROPOUT_SEED : 0;
        engine_evaluate(&r.e, 0.1f);
        EXPECT_OK(engine_read_losses(&r.e, &l[i]));
    }
    EXPECT(l[0].ce == l[1].ce && fabs(l[0].ce + (double)conf.aux_coeff * l[0].aux - all) < 1e-9 * all,
           "an evaluation drops: %.12g, %.12g, not %.12g", l[0].ce, l[1].ce, all);
    rig_close(&r);
}

static void bf16_is_near(void)
{
    Rig r[2] = { 0 };
    for (int k = 0; k < 2; k++) {
        EngineConf conf = rig_conf(&r[k], smooth_text, 7);
        conf.dtype = k ? BF16 : F32;
        select_lora(&r[k].lora, 0.1, false, everything);
        rig_open(&r[k], conf, 7);
        fill_b(&r[k].e, 5);
        small_step(&r[k].e, 0.1f);
    }
    const ParamSet *s = &r[0].e.model.params;
    double off = 0, size = 0;
    for (int i = 0; i < s->n; i++) {
        const Param *p = s->p[i], *q = r[1].e.model.params.p[i];
        const float *a = p->shard.g.data, *b = q->shard.g.data;
        if (!p->adapter_of) continue;
        for (int64_t k = 0, n = t_count(p->shard.g); k < n; k++)
            off += ((double)a[k] - b[k]) * ((double)a[k] - b[k]), size += (double)a[k] * a[k];
    }
    EXPECT(sqrt(off / size) < 0.05, "gradients in bf16 are off by %.1e", sqrt(off / size));
    rig_close(&r[0]), rig_close(&r[1]);
}

/* ---- FLOPs ---- */

static EnginePlan plan_of(const char *target, unsigned pictures)
{
    Rig r = { 0 };
    EngineConf conf = rig_conf(&r, smooth_text, pictures);
    EnginePlan p;
    select_lora(&r.lora, 0, false, (const char *const[]){ target, NULL });
    conf.lora = r.lora.conf;
    small_stream(&r.s, &r.shape, conf.budget, 0, 3, pictures);
    EXPECT_OK(engine_plan(&p, &r.shape, &conf, &r.s));
    stream_close(&r.s);
    return p;
}

static double flops_more(const EnginePlan *a, const EnginePlan *b, int op)
{
    return a->ledger.op[op].flops - b->ledger.op[op].flops;
}

/* With an adapter on the output projection of layer l only, going one layer further down adds the FFN of that
 * layer and the rest of the attention above it, input gradients only. */
static void backward_stops_at_the_lowest_adapter(void)
{
    Rig r = { 0 };
    double T = (double)rig_conf(&r, smooth_text, 0).budget.tokens;
    const TextShape *t = &r.shape.text;
    double D = (double)t->D, HC = (double)(t->H * t->C), kv = (double)(2 * t->G * t->C), R = T * (double)t->K;
    EnginePlan high = plan_of("*.layers.3.self_attn.o_proj", 0);
    EnginePlan low = plan_of("*.layers.2.self_attn.o_proj", 0);
    double dense = flops_more(&low, &high, OP_gemm), inside = flops_more(&low, &high, OP_grouped_gemm);
    EXPECT(dense == 2 * T * D * (HC + HC + kv + (double)t->E), "%.0f more of plain products", dense);
    EXPECT(inside == 2 * R * 2 * (double)t->F * D, "%.0f more of experts'", inside);
    EXPECT(flops_more(&low, &high, OP_grouped_dswiglu) == 2 * R * D * (double)t->F, "of their second");
    EXPECT(low.ledger.op[OP_attention_bwd].calls == 1 && high.ledger.op[OP_attention_bwd].calls == 0,
           "attention");
    EXPECT(high.ledger.op[OP_gemm_scaled].extra == 2 * T * HC * RANK, "%.0f recomputed",
           high.ledger.op[OP_gemm_scaled].extra);
    EXPECT(flops_more(&low, &high, OP_gemm_scaled) == 0, "adapters");
    EXPECT(high.bytes[A_ACT] < low.bytes[A_ACT], "act %zu, of more layers %zu", high.bytes[A_ACT],
           low.bytes[A_ACT]);
    EnginePlan top = plan_of("lm_head", 7), sees = plan_of("*.blocks.2.mlp.linear_fc2", 7);
    EXPECT(top.ledger.op[OP_attention_bwd].calls == 0 && top.ledger.op[OP_rmsnorm_bwd].calls == 0,
           "a head alone");
    EXPECT(sees.ledger.op[OP_attention_bwd].calls == t->L, "all layers and no block, not %lld",
           (long long)sees.ledger.op[OP_attention_bwd].calls);
    EXPECT(sees.ledger.op[OP_gemm_dgelu].calls == 0 && sees.ledger.op[OP_embed_bwd].calls == 0,
           "below the block");
}

/* Inputs of frozen weights are not kept if nothing else needs them. */
static void unused_inputs_are_not_kept(void)
{
    Rig r = { 0 };
    double T = (double)rig_conf(&r, smooth_text, 0).budget.tokens;
    const TextShape *t = &r.shape.text;
    double rows = T * (double)t->K * (double)(t->D + t->F) * 4 * (double)shape_sparse_layers(t);
    double norms = T * (double)t->D * 4 * (double)t->L;
    EnginePlan attention_only = plan_of("all-attention", 0), experts_only = plan_of("experts", 0);
    EnginePlan all = plan_of("all-linear", 0);
    double less = (double)(all.bytes[A_ACT] - attention_only.bytes[A_ACT]);
    EXPECT(less > rows, "rows of frozen experts: %.0f less, they are %.0f", less, rows);
    less = (double)(all.bytes[A_ACT] - experts_only.bytes[A_ACT]);
    EXPECT(less > norms, "inputs of frozen attention: %.0f less, they are %.0f", less, norms);
}

int main(void)
{
    RUN(memory_settings_change_no_result);
    RUN(text_fits_in_the_plan_for_images);
    RUN(base_weights_stay);
    RUN(dropout_depends_on_the_seed);
    RUN(bf16_is_near);
    RUN(backward_stops_at_the_lowest_adapter);
    RUN(unused_inputs_are_not_kept);
    return lab_report();
}
