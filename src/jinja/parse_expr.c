/* jinja/parse_expr.c -- expressions, with the precedence of Jinja's own parser. */
#include "jinja/jinja_private.h"

#include <string.h>

static Status parse_two(Parser *p, Node **out, NodeKind kind, int op, Node *a,
                        Status operand(Parser *, Node **))
{
    TRY(new_node(p, kind, out));
    (*out)->op = op, (*out)->a = a;
    return operand(p, &(*out)->b);
}

static Status constant(Parser *p, Node **out, Value v)
{
    TRY(new_node(p, N_CONST, out));
    (*out)->value = v;
    return OK;
}

static Status parse_name(Parser *p, Node **out)
{
    static const char *const words[] = { "true", "True", "false", "False", "none", "None" };
    for (int i = 0; i < 6; i++)
        if (at_name(p, words[i])) {
            TRY(constant(p, out, i < 4 ? boolean(i < 2) : none()));
            return p->at++, OK;
        }
    TRY(new_node(p, N_NAME, out));
    return expect_name(p, &(*out)->value);
}

/* Strings beside each other are one. */
static Status parse_string(Parser *p, Node **out)
{
    const LexToken *from = p->at;
    size_t          n    = 0;
    TRY(constant(p, out, from->value));
    for (; p->at->kind == T_STRING; p->at++) n += p->at->value.n;
    if (p->at == from + 1) return OK;
    char *text = heap_alloc(&p->t->heap, n + 1);
    if (!text) return fail(E_FIT, "the template is too large");
    (*out)->value = str(text, n);
    for (const LexToken *t = from; t < p->at; text += t++->value.n) memcpy(text, t->value.s, t->value.n);
    return OK;
}

static Status parse_list(Parser *p, Node **out)
{
    Node *item;
    TRY(new_node(p, N_LIST, out));
    p->at++;
    while (!at_op(p, ']')) {
        if ((*out)->list.n) TRY(expect_op(p, ','));
        if (at_op(p, ']')) break;
        TRY(parse_expression(p, &item));
        TRY(push_node(p, &(*out)->list, item));
    }
    return expect_op(p, ']');
}

static Status parse_dict(Parser *p, Node **out)
{
    Node *key, *value;
    TRY(new_node(p, N_DICT, out));
    p->at++;
    while (!at_op(p, '}')) {
        if ((*out)->list.n) TRY(expect_op(p, ','));
        if (at_op(p, '}')) break;
        TRY(parse_expression(p, &key));
        TRY(expect_op(p, ':'));
        TRY(parse_expression(p, &value));
        TRY(push_node(p, &(*out)->list, key));
        TRY(push_node(p, &(*out)->list, value));
    }
    return expect_op(p, '}');
}

static Status parse_brackets(Parser *p, Node **out)
{
    p->at++;
    if (at_op(p, ')')) TRY(new_node(p, N_TUPLE, out));
    else TRY(parse_tuple(p, out, true));
    return expect_op(p, ')');
}

static Status parse_primary(Parser *p, Node **out)
{
    switch (p->at->kind) {
    case T_NAME:
        return parse_name(p, out);
    case T_STRING:
        return parse_string(p, out);
    case T_INT:
    case T_FLOAT:
        TRY(constant(p, out, p->at->value));
        return p->at++, OK;
    default:
        break;
    }
    if (at_op(p, '(')) return parse_brackets(p, out);
    if (at_op(p, '[')) return parse_list(p, out);
    if (at_op(p, '{')) return parse_dict(p, out);
    return fail_token(p);
}

static Status parse_attribute(Parser *p, Node **node)
{
    Node *n;
    p->at++;
    if (p->at->kind == T_INT) {
        TRY(new_node(p, N_ITEM, &n));
        n->a = *node;
        TRY(constant(p, &n->b, p->at->value));
        return p->at++, *node = n, OK;
    }
    TRY(new_node(p, N_ATTR, &n));
    n->a = *node;
    TRY(expect_name(p, &n->value));
    return *node = n, OK;
}

