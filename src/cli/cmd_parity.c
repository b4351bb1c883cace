/* cli/cmd_parity.c -- `treb parity`: this build against recorded reference tensors.
 *
 * Runs a case's checkpoint, or adapter, on its inputs, forward, backward and a few AdamW steps, compares
 * every tensor with the recorded one by max|a-b| / max|b|, prints the worst of each kind and fails past the
 * tolerance, which --tolerance sets for a machine whose sums run in another order than the reference's. */
#include "base/num.h"
#include "cli/commands.h"
#include "cli/parity.h"
#include "model/weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An f32 build is held to what f32 can do; bf16 to its loss, the rest is shown for the reader. With FP8
 * products (of a case that was recorded with them, in f32) the last bit of a sum may decide between two
 * codes. References of gated delta nets invert matrices in f32, which leaves an error of 1e-5 a layer in
 * what they record; over steps of AdamW a router with a near tie then chooses another expert. */
static const ParityTolerance parity_kinds[PARITY_KINDS] = {
    [PARITY_LOSS]      = { "loss",             1e-6, 2e-2,     1e-3, 1e-5 },
    [PARITY_AUX]       = { "aux loss",         1e-6, 5e-2,     1e-3, 1e-5 },
    [PARITY_POSITIONS] = { "position ids",     0,    0,        0,    0    },
    [PARITY_VISION]    = { "vision output",    1e-5, INFINITY, 1e-2, 1e-5 },
    [PARITY_DEEPSTACK] = { "deepstack",        1e-5, INFINITY, 1e-2, 1e-5 },
    [PARITY_ROUTER]    = { "router logits",    1e-5, INFINITY, 1e-2, 3e-4 },
    [PARITY_DECODER]   = { "decoder layers",   1e-5, INFINITY, 1e-2, 3e-4 },
    [PARITY_LOGITS]    = { "logits",           1e-5, INFINITY, 1e-2, 3e-4 },
    [PARITY_GRAD]      = { "gradients",        5e-5, INFINITY, 3e-2, 1e-3 },
    [PARITY_ABSENT]    = { "absent gradients", 0,    0,        0,    0    },
    [PARITY_STEP_LOSS] = { "AdamW losses",     1e-4, 5e-2,     1e-2, 1e-3 },
    [PARITY_STEP_NORM] = { "AdamW grad norms", 1e-4, INFINITY, 1e-1, 1e-2 },
};

static float loss_scale(const Parity *p)
{
    return p->c.stream.supervised ? 1.0f / (float)p->c.stream.supervised : 0.0f;
}

static Status first_pass(Parity *p)
{
    Losses l;
    ValueTap see = { parity_watch, p };
    p->e.env.tap = &see;
    engine_begin_step(&p->e, 1);
    engine_forward(&p->e, loss_scale(p));
    p->e.env.tap = NULL;
    TRY(p->tap_status);
    TRY(engine_read_losses(&p->e, &l));
    TRY(parity_add_scalar(p, "loss", l.total));
    if (p->c.mtp_weight > 0) TRY(parity_add_scalar(p, "main_loss", l.ce));
    if (p->c.mtp_weight > 0) TRY(parity_add_scalar(p, "mtp_loss", l.mtp / p->c.mtp_weight));
    if (p->c.shape.text.E && shape_sparse_layers(&p->c.shape.text))
        TRY(parity_add_scalar(p, "aux_loss", l.aux));
    TRY(parity_add_logits(p));
    engine_backward(&p->e);
    return parity_add_gradients(p);
}

static void note_step(Parity *p, ParityKind k, const char *key, int64_t i, double got)
{
    const Json *a = json_object_get(json_object_get(p->c.info, "train"), key),
               *e = json_array_get(a, (size_t)i);
    char where[32];
    if (!json_is_number(e)) return;
    double want = json_number_value(e);
    snprintf(where, sizeof where, "step %lld", (long long)(i + 1));
    parity_record(p, k, fabs(got - want) / fabs(want), where);
}

/* The recorded short training: the same batch again and again; losses and norms are taken before each
 * step. */
static Status train_steps(Parity *p)
{
    OptimConf o = {
        .adam = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .max_norm = 1.0f },
        .decay_all = true
    };
    for (int64_t i = 0; i < p->steps; i++) {
        Losses l;
        double norm;
        o.adam.step = i + 1;
        engine_begin_step(&p->e, 1);
        engine_forward(&p->e, loss_scale(p));
        engine_backward(&p->e);
        engine_update(&p->e, &o);
        TRY(engine_read_losses(&p->e, &l));
        TRY(engine_read_grad_norm(&p->e, &norm));
        note_step(p, PARITY_STEP_LOSS, "losses", i, l.total);
        note_step(p, PARITY_STEP_NORM, "grad_norms", i, norm);
        if (!p->json) fprintf(stderr, "step %lld  loss %.6f  grad %.6f\n", (long long)(i + 1), l.total, norm);
    }
    return OK;
}

