/* Files of the families beside Qwen3: what transformers saved is loaded and saved with the same names and
 * bytes; codes of MXFP4 and of e4m3 with scales of blocks become exactly the values that they stand for;
 * wrong ones are refused. */
#include "weightlab.h"

#include "base/rng.h"
#include "model/family.h"

#include <dirent.h>
#include <math.h>

/* ---- round trips ---- */

static void compare_files(const char *from, const char *to, const ModelShape *s)
{
    SafeTensors a, b;
    int empty = 0;
    EXPECT_OK(st_open(&a, from));
    EXPECT_OK(st_open(&b, to));
    for (int i = 0; i < a.count; i++) empty += shape_is_empty_shared(s, a.tensor[i].name);
    EXPECT(a.count - empty == b.count, "%s: %d tensors, %d of no shared expert, saved %d", from, a.count,
           empty, b.count);
    for (int i = 0; i < a.count; i++) {
        const StTensor *x = &a.tensor[i], *y = st_find(&b, x->name);
        if (shape_is_empty_shared(s, x->name)) continue;
        EXPECT(y && y->dtype == x->dtype && y->bytes == x->bytes && !memcmp(y->data, x->data, x->bytes),
               "%s: %s is not saved as it was loaded", from, x->name);
    }
    st_close(&a), st_close(&b);
}

static void saves_what_it_loads(void)
{
    struct dirent *e;
    DIR *d = opendir("tests/gold");
    int  n = 0;
    while (d && (e = readdir(d))) {
        char        dir[400];
        ModelShape  s;
        SafeTensors st;
        Bound       b;
        snprintf(dir, sizeof dir, "tests/gold/%.200s", e->d_name);
        if (e->d_name[0] == '.' || shape_load(&s, dir) || s.vision.depth) continue;
        bound_open(&b, &s, F32);
        EXPECT_OK(st_open(&st, dir));
        EXPECT_OK(weights_load(&b.m, &b.be, &st, NULL));
        EXPECT_OK(weights_save(&b.m, &b.be, folder(e->d_name), F32, 0));
        compare_files(dir, folder(e->d_name), &s);
        st_close(&st);
        bound_close(&b);
        n++;
    }
    if (d) closedir(d);
    EXPECT(n >= 9, "%d cases", n);
}

/* The bias that selects experts stays f32 in files of bf16. */
static void biases_are_saved_in_f32(void)
{
    ModelShape  s;
    SafeTensors st;
    Bound       b;
    EXPECT_OK(shape_load(&s, "tests/gold/deepseek-mtp"));
    bound_open(&b, &s, BF16);
    EXPECT_OK(model_init(&b.m, &b.be, 3));
    EXPECT_OK(weights_save(&b.m, &b.be, folder("narrow"), BF16, 0));
    EXPECT_OK(st_open(&st, folder("narrow")));
    const StTensor *bias = st_find(&st, "model.layers.2.mlp.gate.e_score_correction_bias");
    const StTensor *gate = st_find(&st, "model.layers.2.mlp.gate.weight");
    EXPECT(bias && bias->dtype == F32 && gate && gate->dtype == BF16, "types of the router's tensors");
    st_close(&st);
    bound_close(&b);
}

/* ---- codes ---- */

enum { E_ = 3, D_ = 64, F_ = 32, GU = E_ * 2 * F_ * D_, DOWN = E_ * D_ * F_ };

static const char oss[] =
    "{\"model_type\": \"gpt_oss\", \"vocab_size\": 40, \"hidden_size\": 64, \"num_hidden_layers\": 1, "
    "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, \"intermediate_size\": 32, "
    "\"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"sliding_window\": 4, \"layer_types\": "
    "[\"sliding_attention\"], \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";

static uint8_t blocks[2][GU / 2], scales[2][GU / 32];
static StTensor more[4];

/* Random codes of both tensors; scales around 2^0, and the smallest and largest ones. */
static void draw_codes(void)
{
    static const char *const names[] = { "gate_up_proj", "down_proj" };
    static char name[4][80];
    for (int k = 0; k < 2; k++) {
        int64_t out = k ? D_ : 2 * F_, in = k ? F_ : D_, n = E_ * out * in;
        for (int64_t i = 0; i < n / 2; i++)
            blocks[k][i] = (uint8_t)rng_below(5, (uint64_t)k, (uint64_t)i, 256);
        for (int64_t i = 0; i < n / 32; i++)
            scales[k][i] = (uint8_t)(110 + rng_below(6, (uint64_t)k, (uint64_t)i, 30));
        scales[k][3] = 0, scales[k][4] = 250;
        snprintf(name[2 * k], 80, "model.layers.0.mlp.experts.%s_blocks", names[k]);
        snprintf(name[2 * k + 1], 80, "model.layers.0.mlp.experts.%s_scales", names[k]);
        more[2 * k] = (StTensor){ .name = name[2 * k], .dtype = U8, .rank = 4, .data = blocks[k],
                                  .shape = { E_, out, in / 32, 16 }, .bytes = (size_t)n / 2 };
        more[2 * k + 1] = (StTensor){ .name = name[2 * k + 1], .dtype = U8, .rank = 3, .data = scales[k],
                                      .shape = { E_, out, in / 32 }, .bytes = (size_t)n / 32 };
    }
}

