/* jinja/eval.c -- values of expressions, and calls. */
#include "jinja/jinja_private.h"

#include <stdio.h>
#include <string.h>

const Value *scope_find(const Scope *s, const char *name, size_t len)
{
    for (; s; s = s->parent)
        for (const Var *v = s->vars; v; v = v->next)
            if (v->len == len && !memcmp(v->name, name, len)) return &v->value;
    return NULL;
}

Status scope_set(Jinja *j, Scope *s, Value name, Value v)
{
    Var *var;
    for (var = s->vars; var; var = var->next)
        if (var->len == name.n && !memcmp(var->name, name.s, name.n)) return var->value = v, OK;
    TAKE(j, var, 1);
    *var    = (Var){ name.s, name.n, v, s->vars };
    s->vars = var;
    return OK;
}

Status unset_names(Jinja *j, Scope *s, const Names *names)
{
    for (int i = 0; i < names->n; i++) TRY(scope_set(j, s, names->v[i], (Value){ .kind = V_ABSENT }));
    return OK;
}

static Status eval_name(Jinja *j, const Node *n, Value *out)
{
    const Value   *v = scope_find(j->scope, n->value.s, n->value.n);
    const Builtin *b = v ? NULL : global_named(n->value.s, n->value.n);
    if (v && v->kind != V_ABSENT) return *out = *v, OK;
    if (b) return *out = (Value){ .kind = V_BUILTIN, .builtin = b }, OK;
    return undefined(j, out, "'%.*s' is undefined", n->value.n > 200 ? 200 : (int)n->value.n, n->value.s);
}

static Status eval_items(Jinja *j, const Node *n, Value *out)
{
    Value *item;
    TAKE(j, item, n->list.n);
    for (int i = 0; i < n->list.n; i++) TRY(eval(j, n->list.v[i], &item[i]));
    *out = list(item, (size_t)n->list.n);
    if (n->kind == N_TUPLE) out->kind = V_TUPLE;
    return OK;
}

static Status eval_dict(Jinja *j, const Node *n, Value *out)
{
    Dict *d;
    Value key, value;
    TRY(dict_new(j, &d));
    for (int i = 0; i < n->list.n; i += 2) {
        TRY(eval(j, n->list.v[i], &key));
        TRY(eval(j, n->list.v[i + 1], &value));
        TRY(dict_set(j, d, key, value));
    }
    return *out = (Value){ .kind = V_DICT, .dict = d }, OK;
}

static Status eval_concat(Jinja *j, const Node *n, Value *out)
{
    Buffer b = { 0 };
    Value  v;
    for (int i = 0; i < n->list.n; i++) {
        TRY(eval(j, n->list.v[i], &v));
        TRY(buffer_value(j, &b, v));
    }
    return *out = buffer_str(&b), OK;
}

static Status compare_one(Jinja *j, int op, Value a, Value b, bool *out)
{
    switch (op) {
    case OP_EQ:
        return equal(j, a, b, out);
    case OP_NE:
        TRY(equal(j, a, b, out));
        return *out = !*out, OK;
    case OP_IN:
        return contains(j, a, b, out);
    case OP_NOT_IN:
        TRY(contains(j, a, b, out));
        return *out = !*out, OK;
    default:
        return compare(j, a, b, op, out);
    }
}

static Status eval_compare(Jinja *j, const Node *n, Value *out)
{
    Value a, b;
    bool  yes = true;
    TRY(eval(j, n->a, &a));
    for (int i = 0; yes && i < n->list.n; i++, a = b) {
        TRY(eval(j, n->list.v[i]->a, &b));
        TRY(compare_one(j, n->list.v[i]->op, a, b, &yes));
    }
    return *out = boolean(yes), OK;
}

static Status eval_item(Jinja *j, const Node *n, Value *out)
{
    Value o, key, bound[3] = { none(), none(), none() };
    TRY(eval(j, n->a, &o));
    if (n->b->kind != N_SLICE) {
        TRY(eval(j, n->b, &key));
        return get_item(j, o, key, out);
    }
    const Node *part[] = { n->b->a, n->b->b, n->b->c };
    for (int i = 0; i < 3; i++)
        if (part[i]) TRY(eval(j, part[i], &bound[i]));
    return get_slice(j, o, bound, out);
}

