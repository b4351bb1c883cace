/* Adapter arithmetic: gradients against finite differences through every kind of module, wherever backward
 * stops; initial adapters that change nothing; merged against unmerged weights; one expert against a dense
 * FFN. */
#include "loralab.h"

/* ---- finite differences ---- */

enum { MOST_ELEMENTS = 1 << 14 };

static double loss_at(Rig *r, const Param *p, const float *was, const float *way, double by)
{
    float *w = p->shard.w.data;
    for (int64_t i = 0, n = t_count(p->shard.w); i < n; i++) w[i] = (float)(was[i] + by * way[i]);
    return rig_loss(r);
}

/* The derivative along `way`, from steps h and h / 2, so that the error is of fourth order. */
static double slope(Rig *r, const Param *p, const float *way, double h)
{
    static float was[MOST_ELEMENTS];
    int64_t n = t_count(p->shard.w);
    memcpy(was, p->shard.w.data, (size_t)n * sizeof *was);
    double whole = (loss_at(r, p, was, way, h) - loss_at(r, p, was, way, -h)) / (2 * h);
    double half = (loss_at(r, p, was, way, h / 2) - loss_at(r, p, was, way, -h / 2)) / h;
    memcpy(p->shard.w.data, was, (size_t)n * sizeof *was);
    return (4 * half - whole) / 3;
}

/* Along the gradient and along a random direction, both of length 1. */
static void check_slopes(Rig *r, const Param *p, const float *g, const char *what, double *worst)
{
    static float way[MOST_ELEMENTS];
    int64_t n = t_count(p->shard.w);
    double  size = sqrt(dot(g, g, n));
    REQUIRE(n <= MOST_ELEMENTS, "%s has %lld elements", p->piece[0].name, (long long)n);
    EXPECT(size > 1e-6, "%s: %s has no gradient", what, p->piece[0].name);
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < n; i++)
            way[i] = k ? rng_normal(9, (uint64_t)n, (uint64_t)i) : (float)(g[i] / size);
        double length = sqrt(dot(way, way, n));
        for (int64_t i = 0; i < n; i++) way[i] = (float)(way[i] / length);
        double want = dot(g, way, n), got = slope(r, p, way, 0.03 / (0.3 + size));
        double off = fabs(got - want) / size;
        if (off > *worst) *worst = off;
        EXPECT(off < 5e-4, "%s: %s%s: slope %.6g, gradient %.6g of %.6g", what, p->piece[0].name,
               k ? " at random" : "", got, want, size);
    }
}

static void check_gradients(Rig *r, const char *what)
{
    ParamSet *s = &r->e.model.params;
    float **g = calloc((size_t)s->n, sizeof *g);
    double worst = 0;
    int pairs = 0;
    small_step(&r->e, 0.1f);
    for (int i = 0; i < s->n; i++) {
        const Param *p = s->p[i];
        EXPECT(t_has(p->shard.g) == (p->adapter_of != NULL), "%s: %s %s a gradient", what, p->piece[0].name,
               t_has(p->shard.g) ? "has" : "lacks");
        if (!p->adapter_of || p->unused) continue;
        g[i] = malloc((size_t)t_count(p->shard.g) * sizeof **g);
        memcpy(g[i], p->shard.g.data, (size_t)t_count(p->shard.g) * sizeof **g);
    }
    for (int i = 0; i < s->n; i++)
        if (g[i]) check_slopes(r, s->p[i], g[i], what, &worst), pairs++, free(g[i]);
    free(g);
    printf("  %s: %d tensors, worst slope off by %.1e\n", what, pairs, worst);
}

typedef struct Ways { double dropout; bool shared; double capacity; bool pad; const char *const *word; } Ways;

static void slopes(const char *what, Ways w)
{
    Rig r = { 0 };
    EngineConf conf = rig_conf(&r, smooth_text, 7);
    conf.capacity = w.capacity, conf.pad = w.pad, conf.z_coeff = 0.01f;
    select_lora(&r.lora, w.dropout, w.shared, w.word ? w.word : everything);
    rig_open(&r, conf, 7);
    fill_b(&r.e, 5);
    check_gradients(&r, what);
    rig_close(&r);
}

