/* jinja/parse.c -- statements of a template. */
#include "jinja/jinja_private.h"

#include <string.h>

Status new_node(Parser *p, NodeKind kind, Node **out)
{
    *out = heap_alloc(&p->t->heap, sizeof **out);
    if (!*out) return fail(E_FIT, "the template is too large");
    (*out)->kind = kind, (*out)->line = p->at->line;
    return OK;
}

Status push_node(Parser *p, NodeList *l, Node *n)
{
    if (l->n == l->cap) {
        int    cap  = l->cap ? 2 * l->cap : 4;
        Node **more = heap_alloc(&p->t->heap, (size_t)cap * sizeof *more);
        if (!more) return fail(E_FIT, "the template is too large");
        if (l->n) memcpy(more, l->v, (size_t)l->n * sizeof *more);
        l->v = more, l->cap = cap;
    }
    l->v[l->n++] = n;
    return OK;
}

bool at_op(const Parser *p, int op) { return p->at->kind == T_OP && p->at->op == op; }

bool at_name(const Parser *p, const char *word)
{
    Value v = p->at->value;
    return p->at->kind == T_NAME && v.n == strlen(word) && !memcmp(v.s, word, v.n);
}

Status fail_token(Parser *p)
{
    Value v = p->at->value;
    if (p->at->kind == T_INT || p->at->kind == T_FLOAT)
        return fail_at(p->t, p->at->line, "unexpected number");
    return fail_at(p->t, p->at->line, "unexpected '%.*s'", v.n > 60 ? 60 : (int)v.n, v.s);
}

Status expect_op(Parser *p, int op)
{
    if (!at_op(p, op))
        return fail_at(p->t, p->at->line, "expected '%c', got '%.*s'", op,
                       p->at->kind == T_INT || p->at->value.n > 60 ? 0 : (int)p->at->value.n, p->at->value.s);
    return p->at++, OK;
}

Status expect_name(Parser *p, Value *name)
{
    if (p->at->kind != T_NAME) return fail_token(p);
    return *name = p->at++->value, OK;
}

static Status expect_end(Parser *p)
{
    if (p->at->kind != T_BLOCK_END) return fail_token(p);
    return p->at++, OK;
}

static bool skip_name(Parser *p, const char *word)
{
    if (!at_name(p, word)) return false;
    return p->at++, true;
}

static Status expect_word(Parser *p, const char *word)
{
    return skip_name(p, word) ? OK : fail_at(p->t, p->at->line, "expected '%s'", word);
}

static bool at_any(const Parser *p, const char *const *words)
{
    for (; *words; words++)
        if (at_name(p, *words)) return true;
    return false;
}

/* Statements up to a tag of `until`, whose name is the next token afterwards. */
Status parse_block(Parser *p, NodeList *body, const char *const *until)
{
    Node *n;
    if (p->depth > PARSE_DEPTH) return fail_at(p->t, p->at->line, "blocks are nested too deeply");
    p->depth++;
    for (; p->at->kind != T_EOF;) {
        if (p->at->kind == T_DATA) {
            TRY(new_node(p, N_TEXT, &n));
            n->value = p->at++->value;
            TRY(push_node(p, body, n));
        } else if (p->at->kind == T_VARIABLE_BEGIN) {
            p->at++;
            TRY(new_node(p, N_PRINT, &n));
            TRY(parse_tuple(p, &n->a, true));
            if (p->at->kind != T_VARIABLE_END) return fail_token(p);
            p->at++;
            TRY(push_node(p, body, n));
        } else {
            p->at++;
            if (at_any(p, until)) return p->depth--, OK;
            TRY(parse_statement(p, body));
        }
    }
    if (*until) return fail_at(p->t, p->at->line, "the template ends, and '%s' is expected", *until);
    return p->depth--, OK;
}

/* A block and its closing tag. */
static Status parse_body(Parser *p, NodeList *body, const char *close)
{
    const char *const until[] = { close, NULL };
    bool              soft    = p->soft;
    p->soft                   = false;
    TRY(expect_end(p));
    TRY(parse_block(p, body, until));
    p->at++, p->soft = soft;
    return expect_end(p);
}