/* One bound of a slice; absent before ':' , ']' and ','. */
static Status parse_bound(Parser *p, Node **out)
{
    if (at_op(p, ':') || at_op(p, ']') || at_op(p, ',')) return *out = NULL, OK;
    return parse_expression(p, out);
}

static Status parse_subscript_item(Parser *p, Node **out)
{
    Node *first;
    TRY(parse_bound(p, &first));
    if (!at_op(p, ':')) return first ? (*out = first, OK) : fail_token(p);
    TRY(new_node(p, N_SLICE, out));
    (*out)->a = first;
    p->at++;
    TRY(parse_bound(p, &(*out)->b));
    if (at_op(p, ':')) {
        p->at++;
        TRY(parse_bound(p, &(*out)->c));
    }
    return OK;
}

static Status parse_subscript(Parser *p, Node **node)
{
    Node *n;
    TRY(new_node(p, N_ITEM, &n));
    n->a = *node;
    p->at++;
    TRY(parse_subscript_item(p, &n->b));
    if (at_op(p, ',')) return fail_at(p->t, p->at->line, "subscripts of several values are not read here");
    *node = n;
    return expect_op(p, ']');
}

static Status parse_argument(Parser *p, Node **out)
{
    NodeKind kind    = at_op(p, '*') ? N_STAR : at_op(p, OP_POW) ? N_STARS : N_KEYWORD;
    bool     keyword = p->at->kind == T_NAME && p->at[1].kind == T_OP && p->at[1].op == '=';
    if (kind == N_KEYWORD && !keyword) return parse_expression(p, out);
    TRY(new_node(p, kind, out));
    if (keyword) (*out)->value = p->at->value;
    p->at += keyword ? 2 : 1;
    return parse_expression(p, &(*out)->a);
}

Status parse_call_args(Parser *p, NodeList *args)
{
    Node *n;
    bool  named = false;
    TRY(expect_op(p, '('));
    while (!at_op(p, ')')) {
        if (args->n) TRY(expect_op(p, ','));
        if (at_op(p, ')')) break;
        TRY(parse_argument(p, &n));
        if (named && n->kind != N_KEYWORD && n->kind != N_STARS)
            return fail_at(p->t, p->at->line, "invalid syntax for function call expression");
        named = named || n->kind == N_KEYWORD || n->kind == N_STARS;
        TRY(push_node(p, args, n));
    }
    return expect_op(p, ')');
}

static Status parse_call(Parser *p, Node **node)
{
    Node *n;
    TRY(new_node(p, N_CALL, &n));
    n->a = *node;
    TRY(parse_call_args(p, &n->list));
    return *node = n, OK;
}

static Status parse_postfix(Parser *p, Node **node)
{
    for (;;) {
        if (at_op(p, '.')) TRY(parse_attribute(p, node));
        else if (at_op(p, '[')) TRY(parse_subscript(p, node));
        else if (at_op(p, '(')) TRY(parse_call(p, node));
        else return OK;
    }
}

/* Jinja refuses an unknown filter or test when it compiles a template, except in an if or an inline if, where
 * it fails when it is reached. The first part of an inline if is parsed before its `if` is seen, so the first
 * unknown name is kept in p->unknown, and parse_expression forgets it again there. */
static void note_unknown(Parser *p, const Node *n)
{
    if (!n->builtin && !p->soft && !p->unknown) p->unknown = n;
}

