/* ops/op_queue.c -- see op_queue.h. */
#include "ops/op_queue.h"

#include "base/grow.h"

#include <stdlib.h>
#include <string.h>

/* ---- keys: the arguments as words, without the bytes between fields ---- */

static void add_word(Backend *be, int64_t word)
{
    OpQueue *q = be->queue;
    if (GROW(q->key, q->key_cap, q->words + 1))
        q->key[q->words++] = word;
    else if (!be->sticky)
        be->sticky = fail(E_FIT, "no host memory for the key of a graph");
}

static void add_pointer(Backend *be, const void *p) { add_word(be, (intptr_t)p); }

static void add_real(Backend *be, double x)
{
    int64_t word;
    memcpy(&word, &x, sizeof word);
    add_word(be, word);
}

static void add_tensor(Backend *be, Tensor t)
{
    add_pointer(be, t.data);
    if (!t_has(t)) return;
    add_word(be, t.rank * 256 + t.dtype);
    for (int i = 0; i < t.rank; i++) add_word(be, t.n[i]), add_word(be, t.s[i]);
}

/* Kernels read from `pairs` only whether all segments are as long as the longest; otherwise it is a cost. */
static void add_segments(Backend *be, Segments s)
{
    double L = (double)s.longest, each = s.causal ? L * (L + 1) / 2 : L * L;
    add_tensor(be, s.starts), add_tensor(be, s.kv_starts), add_tensor(be, s.kv_used);
    add_word(be, s.n), add_word(be, s.longest), add_word(be, s.causal), add_word(be, s.keys);
    add_word(be, s.window);
    add_word(be, s.pairs == (double)s.n * each);
}

static void add_factor(Backend *be, Factor f) { add_pointer(be, f.at), add_real(be, (double)f.value); }

static void add_groups(Backend *be, RouterGroups g) { add_word(be, g.groups), add_word(be, g.top); }

static void add_dropout(Backend *be, Dropout d)
{
    add_real(be, (double)d.p), add_word(be, (int64_t)d.seed), add_word(be, (int64_t)d.stream);
    add_word(be, d.row), add_word(be, d.col), add_pointer(be, d.base);
}

static void add_lora(Backend *be, LoraTerm l)
{
    add_tensor(be, l.low_rank), add_tensor(be, l.w), add_dropout(be, l.dropout);
}

static void add_adamw(Backend *be, AdamW h)
{
    const float x[] = { h.lr, h.beta1, h.beta2, h.eps, h.decay, h.max_norm };
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) add_real(be, (double)x[i]);
    add_word(be, h.step), add_pointer(be, h.now), add_tensor(be, h.verdict);
}

static void add_addends(Backend *be, const Addends *a)
{
    add_word(be, a->n);
    for (int i = 0; i < a->n; i++)
        add_tensor(be, a->at[i].x), add_word(be, a->at[i].cell), add_word(be, a->at[i].squared);
}

static void add_limits(Backend *be, StepLimits l)
{
    add_real(be, l.aux_coeff), add_real(be, l.z_coeff), add_real(be, l.spike), add_word(be, l.supervised);
}

static void add_slice(Backend *be, WeightSlice s)
{
    add_word(be, s.at), add_word(be, s.N), add_word(be, s.K);
}

static void add_codes(Backend *be, WeightCodes z)
{
    add_word(be, z.format);
    add_tensor(be, z.q), add_tensor(be, z.scale), add_tensor(be, z.first), add_tensor(be, z.group);
}

static void add_micro(Backend *be, MicroCodes z)
{
    add_word(be, z.format);
    add_tensor(be, z.q), add_tensor(be, z.scale), add_tensor(be, z.tensor);
}

static void add_columns(Backend *be, ColumnCodes z) { add_tensor(be, z.q), add_tensor(be, z.scale); }

static void add_rule(Backend *be, MicroRule r)
{
    add_word(be, r.blocks), add_word(be, r.transposed), add_word(be, (int64_t)r.stream);
    add_pointer(be, r.seed);
}

static void add_tile(Backend *be, TileAt t) { add_word(be, t.e), add_word(be, t.row), add_word(be, t.col); }

#define ADD(x)                                                                                     \
    _Generic((x), Tensor: add_tensor, Segments: add_segments, Factor: add_factor, Dropout: add_dropout,   \
             LoraTerm: add_lora, AdamW: add_adamw, StepLimits: add_limits, const Addends *: add_addends,  \
             const PeerGroup *: add_pointer, WeightSlice: add_slice, float: add_real, double: add_real,   \
             RouterGroups: add_groups, WeightCodes: add_codes, TileAt: add_tile,                          \
             MicroCodes: add_micro, MicroRule: add_rule, ColumnCodes: add_columns,                \
             default: add_word)(be, x);

/* ---- calls ---- */

static void *append_call(Backend *be, int op, void (*play)(const void *call), const void *call, size_t bytes)
{
    OpQueue *q = be->queue;
    size_t   at = (q->bytes + 15) & ~(size_t)15;
    if (!GROW(q->op, q->ops_cap, q->n + 1) || !GROW(q->call, q->call_cap, at + bytes)) {
        if (!be->sticky) be->sticky = fail(E_FIT, "no host memory for the ops of a graph");
        return NULL;
    }
    q->op[q->n++] = (QueuedOp){ play, at };
    q->bytes = at + bytes;
    add_word(be, op);
    return memcpy(q->call + at, call, bytes);
}

