/* Weights saved to a folder and loaded in every published form, and the errors for a wrong folder. */
#include "weightlab.h"

static const char text_moe[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 50, \"hidden_size\": 24, \"num_hidden_layers\": 2, "
    "\"num_attention_heads\": 4,"
    " \"num_key_value_heads\": 2, \"head_dim\": 8, \"intermediate_size\": 40, \"moe_intermediate_size\": 16, "
    "\"num_experts\": 3,"
    " \"num_experts_per_tok\": 2, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true}";

static bool same_weights(const Bound *a, const Bound *b)
{
    for (int i = 0; i < a->m.params.n; i++)
        if (memcmp(a->m.params.p[i]->shard.w.data, b->m.params.p[i]->shard.w.data,
                   (size_t)t_bytes(a->m.params.p[i]->shard.w)))
            return false;
    return true;
}

static void round_trip(void)
{
    const char *configs[] = { small_vl_moe, text_moe };
    for (int i = 0; i < 4; i++) {
        ModelShape s = small_shape(configs[i % 2]);
        DType d = i < 2 ? F32 : BF16;
        Bound a, b;
        SafeTensors st;
        bound_open(&a, &s, d), bound_open(&b, &s, d);
        EXPECT_OK(model_init(&a.m, &a.be, 9));
        EXPECT_OK(weights_save(&a.m, &a.be, folder("trip"), d, i == 1 ? 4000 : 0)); /* i = 1: in many files */
        EXPECT_OK(st_open(&st, folder("trip")));
        EXPECT_OK(weights_load(&b.m, &b.be, &st, NULL));
        EXPECT(same_weights(&a, &b), "config %d: weights differ", i);
        const char     *expert = i % 2 ? "model.layers.1.mlp.experts.2.up_proj.weight"
                                       : "model.language_model.layers.2.mlp.experts.gate_up_proj";
        const StTensor *t = st_find(&st, expert);
        EXPECT(t, "%s is not in the file", expert);
        if (t && !(i % 2))
            EXPECT(t->shape[1] == 40 && t->shape[2] == 48, "hub files store experts [E, in, out]");
        EXPECT(!st_find(&st, "lm_head.weight") == s.text.tied, "a tied head is not written");
        st_close(&st);
        bound_close(&a), bound_close(&b);
    }
}

static bool without_k(StTensor *t) { return !strstr(t->name, "layers.1.self_attn.k_proj.weight"); }
static bool wrong_norm(StTensor *t)
{
    if (strstr(t->name, "layers.0.input_layernorm")) t->shape[0] = 12, t->bytes = 48;
    return true;
}
static bool flat_experts(StTensor *t)
{
    if (strstr(t->name, "experts.down_proj"))
        t->rank = 2, t->shape[0] *= t->shape[1], t->shape[1] = t->shape[2];
    return true;
}

static void refusals(void)
{
    ModelShape text = small_shape(text_moe), vl = small_shape(small_vl_moe);
    static const float zeros[64 * 64];
    StTensor           scale = { .name  = "model.layers.0.mlp.gate.weight_scale_inv",
                                 .dtype = F32,
                                 .rank  = 1,
                                 .shape = { 1 },
                                 .data  = zeros,
                                 .bytes = 4 };
    StTensor           fused = { .name  = "model.layers.0.mlp.experts.gate_up_proj",
                                 .dtype = F32,
                                 .rank  = 1,
                                 .shape = { 1 },
                                 .data  = zeros,
                                 .bytes = 4 };
    Bound a;
    char text_dir[300], vl_dir[300];
    snprintf(text_dir, sizeof text_dir, "%s", folder("text"));
    snprintf(vl_dir, sizeof vl_dir, "%s", folder("vl"));
    bound_open(&a, &text, F32);
    EXPECT_OK(model_init(&a.m, &a.be, 1));
    EXPECT_OK(weights_save(&a.m, &a.be, text_dir, F32, 0));
    bound_close(&a);
    bound_open(&a, &vl, F32);
    EXPECT_OK(model_init(&a.m, &a.be, 1));
    EXPECT_OK(weights_save(&a.m, &a.be, vl_dir, F32, 0));
    bound_close(&a);
    EXPECT_OK(load_from(text_dir, &text));
    rewrite(text_dir, folder("bad"), without_k, NULL);
    EXPECT_FAIL(load_from(folder("bad"), &text), E_DATA, "layers.1.self_attn.k_proj.weight");
    rewrite(text_dir, folder("bad"), wrong_norm, NULL);
    EXPECT_FAIL(load_from(folder("bad"), &text), E_DATA, "shape [12] in the file and [24] by config.json");
    rewrite(text_dir, folder("bad"), NULL, &scale);
    EXPECT_FAIL(load_from(folder("bad"), &text), E_DATA, "no F8_E4M3 tensor that it scales");
    rewrite(text_dir, folder("bad"), NULL, &fused);
    EXPECT_FAIL(load_from(folder("bad"), &text), E_DATA, "both fused and one by one");
    rewrite(vl_dir, folder("bad"), flat_experts, NULL);
    EXPECT_FAIL(load_from(folder("bad"), &vl), E_DATA, "experts.down_proj");
    EXPECT_FAIL(load_from(folder("none"), &text), E_IO, "none");
}

/* If in = out for one expert tensor, its shape does not tell the layout; the shape of the other one does. */
static void square_experts(void)
{
    char config[2048];
    snprintf(config, sizeof config, "%s", small_vl_moe);
    memcpy(strstr(config, "\"moe_intermediate_size\": 24"), "\"moe_intermediate_size\": 20",
           27); /* 2 x 20 = 40 = width */
    ModelShape s = small_shape(config);
    Bound a, b;
    SafeTensors st;
    bound_open(&a, &s, F32), bound_open(&b, &s, F32);
    EXPECT_OK(model_init(&a.m, &a.be, 9));
    EXPECT_OK(weights_save(&a.m, &a.be, folder("square"), F32, 0));
    EXPECT_OK(st_open(&st, folder("square")));
    EXPECT_OK(weights_load(&b.m, &b.be, &st, NULL));
    EXPECT(same_weights(&a, &b), "weights differ");
    st_close(&st);
    bound_close(&a), bound_close(&b);
}

static void init_is_a_function_of_the_seed(void)
{
    ModelShape s = small_shape(small_vl_moe);
    Bound a, b;
    bound_open(&a, &s, F32), bound_open(&b, &s, F32);
    EXPECT_OK(model_init(&a.m, &a.be, 9));
    EXPECT_OK(model_init(&b.m, &b.be, 9));
    EXPECT(same_weights(&a, &b), "same seed, other weights");
    EXPECT_OK(model_init(&b.m, &b.be, 10));
    EXPECT(!same_weights(&a, &b), "another seed, same weights");
    double sum = 0, sq = 0;
    Tensor w = a.m.embed->shard.w;
    for (int64_t i = 0; i < t_count(w); i++)
        sum += ((float *)w.data)[i], sq += ((float *)w.data)[i] * ((float *)w.data)[i];
    double n = (double)t_count(w), dev = sqrt(sq / n);
    EXPECT(fabs(sum / n) < 0.02 && fabs(dev - 0.2) < 0.01, "mean %g deviation %g", sum / n, dev);
    bound_close(&a), bound_close(&b);
}

int main(void)
{
    RUN(round_trip);
    RUN(refusals);
    RUN(square_experts);
    RUN(init_is_a_function_of_the_seed);
    char rm[400];
    snprintf(rm, sizeof rm, "rm -rf '%s'", lab_tmp());
    if (system(rm)) perror(rm);
    return lab_report();
}
