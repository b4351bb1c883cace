/* jinja/jinja.h -- chat templates: an interpreter of the Jinja language as Hugging Face transformers sets it
 * up.
 *
 * Settings of the environment: trim_blocks, lstrip_blocks, loop controls, {% generation %}, tojson without
 * escapes of HTML, raise_exception and strftime_now, the immutable sandbox. Errors of a template have the
 * texts of Jinja and Python. Not read: {% include %}, {% import %}, {% extends %}, {% block %}, {% autoescape
 * %} and
 * {% trans %}, and the filters and globals that need a clock, a locale or chance; jinja_open refuses a
 * template that names one of them and says in which line.
 *
 * A rendering has no access to files, its time is bounded by a count of steps and its memory by a count of
 * bytes. A template is read-only after opening; any number of threads may render it. */
#ifndef JINJA_JINJA_H
#define JINJA_JINJA_H

#include "base/json.h"

typedef struct JinjaTemplate JinjaTemplate;

/* name: of the file, for messages ("chat_template.jinja:12: …"). */
MUST Status jinja_open(JinjaTemplate **t, const char *source, size_t len, const char *name);
void        jinja_close(JinjaTemplate *t);                  /* NULL is fine */
bool        jinja_marks_generation(const JinjaTemplate *t); /* it has a {% generation %} block */

typedef struct JinjaLimits {
    int64_t steps;
    size_t  bytes;
} JinjaLimits;
#define JINJA_STEPS ((int64_t)20000000)
#define JINJA_BYTES ((size_t)256 << 20)

typedef struct JinjaInput {
    const Json *variables; /* an object: names to values */
    const char *items;     /* the variable whose elements are tracked in the spans: "messages"; or NULL */
    const char *now;       /* what strftime_now reads, "2026-11-15T12:00:00"; NULL: the clock */
    JinjaLimits limits;    /* 0: the defaults */
} JinjaInput;

/* Text that was written while a loop stood at element `item` of the tracked variable, or -1. `generation`: it
 * was written inside {% generation %}. Spans are in order and cover the whole text. */
typedef struct JinjaSpan {
    size_t from, to;
    int    item;
    bool   generation;
} JinjaSpan;

typedef struct JinjaText {
    char      *text;
    size_t     len;
    JinjaSpan *span;
    int        spans;
} JinjaText;

/* On failure status_text() is the message of the template's or the interpreter's error: E_DATA, or E_FIT
 * beyond the limits. */
MUST Status jinja_render(const JinjaTemplate *t, const JinjaInput *in, JinjaText *out);
void        jinja_text_close(JinjaText *t); /* twice is fine */

#endif
