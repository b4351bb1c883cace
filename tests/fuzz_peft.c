/* tests/fuzz_peft.c -- hostile PEFT files. Whatever adapter_config.json and the safetensors header contain,
 * they are refused with a reason, or the adapters can be attached to the model and loaded.
 *
 * An input is the configuration, a line feed, and the header; the data are as many counting bytes as the
 * header asks for. */
#include "model/peft.h"
#include "model/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 18 };                 /* bytes of data; inputs that ask for more are skipped */

static const char model[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 11, \"hidden_size\": 8, \"num_hidden_layers\": 2,"
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 4, \"intermediate_size\": 6,"
    " \"moe_intermediate_size\": 3, \"num_experts\": 2, \"num_experts_per_tok\": 1, \"mlp_only_layers\": [0],"
    " \"rope_theta\": 10000.0}";

static ModelShape shape_of(void)
{
    Json *o = NULL;
    ModelShape s;
    REQUIRE(!json_parse(&o, model, strlen(model), "model"), "%s", status_text());
    REQUIRE(!shape_read(&s, o, "model"), "%s", status_text());
    json_decref(o);
    return s;
}

/* Where the header's tensors end. */
static int64_t data_bytes(const char *header, size_t len)
{
    Json *o = json_loadb(header, len, 0, NULL), *v;
    const char *name;
    int64_t most = 0;
    if (json_is_object(o))
        json_object_foreach(o, name, v) {
            int64_t end = json_integer_value(json_array_get(json_object_get(v, "data_offsets"), 1));
            if (end > most) most = end;
        }
    json_decref(o);
    return most;
}

static uint8_t *make_file(const char *header, size_t len, size_t *bytes)
{
    int64_t data = data_bytes(header, len);
    if (data > MOST) return NULL;
    uint8_t *file = malloc(8 + len + (size_t)data);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)((uint64_t)len >> (8 * i));
    memcpy(file + 8, header, len);
    for (int64_t i = 0; i < data; i++) file[8 + len + (size_t)i] = (uint8_t)(i & 0x3f);
    *bytes = 8 + len + (size_t)data;
    return file;
}

/* Attaches the adapters: the model has one for each module that the file names, and all are loaded. */
static void use(const PeftFile *f, const ModelShape *s)
{
    Backend be;
    Model   m;
    int     parts = 0;
    REQUIRE(!backend_open(&be, "cpu"), "%s", status_text());
    Status st = model_open_whole(&m, s, NULL, &f->conf);
    REQUIRE(!st || strstr(status_text(), "wider than both"), "cannot be attached: %s", status_text());
    if (st) {
        model_close(&m), backend_close(&be);
        return;
    }
    for (int i = 0; i < m.params.n; i++) {
        Param *p = m.params.p[i];
        int64_t n = param_count(p);
        p->shard.w = t_wrap(calloc((size_t)n + 1, sizeof(float)), F32, 1, &n);
        parts += p->lora ? p->lora->parts : 0;
    }
    REQUIRE(parts == f->conf.exacts, "%d adapters, %d were read", parts, f->conf.exacts);
    st = peft_load(f, &m, &be);
    REQUIRE(!st || status_text()[0], "an error without text");
    for (int i = 0; i < m.params.n; i++) free(m.params.p[i]->shard.w.data);
    model_close(&m);
    backend_close(&be);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *cut = size ? memchr(text, '\n', size) : NULL;
    ModelShape  s = shape_of();
    PeftFile f = { 0 };
    Json       *config = NULL;
    size_t      bytes;
    uint8_t    *file = cut ? make_file(cut + 1, size - (size_t)(cut + 1 - text), &bytes) : NULL;
    if (!file) return 0;
    Status st = json_parse(&config, text, (size_t)(cut - text), "fuzz");
    if (!st) st = st_open_memory(&f.st, file, bytes, "fuzz");
    if (!st) st = peft_read(&f, config, &s);
    REQUIRE(!st || status_text()[0], "an error without text");
    json_decref(config);
    if (!st) use(&f, &s);
    peft_close(&f), peft_close(&f);
    free(file);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

#define P "\"base_model.model.model.layers."
#define T(name, rows, cols, from, to)                                            \
    P name ".weight\":{\"dtype\":\"BF16\",\"shape\":[" #rows "," #cols "],"           \
    "\"data_offsets\":[" #from "," #to "]}"
#define EXPERTS "1.mlp.experts."
#define CONFIG "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":4,\"peft_version\":\"0.21.2\""

static void fuzz_seeds(Fuzz *f)
{
    static const char *const seeds[] = {
        CONFIG ",\"rank_pattern\":{\"layers.1.*q_proj\":1},\"use_rslora\":true}\n{"
        T("0.self_attn.q_proj.lora_A", 2, 8, 0, 32) "," T("0.self_attn.q_proj.lora_B", 8, 2, 32, 64) ","
        T("1.self_attn.q_proj.lora_A", 1, 8, 64, 80) "," T("1.self_attn.q_proj.lora_B", 8, 1, 80, 96) ","
        T("0.mlp.gate_proj.lora_A", 2, 8, 96, 128) "," T("0.mlp.gate_proj.lora_B", 6, 2, 128, 152) "}",
        CONFIG ",\"alpha_pattern\":{\"down_proj\":3}}\n{"
        T(EXPERTS "base_layer.lora_A", 4, 8, 0, 64) "," T(EXPERTS "base_layer.lora_B", 6, 4, 64, 112) ","
        T(EXPERTS "lora_A", 4, 3, 112, 136) "," T(EXPERTS "lora_B", 8, 4, 136, 200) "}",
        CONFIG "}\n{" T(EXPERTS "lora_A", 4, 6, 0, 48) "," T(EXPERTS "lora_B", 8, 4, 48, 112) ","
        T("1.post_attention_layernorm", 8, 1, 112, 128) "}",
        CONFIG "}\n{"
        T(EXPERTS "0.gate_proj.lora_A", 2, 8, 0, 32) "," T(EXPERTS "0.gate_proj.lora_B", 3, 2, 32, 44) ","
        T(EXPERTS "0.up_proj.lora_A", 2, 8, 44, 76) "," T(EXPERTS "0.up_proj.lora_B", 3, 2, 76, 88) ","
        T(EXPERTS "1.gate_proj.lora_A", 2, 8, 88, 120) "," T(EXPERTS "1.gate_proj.lora_B", 3, 2, 120, 132) ","
        T(EXPERTS "1.up_proj.lora_A", 2, 8, 132, 164) "," T(EXPERTS "1.up_proj.lora_B", 3, 2, 164, 176) "}",
        CONFIG "}\n{"
        P "0.input_layernorm.weight\":{\"dtype\":\"F32\",\"shape\":[8],\"data_offsets\":[0,32]},"
        T("0.self_attn.o_proj.lora_A", 2, 8, 32, 64) "," T("0.self_attn.o_proj.lora_B", 8, 2, 64, 96) "}",
    };
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) fuzz_add(f, seeds[i], strlen(seeds[i]));
}
#endif
