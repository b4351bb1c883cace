/* nn/offload.h -- values of layers that wait on the host for their backward.
 *
 * What a layer (or a stretch of them) parks lies in one berth, a piece of device memory, from its forward until
 * it has been copied to the host beside the work of the layers that follow; a few berths take turns. Backward
 * has it brought back into a berth ahead of its use. All of it is queued and ordered by marks: the host waits
 * for nothing, and nothing is allocated.
 *
 *   forward    park_open, then values by need() while c->parked is set, park_send
 *   backward   park_want ahead of its turn, park_take, the work, park_done
 *
 * Where the backward of a chunk follows its forward at once, what its last layers left is still in berths: then
 * the last one does not travel at all, and those before it are not brought back. Where a forward is run beside
 * a backward each has berths of its own. */
#ifndef NN_OFFLOAD_H
#define NN_OFFLOAD_H

#include "base/arena.h"
#include "nn/stash.h"
#include "tensor/tensor.h"

enum { PARK_BERTHS = 4, PARK_VALUES = 24 };

typedef struct Ctx Ctx;

/* slot points to the value, which is `at` bytes into its berth. */
typedef struct ParkedValue { Tensor *slot; size_t at; } ParkedValue;

/* What one stretch of one micro-batch has parked. */
typedef struct Parked {
    ParkedValue value[PARK_VALUES];
    int   n;
    char *host;                          /* NULL: it does not travel */
    int   berth, sent;                   /* where it is or was last; the one it was sent from */
    bool  coming;                        /* on its way back */
} Parked;

typedef struct Berth { Arena room; Parked *holds; } Berth;      /* NULL: free */

typedef struct Park {
    Berth  berth[2][PARK_BERTHS];        /* of forwards and backwards; the first row of both unless apart */
    int    berths, next;
    bool   apart;
    double home;                         /* share of layers, the last of a chunk, that park nothing */
} Park;

/* Whether any label of first … last is parked by the policy of c. */
bool   parks(const Ctx *c, Label first, Label last);
/* Berths that a policy wants; 0: it parks nothing. */
int    park_berths(const uint8_t policy[LABEL_N]);

void   park_begin(Ctx *c);                                     /* a chunk's forward: all berths are free */
void   park_open(Ctx *c, Parked *p);
Tensor park_push(Ctx *c, Parked *p, Tensor *slot, Label l, DType d, int64_t rows, int64_t cols);
void   park_send(Ctx *c, Parked *p, bool stays);               /* stays: its backward is the next to come */
void   park_end(Ctx *c, bool at_once);                         /* its backward is what comes next */

void   park_want(Ctx *c, Parked *p);                           /* where a berth is free */
void   park_take(Ctx *c, Parked *p);
void   park_done(Ctx *c, Parked *p);

#endif
