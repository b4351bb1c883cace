/* jinja/jinja_private.h -- values, nodes and the state of one rendering. */
#ifndef JINJA_JINJA_PRIVATE_H
#define JINJA_JINJA_PRIVATE_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* memmem, memrchr */
#endif

#include "jinja/jinja.h"

typedef enum {
    V_ABSENT, /* an argument that was not given */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STR,
    V_LIST,
    V_TUPLE,
    V_KEYS, /* views of a dict: rows that can be walked and printed, without elements by number */
    V_VALUES,
    V_ITEMS,
    V_RANGE, /* its first, last and step are the three elements before the first */
    V_DICT,
    V_GENERATOR,
    V_NAMESPACE,
    V_MACRO,
    V_BUILTIN,
    V_METHOD,
    V_LOOP,
    V_CYCLER,
    V_JOINER,
} ValueKind;

/* Strings and lists are immutable: a slice shares the memory of its source. n counts bytes or elements. Of an
 * undefined value, s is the message of its error. */
typedef struct Value {
    ValueKind kind : 8;
    bool      markup : 1; /* a string that `safe` or `escape` made: + escapes its other side */
    uint32_t  n;
    union {
        bool                  b;
        int64_t               i;
        double                f;
        const char           *s;
        const struct Value   *item;
        struct Dict          *dict; /* of namespaces too */
        const struct Macro   *macro;
        const struct Builtin *builtin;
        struct Method        *method;
        struct Loop          *loop;
        struct Cycler        *cycler; /* of joiners too */
        struct ValueStream   *generator;
    };
} Value;

typedef struct Dict {
    Value  *key, *value;
    int64_t n, cap;
    int     item;
} Dict; /* item: see JinjaSpan */
/* What filters such as map yield: it is read once, as in Python. */
typedef struct ValueStream {
    const Value *item;
    uint32_t     n;     /* elements that were not read yet */
    const char  *error; /* what reading on fails with; NULL: they end */
} ValueStream;
typedef struct Method {
    Value                 self;
    const struct Builtin *builtin;
} Method;
typedef struct Cycler {
    const Value *item;
    uint32_t     n, at;
} Cycler;

/* Elements are taken from the source when they are needed: the loop's condition may read what the body sets.
 */
typedef struct Loop {
    const Value       *source;
    int64_t            sources, next; /* next: of the source, to be looked at */
    const char        *error;         /* what reading beyond the source fails with, or NULL */
    Value             *item;          /* those for which the condition holds */
    int64_t            n, at;         /* at: the current index */
    int                depth;
    Value              changed; /* arguments of the last changed() */
    const struct Node *node;    /* of a recursive loop */
    struct Scope      *scope;
} Loop;

typedef struct Var {
    const char *name;
    uint32_t    len;
    Value       value;
    struct Var *next;
} Var;
typedef struct Scope {
    struct Scope *parent;
    Var          *vars;
} Scope;

typedef struct Macro {
    const struct Node *node;
    Scope             *scope;
} Macro;

/* Arguments of a call; those given by name come last. */
typedef struct Args {
    const Value *v;
    int          n;
    const Value *name, *named;
    int          names;
} Args;

typedef struct Jinja Jinja;

enum { PARAMS = 8 };
/* run gets one value for each name in params, V_ABSENT where none is given; raw gets the arguments as they
 * are. */
typedef struct Builtin {
    const char *name, *params;
    int         least; /* params without a default */
    Status (*run)(Jinja *j, Value self, const Value *arg, Value *out);
    Status (*raw)(Jinja *j, Value self, const Args *a, Value *out);
} Builtin;