/* EACH(f, a, b ...) is f(a) f(b) ...; ITEMS takes the parentheses off a list. */
#define EACH1(f, a)       f(a)
#define EACH2(f, a, ...)  f(a) EACH1(f, __VA_ARGS__)
#define EACH3(f, a, ...)  f(a) EACH2(f, __VA_ARGS__)
#define EACH4(f, a, ...)  f(a) EACH3(f, __VA_ARGS__)
#define EACH5(f, a, ...)  f(a) EACH4(f, __VA_ARGS__)
#define EACH6(f, a, ...)  f(a) EACH5(f, __VA_ARGS__)
#define EACH7(f, a, ...)  f(a) EACH6(f, __VA_ARGS__)
#define EACH8(f, a, ...)  f(a) EACH7(f, __VA_ARGS__)
#define EACH9(f, a, ...)  f(a) EACH8(f, __VA_ARGS__)
#define EACH10(f, a, ...) f(a) EACH9(f, __VA_ARGS__)
#define EACH11(f, a, ...) f(a) EACH10(f, __VA_ARGS__)
#define EACH12(f, a, ...) f(a) EACH11(f, __VA_ARGS__)
#define EACH13(f, a, ...) f(a) EACH12(f, __VA_ARGS__)
#define EACH14(f, a, ...) f(a) EACH13(f, __VA_ARGS__)
#define EACH15(f, a, ...) f(a) EACH14(f, __VA_ARGS__)
#define EACH16(f, a, ...) f(a) EACH15(f, __VA_ARGS__)
#define EACH17(f, a, ...) f(a) EACH16(f, __VA_ARGS__)
#define EACH18(f, a, ...) f(a) EACH17(f, __VA_ARGS__)
#define NTH(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, ...) s
#define EACH(f, ...)                                                                                         \
    NTH(__VA_ARGS__, EACH18, EACH17, EACH16, EACH15, EACH14, EACH13, EACH12, EACH11, EACH10, EACH9, EACH8,   \
        EACH7, EACH6, EACH5, EACH4, EACH3, EACH2, EACH1, )                                                   \
    (f, __VA_ARGS__)
#define ITEMS(...)   __VA_ARGS__
#define FIELD(x)     x;
#define FROM_CALL(x) , call_->x

/* The first argument is the backend, which these leave out. */
#define FROM_CALLS(be, ...) EACH(FROM_CALL, __VA_ARGS__)
#define ADD_ALL(be, ...)    EACH(ADD, __VA_ARGS__)
#define OP(name, kind, params, args)                                                               \
    typedef struct Call_##name { EACH(FIELD, ITEMS params) } Call_##name;                          \
    static inline void play_##name(const void *p)                                                  \
    {                                                                                              \
        const Call_##name *call_ = p;                                                              \
        call_->be->ops->name(call_->be FROM_CALLS args);                                           \
    }                                                                                              \
    static inline void queue_##name params                                                         \
    {                                                                                              \
        Call_##name call_ = { ITEMS args };                                                        \
        if (!append_call(be, OP_##name, play_##name, &call_, sizeof call_)) return;                \
        ADD_ALL args                                                                               \
    }
#include "ops/ops.def"
#undef OP

/* ---- squares: its list lies behind the call, since the caller's is gone when the queue runs ---- */

typedef struct CallWithList { Call_squares call; Addends list; } CallWithList;

static void play_with_list(const void *p)
{
    const CallWithList *c = p;
    Backend *be = c->call.be;
    be->ops->squares(be, c->call.out, c->call.each, &c->list);
}

static void queue_with_list(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    CallWithList c = { { be, out, each, NULL }, *list };
    if (!append_call(be, OP_squares, play_with_list, &c, sizeof c)) return;
    ADD(out) ADD(each) ADD(list)
}

#define queue_squares queue_with_list
const Ops op_queue_ops = {
#define OP(name, kind, params, args) .name = queue_##name,
#include "ops/ops.def"
#undef OP
};

void op_queue_play(const OpQueue *q)
{
    for (int i = 0; i < q->n; i++) q->op[i].play(q->call + q->op[i].at);
}

/* The ops that the queue runs go to the device itself. */
void backend_flush(Backend *be)
{
    OpQueue *q = be->queue;
    if (!q || !q->run || !q->n) return;
    const Ops *ops = be->ops;
    be->ops = be->device->ops;
    q->run(q->self);
    be->ops = ops;
}

/* A pass that prepares or is captured as a whole has no scopes. */
GraphScope backend_scope(Backend *be, GraphScope s)
{
    OpQueue *q = be->queue;
    if (!q || be->preparing || be->capturing) return GRAPH_EAGER;
    GraphScope before = q->scope;
    q->scope = s;
    if (!(q->scopes >> s & 1)) backend_flush(be);
    be->ops = q->scopes >> s & 1 ? &op_queue_ops : be->device->ops;
    return before;
}

void op_queue_clear(OpQueue *q) { q->n = 0, q->bytes = 0, q->words = 0; }

void op_queue_close(OpQueue *q)
{
    free(q->op), free(q->call), free(q->key);
    *q = (OpQueue){ 0 };
}
