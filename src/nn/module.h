/* nn/module.h -- what a module works with, and the rules modules follow.
 *
 * A module is a forward and a backward function over plain structs. Forward asks need() for each value that
 * backward reads and computes it where need() says so; backward relies on all of them, because fwd is
 * replayed (mode REPLAY, output absent) for whatever the policy dropped. Gradients of weights add, gradients
 * of activations overwrite. Scratch is marked and reset around each layer call. */
#ifndef NN_MODULE_H
#define NN_MODULE_H

#include "nn/batch.h"
#include "nn/cache.h"
#include "nn/param.h"
#include "nn/precision.h"
#include "nn/offload.h"
#include "ops/op_queue.h"

typedef enum { FORWARD, REPLAY, EVAL } PassMode;  /* EVAL: forward with no backward to come */

/* Called with intermediate values (parity): name and index of the value, and the value. */
typedef struct ValueTap {
    void (*see)(void *self, const char *name, int index, Tensor t);
    void  *self;
} ValueTap;

/* Router statistics of the MoE layers of a micro-batch and their losses; see ops/auxloss.c. */
typedef struct Aux {
    AuxForm form;
    Factor  coeff, z;                             /* of the balance loss; of the z-loss of one token: times
                                                     the share of the micro-batch in its step */
    int64_t first;                                /* which MoE layer of the model row 0 is */
    Tensor  stat;                                 /* count, prob and zsum, contiguous */
    Tensor  count, prob, coef;                    /* (L, G, E) f32 */
    Tensor  so_far, scaled;                       /* like count: of the step so far, or absent; scaled to
                                                     the tokens of this micro-batch */
    float   keep;                                 /* so_far = keep so_far + count: 0 or 1 */
    Factor  part;                                 /* scaled = part so_far */
    Tensor  zsum, out;                            /* (L) f32; (3) f32 */
} Aux;

/* Called around the use of a unit of parameters (Param.unit), which may be sharded between its uses. */
typedef struct UnitHooks {
    void (*begin)(void *self, int unit, bool backward);      /* its weights are needed now */
    void (*end)(void *self, int unit, bool backward);   /* no longer; backward: its gradients are complete */
    void  *self;
} UnitHooks;

typedef struct Dispatcher Dispatcher;             /* nn/dispatch.h */

/* Called while rows travel: another micro-batch may run until they have arrived. */
typedef struct Yielder { void (*yield)(void *self); void *self; } Yielder;

/* What is constant for a run. */
typedef struct Env {
    Backend         *be;
    const Mesh      *mesh;                        /* NULL: one rank */
    const UnitHooks *units;                       /* NULL: all weights stay on the device */
    Dispatcher      *dispatcher;                  /* NULL: all experts are on this rank */
    OffloadEngine   *offload;                     /* NULL: no activation is offloaded */
    int              tp_chunks;                   /* parts that gathers and sums over tp are cut into */
    DType            dtype;                       /* of activations and weights */
    DType            logits_dtype;                /* of the logits that enter the loss: F32 or dtype */
    const ProductPrecision *precision;                  /* NULL: all products run in dtype */
    int64_t          panel_elems;                 /* elements of a base in codes that are decoded at once; 0:
                                                     WEIGHT_PANEL_ELEMS */
    bool        fp8_dispatch;                           /* tokens travel to experts in 8 bits in forward */
    const ValueTap  *tap;                         /* NULL: nothing watches */
} Env;

/* What one pass over a micro-batch carries. Callees get a const pointer; a caller that wants another mode,
 * policy or dropout seed below makes a copy, changes the copy and passes that down. */
struct Pass {
    const Env     *env;
    Backend       *be;                            /* env->be, which every op takes */
    const Batch   *batch;
    PassMode       mode;
    bool           evaluates;                     /* no layer has a backward, and no step is run again */
    Arena         *act, *scratch;                 /* kept until backward; reset after each layer call */
    const uint8_t *policy;                        /* one Policy per label */
    const FullRecompute *full;                    /* NULL: no layer is recomputed whole */
    Arena         *host;                          /* offloaded activations of this micro-batch */
    OffloadRecord *offload_record;                /* of the layer at work; NULL: it offloads nothing */
    const uint64_t *dropout_seed;                 /* of this micro-batch in its step, on the device; NULL: no
                                                     dropout */
    int64_t        first_row;                     /* index of row 0 of an input among all rows of the layer */
    const Aux     *aux;                           /* NULL: no router statistics are wanted */
    Tensor         code_stats;                    /* see code_stats_row; absent: codes are not measured */
    const Cache   *cache;                         /* NULL: the documents are whole in the batch */
    Tensor         row_loss;                      /* (supervised, 1) f32: loss of every row, or absent */
    const Yielder *yielder;                       /* NULL: no other micro-batch can run meanwhile */
    int            lane;                          /* 1: of a backward that alternates with a forward; 0 */
};