typedef enum {
    N_CONST,
    N_NAME,
    N_TUPLE,
    N_LIST,
    N_DICT,
    N_ATTR,
    N_ITEM,
    N_SLICE,
    N_CALL,
    N_FILTER,
    N_TEST,
    N_NOT,
    N_NEG,
    N_POS,
    N_BINARY,
    N_CONCAT,
    N_COMPARE,
    N_AND,
    N_OR,
    N_COND,
    N_KEYWORD,
    N_STAR,
    N_STARS,
    N_TEXT,
    N_PRINT,
    N_IF,
    N_FOR,
    N_SET,
    N_SET_BLOCK,
    N_MACRO,
    N_CALL_BLOCK,
    N_FILTER_BLOCK,
    N_WITH,
    N_GENERATION,
    N_BREAK,
    N_CONTINUE,
} NodeKind;

typedef struct NodeList {
    struct Node **v;
    int           n, cap;
} NodeList;

/* Names that have no value when a scope is entered; see scopes.c. */
typedef struct Names {
    Value *v;
    int    n;
} Names;

typedef struct Node {
    NodeKind       kind;
    int            line, op;
    bool           flag;  /* N_FOR: recursive */
    bool           elif;  /* N_IF: `other` is the N_IF of an elif */
    Value          value; /* a constant, a name, a text */
    struct Node   *a, *b, *c;
    NodeList       list, body, other; /* operands or arguments; statements; those after else */
    const Builtin *builtin;           /* of filters and tests */
    Names          unset, unset_other;
} Node;

enum { OP_IN = 256, OP_NOT_IN, OP_EQ, OP_NE, OP_GE, OP_LE, OP_FLOORDIV, OP_POW };

typedef enum {
    T_EOF,
    T_DATA,
    T_VARIABLE_BEGIN,
    T_VARIABLE_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_OP
} TokenKind;
typedef struct LexToken {
    TokenKind kind;
    int       line, op;
    Value     value;
} LexToken;

/* Bump allocation with a limit; all of it is freed together. */
typedef struct Heap {
    struct HeapBlock *newest;
    size_t            left, used, limit;
    char             *at;
} Heap;
void *heap_alloc(Heap *h, size_t bytes); /* zeroed; NULL beyond the limit */
void  heap_close(Heap *h);

struct JinjaTemplate {
    Heap      heap;
    char     *name;
    LexToken *token;
    int       tokens, token_cap;
    NodeList  body;
    Names     unset;
    bool      generation;
};

typedef struct Buffer {
    char          *v;
    size_t         n, cap;
    struct Buffer *outer;
} Buffer;

typedef enum { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } Flow;

struct Jinja {
    const JinjaTemplate *template;
    const JinjaInput *in;
    Heap              heap;
    Scope            *scope, *globals;
    Buffer           *out;
    int64_t           steps;
    int               depth, item, line; /* item: the element that loops stand at */
    bool              generating;
    JinjaText        *text;
    int               span_cap;
};

enum {
    DEPTH       = 2000,
    PARSE_DEPTH = 100
}; /* of nested calls of the interpreter; of nested expressions and blocks */
/* Bits of Node.op: what a macro's body reads. */
enum { MACRO_VARARGS = 1, MACRO_KWARGS = 2, MACRO_CALLER = 4 };

/* Memory of a rendering: TAKE ends the calling function with E_FIT beyond the limit. */
MUST Status take(Jinja *j, void *out, size_t bytes);
#define TAKE(j, p, count) TRY(take((j), &(p), (size_t)(count) * sizeof *(p)))
MUST Status spend(Jinja *j, size_t steps); /* counts work; E_FIT beyond the limit */

