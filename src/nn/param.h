/* nn/param.h -- the parameters of a model: identity, the shard that a rank holds, state of the step.
 *
 * Loading, saving, the optimizer and parity all walk one list. A parameter may hold several tensors of a
 * checkpoint stacked by rows (q, k and v; gate and up): its pieces. Experts are one parameter with three
 * forms in checkpoints, which model/weights_experts.c reads.
 *
 * Under a mesh a rank holds a shard of a parameter. Strided ranges map its elements to those of the whole:
 * initialization, loading, saving and resharding all go through them. */
#ifndef NN_PARAM_H
#define NN_PARAM_H

#include "comm/mesh.h"
#include "ops/ops.h"

typedef enum { G_VIT, G_ALIGNER, G_LLM, GROUP_N } Group;   /* tower, mergers, decoder: groups to freeze */
/* Random initialization; DECAY: logarithms of rates from 0.01 to 16; LORA_A_*: uniform within 1 / sqrt(in),
 * or normal with deviation 1 / r. */
typedef enum { INIT_NORMAL, INIT_ZERO, INIT_ONE, INIT_POSITION, INIT_DECAY, INIT_LORA_A_UNIFORM,
               INIT_LORA_A_NORMAL } Init;
/* How a checkpoint stores it; LORA_*: adapters of experts, as PEFT does (model/peft.h). */
typedef enum { FORM_ROWS, FORM_EXPERT_GATE_UP, FORM_EXPERT_DOWN, FORM_LORA_A, FORM_LORA_B } Form;
/* The kind of a linear weight; NO: not linear, or it takes no adapter. */
typedef enum { LINEAR_NO, LINEAR_ATTENTION, LINEAR_FEED, LINEAR_EXPERTS, LINEAR_ROUTER, LINEAR_HEAD } Linear;

#define PIECE_DIM 5
enum { PARAM_PIECES = 4, PIECE_SECTIONS = 3, PARAM_RANGES = 6 };

typedef struct Piece {                  /* one tensor of a checkpoint in HF form */
    char    name[120];
    int     rank;
    int64_t shape[PIECE_DIM];            /* dim 0 = rows of the parameter that it fills */
    int64_t rows;                        /* of these on this rank */
    int     sections;                    /* runs of rows that a mesh cuts each by itself; 0: all rows */
    int64_t section[PIECE_SECTIONS];     /* their rows */
} Piece;

/* `count` runs of `len` elements: run i is at local + i len of this rank's shard and at `at` + i stride of
 * the whole tensor, both flat. */
typedef struct StridedRange { int64_t local, at, len, stride, count; } StridedRange;

typedef struct AxisCut { MeshAxis axis; int dim; } AxisCut;

typedef struct Lora Lora;                /* nn/lora.h */

/* Copies of a weight in e4m3, as it is and transposed, and their scales (nn/fp8_weight.h). */
typedef struct QuantizedWeight { Tensor q, scale, qt, scale_t; } QuantizedWeight;

/* The part of a parameter that this rank holds. */
typedef struct ParamShard {
    Tensor  w, g;                        /* compute dtype; gradient in f32, or bf16 if param_rounds_grad,
                                            absent if frozen */
    Tensor  squares;                     /* sums of squares of g by its strips (op_grouped_squares); absent:
                                            g is no product of experts, or it is summed over ranks */
    QuantizedWeight fp8;                 /* of w; absent: none are kept */
    WeightCodes codes;                   /* of a base that is in codes alone (nn/base_quant.h); or absent */
    Tensor  master, m, v;                /* optimizer state of `len` elements: f32 master or, with a bf16 w,
                                            the i16 rest of it (ops/adamw.c), absent when w is f32; moments in
                                            f32, bf16 or u8 codes */
    Tensor  m_scale, v_scale;            /* of coded moments, by block (ops/moment_code.h); or absent */
    int64_t shape[MAXDIM];               /* padding included */
    int64_t first_row, real_rows;        /* of dim 0: the row of the whole that row 0 is; rows that exist. The
                                            rest is padding (of a vocabulary): zero, never saved */
    int64_t unique;                      /* leading elements, flat, that this rank counts as its own; the
                                            others copy a neighbour's (a shared kv head, a tied table) */
    int64_t offset, len;                 /* the elements, flat, that this rank's optimizer updates */
    bool    is_writer;   /* of all ranks that update these elements, the one that saves them */
    StridedRange range[PARAM_RANGES];    /* one per piece, or section of it (piece_ranges); count 0: this
                                            rank has nothing of it */
} ParamShard;

/* What happened to a parameter in the step at hand. */
typedef struct ParamStep {
    bool has_grad;   /* backward made a gradient; others are neither updated nor decayed */
    bool grad_unset;                     /* g is undefined: the first product overwrites it, later ones add */
    bool squared;                        /* shard.squares are those of g */
} ParamStep;

