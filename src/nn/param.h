/* nn/param.h -- a parameter is described once: its shape, its names in a checkpoint, its group.
 *
 * Loading, saving, the optimizer and parity all walk this list. A parameter may hold several tensors of a
 * checkpoint stacked by rows (q, k and v; gate and up): its pieces. Experts are one parameter whose
 * checkpoint forms are three; model/weights.c knows them.
 *
 * Under a mesh a rank holds a part of a parameter, shaped `local`. Where its elements lie in the whole one is
 * said by combs, and by nothing else: drawing, loading, saving and resharding all go through them. */
#ifndef NN_PARAM_H
#define NN_PARAM_H

#include "comm/mesh.h"
#include "ops/ops.h"

typedef enum { G_VIT, G_ALIGNER, G_LLM, GROUP_N } Group;   /* tower, mergers, decoder: freeze and lr groups */
/* Of a start from nothing; PAIR_*: the A of an adapter, uniform within 1 / sqrt(in) or of deviation 1 / r. */
typedef enum { INIT_NORMAL, INIT_ZERO, INIT_ONE, INIT_POSITION, INIT_LORA_A_UNIFORM, INIT_LORA_A_NORMAL } Init;
/* How the checkpoint has it; LORA_*: adapters of experts, as PEFT stores them (model/peft.h). */
typedef enum { FORM_ROWS, FORM_EXPERT_GATE_UP, FORM_EXPERT_DOWN, FORM_LORA_A, FORM_LORA_B } Form;
/* What a linear weight is part of; NO: it is none, or one that takes no adapter. */
typedef enum { LINEAR_NO, LINEAR_ATTENTION, LINEAR_FEED, LINEAR_EXPERTS, LINEAR_ROUTER, LINEAR_HEAD } Linear;

#define PIECE_DIM 5

typedef struct Piece {                  /* one tensor of the checkpoint, as transformers holds it in memory */
    char    name[120];
    int     rank;
    int64_t shape[PIECE_DIM];            /* dim 0 = rows of the parameter that it fills */
    int64_t rows;                        /* of them on this rank */
} Piece;

/* `count` runs of `len` elements: run i is at local + i len of this rank's part and at at + i stride of the
 * whole tensor, both flat. */
typedef struct StridedRange { int64_t local, at, len, stride, count; } StridedRange;

typedef struct AxisCut { MeshAxis axis; int dim; } AxisCut;

typedef struct Lora Lora;                /* nn/lora.h */

typedef struct Param {
    Tensor  w, g;                        /* this rank's piece, compute dtype; f32 gradient, none if frozen */
    Tensor  master, m, v;                /* of the elements this rank steps: f32 or, beside a bf16 w, the i16
                                            rest of it (ops/adamw.c), none when w is f32; f32 or bf16 */
    int     rank;
    int64_t full[MAXDIM];                /* shape before any cut */
    int64_t local[MAXDIM];               /* of this rank's piece */
    int64_t first, real;                 /* of dim 0: the full row that row 0 is; rows that exist, the rest is
                                            padding (a vocabulary cut in equal parts): zero, never saved */
    int64_t mine;                        /* elements of the piece, flat, that count as this rank's; the others
                                            are copies of a neighbour's (a shared kv head, a tied table) */
    int64_t own_at, own_n;               /* the elements of the piece, flat, that this rank steps */
    bool    keeper;                      /* of all ranks that step these, the one that writes them down */
    GroupId sums;                        /* the ranks that hold the same piece: its gradient is their sum */
    int     unit;                        /* gathered, released and reduced together with others of it */
    Group   group;
    Init    init;
    Form    form;
    Linear  linear;
    AxisCut cut[2];                      /* what param_cut was told, in order: adapters are cut alike */
    int     cuts;
    int64_t head;                        /* width of the heads that its rows were cut by, 0: they were not */
    Lora   *lora;                        /* the pairs that are trained beside it, NULL: none */
    const struct Param *beside;          /* the weight that this is an adapter of, NULL: it is none */
    bool    frozen;                      /* it is not trained: no gradient, no state */
    bool    decay;
    bool    idle;                     /* nothing it computes reaches the loss: it never has a gradient      */
    bool    live;                     /* got a gradient this step; others are neither stepped nor decayed   */
    bool    fresh;                    /* g holds nothing yet: the first product writes over it              */
    bool    tied_copy;                /* the table of a tied head on another stage than the embedding */
    Piece   piece[3];
    StridedRange    comb[3];                  /* one per piece; count 0: nothing of it is here */
    int     pieces;
} Param;

