/* engine/code_losses.h -- what 8-bit codes lose of the rows that products read (ops/code_stats.c), measured
 * in the steps that end a line: sums of each word of train.fp8_products, and tensors that lose much for long.
 * Codes that weight gradients alone read (experts_dw) are not measured.
 *
 * A forward multiplies a weight with rows x, a backward with rows dy. Scales come from the values, so that
 * nothing should saturate; a value that is too small beside the largest of its group becomes zero (flushed);
 * a group with an infinite or NaN element has a NaN scale. */
#ifndef ENGINE_CODE_LOSSES_H
#define ENGINE_CODE_LOSSES_H

#include "engine/engine.h"

enum { CODE_LOSS_LINES = 5 };            /* lines in a row after which a tensor is named */

typedef enum { CODED_X, CODED_DY, CODED_ROWS } CodedSide;

typedef struct CodeLoss { double amax, elements, flushed, saturated, groups, not_finite; } CodeLoss;

typedef struct CodedTensor {             /* the rows of one weight, on one side */
    const Param *p;
    CodedSide    side;
    CodeLoss     line;
    int          lines;                  /* in a row in which it lost much */
} CodedTensor;

typedef struct CodeLosses {
    int          n;                      /* 0: no product runs in 8 bits */
    CodedTensor *tensor;                 /* (n) */
    CodeLoss     site[SITES][CODED_ROWS];         /* of this line; sites of one word are in the first */
} CodeLosses;

MUST Status code_losses_open(CodeLosses *x, const Engine *e);
void        code_losses_close(CodeLosses *x);                            /* twice is fine */
void        code_losses_add(CodeLosses *x, const ResultBlock *b);        /* the step that ends a line */
void        code_losses_sum_ranks(CodeLosses *x, const Engine *e);
void        code_losses_end_line(CodeLosses *x);

/* Counts the line; E_CHECK with the name of a tensor that has now lost much for CODE_LOSS_LINES lines, or
 * OK. */
MUST Status code_losses_check(CodeLosses *x);
const char *coded_side_name(CodedSide s);                                /* "x", "dy" */

#endif
