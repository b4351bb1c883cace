/* The trainable summary: its sums equal those of the parameters, names have stars for numbers, and modules
 * that are not adapted are listed with the reason. */
#include "small.h"
#include "train/trainable.h"

static char text[20000];
static int  warnings;

static void collect(void *self, bool warning, const char *line)
{
    size_t at = strlen(text);
    snprintf(text + at, sizeof text - at, "%s%s\n", warning ? "WARN " : "", line);
    warnings += warning;
}

static void listen(const TrainableSummary *t)
{
    text[0] = 0, warnings = 0;
    trainable_print(t, collect, NULL);
}

static const ModuleKind *find(const TrainableSummary *t, const char *name)
{
    for (int i = 0; i < t->n; i++)
        if (!strcmp(t->kind[i].name, name)) return &t->kind[i];
    return NULL;
}

static LoraConf conf_of(const WordList *target)
{
    return (LoraConf){ .rank = 4, .alpha = 8, .target = target };
}

#define LIST(...)  (const char *[]){ __VA_ARGS__ }
#define WORDS(...) &(WordList){ LIST(__VA_ARGS__), sizeof LIST(__VA_ARGS__) / sizeof(char *) }
#define LAYERS "model.language_model.layers.*."

/* For any targets the kinds add up to the unfrozen tensors of the model. */
static void adds_up(void)
{
    static const char *const asked[] = { "all-linear", "all-attention", "experts", "vision", "q_proj",
                                         "*.mlp.gate" };
    ModelShape s = small_shape(small_vl_moe);
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++)
        for (int shared = 0; shared < 2; shared++) {
            LoraConf c = conf_of(WORDS(asked[i]));
            Model   m;
            TrainableSummary  t;
            int64_t pairs = 0, kinds = 0;
            c.shared_a = shared;
            EXPECT_OK(model_open_whole(&m, &s, NULL, &c));
            EXPECT_OK(trainable_open(&t, &s, NULL, &c));
            for (int k = 0; k < m.params.n; k++)
                if (!m.params.p[k]->frozen) pairs += param_count(m.params.p[k]);
            for (int k = 0; k < t.n; k++)
                if (t.kind[k].status == MODULE_ADAPTED) kinds += t.kind[k].params;
            EXPECT(pairs && pairs == kinds && pairs == t.adapters && !t.whole,
                   "%s: %lld, in kinds %lld, sum %lld", asked[i], (long long)pairs, (long long)kinds,
                   (long long)t.adapters);
            trainable_close(&t);
            model_close(&m);
        }
}

static void says_what(void)
{
    ModelShape  s = small_shape(small_vl_moe);
    LoraConf c = conf_of(WORDS("all-linear"));
    TrainableSummary t;
    EXPECT_OK(trainable_open(&t, &s, NULL, &c));
    const ModuleKind *q = find(&t, LAYERS "self_attn.q_proj"), *k = find(&t, LAYERS "self_attn.k_proj");
    const ModuleKind *up = find(&t, LAYERS "mlp.experts.gate_up_proj"), *gate = find(&t, LAYERS "mlp.gate");
    EXPECT(q && q->modules == 3 && q->most == 4 && q->params == 3 * 4 * (40 + 72), "q_proj");
    EXPECT(k && k->modules == 3 && k->params == 3 * 4 * (40 + 36), "k_proj");
    EXPECT(up && up->modules == 2 && up->params == 2 * 5 * 4 * (40 + 48), "gate_up_proj");
    EXPECT(gate && gate->status == MODULE_NOT_ADAPTED && gate->modules == 2, "routers are left");
    EXPECT(find(&t, "lm_head") && find(&t, "lm_head")->status == MODULE_NOT_ADAPTED, "the head is left");
    listen(&t);
    EXPECT(warnings == 2 && strstr(text, ", mlp.gate): 2 x " LAYERS "mlp.gate, ") &&
               strstr(text, "M are frozen, without"), "%s", text);
    Json *o = trainable_json(&t);
    EXPECT(json_integer_value(json_object_get(o, "adapters")) == t.adapters &&
               (int)json_array_size(json_object_get(o, "kinds")) == t.n, "JSON");
    json_decref(o);
    trainable_close(&t);
}