static void gradients_match_finite_differences(void)
{
    slopes("each", (Ways){ 0 });
    slopes("shared", (Ways){ .shared = true });
    slopes("dropped", (Ways){ .dropout = 0.3 });
    slopes("shared, padded, dropped", (Ways){ .dropout = 0.3, .shared = true, .capacity = 1.5, .pad = true });
    slopes("shared, capacity above need", (Ways){ .shared = true, .capacity = 1.5 });
}

/* Backward stops at the lowest adapter; with a target that selects a single module it stops earliest. */
static void gradients_where_backward_stops(void)
{
    static const char *const word[][3] = {
        { "*.layers.3.*" }, { "*.layers.2.mlp.experts.down_proj" }, { "*.layers.2.mlp.experts.gate_up_proj" },
        { "*.layers.2.mlp.gate" }, { "*.layers.3.self_attn.o_proj" }, { "*.layers.2.self_attn.v_proj" },
        { "*.layers.1.mlp.down_proj" }, { "*.layers.1.mlp.up_proj" }, { "lm_head" },
        { "*.layers.3.mlp.gate", "lm_head" },
        { "*.blocks.0.attn.qkv" }, { "*.blocks.1.attn.proj" }, { "*.blocks.2.mlp.linear_fc1" },
        { "*.blocks.1.mlp.linear_fc2" }, { "*.merger.linear_fc2" },
        { "*.deepstack_merger_list.0.linear_fc1" },
        { "*.deepstack_merger_list.1.*", "*.layers.3.self_attn.q_proj" }, { "all-attention" },
    };
    for (size_t i = 0; i < sizeof word / sizeof *word; i++)
        slopes(word[i][0], (Ways){ .dropout = i % 2 ? 0.25 : 0, .word = word[i] });
}

/* ---- equal results ---- */

static void *logits_of(Engine *e)
{
    int64_t T = engine_batch(e)->T, V = e->model.head.V, n[2] = { T, V };
    float *y = malloc((size_t)(T * V) * sizeof *y);
    engine_compute_logits(e, t_wrap(y, F32, 2, n), 0);
    EXPECT_OK(backend_sync(&e->be));
    return y;
}

/* Trained weights are initialized in f32 and rounded, frozen ones directly in bf16: a few differ. */
static void copy_base(Engine *to, const Engine *from)
{
    for (int i = 0; i < from->model.params.n; i++) {
        const Param *p = from->model.params.p[i];
        memcpy(named(&to->model, p->piece[0].name)->shard.w.data, p->shard.w.data,
               (size_t)t_bytes(p->shard.w));
    }
}

/* Before the first step B is zero, so A and dropout have no effect. */
static void initial_adapters_change_nothing(void)
{
    for (int k = 0; k < 4; k++) {
        Rig base = { 0 }, with = { 0 };
        DType dtype = k & 1 ? BF16 : F32;
        EngineConf conf = rig_conf(&base, deep_text, 7);
        rig_conf(&with, deep_text, 7);
        select_lora(&with.lora, 0.5, k >> 1, everything);
        conf.dtype = dtype, conf.logits = true;
        rig_open(&base, conf, 7), rig_open(&with, conf, 7);
        copy_base(&with.e, &base.e);
        double want = rig_loss(&base), got = rig_loss(&with);
        EXPECT(got == want, "%s: loss %.12g, that of the base is %.12g", dtype == F32 ? "f32" : "bf16",
               got, want);
        size_t bytes = (size_t)(engine_batch(&base.e)->T * base.e.model.head.V) * sizeof(float);
        void *a = logits_of(&base.e), *b = logits_of(&with.e);
        EXPECT(!memcmp(a, b, bytes), "logits differ");
        free(a), free(b);
        rig_close(&base), rig_close(&with);
    }
}

/* W + s B A of one matrix, in double. */
static void merge(float *w, const float *a, const float *b, int64_t out, int64_t in, int64_t r, float scale)
{
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0;
            for (int64_t k = 0; k < r; k++) sum += (double)b[o * r + k] * a[k * in + i];
            w[o * in + i] = (float)(w[o * in + i] + scale * sum);
        }
}