static Status open_engine(Parity *p)
{
    EngineConf conf = { .backend   = p->backend,
                        .deterministic = true,
                        .dtype     = p->dtype,
                        .budget    = p->c.stream.budget,
                        .aux       = AUX_POOLED,
                        .aux_coeff = (float)p->c.aux_coef,
                        .mtp_weight = (float)p->c.mtp_weight,
                        .lora      = p->c.adapter.conf,
                        .precision = p->precision,
                        .fp8_weight_cache = true,
                        .train     = true,
                        .logits    = true };
    policy_default(conf.policy);
    TRY(recompute_words(conf.policy, &conf.full, p->recompute));
    TRY(offload_words(conf.policy, p->offload));
    TRY(engine_open(&p->e, &p->c.shape, &conf, &p->c.stream));
    TRY(weights_load(&p->e.model, &p->e.be, &p->c.model, NULL));
    if (conf.lora.rank) TRY(peft_load(&p->c.adapter, &p->e.model, &p->e.be));
    engine_publish_weights(&p->e);
    engine_upload(&p->e, &p->c.stream);
    return OK;
}

static Status write_out(const Parity *p)
{
    StTensor *t = calloc((size_t)p->values + 1, sizeof *t);
    if (!t) return fail(E_FIT, "no memory to write %s", p->out);
    for (int i = 0; i < p->values; i++) {
        const ParityValue *v = &p->value[i];
        t[i] = (StTensor){ .name = v->name, .dtype = F32, .rank = v->rank, .data = v->data,
                           .bytes = (size_t)v->count * sizeof(float) };
        for (int k = 0; k < v->rank; k++) t[i].shape[k] = v->shape[k];
    }
    Status st = st_save(p->out, t, p->values);
    free(t);
    return st;
}

static bool passes(const Parity *p, int k) { return !p->row[k].compared || p->row[k].worst <= p->limit[k]; }

static void print_table(const Parity *p)
{
    printf("%-18s %8s %12s %10s   %s\n", "kind", "tensors", "worst error", "tolerance", "worst at");
    for (int k = 0; k < PARITY_KINDS; k++) {
        const ParityRow *r = &p->row[k];
        char tolerance[16] = "-";
        if (!r->compared) continue;
        if (isfinite(p->limit[k])) snprintf(tolerance, sizeof tolerance, "%.0e", p->limit[k]);
        printf("%-18s %8lld %12.2e %10s   %s%s\n", parity_kinds[k].name, (long long)r->compared, r->worst,
               tolerance, r->where, passes(p, k) ? "" : "   <-- past the tolerance");
    }
}