/* A frozen part, a target that matches few modules, a module of modules_to_save. */
static void says_why(void)
{
    ModelShape  s = small_shape(small_vl_moe);
    LoraConf c = conf_of(WORDS("all-linear"));
    bool   vit[GROUP_N] = { [G_VIT] = true };
    TrainableSummary t;
    EXPECT_OK(trainable_open(&t, &s, vit, &c));
    listen(&t);
    EXPECT(warnings == 3 && strstr(text, "model.visual.blocks.*.attn.qkv") &&
               strstr(text, "model.freeze_vit is set"), "%s", text);
    trainable_close(&t);
    c = conf_of(WORDS("q_proj")), c.save = WORDS("mlp.gate", "embed_tokens");
    EXPECT_OK(trainable_open(&t, &s, NULL, &c));
    listen(&t);
    const ModuleKind *gate = find(&t, LAYERS "mlp.gate");
    EXPECT(gate && gate->status == MODULE_TRAINED && gate->params == 2 * 5 * 40,
           "a router that trains whole");
    EXPECT(t.whole == gate->params + 97 * 40 && strstr(text, "whole") &&
               strstr(text, LAYERS "self_attn.v_proj"), "%lld of %s", (long long)t.whole, text);
    EXPECT(!strstr(text, "a higher rank adds cost"), "rank 4 is of use: %s", text);
    trainable_close(&t);
    c = conf_of(WORDS("q_proj")), c.save = WORDS("visual.merger");
    EXPECT_OK(trainable_open(&t, &s, NULL, &c));
    const ModuleKind *fc = find(&t, "model.visual.merger.linear_fc2");
    EXPECT(fc && fc->modules == 1 && fc->params == 40 * 96 + 40, "a weight and its bias are one module");
    trainable_close(&t);
    c = conf_of(WORDS("mlp.gate", "q_proj")), c.rank = 6;
    EXPECT_OK(trainable_open(&t, &s, NULL, &c));
    listen(&t);
    EXPECT(strstr(text, "WARN rank 6 of " LAYERS "mlp.gate: its smaller dimension is 5") &&
               !strstr(text, "rank 6 of " LAYERS "self_attn"), "%s", text);
    trainable_close(&t);
}

/* A loaded adapter on a frozen part stays in the model and does not train. */
static void frozen_adapters_do_not_train(void)
{
    static const LoraTarget exact[] = { { "model.visual.blocks.0.attn.qkv", 2, 4 },
                                           { "model.language_model.layers.0.self_attn.q_proj", 2, 4 } };
    ModelShape  s = small_shape(small_vl_moe);
    LoraConf c = { .rank = 2, .alpha = 4, .exact = exact, .exacts = 2 };
    bool   llm[GROUP_N] = { [G_LLM] = true };
    TrainableSummary t;
    EXPECT_OK(trainable_open(&t, &s, llm, &c));
    listen(&t);
    const ModuleKind *qkv = find(&t, "model.visual.blocks.*.attn.qkv"),
                     *q   = find(&t, LAYERS "self_attn.q_proj");
    EXPECT(qkv && q && t.adapters == qkv->params && q->status == MODULE_NOT_ADAPTED, "%s", text);
    EXPECT(strstr(text, "model.freeze_llm is set"), "%s", text);
    trainable_close(&t);
}

static void without_adapters(void)
{
    ModelShape s = small_shape(small_vl_moe);
    bool   vit[GROUP_N] = { [G_VIT] = true };
    TrainableSummary t;
    EXPECT_OK(trainable_open(&t, &s, vit, NULL));
    listen(&t);
    EXPECT(!t.n && !t.adapters && t.whole == t.base - t.group[G_VIT] && !warnings, "%lld",
           (long long)t.whole);
    EXPECT(strstr(text, "vision tower") && strstr(text, "frozen") && strstr(text, "trained"), "%s", text);
    trainable_close(&t);
}

int main(void)
{
    RUN(adds_up);
    RUN(says_what);
    RUN(says_why);
    RUN(frozen_adapters_do_not_train);
    RUN(without_adapters);
    return lab_report();
}
