/* tests/loralab.h -- a small model with every kind of module and with adapters on selected modules. */
#ifndef TESTS_LORALAB_H
#define TESTS_LORALAB_H

#include "modelab.h"
#include "nn/lora.h"

/* Every token goes to all experts, so that the loss is smooth; one layer is dense, and DeepStack features
 * join after two layers. */
static const char smooth_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91,"
    " \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 32, \"num_hidden_layers\": 4,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 24,"
    "  \"moe_intermediate_size\": 16, \"num_experts\": 3, \"num_experts_per_tok\": 3,"
    "  \"mlp_only_layers\": [1], \"rope_theta\": 10000.0, \"attention_bias\": true,"
    "  \"initializer_range\": 0.2,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 3, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 32,"
    "  \"deepstack_visual_indexes\": [0, 2]}}";

enum { DROPOUT_SEED = 77, RANK = 3, MAX_TARGETS = 8 };

typedef struct LoraSelection { WordList list; const char *word[MAX_TARGETS]; LoraConf conf; } LoraSelection;

/* word: targets, terminated by NULL. */
static inline void select_lora(LoraSelection *a, double dropout, bool shared, const char *const *word)
{
    *a = (LoraSelection){ .conf = { .rank = RANK, .alpha = 4.5, .dropout = dropout, .shared_a = shared } };
    for (; word[a->list.n]; a->list.n++) a->word[a->list.n] = word[a->list.n];
    a->list.item = a->word, a->conf.target = &a->list;
}

static const char *const everything[] = { "all-linear", "lm_head", "*.mlp.gate", NULL };

/* ---- engines ---- */

typedef struct Rig { Engine e; Stream s; ModelShape shape; LoraSelection lora; } Rig;

static inline EngineConf rig_conf(Rig *r, const char *text, unsigned pictures)
{
    r->shape = small_shape(text);
    return small_conf(mode_budget(&r->shape, pictures));
}

static inline bool is_b(const Param *p) { return p->adapter_of && strstr(p->piece[0].name, "lora_B"); }

/* Random B, which is zero initially. */
static inline void fill_b(Engine *e, uint64_t seed)
{
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        int64_t n = t_count(p->shard.w);
        if (is_b(p)) op_normal(&e->be, t_as2(p->shard.w, 1, n), seed, (uint64_t)i, 0, n, 0.3f);
    }
}

static inline void rig_open(Rig *r, EngineConf conf, unsigned pictures)
{
    omp_set_num_threads(1);
    small_stream(&r->s, &r->shape, conf.budget, 0, 3, pictures);
    if (r->lora.conf.rank) conf.lora = r->lora.conf;
    small_engine(&r->e, &r->shape, &conf, &r->s);
    r->e.dropout_seed = DROPOUT_SEED;
}

static inline void rig_close(Rig *r)
{
    engine_close(&r->e);
    stream_close(&r->s);
}

static inline double rig_loss(Rig *r)
{
    Losses l = { 0 };
    engine_forward(&r->e, 0.1f);
    EXPECT_OK(engine_read_losses(&r->e, &l));
    return l.ce + (double)r->e.conf.aux_coeff * l.aux + (double)r->e.conf.z_coeff * l.z;
}

/* ---- numbers ---- */

static inline double dot(const float *a, const float *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * b[i];
    return s;
}

static inline Param *named(const Model *m, const char *name)
{
    for (int i = 0; i < m->params.n; i++)
        if (!strcmp(m->params.p[i]->piece[0].name, name)) return m->params.p[i];
    REQUIRE(false, "no parameter %s", name);
    return NULL;
}

static inline double relative_error(const float *a, const float *b, int64_t n)
{
    double most = 0, off = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs(a[i])), off = fmax(off, fabs(a[i] - b[i]));
    return off / most;
}

#endif
