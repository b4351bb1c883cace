/* config.json in all spellings in use, the parameter counts of known models, and what is refused. */
#include "small.h"

#define VL_TEXT                                                                                              \
    "\"vocab_size\": 151936, \"head_dim\": 128, \"rms_norm_eps\": 1e-06, \"rope_theta\": 5000000, "          \
    "\"rope_scaling\": {\"mrope_interleaved\": true, \"mrope_section\": [24, 20, 20], \"rope_type\": "       \
    "\"default\"}"
#define BIG_VISION(out)                                                                                      \
    "{\"depth\": 27, \"hidden_size\": 1152, \"intermediate_size\": 4304, \"num_heads\": 16, "                \
    "\"num_position_embeddings\": 2304, \"deepstack_visual_indexes\": [8, 16, 24], "                         \
    "\"out_hidden_size\": " #out "}"

static Status read_config(ModelShape *s, const char *text)
{
    Json *o;
    TRY(json_parse(&o, text, strlen(text), "config"));
    Status st = shape_read(s, o, "config");
    json_decref(o);
    return st;
}

static int64_t parameters(const char *text)
{
    ModelShape s;
    Model m = { 0 };
    EXPECT_OK(read_config(&s, text));
    EXPECT_OK(model_open(&m, &s, NULL));
    int64_t n = params_count(&m.params);
    model_close(&m);
    return n;
}

static void known_models(void)
{
    static const struct { const char *config; long long want;
    } models[] = {
        { "{\"model_type\": \"qwen3_vl_moe\", \"tie_word_embeddings\": false, \"text_config\": {" VL_TEXT
          ", \"hidden_size\": 2048,"
          "\"num_hidden_layers\": 48, \"num_attention_heads\": 32, \"num_key_value_heads\": 4, "
          "\"intermediate_size\": 6144,"
          "\"moe_intermediate_size\": 768, \"num_experts\": 128, \"num_experts_per_tok\": 8},"
          "\"vision_config\": " BIG_VISION(2048) "}",
          31070754032 },
        { "{\"model_type\": \"qwen3_vl_moe\", \"text_config\": {" VL_TEXT ", \"hidden_size\": 4096,"
          "\"num_hidden_layers\": 94, \"num_attention_heads\": 64, \"num_key_value_heads\": 4, "
          "\"moe_intermediate_size\": 1536,"
          "\"num_local_experts\": 128, \"num_experts_per_tok\": 8}, \"vision_config\": " BIG_VISION(4096) "}",
          235670022896 },
        { "{\"model_type\": \"qwen3_vl\", \"tie_word_embeddings\": true, \"text_config\": {" VL_TEXT
          ", \"hidden_size\": 2048,"
          "\"num_hidden_layers\": 28, \"num_attention_heads\": 16, \"num_key_value_heads\": 8, "
          "\"intermediate_size\": 6144,"
          "\"tie_word_embeddings\": false}, \"vision_config\": {\"depth\": 24, \"hidden_size\": 1024, "
          "\"intermediate_size\": 4096,"
          "\"num_heads\": 16, \"deepstack_visual_indexes\": [5, 11, 17], \"out_hidden_size\": 2048}}",
          2127532032 },
        { "{\"model_type\": \"qwen3_vl\", \"text_config\": {" VL_TEXT
          ", \"hidden_size\": 4096, \"num_hidden_layers\": 36,"
          "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"intermediate_size\": 12288}, "
          "\"vision_config\": " BIG_VISION(4096) "}",
          8767123696 },
        { "{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, \"num_hidden_layers\": 48, "
          "\"num_attention_heads\": 32,"
          "\"num_key_value_heads\": 4, \"head_dim\": 128, \"moe_intermediate_size\": 768, \"num_experts\": "
          "128,"
          "\"num_experts_per_tok\": 8, \"rope_theta\": 1000000.0, \"norm_topk_prob\": true}",
          30532122624 },
    };
    for (int i = 0; i < 5; i++) {
        long long got = parameters(models[i].config);
        EXPECT(got == models[i].want, "model %d: %lld parameters, not %lld", i, got, models[i].want);
    }
}

