/* model/peft_config.c -- see peft_config.h.
 *
 * Keys of rank_pattern and alpha_pattern are Python regular expressions, matched as PEFT does: (.*\.)?(KEY)$
 * from the start of the name; the first match in the order of the file decides. PCRE2 accepts the same syntax
 * as far as it is used for module names. The work of a match is limited, since the file may come from
 * anywhere. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/peft_config.h"

#include <math.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANK = 65536, MAX_KEY = 1000, MATCH_LIMIT = 100000 };

typedef struct PeftPattern { const char *key; pcre2_code *code; double value; } PeftPattern;

/* Keys that make an adapter more than the A and B of its file. */
static const struct { const char *key, *what; } refused[] = {
    { "use_dora",                "magnitude vectors (DoRA)" },
    { "lora_bias",               "biases in adapters" },
    { "fan_in_fan_out",          "weights stored transposed" },
    { "use_qalora",              "adapters of pooled inputs (QALoRA)" },
    { "alora_invocation_tokens", "adapters activated by a token (aLoRA)" },
    { "arrow_config",            "routing between adapters (Arrow)" },
    { "layer_replication",       "replicated layers" },
    { "trainable_token_indices", "trainable rows of the embedding" },
    { "use_bdlora",              "block-diagonal adapters" },
    { "kasa_config",             "singular values (KaSA)" },
    { "monteclora_config",       "sampled adapters (MonteCLoRA)" },
};

static bool is_set(const Json *v)
{
    return v && !json_is_null(v) && !json_is_false(v) && !(json_is_object(v) && !json_object_size(v)) &&
           !(json_is_array(v) && !json_array_size(v));
}

/* Some initializations (PiSSA, OLoRA) subtract the adapter from the base weights: no file has that base. */
static Status refuse_init(const Json *o)
{
    static const char *const plain[] = { "gaussian", "eva", "orthogonal", "true", "false", "lora_ga" };
    const Json *v = json_object_get(o, "init_lora_weights");
    const char *word = json_string_value(v);
    if (!v || json_is_null(v) || json_is_boolean(v)) return OK;
    for (size_t i = 0; word && i < sizeof plain / sizeof *plain; i++)
        if (!strcmp(word, plain[i])) return OK;
    return fail(E_DATA,
                "init_lora_weights = %.40s changes the weights of the base model; save the adapter as a "
                "plain LoRA first (PEFT: path_initial_model_for_weight_conversion)",
                word ? word : "?");
}

static Status refuse_keys(const Json *o)
{
    const char *type, *bias;
    TRY(json_str(o, "peft_type", "", &type));
    if (strcmp(type, "LORA")) return fail(E_DATA, "peft_type = %.40s is not supported, only LORA is", type);
    TRY(json_str(o, "bias", "none", &bias));
    if (strcmp(bias, "none"))
        return fail(E_DATA, "bias = %.40s: trained biases of the base model are not supported", bias);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (is_set(json_object_get(o, refused[i].key)))
            return fail(E_DATA, "%s is set: %s: not supported", refused[i].key, refused[i].what);
    return refuse_init(o);
}

/* ---- patterns ---- */

static Status compile_pattern(PeftPattern *p, const char *name)
{
    char text[MAX_KEY + 32];
    int error;
    PCRE2_SIZE at;
    if (strlen(p->key) > MAX_KEY) return fail(E_DATA, "%s: a key has more than %d bytes", name, MAX_KEY);
    snprintf(text, sizeof text, "(.*\\.)?(%s)$", p->key);
    p->code = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                            PCRE2_ANCHORED | PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
    if (p->code) return OK;
    pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
    return fail(E_DATA, "%s: %.80s is not a valid regular expression: %.120s", name, p->key, text);
}

static Status read_patterns(PeftPattern **out, int *n, const Json *o, const char *name)
{
    Json *list = json_object_get(o, name), *v;
    const char *key;
    if (!list || json_is_null(list)) return OK;
    if (!json_is_object(list)) return fail(E_DATA, "%s is not an object", name);
    *out = calloc(json_object_size(list) + 1, sizeof **out);
    if (!*out) return fail(E_FIT, "%s: no memory for %zu keys", name, json_object_size(list));
    json_object_foreach(list, key, v) {
        PeftPattern *p = &(*out)[(*n)++];
        *p = (PeftPattern){ .key = key, .value = json_number_value(v) };
        if (!json_is_number(v)) return fail(E_DATA, "%s: the value of %.80s is not a number", name, key);
        TRY(compile_pattern(p, name));
    }
    return OK;
}

