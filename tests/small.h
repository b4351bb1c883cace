/* tests/small.h -- a small vision-language MoE and batches for it, made in memory. */
#ifndef TESTS_SMALL_H
#define TESTS_SMALL_H

#include "lab.h"
#include "base/rng.h"
#include "model/family.h"
#include "engine/engine.h"

static const char small_vl_moe[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91,"
    " \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 40, \"num_hidden_layers\": 3,"
    "  \"num_attention_heads\": 6,"
    "  \"num_key_value_heads\": 3, \"head_dim\": 12, \"intermediate_size\": 56,"
    "  \"moe_intermediate_size\": 24, \"num_experts\": 5,"
    "  \"num_experts_per_tok\": 2, \"mlp_only_layers\": [1], \"rope_theta\": 10000.0,"
    "  \"attention_bias\": true, \"initializer_range\": 0.2,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 3, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4,"
    "  \"num_position_embeddings\": 25, \"out_hidden_size\": 40, \"deepstack_visual_indexes\": [0, 2]}}";

static inline ModelShape small_shape(const char *config)
{
    Json *o;
    ModelShape s;
    if (json_parse(&o, config, strlen(config), "test config") || shape_read(&s, o, "test config"))
        printf("%s\n", status_text()), exit(1);
    json_decref(o);
    return s;
}

static inline int64_t small_trained(const Model *m)              /* elements */
{
    int64_t n = 0;
    for (int i = 0; i < m->params.n; i++)
        if (!m->params.p[i]->frozen) n += param_count(m->params.p[i]);
    return n;
}

/* Document d of a family of random ones: text, a picture of 4 x (2 + 2 d) patches when asked, text. */
enum { SMALL_DOC = 40, SMALL_PIXELS = 3 * 2 * 4 * 4 };
typedef struct SmallDoc {
    int32_t ids[SMALL_DOC], targets[SMALL_DOC];
    VisualSlice   slice;
    float   pixels[4 * 8 * SMALL_PIXELS];
    int64_t n;
} SmallDoc;

static inline Document small_doc(SmallDoc *m, int d, bool picture, uint64_t seed)
{
    int64_t w = 2 + 2 * (d % 3), run = picture ? w : 0;      /* 4 x w patches merge to 2 x w/2 = w tokens */
    m->n = 11 + 5 * d + run;
    for (int64_t i = 0; i < m->n; i++) {
        m->ids[i]     = (int32_t)rng_below(seed, (uint64_t)d, (uint64_t)i, 90);
        m->targets[i] = i > 6 + run && i + 1 < m->n
                            ? (int32_t)rng_below(seed, (uint64_t)d + 100, (uint64_t)i, 97) : -1;
        if (picture && i >= 3 && i < 3 + run) m->ids[i] = 90;
    }
    rng_fill_normal(m->pixels, 4 * w * SMALL_PIXELS, seed, (uint64_t)d + 200, 0, 0.0f, 1.0f);
    m->slice = (VisualSlice){ 4, w, m->pixels };
    return (Document){ m->n, m->ids, m->targets, picture, &m->slice };
}

static inline EngineConf small_conf(Budget b)
{
    EngineConf c = { .backend = "cpu", .dtype = F32, .budget = b, .aux = AUX_POOLED, .aux_coeff = 0.01f,
                     .train = true };
    policy_default(c.policy);
    return c;
}

/* Open a stream with documents first .. first + n - 1; every one that `pictures` has a bit for brings one. */
static inline void small_stream(Stream *s, const ModelShape *shape, Budget b, int first, int n,
                                unsigned pictures)
{
    StreamShape ss = shape_stream(shape);
    static SmallDoc doc;
    if (stream_open(s, &ss, &b)) printf("%s\n", status_text()), exit(1);
    for (int d = first; d < first + n; d++) {
        Document x = small_doc(&doc, d, pictures >> d & 1, 42);
        if (stream_add(s, &x)) printf("%s\n", status_text()), exit(1);
    }
}

/* Engine with random weights and the stream uploaded. */
static inline void small_engine(Engine *e, const ModelShape *shape, const EngineConf *conf, const Stream *s)
{
    if (engine_open(e, shape, conf, s) || model_init(&e->model, &e->be, 3))
        printf("%s\n", status_text()), exit(1);
    engine_publish_weights(e);
    engine_upload(e, s);
}

/* One forward and backward; the loss summed over supervised tokens times `scale`. */
static inline Losses small_step(Engine *e, float scale)
{
    Losses l = { 0 };
    engine_begin_step(e, 1);
    engine_forward(e, scale);
    engine_backward(e);
    shard_finish_grads(&e->shard);
    if (engine_read_losses(e, &l)) printf("%s\n", status_text()), exit(1);
    return l;
}

#endif