static void spellings(void)
{
    ModelShape s;
    EXPECT_OK(read_config(
        &s, "{\"model_type\": \"qwen3_moe\", \"rope_parameters\": {\"rope_type\": \"default\", "
            "\"rope_theta\": 777.0},"
            "\"rope_theta\": 5.0, \"num_local_experts\": 9, \"num_experts_per_tok\": 3, \"hidden_size\": 64,"
            "\"num_attention_heads\": 4, \"num_key_value_heads\": null, \"torch_dtype\": \"bfloat16\"}"));
    EXPECT(s.text.theta == 777.0, "the value inside the rope object wins: %g", s.text.theta);
    EXPECT(s.text.E == 9 && s.text.C == 16 && s.text.G == 4 && !s.text.renorm, "E %lld C %lld G %lld",
           (long long)s.text.E, (long long)s.text.C, (long long)s.text.G);
    EXPECT(s.dtype == BF16, "dtype");
    s = small_shape(small_vl_moe);
    EXPECT(s.text.renorm && !s.text.tied && s.vision.theta == 10000.0 && s.vision.grid == 5,
           "vision-language defaults");
    EXPECT(shape_is_sparse(&s.text, 0) && !shape_is_sparse(&s.text, 1) && shape_sparse_layers(&s.text) == 2,
           "mlp_only_layers");
    EXPECT_OK(read_config(
        &s,
        "{\"model_type\": \"qwen3_vl_moe\", \"text_config\": {\"rope_theta\": 5.0, \"norm_topk_prob\": false,"
        "\"tie_word_embeddings\": true, \"dtype\": \"float16\", \"head_dim\": 128}, \"vision_config\": "
        "{\"out_hidden_size\": 2048,"
        "\"rope_parameters\": {\"rope_type\": \"axial\", \"rope_theta\": 500.0}}}"));
    EXPECT(s.text.renorm && !s.text.tied && s.dtype == F16 && s.vision.theta == 500.0,
           "flags of text_config that do not count");
}

/* Keys that public files leave out, or have as null, and that classes of transformers have defaults for. */
static void keys_left_out(void)
{
    ModelShape s;
    EXPECT_OK(read_config(&s, "{\"model_type\": \"llama\", \"rope_scaling\": null, "
                              "\"torch_dtype\": \"float16\"}"));
    EXPECT(s.text.theta == 10000 && s.dtype == F16, "Llama 2 has no rope_theta: %g", s.text.theta);
    EXPECT_OK(read_config(&s, "{\"model_type\": \"mistral\", \"rope_theta\": 1e4}"));
    EXPECT(s.text.window == 4096 && s.text.window_all, "window %lld", (long long)s.text.window);
    EXPECT_OK(read_config(&s, "{\"model_type\": \"mistral\", \"rope_theta\": 1e4, "
                              "\"sliding_window\": null}"));
    EXPECT(!s.text.window, "window %lld", (long long)s.text.window);
    EXPECT_OK(read_config(&s, "{\"model_type\": \"olmoe\", \"rope_theta\": 1e4, \"clip_qkv\": null}"));
    EXPECT(s.text.pad_id == 1, "pad_token_id %lld", (long long)s.text.pad_id);
    EXPECT_OK(read_config(&s, "{\"model_type\": \"olmoe\", \"rope_theta\": 1e4, \"pad_token_id\": null}"));
    EXPECT(s.text.pad_id == -1, "pad_token_id %lld", (long long)s.text.pad_id);
    EXPECT_OK(read_config(&s, "{\"model_type\": \"deepseek_v3\", \"rope_theta\": 1e4, \"hidden_size\": 15, "
                              "\"num_attention_heads\": 3, \"num_key_value_heads\": 3, "
                              "\"n_shared_experts\": null}"));
    EXPECT(!s.text.shared, "shared experts of width %lld", (long long)s.text.shared);
    EXPECT_OK(read_config(&s, "{\"model_type\": \"qwen3_next\", \"rope_theta\": 1e7, "
                              "\"shared_expert_intermediate_size\": 0}"));
    EXPECT(!s.text.shared, "shared experts of width %lld", (long long)s.text.shared);
    EXPECT_OK(read_config(&s, "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"num_hidden_layers\": 2, "
                              "\"layer_types\": [\"full_attention\", \"full_attention\"]}"));
}

