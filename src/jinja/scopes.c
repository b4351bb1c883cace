/* jinja/scopes.c -- which names of a scope have no value until the scope assigns them.
 *
 * In Jinja a name belongs to the innermost scope that assigns it, from the scope's first line on. Where a
 * scope reads the name itself before it assigns it, the first value is that of the scopes outside or of the
 * template's variables; where only scopes inside of it do, or none, the name is undefined until then.
 * Branches of an `if` are no scopes: a name that some of them assign counts as read. */
#include "jinja/jinja_private.h"

#include <string.h>

typedef struct Symbol {
    Value name;
    bool  stored, unset;
} Symbol;

typedef struct Frame {
    const struct Frame *outer;
    Heap               *heap;
    Symbol             *v;
    int                 n, cap, depth;
} Frame;

static Symbol *find(const Frame *f, Value name)
{
    for (int i = 0; i < f->n; i++)
        if (same(f->v[i].name, name)) return &f->v[i];
    return NULL;
}

static bool is_known(const Frame *f, Value name)
{
    for (; f; f = f->outer)
        if (find(f, name)) return true;
    return false;
}

static Status define(Frame *f, Symbol s)
{
    if (f->n == f->cap) {
        int     cap  = f->cap ? 2 * f->cap : 16;
        Symbol *more = heap_alloc(f->heap, (size_t)cap * sizeof *more);
        if (!more) return fail(E_FIT, "the template is too large");
        if (f->n) memcpy(more, f->v, (size_t)f->n * sizeof *more);
        f->v = more, f->cap = cap;
    }
    return f->v[f->n++] = s, OK;
}

static Status load(Frame *f, Value name)
{
    return is_known(f, name) ? OK : define(f, (Symbol){ name, false, false });
}

static Status store(Frame *f, Value name)
{
    Symbol *s = find(f, name);
    if (s) return s->stored = true, OK;
    return define(f, (Symbol){ name, true, !is_known(f->outer, name) });
}

static Status declare(Frame *f, Value name)
{
    Symbol *s = find(f, name);
    if (s) return s->stored = true, s->unset = false, OK;
    return define(f, (Symbol){ name, true, false });
}

/* Deeper expressions fail when they are evaluated. */
static Status read_expression(Frame *f, const Node *n)
{
    if (!n || f->depth > DEPTH) return OK;
    if (n->kind == N_NAME) return load(f, n->value);
    f->depth++;
    TRY(read_expression(f, n->a));
    TRY(read_expression(f, n->b));
    TRY(read_expression(f, n->c));
    for (int i = 0; i < n->list.n; i++) TRY(read_expression(f, n->list.v[i]));
    return f->depth--, OK;
}

static Status assign(Frame *f, const Node *target, Status put(Frame *, Value))
{
    if (target->kind == N_ATTR) return load(f, target->a->value);
    if (target->kind == N_NAME) return put(f, target->value);
    for (int i = 0; i < target->list.n; i++) TRY(assign(f, target->list.v[i], put));
    return OK;
}

static Status read_body(Frame *f, const NodeList *body);

static Status copy_frame(Frame *out, const Frame *f)
{
    *out = *f, out->v = NULL, out->n = out->cap = 0;
    for (int i = 0; i < f->n; i++) TRY(define(out, f->v[i]));
    return OK;
}

/* A name that the branches are the first to assign counts as read. */
static Status merge(Frame *f, const Frame branch[3])
{
    int before = f->n;
    for (int b = 0; b < 3; b++)
        for (int i = 0; i < branch[b].n; i++) {
            Symbol from = branch[b].v[i], *to = find(f, from.name);
            if (to && to - f->v < before && to->stored) continue;
            if (from.stored) from.unset = false;
            if (!to) TRY(define(f, from));
            else to->unset = to->unset && from.unset, to->stored = to->stored || from.stored;
        }
    return OK;
}

/* The branches are the body, every elif together, and else. */
static Status read_if(Frame *f, const Node *n)
{
    Frame branch[3];
    TRY(read_expression(f, n->a));
    for (int b = 0; b < 3; b++) TRY(copy_frame(&branch[b], f));
    TRY(read_body(&branch[0], &n->body));
    const Node *last = n;
    for (; last->elif; last = last->other.v[0]) {
        Frame       inner[3];
        const Node *next = last->other.v[0];
        TRY(read_expression(&branch[1], next->a));
        for (int b = 0; b < 3; b++) TRY(copy_frame(&inner[b], &branch[1]));
        TRY(read_body(&inner[0], &next->body));
        TRY(merge(&branch[1], inner));
    }
    TRY(read_body(&branch[2], &last->other));
    return merge(f, branch);
}

