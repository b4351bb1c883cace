/* data/tokenizer_rules.c -- normaliser, pre-tokeniser and added tokens of tokenizer files.
 *
 * Supported is what the files of the families here use: byte-level BPE, Split patterns or GPT-2's own, NFC or
 * no normaliser, added tokens without stripping; and the files of tokenizer_spaces.c. Anything else is an
 * error that names it, because a model trained on slightly wrong ids shows no other symptom.
 *
 * A post-processor that puts a token before every text does so before plain texts alone: chat templates write
 * theirs themselves. */
#include "data/tokenizer_private.h"

#include <stdlib.h>
#include <string.h>

/* The pattern of Qwen, for folders without a tokenizer.json. */
#define QWEN_PATTERN                                                                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"     \
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* What ByteLevel splits by where use_regex is true: the pattern of GPT-2. */
#define GPT2_PATTERN                                                                                        \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

const char *rules_type(const Json *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    return type ? type : "without a type";
}

Status rules_flag(const Json *o, const char *what, const char *key, bool def, bool want)
{
    bool v;
    TRY_CTX(json_flag(o, key, def, &v), "%s", what);
    return v == want ? OK : fail(E_DATA, "%s: %s is %s: only %s is supported", what, key,
                                 v ? "true" : "false", want ? "true" : "false");
}

static Status want_empty(const Json *model, const char *key)
{
    const Json *v = json_object_get(model, key);
    if (!v || json_is_null(v) || (json_is_string(v) && !json_string_length(v))) return OK;
    if (json_is_number(v) && json_number_value(v) == 0) return OK;
    return fail(E_DATA, "model: %s: only null is supported", key);
}

/* spaces: unknown characters become bytes, so unk_token never occurs. */
static Status check_model(const Json *model, bool *spaces, bool *whole)
{
    static const char *const empty[] = { "dropout", "unk_token", "continuing_subword_prefix",
                                         "end_of_word_suffix" };
    if (!json_is_object(model)) return fail(E_DATA, "there is no model");
    if (json_has(model, "type") && strcmp(rules_type(model), "BPE"))
        return fail(E_DATA, "model: type %.40s: only BPE is supported", rules_type(model));
    TRY_CTX(json_flag(model, "byte_fallback", false, spaces), "model");
    for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
        if (!*spaces || strcmp(empty[i], "unk_token")) TRY(want_empty(model, empty[i]));
    TRY_CTX(json_flag(model, "ignore_merges", false, whole), "model");
    return OK;
}

/* None, NFC, or a list of these. */
static Status check_normalizer(Tokenizer *t, const Json *n)
{
    const Json *list = json_object_get(n, "normalizers");
    if (n && !strcmp(rules_type(n), "Sequence") && json_array_size(list) <= 1) n = json_array_get(list, 0);
    t->nfc = n && !json_is_null(n);
    if (!t->nfc || !strcmp(rules_type(n), "NFC")) return OK;
    return fail(E_DATA, "normalizer %.40s: only NFC is supported", rules_type(n));
}

static Status add_split(Tokenizer *t, const char *pattern, size_t n)
{
    if (t->splits == MAX_SPLITS) return fail(E_DATA, "pre_tokenizer: more than %d patterns", MAX_SPLITS);
    return split_compile(&t->split[t->splits++], (ByteSpan){ pattern, n });
}

static Status read_split(Tokenizer *t, const Json *split)
{
    const char *behavior;
    const Json *regex = json_object_get(json_object_get(split, "pattern"), "Regex");
    TRY_CTX(json_str(split, "behavior", "", &behavior), "Split");
    if (strcmp(behavior, "Isolated"))
        return fail(E_DATA, "Split: behavior %.40s: only Isolated is supported", behavior);
    TRY(rules_flag(split, "Split", "invert", false, false));
    if (!json_is_string(regex)) return fail(E_DATA, "Split: expected a pattern with a Regex");
    return add_split(t, json_string_value(regex), json_string_length(regex));
}

static Status read_digits(Tokenizer *t, const Json *o)
{
    bool each;
    TRY(json_flag(o, "individual_digits", false, &each));
    return each ? add_split(t, "\\p{N}", 5) : add_split(t, "\\p{N}+", 6);
}

