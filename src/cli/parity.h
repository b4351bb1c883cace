/* cli/parity.h -- `treb parity`: a recorded case, this build's values of it, and how far they differ.
 *
 * parity_values.c collects the values of this build while it runs, parity_compare.c compares them with the
 * recorded ones by max|a-b| / max|b|, cmd_parity.c runs the case and prints the worst error of each kind. */
#ifndef CLI_PARITY_H
#define CLI_PARITY_H

#include "cli/parity_case.h"
#include "engine/engine.h"

enum { PARITY_MAX_VALUES = 8192 };

typedef struct ParityValue {
    char    name[140];
    int     rank;
    int64_t shape[PIECE_DIM];
    float  *data;
    int64_t count;
} ParityValue;

typedef enum {
    PARITY_LOSS,
    PARITY_AUX,
    PARITY_POSITIONS,
    PARITY_VISION,
    PARITY_DEEPSTACK,
    PARITY_ROUTER,
    PARITY_DECODER,
    PARITY_LOGITS,
    PARITY_GRAD,
    PARITY_ABSENT,
    PARITY_STEP_LOSS,
    PARITY_STEP_NORM,
    PARITY_KINDS
} ParityKind;

typedef struct ParityTolerance { const char *name; double f32, bf16, fp8, delta_net; } ParityTolerance;

typedef struct ParityRow { int64_t compared; double worst; char where[140]; } ParityRow;

typedef struct Parity {
    const char *dtype_name, *tolerance;  /* as the options give them */
    ParityCase  c;
    Engine      e;
    DType       dtype;
    ProductPrecision precision;             /* of the case */
    const char *backend, *recompute, *offload, *out;
    int64_t     steps;
    bool        json;
    ParityValue      *value;
    int         values;
    ParityRow         row[PARITY_KINDS];
    double      limit[PARITY_KINDS];
    double      top_gradient;               /* largest element of all gradients */
    int32_t    *chosen;                     /* experts of the router at work */
    Status      tap_status;                 /* of a tap, which cannot return one */
} Parity;

/* Collect values under the names of the recorded file. */
void        parity_watch(void *self, const char *what, int index, Tensor t);     /* Tap of the engine */
MUST Status parity_add_scalar(Parity *p, const char *name, double x);
MUST Status parity_add_logits(Parity *p);
MUST Status parity_add_gradients(Parity *p);

/* Compares everything that was collected with what was recorded. */
MUST Status parity_compare(Parity *p);
/* Counts one comparison of a kind; where names it if it is the worst so far. */
void        parity_record(Parity *p, ParityKind k, double error, const char *where);

#endif
