/* data/chat_template.c -- finding and opening the template of a folder; see chat_template.h. */
#include "data/chat_template.h"

#include "base/folder.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { TEMPLATE_MAX = 4 << 20 };

/* The template named default of a list of named ones, or the value itself. */
static const Json *default_template(const Json *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const Json *row = json_array_get(v, i), *name = json_object_get(row, "name");
        if (json_is_string(name) && !strcmp(json_string_value(name), "default"))
            return json_object_get(row, "template");
    }
    return v;
}

/* The source of the template of a JSON file; NULL: the file has none. */
static char *source_from_json(const Json *file)
{
    const Json *v = default_template(json_object_get(file, "chat_template"));
    return json_is_string(v) ? strdup(json_string_value(v)) : NULL;
}

/* A Jinja file, or a JSON file with the key chat_template; *source is NULL where that has none. */
static Status load_source(char **source, const char *path)
{
    size_t len, n = strlen(path);
    Json  *file;
    if (n < 5 || strcmp(path + n - 5, ".json")) return file_load(source, &len, path, TEMPLATE_MAX);
    TRY(json_load(&file, path));
    *source = source_from_json(file);
    json_decref(file);
    return OK;
}

static Status find_source(char **source, Path path, const char *folder, const Json *config)
{
    static const char *const names[] = { "chat_template.jinja", "chat_template.json" };
    *source = NULL;
    for (int i = 0; i < 2; i++) {
        if (!folder_has(folder, names[i])) continue;
        TRY(path_join(path, folder, names[i]));
        return load_source(source, path);
    }
    TRY(path_join(path, folder, "tokenizer_config.json"));
    *source = source_from_json(config);
    return OK;
}

/* bos_token and the like, as texts. */
static Json *special_tokens(const Json *config)
{
    const char *key;
    Json       *value, *out = json_object();
    json_object_foreach((Json *)config, key, value)
    {
        size_t n    = strlen(key);
        Json  *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (n > 6 && !strcmp(key + n - 6, "_token") && json_is_string(text)) json_object_set(out, key, text);
    }
    return out;
}

static Status render_one(const ChatTemplate *t, bool prompt, JinjaText *out)
{
    Json *v = json_pack("{s[{ssss}] sb sn}", "messages", "role", "user", "content", "x",
                        "add_generation_prompt", (int)prompt, "tools");
    json_object_update_missing(v, t->tokens);
    Status st = jinja_render(t->jinja, &(JinjaInput){ .variables = v }, out);
    json_decref(v);
    return st;
}

/* A template that refuses the probe, or prompts in another way, has no known generation prompt. */
static char *find_prompt(const ChatTemplate *t)
{
    JinjaText with = { 0 }, without = { 0 };
    char     *prompt = NULL;
    if (!render_one(t, true, &with) && !render_one(t, false, &without) && with.len > without.len &&
        !memcmp(with.text, without.text, without.len))
        prompt = strdup(with.text + without.len);
    jinja_text_close(&with), jinja_text_close(&without);
    return prompt ? prompt : strdup("");
}

static Status open_source(ChatTemplate **out, const char *source, const char *path, const Json *config)
{
    JinjaTemplate *jinja;
    Status         st = jinja_open(&jinja, source, strlen(source), path);
    if (st)
        return fail(st,
                    "%s; this chat template is not read: data.template=chatml trains with ChatML "
                    "instead",
                    status_text());
    ChatTemplate *t = calloc(1, sizeof *t);
    if (!t) return jinja_close(jinja), fail(E_FIT, "no memory for a chat template");
    *t             = (ChatTemplate){ .jinja = jinja, .tokens = special_tokens(config) };
    t->source      = strdup(source);
    t->fingerprint = (uint32_t)XXH3_64bits(source, strlen(source));
    t->prompt      = find_prompt(t);
    return *out    = t, OK;
}

static Status load_config(Json **config, const char *folder)
{
    Path path;
    *config = NULL;
    TRY(path_join(path, folder, "tokenizer_config.json"));
    return file_is(path) ? json_load(config, path) : OK;
}

Status chat_template_open_file(ChatTemplate **t, const char *folder, const char *path)
{
    Json *config;
    char *source = NULL;
    *t           = NULL;
    TRY(load_config(&config, folder));
    Status st = load_source(&source, path);
    if (!st && !source) st = fail(E_DATA, "%s: no chat_template in it", path);
    if (!st) st = open_source(t, source, path, config);
    free(source);
    json_decref(config);
    return st;
}

Status chat_template_open(ChatTemplate **t, const char *folder)
{
    Path  path;
    Json *config;
    char *source = NULL;
    *t           = NULL;
    TRY(load_config(&config, folder));
    Status st = find_source(&source, path, folder, config);
    if (!st && source) st = open_source(t, source, path, config);
    free(source);
    json_decref(config);
    return st;
}

void chat_template_close(ChatTemplate *t)
{
    if (!t) return;
    jinja_close(t->jinja);
    json_decref(t->tokens);
    free(t->prompt), free(t->source), free(t);
}
