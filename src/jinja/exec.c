/* jinja/exec.c -- statements: output, scopes, loops, macros. */
#include "jinja/jinja_private.h"

#include <stdlib.h>
#include <string.h>

/* unset: the names that have no value yet; NULL: none. */
static Status scope_new(Jinja *j, Scope *parent, const Names *unset, Scope **out)
{
    TAKE(j, *out, 1);
    (*out)->parent = parent;
    return unset ? unset_names(j, *out, unset) : OK;
}

/* Runs statements in a scope and gives what they write as a string. */
Status run_body(Jinja *j, const NodeList *body, Scope *scope, Value *out)
{
    Buffer b     = { .outer = j->out };
    Scope *outer = j->scope;
    Flow   flow  = FLOW_NEXT;
    j->out = &b, j->scope = scope;
    Status st = exec(j, body, &flow);
    j->out = b.outer, j->scope = outer;
    *out = buffer_str(&b);
    return st;
}

static Status run_scoped(Jinja *j, const NodeList *body, Scope *scope, Flow *flow)
{
    Scope *outer = j->scope;
    j->scope     = scope;
    Status st    = exec(j, body, flow);
    j->scope     = outer;
    return st;
}

Status unpack(Jinja *j, Value v, int n, Value *items)
{
    if (!is_sequence(v) && v.kind != V_STR && v.kind != V_DICT && v.kind != V_UNDEFINED)
        return fail(E_DATA, "cannot unpack non-iterable %s object", type_name(v));
    TRY(iterate(j, v, items));
    if ((int)items->n > n) return fail(E_DATA, "too many values to unpack (expected %d)", n);
    if ((int)items->n < n)
        return fail(E_DATA, "not enough values to unpack (expected %d, got %d)", n, (int)items->n);
    return OK;
}

static Status bind_tuple(Jinja *j, const Node *target, Value v)
{
    Value items;
    int   n = target->list.n;
    TRY(unpack(j, v, n, &items));
    for (int i = 0; i < n; i++) TRY(bind_target(j, target->list.v[i], items.item[i]));
    return OK;
}

static Status bind_attribute(Jinja *j, const Node *target, Value v)
{
    const Value *ns = scope_find(j->scope, target->a->value.s, target->a->value.n);
    if (!ns || ns->kind != V_NAMESPACE)
        return fail(E_DATA, "cannot assign attribute on non-namespace object");
    return dict_set(j, ns->dict, target->value, v);
}

Status bind_target(Jinja *j, const Node *target, Value v)
{
    if (target->kind == N_TUPLE) return bind_tuple(j, target, v);
    if (target->kind == N_ATTR) return bind_attribute(j, target, v);
    return scope_set(j, j->scope, target->value, v);
}

/* Whether the loop's condition holds for an element. */
static Status is_wanted(Jinja *j, const Loop *l, Value v, bool *out)
{
    Scope *outer = j->scope;
    Value  yes;
    *out = true;
    if (!l->node->c) return OK;
    Status st = scope_new(j, l->scope, NULL, &j->scope);
    if (!st) st = bind_target(j, l->node->a, v);
    if (!st) st = eval(j, l->node->c, &yes);
    if (!st) *out = truth(yes);
    return j->scope = outer, st;
}

Status loop_pull(Jinja *j, Loop *l, int64_t n)
{
    while (l->n < n && l->next < l->sources) {
        bool  wanted;
        Value v = l->source[l->next++];
        TRY(is_wanted(j, l, v, &wanted));
        if (wanted) l->item[l->n++] = v;
    }
    return l->n < n && l->error ? fail(E_DATA, "%s", l->error) : OK;
}

