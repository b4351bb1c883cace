/* base/ledger.h -- the account of work: FLOPs, bytes and calls by op and by part of the model.
 *
 * Every op is charged before it runs, on any backend, so a dry run and a real run fill the same ledger.
 * `flops` counts what the model needs of matrix work (MFU); `extra` is work that this implementation does
 * on top of it, inside a kernel or by replaying a forward (HFU adds it); `other` is arithmetic that is not
 * matrix work (norms, activations), which no utilisation figure counts. */
#ifndef BASE_LEDGER_H
#define BASE_LEDGER_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { PART_VISION, PART_MERGER, PART_DECODER, PART_HEAD, PART_OPTIM, PART_N } Part;

#define LEDGER_OPS 64

typedef struct LedgerRow { int64_t calls, bytes; double flops, extra, other; } LedgerRow;

typedef struct Ledger {
    Part      part;                   /* whose work is being charged now */
    bool      replay;                 /* a forward run again for backward: all of it is extra */
    LedgerRow op[LEDGER_OPS];
    LedgerRow by_part[PART_N];
} Ledger;

/* One call of op `id`: `matrix` says which of the two FLOP columns it belongs to. */
static inline void ledger_charge(Ledger *l, int id, bool matrix, double flops, double extra, int64_t bytes)
{
    LedgerRow *rows[2] = { &l->op[id], &l->by_part[l->part] };
    for (int i = 0; i < 2; i++) {
        rows[i]->calls++;
        rows[i]->bytes += bytes;
        if (!matrix)         rows[i]->other += flops;
        else if (l->replay)  rows[i]->extra += flops + extra;
        else                 rows[i]->flops += flops, rows[i]->extra += extra;
    }
}

static inline void ledger_clear(Ledger *l) { memset(l, 0, sizeof *l); }

#ifdef __cplusplus
}
#endif
#endif
