/* cli/data_render.c -- `treb data render`: what a chat template makes of conversations, one JSON line
 * each. */
#include "base/folder.h"
#include "cli/commands.h"
#include "data/format.h"
#include "jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

enum { TEMPLATE_MAX = 4 << 20 };

static Status template_open(JinjaTemplate **t, const char *path)
{
    char  *source;
    size_t len;
    TRY(file_load(&source, &len, path, TEMPLATE_MAX));
    Status st = jinja_open(t, source, len, path);
    free(source);
    return st;
}

/* The variables of a line: messages, tools, add_generation_prompt, the special tokens, and those in extra. */
static Json *variables_of(const Json *line)
{
    const char *key;
    Json       *value, *out = json_object();
    json_object_set_new(out, "add_generation_prompt", json_false());
    json_object_set_new(out, "tools", json_null());
    json_object_foreach((Json *)line, key, value)
    {
        size_t n     = strlen(key);
        bool   token = n > 6 && !strcmp(key + n - 6, "_token");
        if (token || !strcmp(key, "messages") || !strcmp(key, "tools") || !strcmp(key, "documents") ||
            !strcmp(key, "add_generation_prompt"))
            json_object_set(out, key, value);
    }
    if (json_is_object(json_object_get(line, "extra")))
        json_object_update(out, json_object_get(line, "extra"));
    return out;
}

static Status line_render(const JinjaTemplate *t, const Record *r, Json **out)
{
    Json     *line, *variables;
    JinjaText text;
    TRY(json_parse_data(&line, r->text, r->len, "not JSON"));
    variables       = variables_of(line);
    const Json *now = json_object_get(line, "now");
    JinjaInput  in  = { .variables = variables, .now = json_is_string(now) ? json_string_value(now) : NULL };
    Status      st  = jinja_render(t, &in, &text);
    if (!st) *out = json_pack("{ss%}", "text", text.text, text.len);
    if (!st && !*out) st = fail(E_DATA, "the text cannot be written as JSON");
    if (!st) jinja_text_close(&text);
    json_decref(variables), json_decref(line);
    return st;
}

static Status file_render(const JinjaTemplate *t, const char *path)
{
    FormatFile f;
    Record     r;
    TRY(format_open(&f, path, &(FormatConf){ 0 }));
    Status st = OK;
    for (int64_t i = 0; !st && i < f.samples; i++) {
        Json *out = NULL;
        st        = format_read(&f, i, &r);
        if (st) break;
        if (r.kind != RECORD_JSON) st = fail(E_DATA, "%s: a line of JSON is expected", r.where);
        else if (line_render(t, &r, &out)) out = json_pack("{ss}", "error", status_text());
        if (!st) json_dumpf(out, stdout, JSON_COMPACT), putchar('\n');
        json_decref(out);
        record_close(&r);
    }
    format_close(&f);
    return st;
}

typedef struct RenderArgs {
    const char *template;
} RenderArgs;

static const Option options[] = { OPTION_TEXT(RenderArgs, template, "--template", "FILE",
                                              "the chat template, such as chat_template.jinja"),
                                  OPTION_END };

static Status data_render(int argc, char **argv)
{
    RenderArgs     a     = { 0 };
    PlainArgs      files = { .least = 1, .most = PLAIN_ANY, .what = "files of conversations" };
    JinjaTemplate *t     = NULL;
    TRY(options_parse(argc, argv, options, &a, &files));
    Status st = a.template ? template_open(&t, a.template)
                           : fail(E_CONFIG, "data render: --template FILE is not given");
    for (int i = 0; !st && i < files.n; i++) st = file_render(t, files.value[i]);
    jinja_close(t);
    plain_args_close(&files);
    return st;
}

const Usage usage_data_render = {
    .args    = "--template FILE conversations.jsonl ...",
    .options = options,
    .notes   = "Prints a line {\"text\": ...}, or {\"error\": ...} where the template refuses the "
               "conversation. A line "
               "of input has messages and may have tools, add_generation_prompt, bos_token and other special "
               "tokens, now (what strftime_now reads) and extra (an object of further variables).",
    .sub     = "render",
    .run     = data_render,
};