static Status loop_once(Jinja *j, Loop *l, Flow *flow)
{
    Scope *outer = j->scope;
    Value  v     = l->item[l->at];
    int    item  = j->item;
    TRY(scope_new(j, l->scope, &l->node->unset, &j->scope));
    if (v.kind == V_DICT && v.dict->item >= 0) j->item = v.dict->item;
    Status st = scope_set(j, j->scope, text_of("loop"), (Value){ .kind = V_LOOP, .loop = l });
    if (!st) st = bind_target(j, l->node->a, v);
    if (!st) st = exec(j, &l->node->body, flow);
    j->scope = outer, j->item = item;
    return st;
}

static Status loop_new(Jinja *j, const Node *n, Value items, Scope *scope, int depth, Loop **out)
{
    Loop *l;
    TAKE(j, l, 1);
    *l = (Loop){ .depth = depth, .node = n, .scope = scope };
    if (items.kind == V_GENERATOR) {
        l->error         = items.generator->error;
        Value rest       = list(items.generator->item, items.generator->n);
        *items.generator = (ValueStream){ 0 };
        items            = rest;
    } else TRY(iterate(j, items, &items));
    l->source = items.item, l->sources = items.n;
    TAKE(j, l->item, items.n);
    return *out = l, OK;
}

/* As in Jinja, else runs unless an iteration came to the end of the body. */
static Status run_loop(Jinja *j, const Node *n, Value items, Scope *scope, int depth)
{
    Loop *l;
    Flow  flow  = FLOW_NEXT;
    bool  ended = false;
    TRY(loop_new(j, n, items, scope, depth, &l));
    for (; flow != FLOW_BREAK; l->at++) {
        TRY(loop_pull(j, l, l->at + 1));
        if (l->at == l->n) break;
        TRY(loop_once(j, l, &flow));
        ended = ended || flow == FLOW_NEXT;
    }
    if (ended || !n->other.n) return OK;
    TRY(scope_new(j, scope, &n->unset_other, &scope));
    return run_scoped(j, &n->other, scope, &flow);
}

/* loop(items) of a recursive loop. */
Status call_loop(Jinja *j, Loop *l, const Args *a, Value *out)
{
    Buffer b = { .outer = j->out };
    if (!l->node->flag)
        return fail(E_DATA, "The loop must have the 'recursive' marker to be called recursively.");
    if (a->n != 1 || a->names) return fail(E_DATA, "loop() takes one argument");
    if (j->depth > DEPTH) return fail(E_DATA, "maximum recursion depth exceeded");
    j->out      = &b, j->depth++;
    Status st   = run_loop(j, l->node, a->v[0], l->scope, l->depth + 1);
    j->out      = b.outer, j->depth--;
    return *out = buffer_str(&b), st;
}

static Status exec_for(Jinja *j, const Node *n)
{
    Value items;
    TRY(eval(j, n->b, &items));
    return run_loop(j, n, items, j->scope, 0);
}

static Status param_named(const Args *a, Value name, Value *out)
{
    for (int i = 0; i < a->names; i++)
        if (same(a->name[i], name)) *out = a->named[i];
    return OK;
}

static bool is_param(const Node *macro, Value name)
{
    for (int i = 0; i < macro->list.n; i++)
        if (same(macro->list.v[i]->value, name)) return true;
    return (macro->op & MACRO_CALLER) && is_text(name, "caller");
}

static Status bind_extra(Jinja *j, const Node *n, const Args *a, Scope *scope)
{
    Dict *d;
    int   extra = a->n > n->list.n ? a->n - n->list.n : 0;
    Value rest  = { .kind = V_TUPLE, .n = (uint32_t)extra, .item = a->v + (a->n - extra) };
    TRY(dict_new(j, &d));
    for (int i = 0; i < a->names; i++) {
        if (is_param(n, a->name[i])) continue;
        if (!(n->op & MACRO_KWARGS) && is_text(a->name[i], "caller"))
            return fail(E_DATA,
                        "macro '%.*s' was invoked with two values for the special caller argument. This is "
                        "most likely a bug.",
                        (int)n->value.n, n->value.s);
        if (!(n->op & MACRO_KWARGS))
            return fail(E_DATA, "macro '%.*s' takes no keyword argument '%.*s'", (int)n->value.n, n->value.s,
                        (int)a->name[i].n, a->name[i].s);
        TRY(dict_set(j, d, a->name[i], a->named[i]));
    }
    if (extra && !(n->op & MACRO_VARARGS))
        return fail(E_DATA, "macro '%.*s' takes not more than %d argument(s)", (int)n->value.n, n->value.s,
                    n->list.n);
    if (n->op & MACRO_VARARGS) TRY(scope_set(j, scope, text_of("varargs"), rest));
    if (n->op & MACRO_KWARGS)
        TRY(scope_set(j, scope, text_of("kwargs"), (Value){ .kind = V_DICT, .dict = d }));
    return OK;
}