static Status eval_cond(Jinja *j, const Node *n, Value *out)
{
    Value v;
    TRY(eval(j, n->a, &v));
    if (truth(v)) return eval(j, n->b, out);
    if (n->c) return eval(j, n->c, out);
    return undefined(j, out,
                     "the inline if-expression on line %d evaluated to false and no else section was "
                     "defined.",
                     n->line);
}

static Status eval_sign(Jinja *j, const Node *n, Value *out)
{
    Value v;
    TRY(eval(j, n->a, &v));
    if (v.kind == V_UNDEFINED) return fail_undefined(v);
    if (!is_number(v))
        return fail(E_DATA, "bad operand type for unary %c: '%s'", n->kind == N_NEG ? '-' : '+',
                    type_name(v));
    bool negate = n->kind == N_NEG;
    if (v.kind == V_FLOAT) return *out = real(negate ? -v.f : v.f), OK;
    if (negate && whole(v) == INT64_MIN) return fail(E_DATA, "an integer that is too large");
    return *out = integer(negate ? -whole(v) : whole(v)), OK;
}

/* Room for the arguments of a call: what the nodes give, and what * and ** add. */
typedef struct ArgList {
    Value *v, *name, *named;
    int    n, names, cap;
} ArgList;

static Status args_reserve(Jinja *j, ArgList *l, int more)
{
    Value *v, *name, *named;
    int    need = l->n + l->names + more, cap = need > 2 * l->cap ? need : 2 * l->cap;
    if (need <= l->cap) return OK;
    TAKE(j, v, cap);
    TAKE(j, name, cap);
    TAKE(j, named, cap);
    if (l->n) memcpy(v, l->v, (size_t)l->n * sizeof *v);
    if (l->names) memcpy(name, l->name, (size_t)l->names * sizeof *name);
    if (l->names) memcpy(named, l->named, (size_t)l->names * sizeof *named);
    l->v = v, l->name = name, l->named = named, l->cap = cap;
    return OK;
}

static Status add_star(Jinja *j, ArgList *l, Value v)
{
    Value items;
    TRY(iterate(j, v, &items));
    TRY(args_reserve(j, l, (int)items.n));
    for (uint32_t i = 0; i < items.n; i++) l->v[l->n++] = items.item[i];
    return OK;
}

static Status add_stars(Jinja *j, ArgList *l, Value v)
{
    if (v.kind != V_DICT) return fail(E_DATA, "argument after ** must be a mapping, not %s", type_name(v));
    TRY(args_reserve(j, l, (int)v.dict->n));
    for (int64_t i = 0; i < v.dict->n; i++) {
        if (v.dict->key[i].kind != V_STR) return fail(E_DATA, "keywords must be strings");
        l->name[l->names] = v.dict->key[i], l->named[l->names++] = v.dict->value[i];
    }
    return OK;
}

static Status eval_args(Jinja *j, const NodeList *nodes, Args *a)
{
    ArgList l = { 0 };
    Value   v;
    TRY(args_reserve(j, &l, nodes->n + 1));
    for (int i = 0; i < nodes->n; i++) {
        const Node *n     = nodes->v[i];
        bool        plain = n->kind != N_KEYWORD && n->kind != N_STAR && n->kind != N_STARS;
        TRY(eval(j, plain ? n : n->a, &v));
        if (n->kind == N_STAR) TRY(add_star(j, &l, v));
        else if (n->kind == N_STARS) TRY(add_stars(j, &l, v));
        else {
            TRY(args_reserve(j, &l, 1));
            if (plain) l.v[l.n++] = v;
            else l.name[l.names] = n->value, l.named[l.names++] = v;
        }
    }
    *a = (Args){ l.v, l.n, l.name, l.named, l.names };
    return OK;
}

static Status eval_call(Jinja *j, const Node *n, Value *out)
{
    Value f;
    Args  a;
    TRY(eval(j, n->a, &f));
    TRY(eval_args(j, &n->list, &a));
    return call_value(j, f, &a, out);
}

/* `self` of a filter block is in out already. */
static Status eval_builtin(Jinja *j, const Node *n, Value *out)
{
    Value self = *out;
    Args  a;
    if (n->a) TRY(eval(j, n->a, &self));
    TRY(eval_args(j, &n->list, &a));
    if (!n->builtin)
        return fail(E_DATA, "No %s named '%.*s' found.", n->kind == N_TEST ? "test" : "filter",
                    (int)n->value.n, n->value.s);
    return call_builtin(j, n->builtin, self, &a, out);
}