/* What a statement reads and assigns in the scope that it stands in. */
static Status read_statement(Frame *f, const Node *n)
{
    switch (n->kind) {
    case N_PRINT:
    case N_CALL_BLOCK:
        return read_expression(f, n->a);
    case N_IF:
        return read_if(f, n);
    case N_FOR:
    case N_FILTER_BLOCK:
        return read_expression(f, n->b);
    case N_SET:
        TRY(read_expression(f, n->b));
        return assign(f, n->a, store);
    case N_SET_BLOCK:
        return assign(f, n->a, store);
    case N_MACRO:
        return store(f, n->value);
    case N_WITH:
        for (int i = 0; i < n->list.n; i++) TRY(read_expression(f, n->list.v[i]->b));
        return OK;
    default:
        return OK;
    }
}

static Status read_body(Frame *f, const NodeList *body)
{
    for (int i = 0; i < body->n; i++) TRY(read_statement(f, body->v[i]));
    return OK;
}

static Status open_inner(Frame *f, const NodeList *body);

/* Analyses a scope with its parameters in f, and those inside of it; *out: the names without value. */
static Status read_scope(Frame *f, const NodeList *body, Names *out)
{
    int k = 0;
    TRY(read_body(f, body));
    for (int i = 0; i < f->n; i++) out->n += f->v[i].unset;
    if (out->n && !(out->v = heap_alloc(f->heap, (size_t)out->n * sizeof *out->v)))
        return fail(E_FIT, "the template is too large");
    for (int i = 0; i < f->n; i++)
        if (f->v[i].unset) out->v[k++] = f->v[i].name;
    return open_inner(f, body);
}

static Frame inner_frame(const Frame *f) { return (Frame){ .outer = f, .heap = f->heap }; }

static Status read_for(const Frame *f, Node *n)
{
    Frame body = inner_frame(f), other = inner_frame(f);
    TRY(declare(&body, text_of("loop")));
    TRY(assign(&body, n->a, declare));
    TRY(read_scope(&body, &n->body, &n->unset));
    return read_scope(&other, &n->other, &n->unset_other);
}

static bool body_names(const NodeList *body, Value word, int depth);

static bool node_names(const Node *n, Value word, int depth)
{
    if (!n || depth > DEPTH) return false;
    if (n->kind == N_NAME) return same(n->value, word);
    bool skip = n->kind == N_SET || n->kind == N_SET_BLOCK || n->kind == N_MACRO;
    depth++;
    if (!skip && node_names(n->a, word, depth)) return true;
    if (n->kind != N_MACRO && body_names(&n->list, word, depth)) return true;
    return node_names(n->b, word, depth) || node_names(n->c, word, depth) ||
           body_names(&n->body, word, depth) || body_names(&n->other, word, depth);
}

static bool body_names(const NodeList *body, Value word, int depth)
{
    for (int i = 0; i < body->n; i++)
        if (node_names(body->v[i], word, depth)) return true;
    return false;
}

/* The special parameters are those that the body names. */
static Status read_macro(const Frame *f, Node *n)
{
    static const char *const words[] = { "varargs", "kwargs", "caller" };
    Frame                    body    = inner_frame(f);
    for (int i = 0; i < n->list.n; i++) TRY(declare(&body, n->list.v[i]->value));
    for (int i = 0; i < n->list.n; i++) TRY(read_expression(&body, n->list.v[i]->a));
    for (int i = 0; i < 3; i++) {
        Value word = text_of(words[i]);
        bool  own  = false;
        for (int k = 0; k < n->list.n; k++) own = own || same(n->list.v[k]->value, word);
        if (own || !body_names(&n->body, word, 0)) continue;
        n->op |= 1 << i;
        TRY(declare(&body, word));
    }
    return read_scope(&body, &n->body, &n->unset);
}

static Status read_with(const Frame *f, Node *n)
{
    Frame body = inner_frame(f);
    for (int i = 0; i < n->list.n; i++) TRY(assign(&body, n->list.v[i]->a, declare));
    return read_scope(&body, &n->body, &n->unset);
}

static Status read_block(const Frame *f, Node *n)
{
    Frame body = inner_frame(f);
    return read_scope(&body, &n->body, &n->unset);
}

/* The scopes of a body, those in its branches too. */
static Status open_inner(Frame *f, const NodeList *body)
{
    for (int i = 0; i < body->n; i++) {
        Node *n = body->v[i];
        if (n->kind == N_IF) {
            TRY(open_inner(f, &n->body));
            TRY(open_inner(f, &n->other));
        } else if (n->kind == N_FOR) TRY(read_for(f, n));
        else if (n->kind == N_MACRO) TRY(read_macro(f, n));
        else if (n->kind == N_CALL_BLOCK) TRY(read_macro(f, n->b));
        else if (n->kind == N_WITH) TRY(read_with(f, n));
        else if (n->kind == N_SET_BLOCK || n->kind == N_FILTER_BLOCK || n->kind == N_GENERATION)
            TRY(read_block(f, n));
    }
    return OK;
}

Status find_scopes(JinjaTemplate *t)
{
    Frame f = { .heap = &t->heap };
    return read_scope(&f, &t->body, &t->unset);
}