/* The first pattern that matches a name; NULL: none. */
static Status match_name(const PeftPattern **out, const PeftPattern *p, int n, const char *name)
{
    pcre2_match_context *limits = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(4, NULL);
    Status st = limits && data ? OK : fail(E_FIT, "no memory to match %s", name);
    *out = NULL;
    if (limits) pcre2_set_match_limit(limits, MATCH_LIMIT), pcre2_set_depth_limit(limits, 1000);
    for (int i = 0; i < n && !st && !*out; i++) {
        int rc = pcre2_match(p[i].code, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, limits);
        if (rc >= 0) *out = &p[i];
        else if (rc != PCRE2_ERROR_NOMATCH)
            st = fail(E_DATA, "the pattern %.80s takes too long to match; simplify it", p[i].key);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(limits);
    return st;
}

static Status set_rank(LoraTarget *t, double r)
{
    if (!(r >= 1 && r <= MAX_RANK && r == floor(r)))
        return fail(E_DATA, "%s: rank %g is not a whole number from 1 to %d", t->module, r, MAX_RANK);
    return t->rank = (int64_t)r, OK;
}

static Status set_alpha(LoraTarget *t, double alpha)
{
    if (!(alpha >= 0 && alpha <= 1e6)) return fail(E_DATA, "%s: alpha %g is out of range", t->module, alpha);
    return t->alpha = alpha, OK;
}

/* Matches the module's name, then its tensor's name, by which PEFT knows target_parameters (a router). */
static Status find_pattern(const PeftPattern **out, const PeftPattern *p, int n, const char *module)
{
    char tensor[sizeof(LoraTarget) + 8];
    TRY(match_name(out, p, n, module));
    snprintf(tensor, sizeof tensor, "%s.weight", module);
    return *out ? OK : match_name(out, p, n, tensor);
}

Status peft_config_module(const PeftConfig *c, LoraTarget *t)
{
    const PeftPattern *r, *alpha;
    TRY(find_pattern(&r, c->rank, c->ranks, t->module));
    TRY(find_pattern(&alpha, c->scale, c->scales, t->module));
    TRY(set_rank(t, r ? r->value : (double)c->r));
    return set_alpha(t, alpha ? alpha->value : c->alpha);
}

/* ---- other keys ---- */

/* From 0.19.1 on PEFT asks the model which dimension of an expert is the input. Earlier versions took dim 1,
 * except with some versions of transformers. */
static bool has_input_columns(const Json *o)
{
    int v[3] = { 0 };
    const char *text = json_string_value(json_object_get(o, "peft_version"));
    if (!text || sscanf(text, "%d.%d.%d", &v[0], &v[1], &v[2]) < 2) return false;
    return v[0] || v[1] > 19 || (v[1] == 19 && v[2] >= 1);
}

static Status read_all(PeftConfig *c, const Json *o)
{
    LoraTarget all = { .module = "r and lora_alpha" };
    if (!json_is_object(o)) return fail(E_DATA, "the file is not a JSON object");
    TRY(refuse_keys(o));
    TRY(json_int(o, "r", 8, &c->r));
    TRY(json_num(o, "lora_alpha", 8, &c->alpha));
    TRY(set_rank(&all, (double)c->r));
    TRY(set_alpha(&all, c->alpha));
    TRY(json_num(o, "lora_dropout", 0, &c->dropout));
    if (!(c->dropout >= 0 && c->dropout < 1))
        return fail(E_DATA, "lora_dropout = %g is out of range", c->dropout);
    TRY(json_flag(o, "use_rslora", false, &c->rslora));
    TRY(json_str(o, "base_model_name_or_path", "", &c->base));
    const char *init = json_string_value(json_object_get(o, "init_lora_weights"));
    c->gaussian = init && !strcmp(init, "gaussian"), c->in_is_cols = has_input_columns(o);
    TRY(read_patterns(&c->rank, &c->ranks, o, "rank_pattern"));
    return read_patterns(&c->scale, &c->scales, o, "alpha_pattern");
}

Status peft_config_open(PeftConfig *c, const Json *o)
{
    *c = (PeftConfig){ 0 };
    Status st = read_all(c, o);
    if (st) peft_config_close(c);
    return st;
}

void peft_config_close(PeftConfig *c)
{
    for (int i = 0; i < c->ranks; i++) pcre2_code_free(c->rank[i].code);
    for (int i = 0; i < c->scales; i++) pcre2_code_free(c->scale[i].code);
    free(c->rank), free(c->scale);
    *c = (PeftConfig){ 0 };
}
