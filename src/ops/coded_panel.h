/* ops/coded_panel.h -- a stack of matrices in codes, panel by panel, for devices whose products do not read
 * codes (ops/grouped_coded.c). */
#ifndef OPS_CODED_PANEL_H
#define OPS_CODED_PANEL_H

#include "ops/ops.h"

/* Matrices from .. from + n of the stack, their decoded form, and what belongs to them of the operands. */
typedef struct CodedPanel { int64_t from, n; Tensor w, offsets; LoraTerm lora; } CodedPanel;

/* The next panel, which the caller decodes into w; false: there are no more. `memory` holds the matrices of a
 * panel. */
static inline bool coded_panel_next(CodedPanel *p, WeightCodes z, Tensor memory, Tensor offsets,
                                    LoraTerm lora)
{
    int64_t left = z.q.n[0] - (p->from += p->n);
    p->n = left < memory.n[0] ? left : memory.n[0];
    if (p->n <= 0) return false;
    p->w = t_rows(memory, 0, p->n), p->offsets = t_rows(offsets, p->from, p->n + 1), p->lora = lora;
    if (t_has(lora.low_rank) && lora.w.n[0] > 1) p->lora.w = t_rows(lora.w, p->from, p->n);
    return true;
}
static inline TileAt coded_panel_at(const CodedPanel *p) { return (TileAt){ p->from, 0, 0 }; }

#endif
