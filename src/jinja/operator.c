/* jinja/operator.c -- arithmetic, concatenation and membership, with Python's results and errors. */
#include "jinja/jinja_private.h"

#include <math.h>
#include <string.h>

static const char *op_name(int op)
{
    switch (op) {
    case '+':
        return "+";
    case '-':
        return "-";
    case '*':
        return "*";
    case '/':
        return "/";
    case '%':
        return "%";
    case OP_FLOORDIV:
        return "//";
    default:
        return "** or pow()";
    }
}

static Status unsupported(int op, Value a, Value b)
{
    return fail(E_DATA, "unsupported operand type(s) for %s: '%s' and '%s'", op_name(op), type_name(a),
                type_name(b));
}

static Status too_large(void) { return fail(E_DATA, "an integer that is too large"); }

/* Quotients are rounded down, and a remainder has the sign of the divisor. */
static Status divide(int op, int64_t a, int64_t b, Value *out)
{
    if (!b) return fail(E_DATA, op == '%' ? "integer modulo by zero" : "integer division or modulo by zero");
    if (b == -1) return a == INT64_MIN ? too_large() : (*out = integer(op == '%' ? 0 : -a), OK);
    int64_t q = a / b, r = a % b;
    if (r && (r < 0) != (b < 0)) q--, r += b;
    return *out = integer(op == '%' ? r : q), OK;
}

static Status power(int64_t a, int64_t b, Value *out)
{
    int64_t r = 1;
    if (b < 0 && !a) return fail(E_DATA, "0.0 cannot be raised to a negative power");
    if (b < 0) return *out = real(pow((double)a, (double)b)), OK;
    if (b > 63 && a > 1) return too_large();
    if (b > 63) b = 62 + b % 2;
    for (; b; b--)
        if (__builtin_mul_overflow(r, a, &r)) return too_large();
    return *out = integer(r), OK;
}

static Status int_binary(int op, int64_t a, int64_t b, Value *out)
{
    int64_t r = 0;
    switch (op) {
    case '+':
        if (__builtin_add_overflow(a, b, &r)) return too_large();
        break;
    case '-':
        if (__builtin_sub_overflow(a, b, &r)) return too_large();
        break;
    case '*':
        if (__builtin_mul_overflow(a, b, &r)) return too_large();
        break;
    case '/':
        if (!b) return fail(E_DATA, "division by zero");
        return *out = real((double)a / (double)b), OK;
    case OP_POW:
        return power(a, b, out);
    default:
        return divide(op, a, b, out);
    }
    return *out = integer(r), OK;
}

/* The quotient of what is left without the remainder, as Python has it: 5.0 // 0.1 is 49. */
static double floor_quotient(double a, double b)
{
    double rest = fmod(a, b), q = (a - rest) / b;
    if (rest != 0 && (rest < 0) != (b < 0)) q--;
    double down = floor(q);
    return q - down > 0.5 ? down + 1 : down;
}

static Status float_binary(int op, double a, double b, Value *out)
{
    double r;
    if (b == 0 && op == '/') return fail(E_DATA, "float division by zero");
    if (b == 0 && op == '%') return fail(E_DATA, "float modulo");
    if (b == 0 && op == OP_FLOORDIV) return fail(E_DATA, "float floor division by zero");
    switch (op) {
    case '+':
        r = a + b;
        break;
    case '-':
        r = a - b;
        break;
    case '*':
        r = a * b;
        break;
    case '/':
        r = a / b;
        break;
    case OP_FLOORDIV:
        r = floor_quotient(a, b);
        break;
    case '%':
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        break;
    default:
        r = pow(a, b);
        break;
    }
    return *out = real(r), OK;
}

