/* tests/fuzz_jinja.c -- hostile chat templates: any bytes are refused with a text, or render within the
 * limits to UTF-8 text with spans that cover it, or to an error with a text. */
#include "jinja/jinja.h"

#include "base/folder.h"
#include "base/str.h"
#include <stdlib.h>
#include <string.h>

static void spans_check(const JinjaText *t)
{
    size_t at = 0;
    for (int i = 0; i < t->spans; i++) {
        REQUIRE(t->span[i].from == at && t->span[i].to > at && t->span[i].item >= -1, "span %d", i);
        at = t->span[i].to;
    }
    REQUIRE(at == t->len, "spans end at %zu of %zu", at, t->len);
}

static const Json *variables(void)
{
    static const char text[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Gr\u00fc\u00dfe \\n\"}, "
                               "{\"role\": \"assistant\", "
                               "\"content\": [{\"type\": \"image\"}, {\"type\": \"text\", \"text\": "
                               "\"a\"}]}], \"s\": \" x,y \", \"n\": 3, "
                               "\"f\": 1.5, \"l\": [3, 1, 2], \"d\": {\"a\": null, \"b\": true}, \"m\": "
                               "[{\"role\": \"user\"}], \"tools\": null}";
    static Json      *v;
    if (!v) REQUIRE(!json_parse(&v, text, strlen(text), "variables"), "%s", status_text());
    return v;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    JinjaTemplate *t;
    JinjaText      out;
    JinjaInput     in = { .variables = variables(),
                          .items     = "messages",
                          .now       = "2026-11-15T12:00:00",
                          .limits    = { 20000, 1 << 20 } };
    if (jinja_open(&t, (const char *)data, size, "fuzz")) {
        REQUIRE(status_text()[0], "a refusal without text");
        return 0;
    }
    if (!jinja_render(t, &in, &out)) {
        REQUIRE(memchr(out.text, 0, out.len) || str_is_utf8(out.text), "the text is not UTF-8");
        spans_check(&out);
        jinja_text_close(&out);
    }
    jinja_close(t);
    return 0;
}

#ifndef TREB_LIBFUZZER
#include "fuzz_driver.h"

static void fuzz_seeds(Fuzz *f)
{
    char  *bytes;
    size_t len;
    REQUIRE(!file_load(&bytes, &len, "tests/jinja/cases.jsonl", 1 << 24), "%s", status_text());
    for (char *at = bytes, *end; (end = strchr(at, '\n')); at = end + 1) {
        Json *row = NULL;
        REQUIRE(!json_parse(&row, at, (size_t)(end - at), "case"), "%s", status_text());
        const Json *source = json_object_get(row, "template");
        fuzz_add(f, json_string_value(source), json_string_length(source));
        json_decref(row);
    }
    free(bytes);
}
#endif