/* Each elif is an N_IF in `other` of the one before it. */
static Status parse_if(Parser *p, Node **out)
{
    static const char *const until[] = { "elif", "else", "endif", NULL }, *const end[] = { "endif", NULL };
    Node *n;
    bool  outer = p->soft;
    TRY(new_node(p, N_IF, out));
    p->soft = true;
    for (n = *out;; n = n->other.v[0]) {
        TRY(parse_tuple(p, &n->a, false));
        TRY(expect_end(p));
        TRY(parse_block(p, &n->body, until));
        if (!skip_name(p, "elif")) break;
        Node *other;
        TRY(new_node(p, N_IF, &other));
        TRY(push_node(p, &n->other, other));
        n->elif = true;
    }
    if (skip_name(p, "else")) {
        TRY(expect_end(p));
        TRY(parse_block(p, &n->other, end));
    }
    p->at++, p->soft = outer;
    return expect_end(p);
}

/* A name, or names separated by commas, with or without brackets. */
static Status parse_target(Parser *p, Node **out)
{
    Node *n, *tuple = NULL;
    bool  bracket = at_op(p, '(');
    p->at += bracket;
    for (;;) {
        if (at_op(p, '(')) {
            if (++p->depth > PARSE_DEPTH) return fail_token(p);
            TRY(parse_target(p, &n));
            p->depth--;
        } else {
            TRY(new_node(p, N_NAME, &n));
            TRY(expect_name(p, &n->value));
        }
        if (!tuple && !at_op(p, ',')) break;
        if (!tuple) TRY(new_node(p, N_TUPLE, &tuple));
        TRY(push_node(p, &tuple->list, n));
        if (!at_op(p, ',')) break;
        p->at++;
        if (at_name(p, "in") || at_op(p, '=') || at_op(p, ')')) break;
    }
    *out = tuple ? tuple : n;
    return bracket ? expect_op(p, ')') : OK;
}

static Status parse_for(Parser *p, Node **out)
{
    static const char *const until[] = { "else", "endfor", NULL }, *const end[] = { "endfor", NULL };
    Node *n;
    bool  outer = p->loop, soft = p->soft;
    TRY(new_node(p, N_FOR, out));
    n = *out;
    TRY(parse_target(p, &n->a));
    TRY(expect_word(p, "in"));
    TRY(parse_tuple(p, &n->b, false));
    p->soft = false;
    if (skip_name(p, "if")) TRY(parse_expression(p, &n->c));
    n->flag = skip_name(p, "recursive");
    TRY(expect_end(p));
    p->loop = true;
    TRY(parse_block(p, &n->body, until));
    p->loop = outer;
    if (skip_name(p, "else")) {
        TRY(expect_end(p));
        TRY(parse_block(p, &n->other, end));
    }
    p->at++, p->soft = soft;
    return expect_end(p);
}

/* A name, name.attribute of a namespace, or a tuple of names. */
static Status parse_set_target(Parser *p, Node **out)
{
    if (p->at->kind != T_NAME || p->at[1].kind != T_OP || p->at[1].op != '.') return parse_target(p, out);
    TRY(new_node(p, N_ATTR, out));
    TRY(new_node(p, N_NAME, &(*out)->a));
    TRY(expect_name(p, &(*out)->a->value));
    p->at++;
    return expect_name(p, &(*out)->value);
}

static Status parse_set(Parser *p, Node **out)
{
    Node *target;
    TRY(parse_set_target(p, &target));
    if (at_op(p, '=')) {
        p->at++;
        TRY(new_node(p, N_SET, out));
        (*out)->a = target;
        TRY(parse_tuple(p, &(*out)->b, true));
        return expect_end(p);
    }
    TRY(new_node(p, N_SET_BLOCK, out));
    (*out)->a = target;
    if (at_op(p, '|')) TRY(parse_filters(p, &(*out)->b));
    return parse_body(p, &(*out)->body, "endset");
}