typedef struct ParamSet {
    Param     **p;
    int         n, cap;
    const Mesh *mesh;                    /* NULL: one rank */
    int         unit, units;             /* of the parameters declared now; of all */
} ParamSet;

/* Declares a parameter of `rows` x `cols` (cols 0: a vector, stored (1, rows)) filled by one checkpoint
 * tensor; param_piece adds further ones below it. Names are printf-style. */
Param *param_matrix(ParamSet *s, Group g, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
Param *param_vector(ParamSet *s, Group g, Init init, int64_t n, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
Param *param_experts(ParamSet *s, Form form, int64_t E, int64_t rows, int64_t cols, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
void   param_piece(Param *p, int64_t rows, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void   params_close(ParamSet *s);
void   params_unit(ParamSet *s);                             /* what is declared from here on is a new unit */

/* After a parameter and its pieces are declared: this rank's part of dim `dim` is its share of the axis, each
 * piece (and each half of an expert's gate_up, of its B too) cut on its own. Rows that do not divide are
 * padded. */
void   param_cut(const ParamSet *s, Param *p, MeshAxis axis, int dim);
/* Rows that are heads of `width`, over tp; a piece with fewer heads than ranks is shared by neighbours. */
void   param_cut_heads(const ParamSet *s, Param *p, int64_t width);

int     param_ranges(const Param *p, StridedRange *out);              /* at most 3, empty ones left out */
/* Those of `n` combs that are elements [at, at + len) of the rank's flat order; their `local` counts from
 * `at`. At most 3 n. */
int     ranges_clip(StridedRange *out, const StridedRange *in, int n, int64_t at, int64_t len);

/* What a tensor holds of a parameter: elements [at, at + n) of the rank's part, flat. */
typedef struct ShardView { Tensor t; int64_t at, n; } ShardView;
enum { SHARD_VIEW_RANGES = 9 };

ShardView    param_weight_view(const Param *p);                       /* p->w: all of the part, or what it steps */
ShardView    param_state_view(const Param *p, Tensor t);                 /* master, m or v: what this rank steps */
/* Where f32 values of what this rank steps are put when they are loaded or drawn: the master, or where that
 * is only the rest of w, the gradient's place, which nobody needs then. None when w is f32. */
ShardView    param_load_view(const Param *p);
int     shard_view_ranges(StridedRange *out, const Param *p, ShardView h);       /* their `local` counts from h.at */
Tensor  shard_view_rows(ShardView h, const StridedRange *c);                    /* (count, len) of h.t */

int64_t piece_at(const Param *p, int i);                     /* where piece i begins in the whole, flat */
int64_t param_count(const Param *p);                         /* of the whole */
int64_t param_local(const Param *p);                         /* of this rank's part, padding included */
int64_t params_count(const ParamSet *s);
int     params_tensors(const ParamSet *s);                   /* pieces of all of them */

/* Flags of the product that makes p's gradient: the first of a step overwrites, the others add. */
static inline int param_grad_flags(Param *p)
{
    int flags = GEMM_TN | (p->fresh ? 0 : GEMM_ACC);
    p->fresh = false;
    return flags;
}

static inline Tensor param_w(const Param *p) { return p ? p->w : (Tensor){ 0 }; }
static inline Tensor param_g(const Param *p) { return p ? p->g : (Tensor){ 0 }; }

#endif