static Status concatenate(Jinja *j, Value a, Value b, Value *out)
{
    Value *item, both[] = { a, b };
    if (a.kind != b.kind)
        return fail(E_DATA, "can only concatenate %s (not \"%s\") to %s", type_name(a), type_name(b),
                    type_name(a));
    if (a.kind == V_STR && a.markup != b.markup) TRY(escape_str(j, both[a.markup], &both[a.markup]));
    if (a.kind == V_STR) {
        TRY(join_str(j, out, both, 2));
        return out->markup = a.markup || b.markup, OK;
    }
    TAKE(j, item, (size_t)a.n + b.n);
    if (a.n) memcpy(item, a.item, a.n * sizeof *item);
    if (b.n) memcpy(item + a.n, b.item, b.n * sizeof *item);
    *out             = list(item, (size_t)a.n + b.n);
    return out->kind = a.kind, OK;
}

/* A string or list, n times. */
static Status repeat(Jinja *j, Value v, int64_t n, Value *out)
{
    size_t size = v.kind == V_STR ? 1 : sizeof *v.item;
    char  *copy;
    if (n < 0) n = 0;
    if (v.n && (uint64_t)n > UINT32_MAX / v.n) return fail(E_FIT, "a text or list of more than 4 GiB");
    TRY(take(j, &copy, (size_t)n * v.n * size + 1));
    for (int64_t i = 0; v.n && i < n; i++) memcpy(copy + (size_t)i * v.n * size, v.s, v.n * size);
    *out          = v;
    return out->n = (uint32_t)(n * v.n), out->s = copy, OK;
}

static bool is_row(Value v) { return v.kind == V_STR || v.kind == V_LIST || v.kind == V_TUPLE; }
static bool is_int(Value v) { return v.kind == V_INT || v.kind == V_BOOL; }

Status binary(Jinja *j, int op, Value a, Value b, Value *out)
{
    if (a.kind == V_UNDEFINED) return fail_undefined(a);
    if (op == '%' && a.kind == V_STR) {
        Args one = { .v = &b, .n = 1 }, many = { .v = b.item, .n = (int)b.n };
        return format_percent(j, a, b.kind == V_TUPLE ? &many : &one, out);
    }
    if (b.kind == V_UNDEFINED) return fail_undefined(b);
    if (is_int(a) && is_int(b)) return int_binary(op, whole(a), whole(b), out);
    if (is_number(a) && is_number(b)) return float_binary(op, number(a), number(b), out);
    if (op == '+' && is_row(a)) return concatenate(j, a, b, out);
    if (op == '*' && is_row(a) && is_int(b)) return repeat(j, a, whole(b), out);
    if (op == '*' && is_row(b) && is_int(a)) return repeat(j, b, whole(a), out);
    if (op == '*' && is_row(a))
        return fail(E_DATA, "can't multiply sequence by non-int of type '%s'", type_name(b));
    return unsupported(op, a, b);
}

static Status contains_item(Jinja *j, Value item, Value in, bool *out)
{
    *out = false;
    for (uint32_t i = 0; !*out && i < in.n; i++) TRY(equal(j, in.item[i], item, out));
    return OK;
}

Status contains(Jinja *j, Value item, Value in, bool *out)
{
    TRY(spend(j, 1 + (in.kind == V_STR ? in.n / 64 : 0)));
    if (in.kind == V_STR && item.kind == V_STR)
        return *out = !item.n || memmem(in.s, in.n, item.s, item.n), OK;
    if (in.kind == V_STR)
        return fail(E_DATA, "'in <string>' requires string as left operand, not %s", type_name(item));
    if (in.kind == V_DICT) {
        if (item.kind == V_LIST || item.kind == V_DICT)
            return fail(E_DATA, "unhashable type: '%s'", type_name(item));
        TRY(spend(j, (size_t)in.dict->n / 8));
        return *out = dict_find(in.dict, item) != NULL, OK;
    }
    if (in.kind == V_UNDEFINED) return *out = false, OK;
    if (!is_sequence(in)) return fail(E_DATA, "argument of type '%s' is not iterable", type_name(in));
    if (in.kind == V_GENERATOR) TRY(iterate(j, in, &in));
    return contains_item(j, item, in, out);
}