static Status read_byte_level(Tokenizer *t, const Json *bytes)
{
    bool regex;
    if (strcmp(rules_type(bytes), "ByteLevel"))
        return fail(E_DATA, "pre_tokenizer: ends with %.40s: only ByteLevel is supported", rules_type(bytes));
    TRY(rules_flag(bytes, "ByteLevel", "add_prefix_space", true, false));
    TRY_CTX(json_flag(bytes, "use_regex", true, &regex), "ByteLevel");
    return regex ? add_split(t, GPT2_PATTERN, sizeof GPT2_PATTERN - 1) : OK;
}

/* Splits, then ByteLevel; or ByteLevel alone. */
static Status read_pre_tokenizer(Tokenizer *t, const Json *p)
{
    const Json *list = json_object_get(p, "pretokenizers");
    size_t      n = json_array_size(list);
    if (json_is_object(p) && !strcmp(rules_type(p), "ByteLevel")) return read_byte_level(t, p);
    if (!json_is_object(p) || strcmp(rules_type(p), "Sequence") || !n)
        return fail(E_DATA, "pre_tokenizer: only a Sequence of Split and ByteLevel is supported");
    for (size_t i = 0; i + 1 < n; i++) {
        const Json *o = json_array_get(list, i);
        if (!strcmp(rules_type(o), "Split")) TRY(read_split(t, o));
        else if (!strcmp(rules_type(o), "Digits")) TRY(read_digits(t, o));
        else return fail(E_DATA, "pre_tokenizer: has %.40s: only Split and Digits, then ByteLevel are "
                                 "supported",
                         rules_type(o));
    }
    return read_byte_level(t, json_array_get(list, n - 1));
}

/* A template of one text: at most one token before it, and any behind it. */
static Status read_template(Tokenizer *t, const Json *post)
{
    const Json *list = json_object_get(post, "single"), *o;
    size_t      i;
    bool        seen = false;
    json_array_foreach(list, i, o) {
        const char *id = json_string_value(json_object_get(json_object_get(o, "SpecialToken"), "id"));
        if (json_has(o, "Sequence")) seen = true;
        else if (!id || (!seen && t->begin_text))
            return fail(E_DATA, "post_processor TemplateProcessing: only one token before a text is "
                                "supported");
        else if (!seen) t->begin_text = id;
    }
    return seen ? OK : fail(E_DATA, "post_processor TemplateProcessing: its template has no text");
}

/* ByteLevel only adjusts offsets. */
static Status read_post_processor(Tokenizer *t, const Json *post)
{
    const Json *list = json_object_get(post, "processors"), *o;
    size_t      i;
    if (!post || json_is_null(post) || !strcmp(rules_type(post), "ByteLevel")) return OK;
    if (!strcmp(rules_type(post), "TemplateProcessing")) return read_template(t, post);
    if (strcmp(rules_type(post), "Sequence"))
        return fail(E_DATA, "post_processor %.40s: only ByteLevel and TemplateProcessing are supported",
                    rules_type(post));
    json_array_foreach(list, i, o) {
        if (!strcmp(rules_type(o), "Sequence"))
            return fail(E_DATA, "post_processor: a Sequence in a Sequence");
        TRY(read_post_processor(t, o));
    }
    return OK;
}

static Status check_decoder(const Json *decoder)
{
    if (!json_is_object(decoder) || strcmp(rules_type(decoder), "ByteLevel"))
        return fail(E_DATA, "decoder %.40s: only ByteLevel is supported", rules_type(decoder));
    return OK;
}

/* -- added tokens: collected first, because the vocabulary may contain them too */

static Status read_added(Added *a, const Json *o, int64_t id)
{
    static const char *const never[] = { "single_word", "lstrip", "rstrip" };
    TRY(json_str(o, "content", NULL, &a->text));
    if (!a->text || !*a->text) return fail(E_DATA, "content is wanted");
    TRY(json_int(o, "id", id, &a->id));
    for (int i = 0; i < 3; i++) TRY(rules_flag(o, a->text, never[i], false, false));
    TRY(json_flag(o, "special", false, &a->special));
    return json_flag(o, "normalized", !a->special, &a->normalized);
}

static Status added_list(AddedList *l, size_t n)
{
    *l = (AddedList){ calloc(n ? n : 1, sizeof *l->v), 0 };
    return l->v ? OK : fail(E_FIT, "no memory for %zu added tokens", n);
}

