/* bench/model.c -- the model of a benchmark: a folder, a preset, or a small built-in one. */
#include "bench/bench.h"

#include "model/family.h"
#include "model/presets.h"

/* The model when none is named: small enough for two cores, with every part of the large one. */
static const char small[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 8000, \"video_token_id\": 8001, "
    "\"tie_word_embeddings\": false,"
    " \"text_config\": {\"vocab_size\": 8192, \"hidden_size\": 512, \"num_hidden_layers\": 8, "
    "\"num_attention_heads\": 8,"
    "  \"num_key_value_heads\": 2, \"head_dim\": 64, \"intermediate_size\": 1536, \"moe_intermediate_size\": "
    "192,"
    "  \"num_experts\": 16, \"num_experts_per_tok\": 4, \"rope_theta\": 5000000,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [12, 10, 10]}},"
    " \"vision_config\": {\"depth\": 6, \"hidden_size\": 256, \"intermediate_size\": 1024, \"num_heads\": 4, "
    "\"patch_size\": 16,"
    "  \"num_position_embeddings\": 2304, \"out_hidden_size\": 512, \"deepstack_visual_indexes\": [1, 3]}}";

/* A folder, a preset's name, or NULL for the small one. */
static Status model_config(Json **hf, const char *name)
{
    if (!name) return json_parse(hf, small, sizeof small - 1, "the built-in model");
    return preset_config(hf, name);
}

Status bench_model(ModelShape *s, const char *name, int64_t layers)
{
    Json *hf;
    if (name && !preset_is(name) && !layers) return shape_load(s, name);
    if (name && !preset_is(name)) return fail(E_CONFIG, "--layers: for a preset; %s is a folder", name);
    TRY(model_config(&hf, name));
    Json *text = json_object_get(hf, "text_config");
    if (layers) json_object_set_new(text ? text : hf, "num_hidden_layers", json_integer(layers));
    Status st = shape_read(s, hf, name ? name : "the built-in model");
    json_decref(hf);
    return st;
}
