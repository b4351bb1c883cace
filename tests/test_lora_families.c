/* Adapters on every linear layer of every family: the gradient of each A and B is the slope of the loss, and
 * each linear weight of the family has an adapter. Recompute words of the parts (latent attention, shared
 * experts, delta nets) change no bit of the gradients. */
#include "loralab.h"

static Rig rig;

/* Every token goes to all experts: a router that selected others beside a step would bend the loss. */
static void open_family(int i)
{
    EngineConf conf = rig_conf(&rig, family_text[i], 0);
    TextShape *t = &rig.shape.text;
    t->K = t->E, t->groups = t->top_groups = 0;
    select_lora(&rig.lora, 0, false, everything);
    rig.lora.list.n = 1;                                     /* all-linear */
    rig_open(&rig, conf, 0);
    fill_b(&rig.e, 5);
}

/* Central difference of the loss along unit direction v of p. */
static double slope_along(const Param *p, const float *v, float h)
{
    float  *w = p->shard.w.data;
    int64_t n = t_count(p->shard.w);
    double  at[2];
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < n; i++) w[i] += (side ? -h : h) * v[i];
        at[side] = rig_loss(&rig);
        for (int64_t i = 0; i < n; i++) w[i] -= (side ? -h : h) * v[i];
    }
    return (at[0] - at[1]) / (2 * h);
}

/* Along the gradient mixed with a random direction: near the steepest slope rounding matters least. */
static void check_slope(const Param *p, const char *family)
{
    int64_t n = t_count(p->shard.g);
    const float *g = p->shard.g.data;
    float  *v = malloc((size_t)n * sizeof *v);
    double  big = sqrt(dot(g, g, n)) + 1e-30, length;
    rng_fill_normal(v, n, 9, 1, 0, 0.0f, 1.0f);
    for (int64_t i = 0; i < n; i++) v[i] = (float)(g[i] / big + 0.3 * v[i] / sqrt((double)n));
    length = sqrt(dot(v, v, n));
    for (int64_t i = 0; i < n; i++) v[i] = (float)(v[i] / length);
    double want = slope_along(p, v, 2e-3f), got = dot(g, v, n);
    EXPECT(fabs(want - got) <= 0.03 * fabs(got) + 2e-3, "%s: %s: gradient %g, slope %g", family,
           p->piece[0].name, got, want);
    free(v);
}

static void gradients_are_slopes(void)
{
    for (int f = 0; f < FAMILY_TEXTS; f++) {
        int n = 0;
        open_family(f);
        small_step(&rig.e, 0.1f);
        for (int i = 0; i < rig.e.model.params.n; i++) {
            const Param *p = rig.e.model.params.p[i];
            if (!p->adapter_of) continue;
            check_slope(p, rig.shape.family);
            n++;
        }
        EXPECT(n >= 32, "%s: %d adapters", rig.shape.family, n);
        rig_close(&rig);
    }
}

/* Router weights are no target of all-linear. */
static void every_linear_has_an_adapter(void)
{
    for (int f = 0; f < FAMILY_TEXTS; f++) {
        open_family(f);
        for (int i = 0; i < rig.e.model.params.n; i++) {
            const Param *p = rig.e.model.params.p[i];
            bool wanted = p->linear != LINEAR_NO && p->linear != LINEAR_ROUTER && p->linear != LINEAR_HEAD;
            EXPECT(!wanted || p->adapter_of || p->lora, "%s: %s has no adapter", rig.shape.family,
                   p->piece[0].name);
        }
        rig_close(&rig);
    }
}

/* Losses and gradients of all parameters, bit by bit. */
static void recompute_words_change_no_bit(void)
{
    static const struct { int family; const char *words; } cases[] = {
        { 0, "shared_experts" }, { 2, "mla_up_proj" }, { 2, "shared_experts" }, { 5, "linear_attn" },
        { 5, "shared_experts" }, { 6, "linear_attn" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void  *grads = NULL;
        size_t bytes = 0, kept[2];
        for (int with = 0; with < 2; with++) {
            EngineConf conf = rig_conf(&rig, family_text[cases[i].family], 0);
            rig.lora = (LoraSelection){ 0 };
            EXPECT_OK(mode_apply(&conf, (Mode){ .recompute = with ? cases[i].words : NULL }));
            rig_open(&rig, conf, 0);
            small_step(&rig.e, 0.1f);
            kept[with] = rig.e.plan.bytes[A_ACT];
            if (!with) {
                bytes = rig.e.arena[A_GRAD].used;
                grads = malloc(bytes);
                memcpy(grads, rig.e.arena[A_GRAD].base, bytes);
            } else {
                EXPECT(bytes == rig.e.arena[A_GRAD].used && !memcmp(grads, rig.e.arena[A_GRAD].base, bytes),
                       "%s, %s: gradients differ", rig.shape.family, cases[i].words);
            }
            rig_close(&rig);
        }
        EXPECT(kept[1] < kept[0], "%s, %s: keeps %zu bytes of %zu", family_text[cases[i].family],
               cases[i].words, kept[1], kept[0]);
        free(grads);
    }
}

int main(void)
{
    RUN(every_linear_has_an_adapter);
    RUN(gradients_are_slopes);
    RUN(recompute_words_change_no_bit);
    return lab_report();
}