/* Row of Pass.code_stats (2 params, CODE_CELLS), of ops/code_stats.c: of the rows that p multiplies in
 * forward, x, or in backward, dy. */
static inline int64_t code_stats_row(const Param *p, bool backward) { return 2 * p->index + backward; }

/* Gives *slot memory that lasts until backward; true if the value must be computed now: in FORWARD and EVAL
 * always, in REPLAY only if it was dropped. */
bool need(const Pass *c, Label l, Tensor *slot, DType d, int64_t rows, int64_t cols);

/* The same for a value that backward reads only if `read`: else it is not kept, and a replay computes it
 * where other replayed values depend on it (`replayed`). */
bool need_if(const Pass *c, bool read, bool replayed, Label l, Tensor *slot, DType d, int64_t rows,
             int64_t cols);

/* Around the replay of a layer whose labels are first .. last: *replay becomes the pass to replay it with.
 * False when the policy drops none of these labels. */
bool replay_begin(Pass *replay, const Pass *c, Label first, Label last);
void replay_end(const Pass *c);

/* The ops that follow belong to this scope of train.cuda_graph (backend_scope); an evaluation has none. */
static inline void pass_queue_scope(const Pass *c, GraphScope s)
{
    if (c->be->queue) backend_scope(c->be, c->evaluates ? GRAPH_EAGER : s);
}
static inline void pass_scope(const Pass *c, GraphScope s)
{
    c->be->ledger.scope = s;
    pass_queue_scope(c, s);
}

/* Units are begun and ended outside of all scopes. */
static inline void unit_begin(const Pass *c, int unit, bool backward)
{
    if (!c->env->units) return;
    GraphScope scope = backend_scope(c->be, GRAPH_EAGER);
    c->env->units->begin(c->env->units->self, unit, backward);
    pass_queue_scope(c, scope);
}
static inline void unit_end(const Pass *c, int unit, bool backward)
{
    if (!c->env->units) return;
    GraphScope scope = backend_scope(c->be, GRAPH_EAGER);
    c->env->units->end(c->env->units->self, unit, backward);
    pass_queue_scope(c, scope);
}

/* Lets another micro-batch run, outside of all scopes. The ledger continues where it was. */
static inline void pass_yield(const Pass *c)
{
    Ledger *l = &c->be->ledger;
    Part part = l->part;
    bool replay = l->replay;
    int  layer = l->scope;
    if (!c->yielder) return;
    GraphScope scope = backend_scope(c->be, GRAPH_EAGER);
    c->yielder->yield(c->yielder->self);
    pass_queue_scope(c, scope);
    if (l->part != part) ledger_enter(l, part);
    l->replay = replay, l->scope = layer;
}

static inline Tensor scratch2(const Pass *c, DType d, int64_t rows, int64_t cols)
{
    return t2(c->scratch, "scratch", d, rows, cols);
}
static inline void tap(const Pass *c, const char *name, int index, Tensor t)
{
    if (c->env->tap && c->mode != REPLAY) c->env->tap->see(c->env->tap->self, name, index, t);
}

/* What a norm multiplies by: the weight, or where it is zero-centred 1 + w, in scratch. */
Tensor norm_weight(const Pass *c, const Param *p);

/* y = x w' + b; b may be NULL. Here and below the adapters of w (nn/lora.h) are included. */
void linear_fwd(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b);
/* y = x w' + b + res. */
void linear_residual(const Pass *c, Tensor y, Tensor x, const Param *w, const Param *b, Tensor res);
/* dx = dy w when dx is wanted; w.g += dy' x; b.g += column sums. Frozen parameters are skipped. */
void linear_bwd(const Pass *c, Tensor dx, Tensor dy, Tensor x, Param *w, const Param *b);

/* The two parts of linear_bwd. d_a_out: lora_d_a_out of dy. flags: GEMM_ACC for dx += dy w, or 0. */
void linear_input_grad(const Pass *c, Tensor dx, Tensor dy, Tensor d_a_out, const Param *w, int flags);
void linear_grads(const Pass *c, Tensor dy, Tensor d_a_out, Tensor x, Param *w, const Param *b);

/* Rows of experts, sorted by expert as offsets say, in buffers of `capacity` rows; rows past the last expert
 * are padding. Scratch for such rows has the capacity, so that memory does not depend on the routing. */
typedef struct ExpertRows { Tensor offsets; int64_t capacity; } ExpertRows;

/* Whether p or its adapters train; false for NULL. */
bool is_trainable(const Param *p);
/* The gradient of p for an op that adds to it; absent where p is frozen. */
Tensor param_sum(const Pass *c, Param *p);

#endif
