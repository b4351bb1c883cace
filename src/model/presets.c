/* model/presets.c -- the table of presets; see presets.h. */
#include "model/presets.h"

#include <stdio.h>
#include <string.h>

typedef struct Preset {
    const char *name;                    /* as on the hub, without the owner */
    int         V, D, L, H, G, C, I;     /* letters of nn/shape.h */
    int         F, E, K;                 /* E = 0: dense */
    bool        tied;
    double      theta;
    int         mrope[3];                /* this and what follows: of vision-language models alone */
    int         image, video, start, end;                    /* ids of the visual tokens */
    int         vD, depth, vI, vH, patch, table;             /* the tower; depth 0: text only */
    int         deepstack[3];            /* -1: no more of them */
    double      init;                    /* initializer_range */
    bool        f32;                     /* stored in float32, else in bfloat16 */
} Preset;

#define BIG_TOWER   1152, 27, 4304, 16, 16, 2304, { 8, 16, 24 }, 0.02, false
#define SMALL_TOWER 1024, 24, 4096, 16, 16, 2304, { 5, 11, 17 }, 0.02, false
#define VL          { 24, 20, 20 }, 151655, 151656, 151652, 151653
#define TEXT        { 0, 0, 0 }, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, { 0, 0, 0 }, 0.02, false

/*    name                 V       D     L   H     G  C    I      F     E    K  tied   theta */
static const Preset presets[] = {
    { "Qwen3-VL-2B",       151936, 2048, 28, 16,   8, 128, 6144,  0,    0,   0, true,  5e6, VL, SMALL_TOWER },
    { "Qwen3-VL-4B",       151936, 2560, 36, 32,   8, 128, 9728,  0,    0,   0, true,  5e6, VL, SMALL_TOWER },
    { "Qwen3-VL-8B",       151936, 4096, 36, 32,   8, 128, 12288, 0,    0,   0, false, 5e6, VL, BIG_TOWER },
    { "Qwen3-VL-32B",      151936, 5120, 64, 64,   8, 128, 25600, 0,    0,   0, false, 5e6, VL, BIG_TOWER },
    { "Qwen3-VL-30B-A3B",  151936, 2048, 48, 32,   4, 128, 6144,  768,  128, 8, false, 5e6, VL, BIG_TOWER },
    { "Qwen3-VL-235B-A22B",151936, 4096, 94, 64,   4, 128, 12288, 1536, 128, 8, false, 5e6, VL, BIG_TOWER },
    { "Qwen3-30B-A3B",     151936, 2048, 48, 32,   4, 128, 6144,  768,  128, 8, false, 1e6, TEXT },
    { "Qwen3-235B-A22B",   151936, 4096, 94, 64,   4, 128, 12288, 1536, 128, 8, false, 1e6, TEXT },
    { "demo",              464,    128,  3,  4,    2, 32,  256,   96,   8,   2, false, 1e4,
      /* as demo/config.json */
      { 6, 5, 5 }, 446, 447, 443, 444, 96, 3, 256, 3, 8, 64, { 0, 1, -1 }, 0.06, true },
};
enum { PRESETS = sizeof presets / sizeof *presets };

/* Quotes are ' in the table. */
typedef struct WrittenPreset { const char *name, *config; } WrittenPreset;

static const WrittenPreset written[] = {
#define PRESET(name, config) { name, config },
#include "model/presets.def"
#undef PRESET
};
enum { WRITTEN = sizeof written / sizeof *written };

static const WrittenPreset *find_written(const char *name)
{
    for (int i = 0; i < WRITTEN; i++)
        if (!strcmp(written[i].name, name)) return &written[i];
    return NULL;
}

static const char *preset_name(int i) { return i < PRESETS ? presets[i].name : written[i - PRESETS].name; }

static const Preset *find_preset(const char *name)
{
    for (int i = 0; i < PRESETS; i++)
        if (!strcmp(presets[i].name, name)) return &presets[i];
    return NULL;
}

bool preset_is(const char *name) { return find_preset(name) || find_written(name); }

const char *preset_like(const char *path)
{
    const char *best = NULL, *end = path + strlen(path), *name;
    while (end > path && end[-1] == '/') end--;
    for (name = end; name > path && name[-1] != '/';) name--;
    for (int i = 0; i < PRESETS + WRITTEN; i++) {
        size_t n = strlen(preset_name(i)), has = (size_t)(end - name);
        if (n > has || strncmp(preset_name(i), name, n) || (n < has && name[n] != '-')) continue;
        if (!best || n > strlen(best)) best = preset_name(i);
    }
    return best;
}