static void merge_weight(Param *to, const Param *from)
{
    const Lora *l = from->lora;
    int64_t in = from->shape[from->ndim - 1], each = from->ndim == 3 ? from->shape[0] : 1;
    for (int64_t e = 0; e < each; e++)
        for (int k = 0; k < l->parts; k++) {
            const LoraPart *p = &l->part[k];
            int64_t rows = each > 1 ? from->shape[1] : p->rows, of = l->a->shape[0] == 1 ? 0 : e;
            merge((float *)to->shard.w.data + (e * rows + p->at) * in,
                  (float *)l->a->shard.w.data + (each > 1 ? of * p->r : p->from) * in,
                  (float *)p->b->shard.w.data + e * rows * p->r, rows, in, p->r, p->scale);
        }
}

static void merged_weights_give_the_same_loss(void)
{
    for (int shared = 0; shared < 2; shared++) {
        Rig base = { 0 }, with = { 0 };
        EngineConf conf = rig_conf(&base, smooth_text, 7);
        rig_conf(&with, smooth_text, 7);
        select_lora(&with.lora, 0.1, shared, everything);
        conf.logits = true, conf.train = false;                  /* no dropout in evaluation */
        rig_open(&base, conf, 7), rig_open(&with, conf, 7);
        fill_b(&with.e, 6);
        const ParamSet *s = &with.e.model.params;
        double apart = rig_loss(&base) - rig_loss(&with);
        for (int i = 0; i < s->n; i++)
            if (s->p[i]->lora) merge_weight(named(&base.e.model, s->p[i]->piece[0].name), s->p[i]);
        double want = rig_loss(&with), got = rig_loss(&base);
        float *a = logits_of(&base.e), *b = logits_of(&with.e);
        double off = relative_error(b, a, engine_batch(&base.e)->T * base.e.model.head.V);
        EXPECT(fabs(apart) > 0.1, "adapters change nothing");
        EXPECT(fabs(got - want) < 1e-5 * fabs(want) && off < 1e-5,
               "merged %.9g, unmerged %.9g, logits off by %.1e", got, want, off);
        free(a), free(b);
        rig_close(&base), rig_close(&with);
    }
}

/* ---- experts ---- */

/* Padding rows contribute nothing to gradients: without padding to capacity they are at the end of the
 * buffers and undefined, with it they are between experts and zero. */
static void padding_rows_have_no_effect(void)
{
    Rig r[2] = { 0 };
    for (int pad = 0; pad < 2; pad++) {
        EngineConf conf = rig_conf(&r[pad], deep_text, 7);
        conf.capacity = 0.7, conf.pad = pad;
        select_lora(&r[pad].lora, 0, true, (const char *const[]){ "experts", NULL });
        rig_open(&r[pad], conf, 7);
        fill_b(&r[pad].e, 4);
        memset(r[pad].e.arena[A_SCRATCH].base, 0xff, r[pad].e.arena[A_SCRATCH].cap);        /* not a number */
        memset(r[pad].e.arena[A_ACT].base, 0xff, r[pad].e.arena[A_ACT].cap);
        small_step(&r[pad].e, 0.1f);
    }
    const ParamSet *s = &r[0].e.model.params;
    for (int i = 0; i < s->n; i++) {
        const Param *p = s->p[i], *q = r[1].e.model.params.p[i];
        if (!p->adapter_of) continue;
        double off = relative_error(p->shard.g.data, q->shard.g.data, t_count(p->shard.g));
        EXPECT(off < 1e-5, "%s: off by %.1e", p->piece[0].name, off);
    }
    rig_close(&r[0]), rig_close(&r[1]);
}

static const char lone_text[] =
    "{\"model_type\": \"qwen3_moe\", \"dtype\": \"float32\", \"vocab_size\": 97, \"hidden_size\": 32,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12,"
    " \"intermediate_size\": 20, \"moe_intermediate_size\": 20, \"num_experts\": 1,"
    " \"num_experts_per_tok\": 1, \"norm_topk_prob\": true, \"mlp_only_layers\": [%s],"
    " \"rope_theta\": 10000.0, \"initializer_range\": 0.2}";

