/* jinja/tests.c -- what follows `is`. */
#include "jinja/jinja_private.h"

#include <string.h>

#define TEST(f, condition)                                                                                   \
    static Status f(Jinja *j, Value self, const Value *a, Value *out)                                        \
    {                                                                                                        \
        return *out = boolean(condition), OK;                                                                \
    }

TEST(is_defined, self.kind != V_UNDEFINED)
TEST(is_undefined, self.kind == V_UNDEFINED)
TEST(is_none, self.kind == V_NONE)
TEST(is_string, self.kind == V_STR)
TEST(is_mapping, self.kind == V_DICT)
TEST(is_boolean, self.kind == V_BOOL)
TEST(is_true, self.kind == V_BOOL && self.b)
TEST(is_false, self.kind == V_BOOL && !self.b)
TEST(is_integer, self.kind == V_INT)
TEST(is_float, self.kind == V_FLOAT)
TEST(is_numeric, is_number(self))
TEST(is_iterable, self.kind == V_STR || self.kind == V_DICT || self.kind == V_UNDEFINED || is_sequence(self))
TEST(is_row, self.kind == V_STR || self.kind == V_DICT || self.kind == V_UNDEFINED || self.kind == V_LIST ||
                 self.kind == V_TUPLE || self.kind == V_RANGE)
TEST(is_callable, self.kind == V_MACRO || self.kind == V_BUILTIN || self.kind == V_METHOD ||
                      self.kind == V_JOINER || self.kind == V_LOOP || self.kind == V_UNDEFINED)
TEST(is_escaped, self.kind == V_STR && self.markup)
TEST(is_sameas, same(self, a[0]))
TEST(is_filter, self.kind == V_STR && filter_named(self.s, self.n))
TEST(is_test, self.kind == V_STR && test_named(self.s, self.n))

static Status remainder_is(Jinja *j, Value self, Value by, int64_t want, Value *out)
{
    Value r;
    TRY(binary(j, '%', self, by, &r));
    return *out = boolean(number(r) == (double)want), OK;
}

#define TEST_LONG(f) static Status f(Jinja *j, Value self, const Value *a, Value *out)
TEST_LONG(is_odd) { return remainder_is(j, self, integer(2), 1, out); }
TEST_LONG(is_even) { return remainder_is(j, self, integer(2), 0, out); }
TEST_LONG(is_divisible) { return remainder_is(j, self, a[0], 0, out); }

static Status by_method(Jinja *j, Value self, const char *method, Value *out)
{
    TRY(to_str(j, &self, self));
    return call_builtin(j, method_named(self, method, strlen(method)), self, &(Args){ 0 }, out);
}
TEST_LONG(is_lower) { return by_method(j, self, "islower", out); }
TEST_LONG(is_upper) { return by_method(j, self, "isupper", out); }

static Status is_equal(Jinja *j, Value self, Value other, bool want, Value *out)
{
    bool yes;
    TRY(equal(j, self, other, &yes));
    return *out = boolean(yes == want), OK;
}
TEST_LONG(is_eq) { return is_equal(j, self, a[0], true, out); }
TEST_LONG(is_ne) { return is_equal(j, self, a[0], false, out); }

static Status is_ordered(Jinja *j, Value self, Value other, int op, Value *out)
{
    bool yes;
    TRY(compare(j, self, other, op, &yes));
    return *out = boolean(yes), OK;
}
TEST_LONG(is_lt) { return is_ordered(j, self, a[0], '<', out); }
TEST_LONG(is_le) { return is_ordered(j, self, a[0], OP_LE, out); }
TEST_LONG(is_gt) { return is_ordered(j, self, a[0], '>', out); }
TEST_LONG(is_ge) { return is_ordered(j, self, a[0], OP_GE, out); }

TEST_LONG(is_in)
{
    bool yes;
    TRY(contains(j, self, a[0], &yes));
    return *out = boolean(yes), OK;
}

static const Builtin tests[] = {
    { "defined", "", 0, is_defined, 0 },
    { "undefined", "", 0, is_undefined, 0 },
    { "none", "", 0, is_none, 0 },
    { "string", "", 0, is_string, 0 },
    { "mapping", "", 0, is_mapping, 0 },
    { "boolean", "", 0, is_boolean, 0 },
    { "true", "", 0, is_true, 0 },
    { "false", "", 0, is_false, 0 },
    { "integer", "", 0, is_integer, 0 },
    { "float", "", 0, is_float, 0 },
    { "number", "", 0, is_numeric, 0 },
    { "iterable", "", 0, is_iterable, 0 },
    { "sequence", "", 0, is_row, 0 },
    { "callable", "", 0, is_callable, 0 },
    { "escaped", "", 0, is_escaped, 0 },
    { "sameas", "other", 1, is_sameas, 0 },
    { "filter", "", 0, is_filter, 0 },
    { "test", "", 0, is_test, 0 },
    { "odd", "", 0, is_odd, 0 },
    { "even", "", 0, is_even, 0 },
    { "divisibleby", "num", 1, is_divisible, 0 },
    { "lower", "", 0, is_lower, 0 },
    { "upper", "", 0, is_upper, 0 },
    { "eq", "other", 1, is_eq, 0 },
    { "==", "other", 1, is_eq, 0 },
    { "equalto", "other", 1, is_eq, 0 },
    { "ne", "other", 1, is_ne, 0 },
    { "!=", "other", 1, is_ne, 0 },
    { "lt", "other", 1, is_lt, 0 },
    { "<", "other", 1, is_lt, 0 },
    { "lessthan", "other", 1, is_lt, 0 },
    { "le", "other", 1, is_le, 0 },
    { "<=", "other", 1, is_le, 0 },
    { "gt", "other", 1, is_gt, 0 },
    { ">", "other", 1, is_gt, 0 },
    { "greaterthan", "other", 1, is_gt, 0 },
    { "ge", "other", 1, is_ge, 0 },
    { ">=", "other", 1, is_ge, 0 },
    { "in", "seq", 1, is_in, 0 },
    { 0 },
};

const Builtin *test_named(const char *name, size_t len) { return builtin_named(tests, name, len); }