typedef struct Param {
    int     index;                       /* in its ParamSet */
    int     ndim;
    int64_t shape[MAXDIM];               /* of the whole parameter, before any cut */
    Piece   piece[PARAM_PIECES];
    int     pieces;
    Group   group;
    Init    init;
    Form    form;
    Linear  linear;
    int     unit;   /* parameters of a unit are gathered, released and reduced together */
    AxisCut cut[2];                      /* arguments of param_cut, in order: adapters are cut alike */
    int     cuts;
    int64_t head_width;                  /* of the heads that its rows were cut by, 0: they were not */
    GroupId grad_group;                  /* the ranks that hold the same shard: its gradient is their sum */
    Lora   *lora;                        /* the adapters trained with it, NULL: none */
    const struct Param *adapter_of;      /* the weight that this adapter belongs to, NULL: it is no adapter */
    bool    frozen;                      /* it is not trained: no gradient, no optimizer state */
    bool    decay;                       /* weight decay applies */
    bool    unused;                      /* nothing it computes reaches the loss: it never has a gradient */
    bool    zero_centred;                /* a norm multiplies by 1 + w */
    bool    buffer;                      /* a state of the model that no gradient trains: f32 on every rank */
    bool    tied_copy;                   /* the table of a tied head on another stage than the embedding */
    ParamShard shard;
    ParamStep  step;
} Param;

typedef struct ParamSet {
    Param     **p;
    int         n, cap;
    const Mesh *mesh;                    /* NULL: one rank */
    int         unit, units;             /* of the next parameter declared; number of units */
} ParamSet;

/* Declares a parameter of `rows` x `cols` that holds one checkpoint tensor; param_piece stacks another below
 * it. Names are printf-style. */
Param *param_matrix(ParamSet *s, Group g, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
Param *param_vector(ParamSet *s, Group g, Init init, int64_t n, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
Param *param_experts(ParamSet *s, Form form, int64_t E, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
void   param_piece(Param *p, int64_t rows, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The last piece declared consists of n sections of so many rows. */
void   param_sections(Param *p, int n, const int64_t *rows);
void   params_close(ParamSet *s);
void   params_unit(ParamSet *s);   /* parameters declared from here on form a new unit */

/* After a parameter and its pieces are declared: shards dim `dim` over the axis, each piece (and each half of
 * an expert's gate_up, and of its LoRA B) by itself. Rows that do not divide evenly are padded. */
void   param_cut(const ParamSet *s, Param *p, MeshAxis axis, int dim);
/* Shards rows by heads of `width` over tp; neighbours share a piece that has fewer heads than ranks. */
void   param_cut_heads(const ParamSet *s, Param *p, int64_t width);

int     param_ranges(const Param *p, StridedRange *out);      /* at most PARAM_RANGES, without empty ones */
const StridedRange *piece_ranges(const Param *p, int i, int *n);   /* of piece i; `local` without gaps */
/* Clips `n` ranges to elements [at, at + len) of the shard, flat; `local` of the result counts from `at`. At
 * most 3 n ranges. */
int     ranges_clip(StridedRange *out, const StridedRange *in, int n, int64_t at, int64_t len);

/* A tensor that holds elements [at, at + n) of a shard, flat. rest: the 16 bits that a bf16 t lacks of f32
 * values; or absent. */
typedef struct ShardView { Tensor t; int64_t at, n; Tensor rest; } ShardView;
enum { SHARD_VIEW_RANGES = 3 * PARAM_RANGES };

ShardView param_weight_view(const Param *p);                 /* shard.w: all of the shard, or [offset, len) */
ShardView param_state_view(const Param *p, Tensor t);        /* master, m or v: [offset, len) */
/* Where f32 values of [offset, len) go when they are loaded or initialized: the master; or, where the master
 * is only the rest of w, both. Absent when w is f32. */
ShardView param_load_view(const Param *p);
/* Whether a view to load into writes all of a weight too. Otherwise the weight is written before it. */
static inline bool loads_weight(ShardView own, ShardView w)
{
    return t_has(own.rest) && own.at == w.at && own.n == w.n;
}
int     shard_view_ranges(StridedRange *out, const Param *p, ShardView h);     /* `local` counts from h.at */
Tensor  shard_view_rows(ShardView h, const StridedRange *c);                   /* (count, len) of h.t */

int64_t piece_at(const Param *p, int i);                     /* first element of piece i in the whole, flat */
int64_t param_count(const Param *p);                         /* elements of the whole */
int64_t param_local(const Param *p);                         /* elements of the shard, padding included */
int64_t params_count(const ParamSet *s);
DType   params_dtype(const ParamSet *s);                     /* of the weights; once they have memory */
int     params_tensors(const ParamSet *s);                   /* pieces of all parameters */

/* Whether the gradient may be in bf16: of linear weights, one product a micro-batch makes it. Others are sums
 * of many small terms, or small. */
bool    param_rounds_grad(const Param *p);
/* GEMM flags of a product that makes p's gradient: the first of a step overwrites, the others add. */
static inline int param_grad_flags(Param *p)
{
    int flags = GEMM_TN | (p->step.grad_unset ? 0 : GEMM_ACC);
    p->step.grad_unset = false;
    return flags;
}

static inline Tensor param_w(const Param *p) { return p ? p->shard.w : (Tensor){ 0 }; }
static inline Tensor param_g(const Param *p) { return p ? p->shard.g : (Tensor){ 0 }; }

#endif