/* Jinja's own filters that are not read here are refused wherever they stand. */
static bool is_unread_filter(Value name)
{
    static const char *const words[] = { "filesizeformat", "pprint", "random", "striptags", "urlize",
                                         "wordwrap", "xmlattr" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (is_text(name, words[i])) return true;
    return false;
}

Status check_names(const Parser *p)
{
    const Node *n = p->unknown;
    if (!n) return OK;
    return fail_at(p->t, n->line, "No %s named '%.*s'.", n->kind == N_TEST ? "test" : "filter",
                   (int)n->value.n, n->value.s);
}

/* A dotted name is one name in Jinja; none of ours has a dot. */
static Status parse_filter(Parser *p, Node **node)
{
    Node *n;
    TRY(new_node(p, N_FILTER, &n));
    n->a = *node;
    TRY(expect_name(p, &n->value));
    n->builtin = filter_named(n->value.s, n->value.n);
    if (is_unread_filter(n->value))
        return fail_at(p->t, n->line, "the filter '%.*s' is not read here", (int)n->value.n, n->value.s);
    note_unknown(p, n);
    if (at_op(p, '(')) TRY(parse_call_args(p, &n->list));
    return *node = n, OK;
}

Status parse_filters(Parser *p, Node **node)
{
    if (at_op(p, '|')) p->at++;
    TRY(parse_filter(p, node));
    while (at_op(p, '|')) {
        p->at++;
        TRY(parse_filter(p, node));
    }
    return OK;
}

static bool starts_test_argument(const Parser *p)
{
    if (at_name(p, "else") || at_name(p, "or") || at_name(p, "and")) return false;
    TokenKind k = p->at->kind;
    return k == T_NAME || k == T_STRING || k == T_INT || k == T_FLOAT || at_op(p, '[') || at_op(p, '{');
}

static Status parse_test(Parser *p, Node **node)
{
    Node *n, *arg, *negated;
    p->at++;
    TRY(new_node(p, N_TEST, &n));
    bool not = at_name(p, "not");
    p->at += not ;
    n->a = *node;
    TRY(expect_name(p, &n->value));
    n->builtin = test_named(n->value.s, n->value.n);
    note_unknown(p, n);
    if (at_op(p, '(')) TRY(parse_call_args(p, &n->list));
    else if (at_name(p, "is")) return fail_at(p->t, n->line, "You cannot chain multiple tests with is");
    else if (starts_test_argument(p)) {
        TRY(parse_primary(p, &arg));
        TRY(parse_postfix(p, &arg));
        TRY(push_node(p, &n->list, arg));
    }
    *node = n;
    if (!not ) return OK;
    TRY(new_node(p, N_NOT, &negated));
    negated->a   = n;
    return *node = negated, OK;
}

static Status parse_after(Parser *p, Node **node)
{
    for (;;) {
        if (at_op(p, '|')) {
            p->at++;
            TRY(parse_filter(p, node));
        } else if (at_name(p, "is")) TRY(parse_test(p, node));
        else if (at_op(p, '(')) TRY(parse_call(p, node));
        else return OK;
    }
}

/* A sign binds tighter than a filter: -1 | abs is abs(-1). */
static Status parse_signed(Parser *p, Node **out, bool filters)
{
    if (p->depth > PARSE_DEPTH) return fail_at(p->t, p->at->line, "expressions are nested too deeply");
    p->depth++;
    if (at_op(p, '-') || at_op(p, '+')) {
        TRY(new_node(p, at_op(p, '-') ? N_NEG : N_POS, out));
        p->at++;
        TRY(parse_signed(p, &(*out)->a, false));
    } else TRY(parse_primary(p, out));
    TRY(parse_postfix(p, out));
    if (filters) TRY(parse_after(p, out));
    return p->depth--, OK;
}

Status parse_unary(Parser *p, Node **out) { return parse_signed(p, out, true); }

static Status parse_pow(Parser *p, Node **out)
{
    TRY(parse_unary(p, out));
    while (at_op(p, OP_POW)) {
        p->at++;
        TRY(parse_two(p, out, N_BINARY, OP_POW, *out, parse_unary));
    }
    return OK;
}

static Status parse_product(Parser *p, Node **out)
{
    TRY(parse_pow(p, out));
    while (at_op(p, '*') || at_op(p, '/') || at_op(p, OP_FLOORDIV) || at_op(p, '%')) {
        int op = p->at++->op;
        TRY(parse_two(p, out, N_BINARY, op, *out, parse_pow));
    }
    return OK;
}

static Status parse_concat(Parser *p, Node **out)
{
    Node *n, *first;
    TRY(parse_product(p, &first));
    *out = first;
    if (!at_op(p, '~')) return OK;
    TRY(new_node(p, N_CONCAT, out));
    TRY(push_node(p, &(*out)->list, first));
    while (at_op(p, '~')) {
        p->at++;
        TRY(parse_product(p, &n));
        TRY(push_node(p, &(*out)->list, n));
    }
    return OK;
}

static Status parse_sum(Parser *p, Node **out)
{
    TRY(parse_concat(p, out));
    while (at_op(p, '+') || at_op(p, '-')) {
        int op = p->at++->op;
        TRY(parse_two(p, out, N_BINARY, op, *out, parse_concat));
    }
    return OK;
}

/* The comparison at the next token; 0: there is none. */
static int comparison(Parser *p)
{
    static const int ops[] = { OP_EQ, OP_NE, '<', '>', OP_LE, OP_GE };
    for (int i = 0; i < 6; i++)
        if (at_op(p, ops[i])) return p->at++, ops[i];
    if (at_name(p, "in")) return p->at++, OP_IN;
    if (!at_name(p, "not") || p->at[1].kind != T_NAME || !is_text(p->at[1].value, "in")) return 0;
    return p->at += 2, OP_NOT_IN;
}

/* a < b < c: each operand carries the operator before it. */
static Status parse_compare(Parser *p, Node **out)
{
    Node *first, *n;
    int   op;
    TRY(parse_sum(p, &first));
    *out = first;
    if (!(op = comparison(p))) return OK;
    TRY(new_node(p, N_COMPARE, out));
    (*out)->a = first;
    for (; op; op = comparison(p)) {
        Node *operand;
        TRY(new_node(p, N_KEYWORD, &n));
        n->op = op;
        TRY(parse_sum(p, &operand));
        n->a = operand;
        TRY(push_node(p, &(*out)->list, n));
    }
    return OK;
}

static Status parse_not(Parser *p, Node **out)
{
    if (!at_name(p, "not")) return parse_compare(p, out);
    if (p->depth > PARSE_DEPTH) return fail_at(p->t, p->at->line, "expressions are nested too deeply");
    p->depth++;
    TRY(new_node(p, N_NOT, out));
    p->at++;
    TRY(parse_not(p, &(*out)->a));
    return p->depth--, OK;
}

static Status parse_and(Parser *p, Node **out)
{
    TRY(parse_not(p, out));
    while (at_name(p, "and")) {
        p->at++;
        TRY(parse_two(p, out, N_AND, 0, *out, parse_not));
    }
    return OK;
}

Status parse_or(Parser *p, Node **out)
{
    TRY(parse_and(p, out));
    while (at_name(p, "or")) {
        p->at++;
        TRY(parse_two(p, out, N_OR, 0, *out, parse_and));
    }
    return OK;
}

/* x if a else b, after x. */
static Status parse_condition(Parser *p, Node **out)
{
    Node *n;
    bool  outer = p->soft;
    TRY(new_node(p, N_COND, &n));
    p->at++, p->soft = true;
    n->b = *out;
    TRY(parse_or(p, &n->a));
    if (at_name(p, "else")) {
        p->at++;
        TRY(parse_expression(p, &n->c));
    }
    p->soft     = outer;
    return *out = n, OK;
}

Status parse_expression(Parser *p, Node **out)
{
    const Node *unknown = p->unknown;
    if (p->depth > PARSE_DEPTH) return fail_at(p->t, p->at->line, "expressions are nested too deeply");
    p->depth++;
    TRY(parse_or(p, out));
    while (at_name(p, "if")) {
        p->unknown = unknown;
        TRY(parse_condition(p, out));
    }
    return p->depth--, OK;
}

static bool ends_tuple(const Parser *p)
{
    return p->at->kind == T_VARIABLE_END || p->at->kind == T_BLOCK_END || at_op(p, ')') ||
           at_name(p, "recursive");
}

Status parse_tuple(Parser *p, Node **out, bool conditions)
{
    Node *n, *tuple = NULL;
    for (;;) {
        if (tuple && ends_tuple(p)) break;
        TRY(conditions ? parse_expression(p, &n) : parse_or(p, &n));
        if (!tuple && !at_op(p, ',')) return *out = n, OK;
        if (!tuple) TRY(new_node(p, N_TUPLE, &tuple));
        TRY(push_node(p, &tuple->list, n));
        if (!at_op(p, ',')) break;
        p->at++;
    }
    return *out = tuple, OK;
}