static int64_t layers_of(const AttentionKind *kind, const ModelShape *s)
{
    return kind->layers_below(&s->text, s->text.L);
}

static void kinds_of_layers(void)
{
    static const struct { const char *types; int64_t full, window; } oss[] = {
        { "\"sliding_attention\", \"full_attention\", \"sliding_attention\"", 1, 2 },
        { "\"full_attention\", \"full_attention\", \"sliding_attention\"", 2, 1 },
        { "\"full_attention\", \"full_attention\", \"full_attention\"", 3, 0 },
        { "\"sliding_attention\", \"sliding_attention\", \"sliding_attention\"", 0, 3 },
    };
    char text[400];
    ModelShape s;
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 3, "
                 "\"layer_types\": [%s]}", oss[i].types);
        EXPECT_OK(read_config(&s, text));
        int64_t full = layers_of(&attention_gqa, &s), window = layers_of(&attention_window, &s);
        EXPECT(full == oss[i].full && window == oss[i].window, "%s: %lld full, %lld with a window",
               oss[i].types, (long long)full, (long long)window);
    }
    EXPECT_OK(read_config(&s, "{\"model_type\": \"qwen3_next\", \"rope_theta\": 1e7, "
                              "\"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\", "
                              "\"linear_attention\", \"full_attention\"]}"));
    EXPECT(layers_of(&attention_gqa, &s) == 2 && layers_of(&attention_gdn, &s) == 1, "%lld full",
           (long long)layers_of(&attention_gqa, &s));
}