static void lone_open(Rig *r, const char *dense)
{
    char text[1024];
    snprintf(text, sizeof text, lone_text, dense);
    EngineConf conf = rig_conf(r, text, 0);
    conf.aux = AUX_NONE, conf.aux_coeff = 0;
    select_lora(&r->lora, 0, false, (const char *const[]){ *dense ? "mlp.*_proj" : "experts", NULL });
    rig_open(r, conf, 0);
}

static void copy_floats(const Param *to, int64_t at, const Param *from, int64_t first, int64_t n)
{
    memcpy((float *)to->shard.w.data + at, (float *)from->shard.w.data + first, (size_t)n * sizeof(float));
}

/* The adapter of gate_up_proj, which has one A, as adapters of gate and up with equal A. */
static void lone_copy(const Mlp *to, const Moe *from, int64_t D, int64_t F)
{
    const Lora *gu = from->w_gu->lora, *d = from->w_d->lora;
    copy_floats(to->w_gu, 0, from->w_gu, 0, 2 * F * D);
    copy_floats(to->w_d, 0, from->w_d, 0, D * F);
    for (int k = 0; k < 2; k++) {
        copy_floats(to->w_gu->lora->a, k * RANK * D, gu->a, 0, RANK * D);
        copy_floats(to->w_gu->lora->part[k].b, 0, gu->part[0].b, k * F * RANK, F * RANK);
    }
    copy_floats(to->w_d->lora->a, 0, d->a, 0, RANK * F);
    copy_floats(to->w_d->lora->part[0].b, 0, d->part[0].b, 0, D * RANK);
}

static double grad_off(const Param *got, int64_t at, const Param *want, int64_t first, int64_t n)
{
    return relative_error((float *)want->shard.g.data + first, (float *)got->shard.g.data + at, n);
}

static void single_expert_equals_dense_ffn(void)
{
    Rig moe = { 0 }, mlp = { 0 };
    lone_open(&moe, ""), lone_open(&mlp, "0, 1");
    int64_t D = moe.shape.text.D, F = moe.shape.text.F;
    fill_b(&moe.e, 8);
    for (int l = 0; l < 2; l++) lone_copy(decoder_mlp(&mlp.e.model.layer[l]),
                                          decoder_moe(&moe.e.model.layer[l]), D, F);
    double a = small_step(&moe.e, 0.1f).ce, b = small_step(&mlp.e, 0.1f).ce;
    EXPECT(fabs(a - b) < 1e-6 * fabs(a), "loss %.9g, of a feed-forward %.9g", a, b);
    for (int l = 0; l < 2; l++) {
        const Lora *gu  = decoder_moe(&moe.e.model.layer[l])->w_gu->lora,
                   *d   = decoder_moe(&moe.e.model.layer[l])->w_d->lora;
        const Lora *gu2 = decoder_mlp(&mlp.e.model.layer[l])->w_gu->lora,
                   *d2  = decoder_mlp(&mlp.e.model.layer[l])->w_d->lora;
        float *two = gu2->a->shard.g.data;
        for (int64_t i = 0; i < RANK * D; i++) two[i] += two[RANK * D + i];
        double off = grad_off(gu->a, 0, gu2->a, 0, RANK * D);
        for (int k = 0; k < 2; k++)
            off = fmax(off, grad_off(gu->part[0].b, k * F * RANK, gu2->part[k].b, 0, F * RANK));
        off = fmax(off, grad_off(d->a, 0, d2->a, 0, RANK * F));
        off = fmax(off, grad_off(d->part[0].b, 0, d2->part[0].b, 0, D * RANK));
        EXPECT(off < 1e-5, "layer %d: gradients off by %.1e", l, off);
    }
    rig_close(&moe), rig_close(&mlp);
}

int main(void)
{
    RUN(gradients_match_finite_differences);
    RUN(gradients_where_backward_stops);
    RUN(initial_adapters_change_nothing);
    RUN(merged_weights_give_the_same_loss);
    RUN(padding_rows_have_no_effect);
    RUN(single_expert_equals_dense_ffn);
    return lab_report();
}
