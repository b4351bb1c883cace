/* jinja/jinja.c -- opening and rendering; see jinja.h. */
#include "jinja/jinja_private.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCE_MAX = 4 << 20 };

static Status check_utf8(const char *s, size_t len, const char *name)
{
    int line = 1;
    for (size_t i = 0; i < len;) {
        unsigned char c    = (unsigned char)s[i];
        size_t        n    = c < 0x80                ? 1
                             : c >= 0xc2 && c < 0xe0 ? 2
                             : c >= 0xe0 && c < 0xf0 ? 3
                             : c >= 0xf0 && c < 0xf5 ? 4
                                                     : 0;
        bool          good = n > 0 && n <= len - i && c != 0;
        for (size_t k = 1; good && k < n; k++) good = ((unsigned char)s[i + k] & 0xc0) == 0x80;
        if (good && n > 2) {
            int32_t code = char_at(s + i);
            good = code >= (n == 3 ? 0x800 : 0x10000) && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
        }
        if (!good) return fail(E_DATA, "%s:%d: not UTF-8 text", name, line);
        line += c == '\n';
        i += n;
    }
    return OK;
}

static Status parse(JinjaTemplate *t)
{
    static const char *const none_[] = { NULL };
    Parser                   p       = { .t = t, .at = t->token };
    TRY(parse_block(&p, &t->body, none_));
    TRY(check_names(&p));
    return find_scopes(t);
}

Status jinja_open(JinjaTemplate **out, const char *source, size_t len, const char *name)
{
    JinjaTemplate *t;
    *out = NULL;
    if (len > SOURCE_MAX) return fail(E_DATA, "%s: a template of more than 4 MiB", name);
    TRY(check_utf8(source, len, name));
    t = calloc(1, sizeof *t);
    if (!t) return fail(E_FIT, "no memory for a template");
    t->heap.limit = (size_t)1 << 30;
    t->name       = strdup(name);
    Status st     = t->name ? lex(t, source, len) : fail(E_FIT, "no memory for a template");
    if (!st) st = parse(t);
    if (st) jinja_close(t);
    else *out = t;
    return st;
}

void jinja_close(JinjaTemplate *t)
{
    if (!t) return;
    heap_close(&t->heap);
    free(t->token), free(t->name), free(t);
}

bool jinja_marks_generation(const JinjaTemplate *t) { return t->generation; }

/* Numbers the elements of the tracked variable, so that loops over them are recognised. */
static void number_items(Value v)
{
    for (uint32_t i = 0; v.kind == V_LIST && i < v.n; i++)
        if (v.item[i].kind == V_DICT) v.item[i].dict->item = (int)i;
}

static Status set_variables(Jinja *j)
{
    const char *key;
    Json       *value;
    json_object_foreach((Json *)j->in->variables, key, value)
    {
        Value v;
        TRY(from_json(j, &v, value));
        if (j->in->items && !strcmp(key, j->in->items)) number_items(v);
        TRY(scope_set(j, j->globals, text_of(key), v));
    }
    return OK;
}

static Status open_scopes(Jinja *j)
{
    TAKE(j, j->globals, 1);
    TAKE(j, j->scope, 1);
    j->scope->parent = j->globals;
    TRY(unset_names(j, j->scope, &j->template->unset));
    return set_variables(j);
}

static Status copy_out(Jinja *j, JinjaText *out)
{
    const Buffer *b    = j->out;
    char         *text = malloc(b->n + 1);
    JinjaSpan    *span = malloc(((size_t)out->spans + 1) * sizeof *span);
    if (!text || !span) return free(text), free(span), fail(E_FIT, "no memory for %zu bytes of text", b->n);
    if (b->n) memcpy(text, b->v, b->n);
    if (out->spans) memcpy(span, out->span, (size_t)out->spans * sizeof *span);
    text[b->n] = 0;
    out->text = text, out->len = b->n, out->span = span;
    return OK;
}

Status jinja_render(const JinjaTemplate *t, const JinjaInput *in, JinjaText *out)
{
    Buffer b = { 0 };
    Flow   flow;
    Jinja  j     = { .template = t, .in = in, .out = &b, .item = -1, .text = out };
    j.steps      = in->limits.steps ? in->limits.steps : JINJA_STEPS;
    j.heap.limit = in->limits.bytes ? in->limits.bytes : JINJA_BYTES;
    *out         = (JinjaText){ 0 };
    Status st    = open_scopes(&j);
    if (!st) st = exec(&j, &t->body, &flow);
    if (!st) st = copy_out(&j, out);
    if (st) *out = (JinjaText){ 0 };
    heap_close(&j.heap);
    return st;
}

void jinja_text_close(JinjaText *t)
{
    free(t->text), free(t->span);
    *t = (JinjaText){ 0 };
}