/* (a, b=1): names in list, their defaults in other (NULL for none). */
static Status parse_signature(Parser *p, Node *macro)
{
    Node *n;
    TRY(expect_op(p, '('));
    while (!at_op(p, ')')) {
        if (macro->list.n) TRY(expect_op(p, ','));
        if (at_op(p, ')')) break;
        TRY(new_node(p, N_NAME, &n));
        TRY(expect_name(p, &n->value));
        if (at_op(p, '=')) {
            p->at++;
            TRY(parse_expression(p, &n->a));
        } else if (macro->list.n && macro->list.v[macro->list.n - 1]->a)
            return fail_at(p->t, p->at->line, "non-default argument follows default argument");
        TRY(push_node(p, &macro->list, n));
    }
    return expect_op(p, ')');
}

static Status parse_macro(Parser *p, Node **out)
{
    bool outer = p->loop;
    TRY(new_node(p, N_MACRO, out));
    TRY(expect_name(p, &(*out)->value));
    TRY(parse_signature(p, *out));
    p->loop = false;
    TRY(parse_body(p, &(*out)->body, "endmacro"));
    p->loop = outer;
    return OK;
}

/* {% call(x) f(y) %}: b is the macro of the body, a the call. */
static Status parse_call_block(Parser *p, Node **out)
{
    TRY(new_node(p, N_CALL_BLOCK, out));
    TRY(new_node(p, N_MACRO, &(*out)->b));
    (*out)->b->value = text_of("caller");
    if (at_op(p, '(')) TRY(parse_signature(p, (*out)->b));
    TRY(parse_expression(p, &(*out)->a));
    if ((*out)->a->kind != N_CALL) return fail_at(p->t, p->at->line, "expected call");
    return parse_body(p, &(*out)->b->body, "endcall");
}

static Status parse_filter_block(Parser *p, Node **out)
{
    TRY(new_node(p, N_FILTER_BLOCK, out));
    TRY(parse_filters(p, &(*out)->b));
    return parse_body(p, &(*out)->body, "endfilter");
}

static Status parse_with(Parser *p, Node **out)
{
    Node *n;
    TRY(new_node(p, N_WITH, out));
    while (p->at->kind != T_BLOCK_END) {
        if ((*out)->list.n) TRY(expect_op(p, ','));
        TRY(new_node(p, N_SET, &n));
        TRY(parse_target(p, &n->a));
        TRY(expect_op(p, '='));
        TRY(parse_expression(p, &n->b));
        TRY(push_node(p, &(*out)->list, n));
    }
    return parse_body(p, &(*out)->body, "endwith");
}

static Status parse_generation(Parser *p, Node **out)
{
    p->t->generation = true;
    TRY(new_node(p, N_GENERATION, out));
    return parse_body(p, &(*out)->body, "endgeneration");
}

static Status parse_jump(Parser *p, Node **out, NodeKind kind)
{
    TRY(new_node(p, kind, out));
    return expect_end(p);
}
static Status parse_break(Parser *p, Node **out) { return parse_jump(p, out, N_BREAK); }
static Status parse_continue(Parser *p, Node **out) { return parse_jump(p, out, N_CONTINUE); }

Status parse_statement(Parser *p, NodeList *body)
{
    static const struct {
        const char *word;
        Status (*parse)(Parser *, Node **);
    } tags[] = {
        { "if", parse_if },           { "for", parse_for },
        { "set", parse_set },         { "macro", parse_macro },
        { "call", parse_call_block }, { "filter", parse_filter_block },
        { "with", parse_with },       { "generation", parse_generation },
        { "break", parse_break },     { "continue", parse_continue },
    };
    Node *n;
    Value word;
    int   line = p->at->line;
    TRY(expect_name(p, &word));
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (is_text(word, tags[i].word)) {
            if (tags[i].word[0] == 'b' || !strcmp(tags[i].word, "continue"))
                if (!p->loop) return fail_at(p->t, line, "'%s' outside of a loop", tags[i].word);
            TRY(tags[i].parse(p, &n));
            return push_node(p, body, n);
        }
    return fail_at(p->t, line, "the tag '%.*s' is not read here", word.n > 40 ? 40 : (int)word.n, word.s);
}