static Status read_added_tokens(AddedList *l, const Json *list)
{
    if (list && !json_is_null(list) && !json_is_array(list))
        return fail(E_DATA, "added_tokens: expected a list");
    TRY(added_list(l, json_array_size(list)));
    for (; l->n < (int64_t)json_array_size(list); l->n++)
        TRY_CTX(read_added(&l->v[l->n], json_array_get(list, (size_t)l->n), -1), "added_tokens[%lld]",
                (long long)l->n);
    return OK;
}

/* The older form: an object with ids for keys. */
static Status read_added_decoder(AddedList *l, Json *map)
{
    const char *key;
    Json       *value;
    TRY(added_list(l, json_object_size(map)));
    json_object_foreach(map, key, value) {
        char *end;
        long  id = strtol(key, &end, 10);
        if (*end) return fail(E_DATA, "added_tokens_decoder: %.40s: expected an id", key);
        TRY_CTX(read_added(&l->v[l->n++], value, id), "added_tokens_decoder[%ld]", id);
    }
    return OK;
}

/* A token that is matched in normalised text must be normalised itself, or it would never match. */
static Status check_normal(const Tokenizer *t, const Added *a)
{
    Nfc   nfc = { 0 };
    ByteSpan text = { a->text, strlen(a->text) }, normal = text;
    Status s = a->normalized && t->nfc ? nfc_normalise(&nfc, text, &normal) : OK;
    if (a->normalized && t->spaces.on)
        s = fail(E_DATA, "added token %s: normalized: such tokens are not supported with byte_fallback",
            a->text);
    if (!s && (normal.n != text.n || memcmp(normal.v, text.v, text.n)))
        s = fail(E_DATA, "added token %s: its text is not NFC", a->text);
    nfc_close(&nfc);
    return s;
}

/* Runs after the vocabulary is read: spans point into its bytes, which must not move afterwards. */
Status rules_put_added(Tokenizer *t, const AddedList *l, const char *name)
{
    for (int64_t i = 0; i < l->n; i++) {
        ByteSpan text = { l->v[i].text, strlen(l->v[i].text) };
        TRY(check_normal(t, &l->v[i]));
        TRY(vocab_put(&t->vocab, l->v[i].id, text, l->v[i].special ? TOKEN_SPECIAL : TOKEN_ADDED, name));
    }
    t->raw.token    = calloc((size_t)l->n + 1, sizeof *t->raw.token);
    t->normal.token = calloc((size_t)l->n + 1, sizeof *t->normal.token);
    if (!t->raw.token || !t->normal.token) return fail(E_FIT, "no memory for added tokens");
    for (int64_t i = 0; i < l->n; i++) {
        AddedSet *set = l->v[i].normalized ? &t->normal : &t->raw;
        set->token[set->n++] = (AddedToken){ vocab_bytes(&t->vocab, (int32_t)l->v[i].id),
                                             (int32_t)l->v[i].id };
    }
    added_sort(&t->raw);
    added_sort(&t->normal);
    if (t->begin_text) t->begin = tokenizer_id(t, t->begin_text), t->begin_text = NULL;
    return OK;
}

void added_list_close(AddedList *l)
{
    free(l->v);
    *l = (AddedList){ 0 };
}

Status rules_read(Tokenizer *t, AddedList *added, const Json *file)
{
    bool spaces;
    TRY(check_model(json_object_get(file, "model"), &spaces, &t->whole_pieces));
    TRY(read_post_processor(t, json_object_get(file, "post_processor")));
    if (spaces) TRY(spaces_read(t, file));
    else {
        TRY(check_normalizer(t, json_object_get(file, "normalizer")));
        TRY(read_pre_tokenizer(t, json_object_get(file, "pre_tokenizer")));
        TRY(check_decoder(json_object_get(file, "decoder")));
    }
    return read_added_tokens(added, json_object_get(file, "added_tokens"));
}

/* tokenizer_config.json names a class whose code fixes the rules. */
Status rules_read_config(Tokenizer *t, AddedList *added, const Json *config)
{
    const char *class;
    TRY(json_str(config, "tokenizer_class", "", &class));
    if (strncmp(class, "Qwen2Tokenizer", 14) && strncmp(class, "Qwen3Tokenizer", 14))
        return fail(E_DATA, "tokenizer_class \"%.40s\": without a tokenizer.json only Qwen2Tokenizer is read "
                    "here", class);
    t->nfc = true;
    TRY(add_split(t, QWEN_PATTERN, sizeof QWEN_PATTERN - 1));
    return read_added_decoder(added, json_object_get(config, "added_tokens_decoder"));
}