/* value.c */
static inline Value none(void) { return (Value){ .kind = V_NONE }; }
static inline Value boolean(bool b) { return (Value){ .kind = V_BOOL, .b = b }; }
static inline Value integer(int64_t i) { return (Value){ .kind = V_INT, .i = i }; }
static inline Value real(double f) { return (Value){ .kind = V_FLOAT, .f = f }; }
static inline Value str(const char *s, size_t n)
{
    return (Value){ .kind = V_STR, .n = (uint32_t)n, .s = s };
}
static inline Value list(const Value *v, size_t n)
{
    return (Value){ .kind = V_LIST, .n = (uint32_t)n, .item = v };
}
Value        text_of(const char *s); /* of a C string that stays */
bool         is_number(Value v);     /* with booleans, as in Python */
bool         is_sequence(Value v);   /* list, tuple, view of a dict or what a filter yields */
bool         is_view(Value v);
bool         is_text(Value v, const char *word); /* the string `word` */
double       number(Value v);
int64_t      whole(Value v); /* of V_INT and V_BOOL */
bool         truth(Value v);
const char  *type_name(Value v); /* "str", "NoneType" */
MUST Status  undefined(Jinja *j, Value *out, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
MUST Status  fail_undefined(Value v);
MUST Status  equal(Jinja *j, Value a, Value b, bool *out);
MUST Status  compare(Jinja *j, Value a, Value b, int op, bool *out); /* '<', '>', OP_LE, OP_GE */
bool         same(Value a, Value b);                                 /* identity */
const Value *dict_find(const Dict *d, Value key);
MUST Status  dict_set(Jinja *j, Dict *d, Value key, Value value);
MUST Status  dict_new(Jinja *j, Dict **d);
MUST Status  from_json(Jinja *j, Value *out, const Json *v);
MUST Status  length(Jinja *j, Value v, int64_t *n);
MUST Status  iterate(Jinja *j, Value v, Value *out); /* a list of its elements */
MUST Status  copy_str(Jinja *j, Value *out, const char *s, size_t n);
MUST Status  join_str(Jinja *j, Value *out, const Value *v, int n); /* of strings */

/* unicode.c: strings are UTF-8 and are counted in code points. */
size_t  char_bytes(const char *s);
int32_t char_at(const char *s);
size_t  chars_count(Value s);
size_t  chars_offset(Value s, size_t index); /* in bytes */
bool    char_is_space(int32_t c);
size_t  space_before(const char *s, size_t n); /* bytes of white space at the end of s */
size_t  space_after(const char *s, size_t n);  /* at its beginning */
int     char_put(char *out, int32_t c);
typedef enum { CASE_LOWER, CASE_UPPER, CASE_TITLE, CASE_CAPITAL, CASE_SWAP, CASE_FOLD } LetterCase;
MUST Status change_case(Jinja *j, Value *out, Value s, LetterCase how);
/* what: alpha, digit, numeric, lower, upper, cased, word or print */
bool        char_is(int32_t c, const char *what);

/* text.c: buffers and the texts of values. */
MUST Status         buffer_put(Jinja *j, Buffer *b, const char *s, size_t n);
MUST Status         buffer_puts(Jinja *j, Buffer *b, const char *s);
MUST Status         buffer_number(Jinja *j, Buffer *b, Value v);
MUST Status         buffer_value(Jinja *j, Buffer *b, Value v); /* str() */
MUST Status         buffer_repr(Jinja *j, Buffer *b, Value v);
static inline Value buffer_str(const Buffer *b) { return str(b->v ? b->v : "", b->n); }
MUST Status         to_str(Jinja *j, Value *out, Value v);
MUST Status         write_text(Jinja *j, const char *s, size_t n); /* to the current output */

/* tojson.c */
MUST Status filter_tojson(Jinja *j, Value self, const Value *a, Value *out);

/* lex.c, parse.c, parse_expr.c, parse_block.c */
typedef struct Parser {
    JinjaTemplate  *t;
    const LexToken *at;
    int             depth;
    bool            loop, soft; /* soft: in an if, where an unknown filter fails when it is reached */
    const Node     *unknown;    /* the first unknown filter or test elsewhere */
} Parser;
MUST Status lex(JinjaTemplate *t, const char *source, size_t len);
MUST Status fail_at(const JinjaTemplate *t, int line, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
MUST Status new_node(Parser *p, NodeKind kind, Node **out);
MUST Status push_node(Parser *p, NodeList *l, Node *n);
bool        at_op(const Parser *p, int op);
bool        at_name(const Parser *p, const char *word);
MUST Status expect_op(Parser *p, int op);
MUST Status expect_name(Parser *p, Value *name);
MUST Status fail_token(Parser *p); /* "unexpected '%'" */
MUST Status parse_expression(Parser *p, Node **out);
MUST Status parse_or(Parser *p, Node **out);                     /* without an inline if */
MUST Status parse_tuple(Parser *p, Node **out, bool conditions); /* a, b, c without brackets */
MUST Status parse_unary(Parser *p, Node **out);
MUST Status parse_call_args(Parser *p, NodeList *args);
MUST Status check_names(const Parser *p);          /* refuses the template with p->unknown */
MUST Status parse_filters(Parser *p, Node **node); /* a | b | c, `*node` may be NULL */
MUST Status parse_block(Parser *p, NodeList *body, const char *const *until);
MUST Status parse_statement(Parser *p, NodeList *body);

MUST Status find_scopes(JinjaTemplate *t); /* scopes.c */

/* eval.c, exec.c */
MUST Status  eval(Jinja *j, const Node *n, Value *out);
MUST Status  exec(Jinja *j, const NodeList *body, Flow *flow);
MUST Status  call_value(Jinja *j, Value f, const Args *a, Value *out);
MUST Status  call_builtin(Jinja *j, const Builtin *b, Value self, const Args *a, Value *out);
MUST Status  call_macro(Jinja *j, const Macro *m, const Args *a, Value *out);
MUST Status  call_loop(Jinja *j, Loop *l, const Args *a, Value *out);
MUST Status  loop_pull(Jinja *j, Loop *l, int64_t n); /* until it has n elements or all of them */
MUST Status  run_body(Jinja *j, const NodeList *body, Scope *scope, Value *out);
MUST Status  unset_names(Jinja *j, Scope *s, const Names *names);
MUST Status  scope_set(Jinja *j, Scope *s, Value name, Value v);
const Value *scope_find(const Scope *s, const char *name, size_t len);
MUST Status  unpack(Jinja *j, Value v, int n, Value *items); /* exactly n elements */
MUST Status  bind_target(Jinja *j, const Node *target, Value v);

MUST Status new_range(Jinja *j, int64_t from, int64_t to, int64_t step, Value *out); /* globals.c */

/* operator.c, item.c */
MUST Status binary(Jinja *j, int op, Value a, Value b, Value *out);
MUST Status contains(Jinja *j, Value item, Value in, bool *out);
MUST Status get_attr(Jinja *j, Value o, Value name, Value *out);
MUST Status get_item(Jinja *j, Value o, Value key, Value *out);
MUST Status get_slice(Jinja *j, Value o, const Value bound[3], Value *out);
MUST Status loop_attr(Jinja *j, Loop *l, Value name, Value *out);

/* format.c */
MUST Status          format_percent(Jinja *j, Value format, const Args *a, Value *out);
extern const Builtin method_format;

/* filters_items.c, methods_str.c */
extern const Builtin item_filters[], str_methods[];
extern const Builtin method_fromkeys; /* dict.fromkeys, globals.c */

/* Tables: filters.c, tests.c, methods.c, globals.c. NULL: there is no such name. */
const Builtin *filter_named(const char *name, size_t len);
const Builtin *test_named(const char *name, size_t len);
const Builtin *method_named(Value self, const char *name, size_t len);
const Builtin *global_named(const char *name, size_t len);
const Builtin *builtin_named(const Builtin *table, const char *name, size_t len);
bool           method_is_unsafe(Value self, const char *name, size_t len);

/* Shared by filters and methods. */
MUST Status strip(Jinja *j, Value s, Value chars, bool left, bool right, Value *out);
MUST Status replace_str(Jinja *j, Value s, Value from, Value to, int64_t most, Value *out);
MUST Status pad_str(Jinja *j, Value s, int64_t left, int64_t right, Value fill, Value *out);
MUST Status split_lines(Jinja *j, Value s, bool keep_ends, Value *out);
MUST Status escape_str(Jinja *j, Value s, Value *out); /* for HTML */
MUST Status want_int(Value v, int64_t *out);
MUST Status want_str(Value v);

#endif
