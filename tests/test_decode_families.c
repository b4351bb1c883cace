/* Decoding of every family with the cache that its layers have (latents, windows, states of delta nets): the
 * logits after every token equal those of a full forward pass, also with adapters and with a base in codes;
 * latents and windows take no more memory than they need. */
#include "decodelab.h"
#include "loralab.h"

/* Mixtral with a window in every layer, latents without a low rank of queries, one head. */
static const char windows_text[] = "{\"model_type\": \"mixtral\", " FAMILY_TEXT "\"intermediate_size\": 16,"
                                   " \"num_local_experts\": 8, \"sliding_window\": 7}";
static const char one_text[] = "{\"model_type\": \"mistral\", " FAMILY_TEXT "\"intermediate_size\": 16,"
                               " \"sliding_window\": 1}";
static const char latent_text[] =
    "{\"model_type\": \"deepseek_v3\", \"dtype\": \"float32\", \"vocab_size\": 97, \"hidden_size\": 32,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 1, \"num_key_value_heads\": 1,"
    " \"rope_theta\": 10000.0, \"initializer_range\": 0.2, \"num_experts_per_tok\": 2,"
    " \"intermediate_size\": 32,"
    " \"moe_intermediate_size\": 16, \"n_routed_experts\": 8, \"n_shared_experts\": 0,"
    " \"first_k_dense_replace\": 1, \"n_group\": 1, \"topk_group\": 1, \"q_lora_rank\": null,"
    " \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 3, \"qk_rope_head_dim\": 2, \"v_head_dim\": 4,"
    " \"attention_bias\": true}";

enum { DEEPSEEK = 2 };                   /* of family_text; gpt-oss comes next */

static const char *text_of(int i)
{
    static const char *const more[] = { windows_text, one_text, latent_text };
    return i < FAMILY_TEXTS ? family_text[i] : i < FAMILY_TEXTS + 3 ? more[i - FAMILY_TEXTS] : NULL;
}

/* Logits are up to about 10. Latents and windows in bf16 too. */
static void cache_equals_forward(void)
{
    for (int i = 0; text_of(i); i++)
        for (int d = 0; d < 2; d++) {
            ModelShape shape = small_shape(text_of(i));
            EngineConf conf = decode_conf(d ? BF16 : F32);
            if (d && !shape.text.mla.kv_rank && !shape.text.window) continue;
            expect_cache_equals_forward(&shape, &conf, 0, d ? 0.5 : 5e-5, NULL);
        }
}

static void fill_adapters(Engine *e)
{
    fill_b(e, 5);
    engine_publish_weights(e);
}

/* Adapters on every linear layer of latent attention; the base as it is, and in codes that are decoded a few
 * rows at a time. */
static void adapters_and_codes(void)
{
    for (int i = DEEPSEEK; text_of(i); i += FAMILY_TEXTS + 2 - DEEPSEEK)
        for (int coded = 0; coded < 2; coded++) {
            LoraSelection lora;
            ModelShape    shape = small_shape(text_of(i));
            EngineConf    conf = decode_conf(F32);
            select_lora(&lora, 0, false, everything);
            lora.list.n = 1;
            conf.lora = lora.conf;
            if (coded) EXPECT_OK(mode_apply(&conf, (Mode){ .base = CODE_INT8 }));
            expect_cache_equals_forward(&shape, &conf, 0, 5e-5, fill_adapters);
        }
}

static Cache cache_of(const char *text)
{
    ModelShape shape = small_shape(text);
    EngineConf conf = decode_conf(F32);
    Stream s;
    Engine e;
    Decode d;
    small_stream(&s, &shape, decode_budget, 0, DOCS, 0);
    small_engine(&e, &shape, &conf, &s);
    EXPECT_OK(decode_open(&d, &e));
    EXPECT_OK(decode_prompts(&d, &s, NULL));
    Cache c = d.cache;
    decode_close(&d);
    engine_close(&e);
    stream_close(&s);
    return c;
}

/* A row of latents has kv_rank + rope columns for all heads; a document has a window of rows where there is
 * one. */
static void memory_of_caches(void)
{
    Cache   latents = cache_of(family_text[DEEPSEEK]), both = cache_of(family_text[DEEPSEEK + 1]);
    Cache   windows = cache_of(windows_text);
    int64_t rows = decode_budget.tokens + 4 * GROW, keys = 4 * 12;
    EXPECT(t_count(latents.full.kv) == 4 * rows * (10 + 4), "latents: %s", t_fmt(latents.full.kv));
    EXPECT(t_count(both.full.kv) == 2 * 2 * rows * keys && t_count(both.window.kv) == 2 * 2 * 4 * 5 * keys,
           "every second layer with a window: %s and %s", t_fmt(both.full.kv), t_fmt(both.window.kv));
    EXPECT(t_count(windows.full.kv) == 0 && t_count(windows.window.kv) == 4 * 2 * 4 * 7 * keys,
           "windows: %s", t_fmt(windows.window.kv));
}

int main(void)
{
    RUN(cache_equals_forward);
    RUN(adapters_and_codes);
    RUN(memory_of_caches);
    return lab_report();
}