/* Defaults are values of the macro's scope: they see the parameters before them. */
static Status bind_params(Jinja *j, const Node *n, const Args *a, Scope *scope)
{
    Value v, caller = { .kind = V_ABSENT };
    TRY(bind_extra(j, n, a, scope));
    TRY(param_named(a, text_of("caller"), &caller));
    if (caller.kind == V_ABSENT) TRY(undefined(j, &caller, "No caller defined"));
    if (n->op & MACRO_CALLER) TRY(scope_set(j, scope, text_of("caller"), caller));
    for (int i = 0; i < n->list.n; i++) {
        const Node *param = n->list.v[i];
        v                 = i < a->n ? a->v[i] : (Value){ .kind = V_ABSENT };
        if (i >= a->n) TRY(param_named(a, param->value, &v));
        if (v.kind == V_ABSENT && param->a) TRY(eval(j, param->a, &v));
        else if (v.kind == V_ABSENT)
            TRY(undefined(j, &v, "parameter '%.*s' was not provided", (int)param->value.n, param->value.s));
        TRY(scope_set(j, scope, param->value, v));
    }
    return OK;
}

Status call_macro(Jinja *j, const Macro *m, const Args *a, Value *out)
{
    Scope *scope, *outer = j->scope;
    if (j->depth > DEPTH) return fail(E_DATA, "maximum recursion depth exceeded");
    TRY(scope_new(j, m->scope, &m->node->unset, &scope));
    j->depth++, j->scope = scope;
    Status st = bind_params(j, m->node, a, scope);
    if (!st) st = run_body(j, &m->node->body, scope, out);
    j->depth--, j->scope = outer;
    return st;
}

static Status macro_new(Jinja *j, const Node *n, Value *out)
{
    Macro *m;
    TAKE(j, m, 1);
    *m          = (Macro){ n, j->scope };
    return *out = (Value){ .kind = V_MACRO, .macro = m }, OK;
}

static Status exec_macro(Jinja *j, const Node *n)
{
    Value v;
    TRY(macro_new(j, n, &v));
    return scope_set(j, j->scope, n->value, v);
}

/* The call gets the body as the argument caller. */
static Status exec_call_block(Jinja *j, const Node *n)
{
    Value  caller, v, text;
    Node   keyword  = { .kind = N_KEYWORD, .line = n->line, .value = text_of("caller") };
    Node   constant = { .kind = N_CONST, .line = n->line };
    Node   call     = *n->a;
    Node **args;
    TRY(macro_new(j, n->b, &caller));
    constant.value = caller, keyword.a = &constant;
    TAKE(j, args, call.list.n + 1);
    if (call.list.n) memcpy(args, call.list.v, (size_t)call.list.n * sizeof *args);
    args[call.list.n] = &keyword;
    call.list         = (NodeList){ args, call.list.n + 1, call.list.n + 1 };
    TRY(eval(j, &call, &v));
    TRY(to_str(j, &text, v));
    return write_text(j, text.s, text.n);
}

