/* nn/weight_panel.h -- a weight in parts that a product in the dtype of the model reads.
 *
 * A weight that is kept in codes alone (nn/base_quant.h) is decoded into scratch a panel at a time, at most
 * Env.panel_elems elements, so that no copy of a layer is ever made; any other weight is one panel. Panels
 * are rows or columns of a matrix; the dimension that a product sums over is never cut, so panels change no
 * bit. Products of a stack decode its matrices themselves (ops/grouped_coded.c), in memory from here. */
#ifndef NN_WEIGHT_PANEL_H
#define NN_WEIGHT_PANEL_H

#include "nn/module.h"

/* A panel of this size holds gate and up of 16 experts of Qwen3-30B-A3B in 96 MiB: all SMs of an H200 are
 * busy. */
enum { WEIGHT_PANEL_ELEMS = 48 << 20 };

typedef enum { PANEL_ROWS, PANEL_COLS } PanelAxis;

typedef struct WeightPanel {
    const Param *of;
    PanelAxis    axis;
    int64_t      begin, end, step;       /* of rows or columns: those to go through; in a panel */
    int64_t      from, n;                /* the panel at hand, from `begin` on; and where it begins */
    Tensor       w, memory;
    ArenaMark    mark;
} WeightPanel;

/* for EACH_PANEL(t, c, w, axis): t.w is columns or rows t.from .. t.from + t.n of w. */
#define EACH_PANEL(t, c, w, axis) (WeightPanel t = panel_open(c, w, axis); panel_next(c, &(t));)

WeightPanel panel_open(const Pass *c, const Param *w, PanelAxis axis);
WeightPanel panel_open_rows(const Pass *c, const Param *w, int64_t from, int64_t rows);
bool        panel_next(const Pass *c, WeightPanel *p);       /* false: there are no more, scratch is free */

bool        weight_is_coded(const Param *w);                 /* kept in codes alone */
Tensor      panel_of_matrices(const Pass *c, const Param *w);        /* scratch for some of a coded stack */

#endif
