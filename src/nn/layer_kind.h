/* nn/layer_kind.h -- the table of layer kinds, and how a kind describes itself.
 *
 * A decoder layer has an attention kind and a feed-forward (FFN) kind (nn/decoder.h). A row of
 * nn/layer_kinds.def names a kind; its file holds its forward, its backward and its description: the steps of
 * its forward in order, with their parameters, and the values that it keeps for its backward. Parameter
 * counts, FLOPs, kept bytes and analytic times are computed from the description alone
 * (tests/test_layer_kinds.c compares it with what forward and backward do). The blocks and mergers of the
 * vision tower describe themselves in the same way (nn/vision.h).
 *
 * A kind without a forward is known to the planner alone; the trainer refuses it by name. */
#ifndef NN_LAYER_KIND_H
#define NN_LAYER_KIND_H

#include "nn/module.h"
#include "nn/shape.h"

/* ---- descriptions ---- */

/* Which axes divide a dimension or a parameter: none; tp; tp, but a key/value head is never divided; ep, etp,
 * or both. */
typedef enum { CUT_NONE, CUT_TP, CUT_KV, CUT_EP, CUT_ETP, CUT_EP_ETP, CUT_N } CutBy;

/* Rows of a rank: its T tokens, those of all its tp neighbours, the R rows of its experts, its chunks of a
 * sequence that cp cuts (2, or none without cp). */
typedef enum { ROWS_TOKENS, ROWS_GATHERED, ROWS_EXPERTS, ROWS_CHUNKS, ROWS_N } RowsOf;

typedef enum {
    STEP_PRODUCT,                        /* y = x w' */
    STEP_VECTOR,                         /* a norm, a bias, a table: parameters without a product */
    STEP_DEPTHWISE,                      /* a few multiply-adds of each column by itself (a short
                                            convolution), which FLOPs leave out */
    STEP_CORE,                           /* attention itself, or what stands for it */
} StepType;

enum { NO_PARAM = -1, MAX_STEPS = 24, MAX_KEPT = 24, MAX_MODULES = 3 };
#define READS_INPUT (1u << 31)           /* the input of the step's module */

/* A step has `count` weights of (out + kv_out) x in; a vector has in 1. Of a core these are columns: of its
 * queries, of its output, of its keys and values. */
typedef struct LayerStep {
    StepType type;
    Linear   linear;                     /* what adapters take the weight for; LINEAR_NO: it has none */
    RowsOf   rows;                       /* of a product */
    Label    makes;                      /* the kept value that it computes */
    int      index;                      /* in its description; set when added, as is module */
    int      module;                     /* which of the modules that are walked together */
    int      param;                      /* offset of the Param * in that module's struct, or NO_PARAM */
    uint32_t reads;                      /* earlier steps whose output it reads, a bit each, or READS_INPUT */
    double   in, out, kv_out, count;     /* kv_out: rows of key and value heads, divided by CUT_KV */
    CutBy    in_cut, out_cut;
    double   macs_pair, macs_token;      /* of a core: multiply-adds of a (query, key) pair, and of a token */
    double   window;                     /* of a core: keys that a query sees at most; 0: all before it */
    double   state;                      /* of a core with states: f32 numbers of a chunk that cp gathers */
} LayerStep;

typedef struct KeptValue {
    Label  label;
    RowsOf rows;
    CutBy  cut;                          /* of cols */
    double cols, kv_cols;                /* of the whole layer; kv_cols are divided by CUT_KV */
    int    bytes;                        /* of an element; 0: as activations */
    int    read_by;                      /* step whose own gradient is made from it, or -1 */
    bool   only;                         /* it is kept only if the weight of that step trains */
} KeptValue;

typedef struct Description {
    int       steps, values;
    int       module;                    /* of the steps that are added now */
    uint32_t  input;                     /* the step that makes its input, as a bit; 0: it is what comes in */
    LayerStep step[MAX_STEPS];           /* beyond the counts undefined: see describe_begin */
    KeptValue value[MAX_KEPT];
} Description;

/* What a kind's describe() is written with. Each returns the index of its step, which reads the step before
 * it unless describe() sets .reads. */