static void refusals(void)
{
    static const struct { const char *config, *says;
    } bad[] = {
        { "[1]", "not a JSON object" },
        { "{}", "model_type is missing" },
        { "{\"model_type\": \"gpt2\"}", "qwen3_vl_moe" },
        { "{\"model_type\": \"qwen3\"}", "rope_theta is missing" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"rope_scaling\": {\"rope_type\": \"dynamic\"}}",
          "rope_type = dynamic" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"rope_scaling\": {\"rope_type\": \"yarn\"}}",
          "original_max_position_embeddings" },
        { "{\"model_type\": \"mistral\", \"rope_theta\": 1e6, \"partial_rotary_factor\": 0.5}",
          "partial_rotary_factor = 0.5" },
        { "{\"model_type\": \"gpt_oss\", \"swiglu_alpha\": 1.5}", "swiglu_alpha = 1.5" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"hidden_size\": -3}", "hidden_size = -3" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"hidden_size\": \"big\"}",
          "hidden_size: a whole number" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"num_attention_heads\": 7, "
          "\"num_key_value_heads\": 2}",
          "not a multiple" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"head_dim\": 15}", "must be even" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"hidden_act\": \"gelu\"}", "hidden_act = gelu" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"use_sliding_window\": true}", "sliding" },
        { "{\"model_type\": \"qwen3_moe\", \"rope_theta\": 1e6, \"num_experts\": 4, \"num_experts_per_tok\": "
          "5}",
          "more than num_experts" },
        { "{\"model_type\": \"qwen3_moe\", \"rope_theta\": 1e6, \"mlp_only_layers\": [0.5]}",
          "mlp_only_layers[0]" },
        { "{\"model_type\": \"qwen3_vl\", \"text_config\": {}}", "vision_config" },
        { "{\"model_type\": \"qwen3_vl\", \"text_config\": {\"rope_theta\": 5.0, \"head_dim\": 64}, "
          "\"vision_config\": {}}",
          "sum to head_dim / 2 = 32" },
        { "{\"model_type\": \"qwen3_vl\", \"text_config\": {\"rope_theta\": 5.0, \"rope_scaling\": "
          "{\"mrope_section\": "
          "[9223372036854775807, 9223372036854775807, 66]}}, \"vision_config\": {}}",
          "sum to head_dim / 2 = 64" },
        { "{\"model_type\": \"qwen3_vl\", \"text_config\": {\"rope_theta\": 5.0}, \"vision_config\": {}}",
          "must equal the text hidden_size" },
        { "{\"model_type\": \"qwen3_vl\", \"text_config\": {\"rope_theta\": 5.0}, \"vision_config\": "
          "{\"num_position_embeddings\": 50}}",
          "square" },
        { "{\"model_type\": \"qwen3_vl\", \"text_config\": {\"rope_theta\": 5.0}, \"vision_config\": "
          "{\"deepstack_visual_indexes\": [40]}}",
          "block 40 of 27" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"dtype\": \"int3\"}", "int3" },
        { "{\"model_type\": \"llama\", \"attention_dropout\": 0.1}", "attention_dropout is set" },
        { "{\"model_type\": \"llama\", \"mlp_bias\": true}", "mlp_bias is set" },
        { "{\"model_type\": \"llama\", \"no_rope_layers\": [1, 0]}", "no_rope_layers is set" },
        { "{\"model_type\": \"llama\", \"rope_scaling\": {\"type\": \"linear\"}}", "type linear: factor" },
        { "{\"model_type\": \"olmoe\", \"rope_theta\": 1e4, \"clip_qkv\": 8.0}", "clip_qkv is set" },
        { "{\"model_type\": \"mixtral\", \"rope_theta\": 1e6, \"router_jitter_noise\": 0.1}",
          "router_jitter_noise is set" },
        { "{\"model_type\": \"deepseek_v3\", \"rope_theta\": 1e4, \"moe_layer_freq\": 2}",
          "moe_layer_freq = 2" },
        { "{\"model_type\": \"gpt_oss\", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e4}}}",
          "rope_parameters.full_attention" },
        { "{\"model_type\": \"qwen3\", \"rope_theta\": 1e6, \"layer_types\": [\"full_attention\", "
          "\"sliding_attention\"]}",
          "layer_types[1] = sliding_attention" },
        { "{\"model_type\": \"gpt_oss\", \"layer_types\": [\"full_attention\"]}",
          "num_hidden_layers = 36 names" },
        { "{\"model_type\": \"gpt_oss\", \"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
          "layer_types[0] = linear_attention" },
        { "{\"model_type\": \"qwen3_next\", \"rope_theta\": 1e7, \"num_hidden_layers\": 1, \"layer_types\": "
          "[\"full_attention\"]}",
          "no gated delta net" },
        { "{\"model_type\": \"mistral\", \"rope_theta\": 1e6, \"sliding_window\": 8, \"layer_types\": "
          "[\"full_attention\"]}",
          "layer_types[0] = full_attention" },
        { "{\"model_type\": \"qwen3_next\", \"rope_theta\": 1e7, \"shared_expert_intermediate_size\": -1}",
          "shared_expert_intermediate_size = -1" },
    };
    ModelShape s;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        Status st = read_config(&s, bad[i].config);
        EXPECT(st && strstr(status_text(), bad[i].says), "case %zu: status %d, %s", i, (int)st,
               st ? status_text() : "accepted");
    }
    EXPECT_FAIL(shape_load(&s, "no/such/folder"), E_IO, "no/such/folder");
}

int main(void)
{
    RUN(known_models);
    RUN(spellings);
    RUN(keys_left_out);
    RUN(kinds_of_layers);
    RUN(refusals);
    return lab_report();
}