/* What the body writes, through the filters of the tag. */
static Status filtered_body(Jinja *j, const Node *n, Value *out)
{
    const Node *chain[32];
    int         k = 0;
    Scope      *scope;
    TRY(scope_new(j, j->scope, &n->unset, &scope));
    TRY(run_body(j, &n->body, scope, out));
    for (const Node *f = n->b; f && k < 32; f = f->a) chain[k++] = f;
    while (k--) {
        Node f    = *chain[k];
        f.a       = NULL;
        Node self = { .kind = N_CONST, .line = n->line, .value = *out };
        f.a       = &self;
        TRY(eval(j, &f, out));
    }
    return OK;
}

static Status exec_filter_block(Jinja *j, const Node *n)
{
    Value v;
    TRY(filtered_body(j, n, &v));
    if (v.kind != V_STR)
        return fail(E_DATA, "sequence item 0: expected str instance, %s found", type_name(v));
    return write_text(j, v.s, v.n);
}

/* The values are those of the scope outside. */
static Status exec_with(Jinja *j, const Node *n, Flow *flow)
{
    Scope *scope, *outer = j->scope;
    Value  v;
    TRY(scope_new(j, outer, &n->unset, &scope));
    for (int i = 0; i < n->list.n; i++) {
        TRY(eval(j, n->list.v[i]->b, &v));
        j->scope  = scope;
        Status st = bind_target(j, n->list.v[i]->a, v);
        j->scope  = outer;
        TRY(st);
    }
    return run_scoped(j, &n->body, scope, flow);
}

static Status exec_generation(Jinja *j, const Node *n)
{
    bool   outer = j->generating;
    Scope *scope;
    Flow   flow = FLOW_NEXT;
    TRY(scope_new(j, j->scope, &n->unset, &scope));
    j->generating = true;
    Status st     = run_scoped(j, &n->body, scope, &flow);
    j->generating = outer;
    return st;
}

static Status exec_if(Jinja *j, const Node *n, Flow *flow)
{
    Value v;
    for (;;) {
        TRY(eval(j, n->a, &v));
        if (truth(v)) return exec(j, &n->body, flow);
        if (!n->elif) return exec(j, &n->other, flow);
        n = n->other.v[0];
    }
}

static Status exec_print(Jinja *j, const Node *n)
{
    Value v, text;
    TRY(eval(j, n->a, &v));
    TRY(to_str(j, &text, v));
    return write_text(j, text.s, text.n);
}

static Status exec_set(Jinja *j, const Node *n)
{
    Value v;
    TRY(n->kind == N_SET ? eval(j, n->b, &v) : filtered_body(j, n, &v));
    return bind_target(j, n->a, v);
}

static Status exec_node(Jinja *j, const Node *n, Flow *flow)
{
    switch (n->kind) {
    case N_TEXT:
        return write_text(j, n->value.s, n->value.n);
    case N_PRINT:
        return exec_print(j, n);
    case N_IF:
        return exec_if(j, n, flow);
    case N_FOR:
        return exec_for(j, n);
    case N_SET:
    case N_SET_BLOCK:
        return exec_set(j, n);
    case N_MACRO:
        return exec_macro(j, n);
    case N_CALL_BLOCK:
        return exec_call_block(j, n);
    case N_FILTER_BLOCK:
        return exec_filter_block(j, n);
    case N_WITH:
        return exec_with(j, n, flow);
    case N_GENERATION:
        return exec_generation(j, n);
    case N_BREAK:
        return *flow = FLOW_BREAK, OK;
    default:
        return *flow = FLOW_CONTINUE, OK;
    }
}

Status exec(Jinja *j, const NodeList *body, Flow *flow)
{
    if (j->depth > DEPTH) return fail(E_DATA, "maximum recursion depth exceeded");
    j->depth++;
    *flow = FLOW_NEXT;
    for (int i = 0; *flow == FLOW_NEXT && i < body->n; i++) {
        TRY(spend(j, 1));
        TRY(exec_node(j, body->v[i], flow));
    }
    j->depth--;
    return OK;
}