static Json *text_config(const Preset *p)
{
    Json *o =
        json_pack("{s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:s, s:b, s:f, s:b}", "model_type",
                  p->depth ? (p->E ? "qwen3_vl_moe_text" : "qwen3_vl_text") : (p->E ? "qwen3_moe" : "qwen3"),
                  "vocab_size", p->V, "hidden_size", p->D, "num_hidden_layers", p->L, "num_attention_heads",
                  p->H, "num_key_value_heads", p->G, "head_dim", p->C, "intermediate_size", p->I,
                  "rms_norm_eps", 1e-6, "rope_theta", p->theta, "hidden_act", "silu", "attention_bias", 0,
                  "initializer_range", p->init, "tie_word_embeddings", (int)p->tied);
    json_object_set_new(o, "max_position_embeddings", json_integer(p->depth ? 262144 : 40960));
    if (p->depth)
        json_object_set_new(o, "rope_scaling", json_pack("{s:s, s:b, s:[i,i,i]}", "rope_type", "default",
                            "mrope_interleaved", 1, "mrope_section", p->mrope[0], p->mrope[1], p->mrope[2]));
    if (!p->E) return o;
    Json *moe = json_pack("{s:i, s:i, s:i, s:b, s:i, s:[], s:f}", "moe_intermediate_size", p->F,
                          "num_experts", p->E, "num_experts_per_tok", p->K, "norm_topk_prob", 1,
                          "decoder_sparse_step", 1, "mlp_only_layers", "router_aux_loss_coef", 0.001);
    json_object_update_new(o, moe);
    return o;
}

static Json *vision_config(const Preset *p)
{
    Json *deep = json_array();
    for (int i = 0; i < 3 && p->deepstack[i] >= 0; i++)
        json_array_append_new(deep, json_integer(p->deepstack[i]));
    return json_pack("{s:s, s:i, s:i, s:i, s:i, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:o, s:f}",
                     "model_type", p->E ? "qwen3_vl_moe" : "qwen3_vl", "depth", p->depth,
                     "hidden_size", p->vD, "intermediate_size", p->vI, "num_heads", p->vH,
                     "hidden_act", "gelu_pytorch_tanh", "in_channels", 3, "patch_size", p->patch,
                     "temporal_patch_size", 2, "spatial_merge_size", 2,
                     "num_position_embeddings", p->table, "out_hidden_size", p->D,
                     "deepstack_visual_indexes", deep, "initializer_range", p->init);
}

static Json *whole_config(const Preset *p)
{
    const char *dtype = p->f32 ? "float32" : "bfloat16";
    if (!p->depth) {
        Json *o = text_config(p);
        json_object_set_new(o, "architectures",
                            json_pack("[s]", p->E ? "Qwen3MoeForCausalLM" : "Qwen3ForCausalLM"));
        json_object_set_new(o, "torch_dtype", json_string(dtype));
        return o;
    }
    return json_pack("{s:[s], s:s, s:o, s:o, s:i, s:i, s:i, s:i, s:b, s:s}", "architectures",
                     p->E ? "Qwen3VLMoeForConditionalGeneration" : "Qwen3VLForConditionalGeneration",
                     "model_type", p->E ? "qwen3_vl_moe" : "qwen3_vl", "text_config", text_config(p),
                     "vision_config", vision_config(p), "image_token_id", p->image,
                     "video_token_id", p->video, "vision_start_token_id", p->start,
                     "vision_end_token_id", p->end, "tie_word_embeddings", (int)p->tied,
                     "torch_dtype", dtype);
}

static Status read_written(Json **hf, const WrittenPreset *w)
{
    char text[2048];
    snprintf(text, sizeof text, "%s", w->config);
    for (char *at = text; (at = strchr(at, '\''));) *at = '"';
    *hf = json_loads(text, 0, NULL);
    return *hf ? OK : fail(E_OTHER, "preset %s is not JSON", w->name);
}

Status preset_config(Json **hf, const char *name)
{
    char known[1024] = "";
    const Preset *p = find_preset(name);
    if (!p && find_written(name)) return read_written(hf, find_written(name));
    *hf = p ? whole_config(p) : NULL;
    if (p) return *hf ? OK : fail(E_FIT, "no memory for preset %s", name);
    for (int i = 0; i < PRESETS + WRITTEN; i++) {
        size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", preset_name(i));
    }
    return fail(E_CONFIG, "model.preset = %s: neither a folder with config.json nor a name; there are %s",
                name, known);
}
