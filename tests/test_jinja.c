/* tests/test_jinja.c -- the interpreter of chat templates against recorded results of Jinja2 itself
 * (tools/make_jinja_cases.py), its limits, and the spans of what it writes. */
#include "jinja/jinja.h"

#include "base/folder.h"
#include "lab.h"

static Status render_with(const char *source, const Json *variables, const char *now, JinjaText *out)
{
    JinjaTemplate *t;
    TRY(jinja_open(&t, source, strlen(source), "t"));
    JinjaInput in = { .variables = variables, .items = "messages", .now = now };
    Status     st = jinja_render(t, &in, out);
    jinja_close(t);
    return st;
}

/* A result is a text, the text of an error, or a refusal of the template, whose wording is our own. */
static void case_check(const Json *row, const Json *variables, const char *now, int line)
{
    const char    *source, *text, *error;
    JinjaTemplate *t;
    JinjaText      got;
    EXPECT_OK(json_str(row, "template", "", &source));
    EXPECT_OK(json_str(row, "text", NULL, &text));
    EXPECT_OK(json_str(row, "error", NULL, &error));
    Status st = jinja_open(&t, source, strlen(source), "t");
    EXPECT(st ? !text : text || error, "line %d: %s: %s", line, source, st ? status_text() : "opened");
    if (st) return;
    st = jinja_render(t, &(JinjaInput){ .variables = variables, .now = now }, &got);
    jinja_close(t);
    if (!st)
        EXPECT(text && !strcmp(text, got.text), "line %d: %s: got [%s], want [%s]", line, source, got.text,
               text    ? text
               : error ? error
                       : "a refusal");
    else
        EXPECT(error && !strcmp(error, status_text()), "line %d: %s: got error [%s], want [%s]", line, source,
               status_text(), text ? text : error);
    if (!st) jinja_text_close(&got);
}

static void recorded_cases(void)
{
    char  *bytes;
    size_t len;
    Json  *setup;
    int    line = 0;
    EXPECT_OK(json_load(&setup, "tests/jinja/variables.json"));
    EXPECT_OK(file_load(&bytes, &len, "tests/jinja/cases.jsonl", 1 << 24));
    for (char *at = bytes, *end; (end = strchr(at, '\n')); at = end + 1) {
        Json *row;
        line++;
        EXPECT_OK(json_parse(&row, at, (size_t)(end - at), "case"));
        case_check(row, json_object_get(setup, "variables"), json_string_value(json_object_get(setup, "now")),
                   line);
        json_decref(row);
    }
    EXPECT(line > 300, "%d cases", line);
    free(bytes);
    json_decref(setup);
}

static void expect_text(const char *source, const char *messages, const char *want)
{
    Json     *v;
    JinjaText got;
    EXPECT_OK(json_parse(&v, messages, strlen(messages), "variables"));
    Status st = render_with(source, v, NULL, &got);
    EXPECT(!st && !strcmp(got.text, want), "%s: got %s, want %s", source, st ? status_text() : got.text,
           want);
    if (!st) jinja_text_close(&got);
    json_decref(v);
}

/* Every piece of text belongs to the message whose loop wrote it, also through macros, slices and loops
 * inside. */
static void spans_follow_messages(void)
{
    static const char source[] = "S{% macro f(m) %}{{ m.content }}{% endmacro %}{% for m in messages[1:] "
                                 "%}<{{ f(m) }}{% for k in messages %}"
                                 "{% endfor %}{% generation %}{% if m.role == 'assistant' %}!{% endif %}{% "
                                 "endgeneration %}>{% endfor %}E";
    static const char vars[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", "
        "\"content\": \"ab\"}, {\"role\": \"assistant\", \"content\": \"c\"}]}";
    static const JinjaSpan want[] = { { 0, 1, -1, false }, { 1, 5, 1, false }, { 5, 7, 2, false },
                                      { 7, 8, 2, true },   { 8, 9, 2, false }, { 9, 10, -1, false } };
    Json                  *v;
    JinjaText              got;
    EXPECT_OK(json_parse(&v, vars, strlen(vars), "variables"));
    EXPECT_OK(render_with(source, v, NULL, &got));
    EXPECT(!strcmp(got.text, "S<ab><c!>E"), "%s", got.text);
    EXPECT(got.spans == 6, "%d spans", got.spans);
    for (int i = 0; i < 6 && i < got.spans; i++)
        EXPECT(got.span[i].from == want[i].from && got.span[i].to == want[i].to &&
                   got.span[i].item == want[i].item && got.span[i].generation == want[i].generation,
               "span %d: %zu to %zu of %d", i, got.span[i].from, got.span[i].to, got.span[i].item);
    jinja_text_close(&got);
    json_decref(v);
}

static void expect_limit(const char *source, Status status, const char *word)
{
    Json     *v = json_object();
    JinjaText got;
    EXPECT_FAIL(render_with(source, v, NULL, &got), status, word);
    json_decref(v);
}

/* Time, memory and depth of a rendering are bounded. */
static void hostile_templates_end(void)
{
    expect_limit("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", E_FIT,
                 "the template takes more");
    expect_limit("{% set x = 'a' * 1000000 %}{{ x * 100000 }}", E_FIT, "");
    expect_limit(
        "{% set n = namespace(s='ab') %}{% for i in range(64) %}{% set n.s = n.s + n.s %}{% endfor %}", E_FIT,
        "");
    expect_limit("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", E_DATA, "recursion");
    expect_limit("{% set n = namespace() %}{% set n.n = n %}{{ [n] }}", E_DATA, "recursion");
    expect_limit("{% set n = namespace() %}{% set n.n = [n] %}{{ n.n == [n] }}{% set n.l = [n.n, n] %}{{ n.l "
                 "| tojson }}",
                 E_DATA, "JSON");
}

/* Integers of more than 64 bits are errors, not other numbers. */
static void integers_have_64_bits(void)
{
    expect_limit("{{ 1e22 | int }}", E_DATA, "too large");
    expect_limit("{{ '99999999999999999999' | int }}", E_DATA, "too large");
    expect_limit("{{ 9223372036854775807 + 1 }}", E_DATA, "too large");
    expect_text("{{ '9223372036854775807' | int }}", "{}", "9223372036854775807");
}

static void refusals_name_the_line(void)
{
    JinjaTemplate *t;
    const char    *deep = "a\n{% include 'x' %}", *filter = "\n\n{{ x | xmlattr }}";
    char           nested[4096] = "{{ ";
    EXPECT_FAIL(jinja_open(&t, deep, strlen(deep), "f.jinja"), E_DATA,
                "f.jinja:2: the tag 'include' is not read here");
    EXPECT_FAIL(jinja_open(&t, filter, strlen(filter), "f.jinja"), E_DATA,
                "f.jinja:3: the filter 'xmlattr' is not read here");
    EXPECT_FAIL(jinja_open(&t, "a\n\xff", 3, "f.jinja"), E_DATA, "f.jinja:2: not UTF-8");
    for (int i = 0; i < 900; i++) strcat(nested, "not ");
    strcat(nested, "x }}");
    EXPECT_FAIL(jinja_open(&t, nested, strlen(nested), "f.jinja"), E_DATA, "nested too deeply");
    expect_text("{{ s }}", "{\"s\": \"x\"}", "x");
}

int main(void)
{
    RUN(recorded_cases);
    RUN(spans_follow_messages);
    RUN(hostile_templates_end);
    RUN(refusals_name_the_line);
    RUN(integers_have_64_bits);
    return lab_report();
}