/* Value i of tensor k by the rules of the format, in double. */
static double value_of(int k, int64_t i)
{
    static const double value[] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 };
    int code = i % 2 ? blocks[k][i / 2] >> 4 : blocks[k][i / 2] & 15;
    return (code & 8 ? -1 : 1) * value[code & 7] * pow(2, scales[k][i / 32] - 127);
}

static bool no_experts(StTensor *t)
{
    return !strstr(t->name, "experts.gate_up_proj") && !strstr(t->name, "experts.down_proj");
}
static bool no_weights(StTensor *t) { return no_experts(t) || strstr(t->name, "_bias"); }

/* The saved model with the given tensors in place of its experts. */
static void write_codes(const char *from, const char *to, int n)
{
    char        file[400];
    SafeTensors st;
    StTensor    t[64];
    int         k = 0;
    EXPECT_OK(st_open(&st, from));
    for (int i = 0; i < st.count && k < 60; i++)
        if (t[k] = st.tensor[i], no_weights(&t[k])) k++;
    for (int i = 0; i < n; i++) t[k++] = more[i];
    mkdir(to, 0777);
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    EXPECT_OK(st_save(file, t, k));
    st_close(&st);
}

static void save_oss(const ModelShape *s, const char *dir)
{
    Bound b;
    bound_open(&b, s, F32);
    EXPECT_OK(model_init(&b.m, &b.be, 1));
    EXPECT_OK(weights_save(&b.m, &b.be, dir, F32, 0));
    bound_close(&b);
}

static void mxfp4_is_exact(void)
{
    ModelShape  s = small_shape(oss);
    char        from[300];
    SafeTensors st;
    Bound       b;
    snprintf(from, sizeof from, "%s", folder("oss"));
    save_oss(&s, from);
    draw_codes();
    write_codes(from, folder("codes"), 4);
    bound_open(&b, &s, F32);
    EXPECT_OK(st_open(&st, folder("codes")));
    EXPECT_OK(weights_load(&b.m, &b.be, &st, NULL));
    const Moe   *m = decoder_moe(&b.m.layer[0]);
    const float *w[2] = { m->w_gu->shard.w.data, m->w_d->shard.w.data };
    int64_t      wrong = 0;
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < (k ? DOWN : GU); i++) wrong += (double)w[k][i] != value_of(k, i);
    EXPECT(!wrong, "%lld values differ", (long long)wrong);
    st_close(&st);
    bound_close(&b);
}

static void wrong_codes_are_refused(void)
{
    ModelShape s = small_shape(oss);
    char       from[300];
    snprintf(from, sizeof from, "%s", folder("oss"));
    save_oss(&s, from);
    draw_codes();
    write_codes(from, folder("bad"), 1);
    EXPECT_FAIL(load_from(folder("bad"), &s), E_DATA, "gate_up_proj_scales");
    more[1].shape[2]--, more[1].bytes -= E_ * 2 * F_;
    write_codes(from, folder("bad"), 4);
    EXPECT_FAIL(load_from(folder("bad"), &s), E_DATA, "gate_up_proj_scales has shape");
    draw_codes();
    more[2].shape[0]--, more[2].bytes -= D_ * F_ / 2;
    write_codes(from, folder("bad"), 4);
    EXPECT_FAIL(load_from(folder("bad"), &s), E_DATA, "down_proj_blocks has shape");
    draw_codes();
    more[0].dtype = E4M3;
    write_codes(from, folder("bad"), 4);
    EXPECT_FAIL(load_from(folder("bad"), &s), E_DATA, "gate_up_proj_blocks");
}

/* ---- e4m3 with scales of 128 x 128 blocks ---- */

enum { ROWS = 5 * 60, COLS = 200 };          /* kv_b_proj of the shape below: not whole blocks */

static const char latent[] =
    "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 40, \"hidden_size\": 24, \"num_hidden_layers\": 1, "
    "\"num_attention_heads\": 5, \"num_key_value_heads\": 5, \"q_lora_rank\": null, "
    "\"kv_lora_rank\": 200, \"qk_nope_head_dim\": 30, \"qk_rope_head_dim\": 4, \"v_head_dim\": 30,"
    " \"intermediate_size\": 32, \"first_k_dense_replace\": 1, "
    "\"n_routed_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 8, \"n_group\": 1, "
    "\"topk_group\": 1, \"rope_theta\": 10000.0, \"tie_word_embeddings\": false}";

static uint8_t code[ROWS * COLS];
static float   scale[3 * 2];

static bool in_codes(StTensor *t)
{
    if (strstr(t->name, "kv_b_proj")) t->dtype = E4M3, t->data = code, t->bytes = sizeof code;
    return true;
}

static StTensor scale_tensor(void)
{
    return (StTensor){ .name = "model.layers.0.self_attn.kv_b_proj.weight_scale_inv", .dtype = F32, .rank = 2,
                       .shape = { 3, 2 }, .data = scale, .bytes = sizeof scale };
}