static Status eval_logic(Jinja *j, const Node *n, Value *out)
{
    TRY(eval(j, n->a, out));
    return truth(*out) == (n->kind == N_AND) ? eval(j, n->b, out) : OK;
}

static Status eval_node(Jinja *j, const Node *n, Value *out)
{
    Value a, b;
    switch (n->kind) {
    case N_CONST:
        return *out = n->value, OK;
    case N_NAME:
        return eval_name(j, n, out);
    case N_TUPLE:
    case N_LIST:
        return eval_items(j, n, out);
    case N_DICT:
        return eval_dict(j, n, out);
    case N_ATTR:
        TRY(eval(j, n->a, &a));
        return get_attr(j, a, n->value, out);
    case N_ITEM:
        return eval_item(j, n, out);
    case N_CALL:
        return eval_call(j, n, out);
    case N_FILTER:
    case N_TEST:
        return eval_builtin(j, n, out);
    case N_NOT:
        TRY(eval(j, n->a, &a));
        return *out = boolean(!truth(a)), OK;
    case N_NEG:
    case N_POS:
        return eval_sign(j, n, out);
    case N_BINARY:
        TRY(eval(j, n->a, &a));
        TRY(eval(j, n->b, &b));
        return binary(j, n->op, a, b, out);
    case N_CONCAT:
        return eval_concat(j, n, out);
    case N_COMPARE:
        return eval_compare(j, n, out);
    case N_AND:
    case N_OR:
        return eval_logic(j, n, out);
    case N_COND:
        return eval_cond(j, n, out);
    default:
        REQUIRE(false, "node %d is no expression", (int)n->kind);
        return OK;
    }
}

Status eval(Jinja *j, const Node *n, Value *out)
{
    TRY(spend(j, 1));
    if (j->depth > DEPTH) return fail(E_DATA, "maximum recursion depth exceeded");
    j->depth++;
    j->line   = n->line;
    Status st = eval_node(j, n, out);
    j->depth--;
    return st;
}

/* The index of a parameter in "a,b,c"; -1: there is none of that name. */
static int param_index(const char *params, Value name)
{
    int i = 0;
    for (const char *p = params; *p; i++) {
        size_t n = strcspn(p, ",");
        if (n == name.n && !memcmp(p, name.s, n)) return i;
        p += n + (p[n] == ',');
    }
    return -1;
}

static int param_count(const char *params)
{
    int n = *params != 0;
    for (; *params; params++) n += *params == ',';
    return n;
}

Status call_builtin(Jinja *j, const Builtin *b, Value self, const Args *a, Value *out)
{
    Value arg[PARAMS] = { { 0 } };
    TRY(spend(j, 1));
    if (b->raw) return b->raw(j, self, a, out);
    int n = param_count(b->params);
    if (a->n > n)
        return fail(E_DATA, "%s() takes at most %d argument%s (%d given)", b->name, n, n == 1 ? "" : "s",
                    a->n);
    for (int i = 0; i < a->n; i++) arg[i] = a->v[i];
    for (int i = 0; i < a->names; i++) {
        int k = param_index(b->params, a->name[i]);
        if (k < 0)
            return fail(E_DATA, "%s() got an unexpected keyword argument '%.*s'", b->name, (int)a->name[i].n,
                        a->name[i].s);
        arg[k] = a->named[i];
    }
    for (int i = 0; i < b->least; i++)
        if (arg[i].kind == V_ABSENT)
            return fail(E_DATA, "%s() takes at least %d argument%s (%d given)", b->name, b->least,
                        b->least == 1 ? "" : "s", i);
    return b->run(j, self, arg, out);
}

Status call_value(Jinja *j, Value f, const Args *a, Value *out)
{
    switch (f.kind) {
    case V_BUILTIN:
        return call_builtin(j, f.builtin, none(), a, out);
    case V_METHOD:
        return call_builtin(j, f.method->builtin, f.method->self, a, out);
    case V_MACRO:
        return call_macro(j, f.macro, a, out);
    case V_LOOP:
        return call_loop(j, f.loop, a, out);
    case V_UNDEFINED:
        return fail_undefined(f);
    case V_JOINER:
        *out                = f.cycler->at ? f.cycler->item[0] : text_of("");
        return f.cycler->at = 1, OK;
    default:
        return fail(E_DATA, "'%s' object is not callable", type_name(f));
    }
}
