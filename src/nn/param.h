/* nn/param.h -- a parameter is described once: its shape, its names in a checkpoint, its group.
 *
 * Loading, saving, the optimizer and parity all walk this list. A parameter may hold several tensors of a
 * checkpoint stacked by rows (q, k and v; gate and up): its pieces. Experts are one parameter whose
 * checkpoint forms are three; model/weights.c knows them. */
#ifndef NN_PARAM_H
#define NN_PARAM_H

#include "ops/ops.h"

typedef enum { G_VIT, G_ALIGNER, G_LLM, GROUP_N } Group;   /* tower, mergers, decoder: freeze and lr groups */
typedef enum { INIT_NORMAL, INIT_ZERO, INIT_ONE, INIT_POSITION } Init;      /* of a start from nothing */
typedef enum { FORM_ROWS, FORM_EXPERT_GATE_UP, FORM_EXPERT_DOWN } Form;

#define PIECE_DIM 5

typedef struct Piece {                  /* one tensor of the checkpoint, as transformers holds it in memory */
    char    name[120];
    int     rank;
    int64_t shape[PIECE_DIM];            /* dim 0 = rows of the parameter that it fills */
} Piece;

typedef struct Param {
    Tensor  w, g;                        /* compute dtype; f32 gradient, absent when frozen */
    Tensor  master, m, v;                /* f32; master absent when w is f32 itself         */
    int     rank;
    int64_t full[MAXDIM];
    Group   group;
    Init    init;
    Form    form;
    bool    decay;
    bool    idle;                     /* nothing it computes reaches the loss: it never has a gradient      */
    bool    live;                     /* got a gradient this step; others are neither stepped nor decayed   */
    bool    fresh;                    /* g holds nothing yet: the first product writes over it              */
    Piece   piece[3];
    int     pieces;
} Param;

typedef struct ParamSet { Param **p; int n, cap; } ParamSet;

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

int64_t param_count(const Param *p);
int64_t params_count(const ParamSet *s);

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
