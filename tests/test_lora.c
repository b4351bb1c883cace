/* Adapters: their gradients against finite differences, through every kind of module and every way to save memory;
 * what they leave alone; and how much backward there is of what was asked. */
#include "modelab.h"

/* All experts are chosen, so that losses are smooth; one layer is dense, features join after two. */
static const char smooth_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91, \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 32, \"num_hidden_layers\": 4,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 12, \"intermediate_size\": 24,"
    "  \"moe_intermediate_size\": 16, \"num_experts\": 3, \"num_experts_per_tok\": 3,"
    "  \"mlp_only_layers\": [1], \"rope_theta\": 10000.0, \"attention_bias\": true, \"initializer_range\": 0.2,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [2, 2, 2]}},"
    " \"vision_config\": {\"depth\": 3, \"hidden_size\": 24, \"intermediate_size\": 36, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 32,"
    "  \"deepstack_visual_indexes\": [0, 2]}}";

enum { CHANCE = 77, RANK = 3, MOST_WORDS = 8 };

typedef struct Asked { WordList list; const char *word[MOST_WORDS]; AdapterConf conf; } Asked;

/* Targets by commas are too long for a line; the last word is NULL. */
static void asked(Asked *a, double dropout, bool shared, const char *const *word)
{
    *a = (Asked){ .conf = { .rank = RANK, .alpha = 4.5, .dropout = dropout, .shared_a = shared } };
    for (; word[a->list.n]; a->list.n++) a->word[a->list.n] = word[a->list.n];
    a->list.item = a->word, a->conf.target = &a->list;
}

static const char *const everything[] = { "all-linear", "lm_head", "*.mlp.gate", NULL };

/* ---- engines ---- */

typedef struct Rig { Engine e; Stream s; ModelShape shape; Asked asked; } Rig;

static EngineConf rig_conf(Rig *r, const char *text, unsigned pictures)
{
    r->shape = small_shape(text);
    return small_conf(mode_budget(&r->shape, pictures));
}

static bool is_b(const Param *p) { return p->beside && strstr(p->piece[0].name, "lora_B"); }

/* Values of B that a start would leave zero. */
static void fill_b(Engine *e, uint64_t seed)
{
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        if (is_b(p)) op_normal(&e->be, t_as2(p->w, 1, t_count(p->w)), seed, (uint64_t)i, 0, t_count(p->w), 0.3f);
    }
}

static void rig_open(Rig *r, EngineConf conf, unsigned pictures)
{
    omp_set_num_threads(1);
    small_stream(&r->s, &r->shape, conf.budget, 0, 3, pictures);
    if (r->asked.conf.rank) conf.lora = r->asked.conf;
    small_engine(&r->e, &r->shape, &conf, &r->s);
    r->e.chance = CHANCE;
}

static void rig_close(Rig *r)
{
    engine_close(&r->e);
    stream_close(&r->s);
}

static double rig_loss(Rig *r)
{
    Losses l = { 0 };
    engine_forward(&r->e, 0.1f);
    EXPECT_OK(engine_losses(&r->e, &l));
    return l.ce + (double)r->e.conf.aux_coeff * l.aux + (double)r->e.conf.z_coeff * l.z;
}

/* ---- finite differences ---- */

enum { MOST_ELEMENTS = 1 << 14 };

static double dot(const float *a, const float *b, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++) s += (double)a[i] * b[i];
    return s;
}

static double loss_at(Rig *r, const Param *p, const float *was, const float *way, double by)
{
    float *w = p->w.data;
    for (int64_t i = 0, n = t_count(p->w); i < n; i++) w[i] = (float)(was[i] + by * way[i]);
    return rig_loss(r);
}

/* The slope along `way`, by steps h and h / 2 so that the error is of the fourth order. */
static double slope(Rig *r, const Param *p, const float *way, double h)
{
    static float was[MOST_ELEMENTS];
    int64_t n = t_count(p->w);
    memcpy(was, p->w.data, (size_t)n * sizeof *was);
    double whole = (loss_at(r, p, was, way, h) - loss_at(r, p, was, way, -h)) / (2 * h);
    double half = (loss_at(r, p, was, way, h / 2) - loss_at(r, p, was, way, -h / 2)) / h;
    memcpy(p->w.data, was, (size_t)n * sizeof *was);
    return (4 * half - whole) / 3;
}

/* Along the gradient itself and along a random way, both of length 1. */
static void check_slopes(Rig *r, const Param *p, const float *g, const char *what, double *worst)
{
    static float way[MOST_ELEMENTS];
    int64_t n = t_count(p->w);
    double  size = sqrt(dot(g, g, n));
    REQUIRE(n <= MOST_ELEMENTS, "%s has %lld elements", p->piece[0].name, (long long)n);
    EXPECT(size > 1e-6, "%s: %s has no gradient", what, p->piece[0].name);
    for (int k = 0; k < 2; k++) {
        for (int64_t i = 0; i < n; i++) way[i] = k ? rng_normal(9, (uint64_t)n, (uint64_t)i) : (float)(g[i] / size);
        double length = sqrt(dot(way, way, n));
        for (int64_t i = 0; i < n; i++) way[i] = (float)(way[i] / length);
        double want = dot(g, way, n), got = slope(r, p, way, 0.03 / (0.3 + size)), off = fabs(got - want) / size;
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
        EXPECT(t_has(p->g) == (p->beside != NULL), "%s: %s %s a gradient", what, p->piece[0].name,
               t_has(p->g) ? "has" : "lacks");
        if (!p->beside || p->idle) continue;
        g[i] = malloc((size_t)t_count(p->g) * sizeof **g);
        memcpy(g[i], p->g.data, (size_t)t_count(p->g) * sizeof **g);
    }
    for (int i = 0; i < s->n; i++)
        if (g[i]) check_slopes(r, s->p[i], g[i], what, &worst), pairs++, free(g[i]);
    free(g);
    printf("  %s: %d tensors, worst slope off by %.1e\n", what, pairs, worst);
}

static void slopes(const char *what, double dropout, bool shared, double capacity, bool pad)
{
    Rig r = { 0 };
    EngineConf conf = rig_conf(&r, smooth_text, 7);
    conf.capacity = capacity, conf.pad = pad;
    asked(&r.asked, dropout, shared, everything);
    rig_open(&r, conf, 7);
    fill_b(&r.e, 5);
    check_gradients(&r, what);
    rig_close(&r);
}

static void gradients_are_slopes(void)
{
    slopes("each", 0, false, 0, false);
    slopes("shared", 0, true, 0, false);
    slopes("dropped", 0.3, false, 0, false);
    slopes("shared, dropped", 0.3, true, 0, false);
    slopes("padded", 0, false, 1.5, true);
    slopes("shared, padded, dropped", 0.3, true, 1.5, true);
    slopes("shared, with room to spare", 0, true, 1.5, false);
}

int main(void)
{
    RUN(gradients_are_slopes);
    return lab_report();
}