void describe_begin(Description *d);
int  describe_step(Description *d, LayerStep s);         /* .count 0 is 1 */
int  describe_vector(Description *d, int param, double n);
void describe_value(Description *d, KeptValue v);

double step_params(const LayerStep *s);              /* parameters of the whole layer */
double step_macs(const LayerStep *s);                /* multiply-adds of a row, or of a core's pair */
double core_macs(const LayerStep *s, double seq);    /* of a token in a sequence of causal attention */

/* ---- a walk over built modules ---- */

/* Called for each step in forward order. `before`: something that the step reads trains, so that in backward
 * the gradient goes on through it. w: NULL for a core. */
typedef void StepFn(void *self, const LayerStep *s, Param *w, bool before);

/* Walks the steps of `modules`, of which a step says which is its own; `before`: something before them
 * trains. Returns whether something up to their output does. fn NULL: that alone. */
bool describe_walk(const Description *d, void *const modules[MAX_MODULES], bool before, StepFn *fn,
                   void *self);
bool param_gets_grad(const Param *p);                /* whether p itself, adapters aside, gets gradients */

/* After the parameters of the modules are declared: what adapters and the mesh need to know of them. head:
 * width of a head. */
void describe_params(const Description *d, void *const modules[MAX_MODULES], const ParamSet *s,
                     int64_t head);

/* ---- kinds ---- */

/* x, y (T, D): this rank's rows. */
typedef struct AttentionKind {
    const char *name;
    void    (*describe)(Description *d, const TextShape *t);
    int64_t (*layers_below)(const TextShape *t, int64_t x);  /* how many of layers [0, x) are of this kind */
    const char *(*lacks)(const TextShape *t);    /* what the shape asks and forward cannot do, or NULL */
    size_t  module_size, act_size;
    /* y = attention(norm(x)) without the residual; y absent: only what backward will read. cs (Ta, C) */
    void (*fwd)(const Pass *c, const void *m, void *act, Tensor y, Tensor x, Tensor cs);
    /* dx = dres + gradient through the branch; absent where nothing below trains. */
    void (*bwd)(const Pass *c, const void *m, void *act, Tensor dx, Tensor dy, Tensor x, Tensor cs,
                Tensor dres);
    bool (*trains)(const void *m);               /* whether anything of a module does */
} AttentionKind;

typedef struct FfnKind {
    const char *name;
    void    (*describe)(Description *d, const TextShape *t);
    int64_t (*layers_below)(const TextShape *t, int64_t x);
    const char *(*lacks)(const TextShape *t);
    size_t  module_size, act_size;
    /* y = res + ffn(x); y absent: only what backward will read. */
    void (*fwd)(const Pass *c, const void *m, void *act, Tensor y, Tensor x, Tensor res);
    /* dx absent: nothing below trains. */
    void (*bwd)(const Pass *c, const void *m, void *act, Tensor dx, Tensor dy, Tensor x);
} FfnKind;

#define ATTENTION(id, row) extern const AttentionKind row;
#define FFN(id, row)       extern const FfnKind row;
#include "nn/layer_kinds.def"
#undef ATTENTION
#undef FFN

typedef enum {
#define ATTENTION(id, row) ATTENTION_##id,
#define FFN(id, row)
#include "nn/layer_kinds.def"
#undef ATTENTION
#undef FFN
    ATTENTION_KINDS
} AttentionId;

typedef enum {
#define ATTENTION(id, row)
#define FFN(id, row)       FFN_##id,
#include "nn/layer_kinds.def"
#undef ATTENTION
#undef FFN
    FFN_KINDS
} FfnId;

extern const AttentionKind *const attention_kinds[ATTENTION_KINDS];
extern const FfnKind *const ffn_kinds[FFN_KINDS];

/* The kinds of a layer. */
typedef struct LayerKinds { AttentionId attention; FfnId ffn; } LayerKinds;

LayerKinds  layer_kinds(const TextShape *t, int64_t layer);
MUST Status layer_kinds_train(const TextShape *t);   /* names the first kind that only the planner knows */

#endif