static void print_json(const Parity *p, const char *dir, bool ok)
{
    Json *o = json_object(), *rows = json_object();
    for (int k = 0; k < PARITY_KINDS; k++) {
        const ParityRow *r = &p->row[k];
        if (!r->compared) continue;
        Json *x = json_pack("{s:I, s:s, s:b}", "tensors", (json_int_t)r->compared, "worst_at", r->where, "ok",
                            passes(p, k));
        json_object_set_new(x, "worst", isfinite(r->worst) ? json_real(r->worst) : json_null());
        json_object_set_new(x, "tolerance", isfinite(p->limit[k]) ? json_real(p->limit[k]) : json_null());
        json_object_set_new(rows, parity_kinds[k].name, x);
    }
    json_object_set_new(o, "case", json_string(dir));
    json_object_set_new(o, "backend", json_string(p->backend));
    json_object_set_new(o, "dtype", json_string(dtype_name(p->dtype)));
    json_object_set_new(o, "parity_kinds", rows);
    json_object_set_new(o, "ok", json_boolean(ok));
    json_dumpf(o, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(o);
}

static Status report(const Parity *p, const char *dir)
{
    bool ok = true;
    int compared = 0;
    for (int k = 0; k < PARITY_KINDS; k++) ok &= passes(p, k), compared += p->row[k].compared > 0;
    if (p->json) print_json(p, dir, ok);
    else         print_table(p);
    if (!compared && !p->out)
        return fail(E_DATA, "%s: nothing was recorded to compare with (expected.safetensors)", dir);
    return ok ? OK : fail(E_CHECK, "%s: past the tolerance", dir);
}

static Status set_limit(Parity *p, const char *word)
{
    const char *is = strchr(word, '=');
    char known[256] = "";
    for (int k = 0; k < PARITY_KINDS; k++) {
        size_t at = strlen(known), n = strlen(parity_kinds[k].name);
        if (is && (size_t)(is - word) == n && !strncmp(word, parity_kinds[k].name, n))
            return option_real("--tolerance", is + 1, 0, 1e9, &p->limit[k]);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", parity_kinds[k].name);
    }
    return fail(E_CONFIG, "--tolerance %.60s: KIND=ERROR is wanted; parity_kinds are %s", word, known);
}

static double f32_limit(const Parity *p, const ParityTolerance *t)
{
    if (precision_any(&p->precision)) return t->fp8;
    return p->c.shape.text.gdn.every ? t->delta_net : t->f32;
}

static Status set_limits(Parity *p, const char *list)
{
    char words[512], *save = NULL;
    for (int k = 0; k < PARITY_KINDS; k++)
        p->limit[k] = p->dtype == F32 ? f32_limit(p, &parity_kinds[k]) : parity_kinds[k].bf16;
    snprintf(words, sizeof words, "%s", list ? list : "");
    for (char *w = strtok_r(words, ",", &save); w; w = strtok_r(NULL, ",", &save)) TRY(set_limit(p, w));
    return OK;
}

/* Of info.json: the products that a case was recorded with in 8 bits. */
static Status read_precision(Parity *p)
{
    const char *word[SITES];
    const Json *list = json_object_get(p->c.info, "fp8_products");
    size_t n = json_array_size(list);
    if (!n) return OK;
    for (size_t i = 0; i < n && i < SITES; i++)
        if (!(word[i] = json_string_value(json_array_get(list, i))))
            return fail(E_DATA, "info.json: fp8_products must be a list of words");
    return precision_set(&p->precision, PREC_FP8, word, (int)min_i64((int64_t)n, SITES));
}

static Status run(Parity *p, const char *dir)
{
    TRY(parity_case_open(&p->c, dir));
    TRY(read_precision(p));
    TRY(set_limits(p, p->tolerance));
    if (p->steps < 0)
        p->steps = (int64_t)json_array_size(json_object_get(json_object_get(p->c.info, "train"), "losses"));
    TRY(open_engine(p));
    TRY(first_pass(p));
    TRY(parity_compare(p));
    TRY(train_steps(p));
    if (p->out) TRY(write_out(p));
    return report(p, dir);
}

static const Option options[] = {
    OPTION_TEXT(Parity, backend, "--backend", "NAME", "cpu or cuda (default cpu)"),
    OPTION_TEXT(Parity, dtype_name, "--dtype", "f32|bf16", "of weights and activations (default f32)"),
    OPTION_INT(Parity, steps, "--steps", "N", 0, 1000000,
               "AdamW steps to compare (default: as many as were recorded)"),
    OPTION_TEXT(Parity, recompute, "--recompute", "WORDS", "as memory.recompute, by commas"),
    OPTION_TEXT(Parity, offload, "--offload", "WORDS", "as memory.activation_offload, by commas"),
    OPTION_TEXT(Parity, tolerance, "--tolerance", "KIND=ERROR,...",
                "allowed error by kind, as the table prints them: loss=1e-5,gradients=1e-4"),
    OPTION_TEXT(Parity, out, "--out", "FILE", "write this build's tensors as safetensors"),
    OPTION_FLAG(Parity, json, "--json", "print the table as JSON"),
    OPTION_END
};

static Status compare_case(Parity *p, const char *dir)
{
    TRY(option_dtype("--dtype", p->dtype_name, &p->dtype));
    p->value = calloc(PARITY_MAX_VALUES, sizeof *p->value);
    if (!p->value) return fail(E_FIT, "no memory for the values of a case");
    Status st = run(p, dir);
    for (int i = 0; i < p->values; i++) free(p->value[i].data);
    free(p->value), free(p->chosen);
    engine_close(&p->e);
    parity_case_close(&p->c);
    return st;
}

static Status cmd_parity(int argc, char **argv)
{
    Parity    p = { .backend = "cpu", .dtype_name = "f32", .steps = -1 };
    PlainArgs dir = { .least = 1, .most = 1, .what = "the folder of a reference case" };
    TRY(options_parse(argc, argv, options, &p, &dir));
    Status st = compare_case(&p, dir.value[0]);
    plain_args_close(&dir);
    return st;
}

static const Usage usage = {
    .args    = "CASE",
    .options = options,
    .notes   = "CASE is a folder of recorded tensors, of a model or of an adapter on one. The exit code is "
               "7 when a tensor differs by more than its tolerance.",
};

const Command command_parity = {
    .name     = "parity",
    .help     = "compare this build with recorded reference tensors",
    .run      = cmd_parity,
    .usage    = USAGE(&usage),
};