static void fp8_is_exact(void)
{
    ModelShape  s = small_shape(latent);
    StTensor    more_scales = scale_tensor();
    SafeTensors st;
    Bound       b;
    char        from[300];
    int64_t     wrong = 0;
    snprintf(from, sizeof from, "%s", folder("latent"));
    save_oss(&s, from);
    for (int64_t i = 0; i < ROWS * COLS; i++)
        if (((code[i] = (uint8_t)rng_below(7, 0, (uint64_t)i, 256)) & 127) == 127) code[i] = 0;      /* NaN */
    for (int i = 0; i < 6; i++) scale[i] = 0.001f * (float)(i + 1) / 3;
    rewrite(from, folder("fp8"), in_codes, &more_scales);
    bound_open(&b, &s, F32);
    EXPECT_OK(st_open(&st, folder("fp8")));
    EXPECT_OK(weights_load(&b.m, &b.be, &st, NULL));
    const float *w = decoder_mla(&b.m.layer[0])->w_up_kv->shard.w.data;
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        float x;
        dtype_convert(&x, F32, &code[i], E4M3, 1);
        wrong += w[i] != x * scale[i / COLS / 128 * 2 + i % COLS / 128];
    }
    EXPECT(!wrong, "%lld of %d values differ", (long long)wrong, ROWS * COLS);
    st_close(&st);
    bound_close(&b);
}

static void wrong_scales_are_refused(void)
{
    ModelShape s = small_shape(latent);
    StTensor   short_scales = scale_tensor();
    char       from[300];
    snprintf(from, sizeof from, "%s", folder("latent"));
    rewrite(from, folder("bad"), in_codes, NULL);
    EXPECT_FAIL(load_from(folder("bad"), &s), E_DATA, "kv_b_proj");
    short_scales.shape[0] = 2, short_scales.bytes = 16;
    rewrite(from, folder("bad"), in_codes, &short_scales);
    EXPECT_FAIL(load_from(folder("bad"), &s), E_DATA, "kv_b_proj");
}

/* The recorded qwen3-next with two tensors of layers that predict further tokens, as its files on the hub. */
static void write_mtp(const char *to)
{
    static const float data[4] = { 1, 2, 3, 4 };
    char        file[400];
    SafeTensors st;
    StTensor    t[200];
    int         k = 0;
    EXPECT_OK(st_open(&st, "tests/gold/qwen3-next"));
    for (; k < st.count && k < 198; k++) t[k] = st.tensor[k];
    t[k++] = (StTensor){ .name = "mtp.fc.weight", .dtype = F32, .rank = 2, .data = data, .shape = { 2, 2 },
                         .bytes = sizeof data };
    t[k++] = (StTensor){ .name = "mtp.norm.weight", .dtype = F32, .rank = 1, .data = data, .shape = { 4 },
                         .bytes = sizeof data };
    mkdir(to, 0777);
    snprintf(file, sizeof file, "%s/model.safetensors", to);
    EXPECT_OK(st_save(file, t, k));
    st_close(&st);
}

/* Weights that are left out are said to be, once, and the rest is saved as it was. */
static void ignored_mtp_is_reported(void)
{
    ModelShape  s;
    SafeTensors st;
    Bound       b;
    Log         log;
    char        text[1000] = "", path[400];
    EXPECT_OK(shape_load(&s, "tests/gold/qwen3-next"));
    write_mtp(folder("mtp"));
    bound_open(&b, &s, F32);
    EXPECT_OK(st_open(&st, folder("mtp")));
    snprintf(path, sizeof path, "%s", folder("mtp.log"));
    EXPECT_OK(log_open(&log, path, 0, 1, LOG_ERROR));
    log.least = LOG_WARN;
    EXPECT_OK(weights_check(&b.m, &st, &log));
    log_close(&log);
    FILE *f = fopen(path, "r");
    EXPECT(f && fread(text, 1, sizeof text - 1, f) > 0, "nothing was logged");
    if (f) fclose(f);
    EXPECT(strstr(text, "2 tensors mtp.*") && !strstr(text, "does not use"), "logged: %s", text);
    EXPECT_OK(weights_load(&b.m, &b.be, &st, NULL));
    EXPECT_OK(weights_save(&b.m, &b.be, folder("mtp-saved"), F32, 0));
    compare_files("tests/gold/qwen3-next", folder("mtp-saved"), &b.m.shape);
    st_close(&st);
    bound_close(&b);
}

int main(void)
{
    RUN(saves_what_it_loads);
    RUN(biases_are_saved_in_f32);
    RUN(mxfp4_is_exact);
    RUN(wrong_codes_are_refused);
    RUN(fp8_is_exact);
    RUN(wrong_scales_are_refused);
    RUN(ignored_mtp_is_reported);
    char rm[400];
    snprintf(rm, sizeof rm, "rm -rf '%s'", lab_tmp());
    if (system(rm)) perror(rm);
    return lab_report();
}
