/* ops/cuda/scatter.cuh -- rows added to rows of a table by key, in an order that never changes: see
 * scatter.cu.
 *
 *   Scatter s = scatter_open(be, items, keys, width, weighted);
 *   ... a kernel of the caller writes s.key[0][i], keys for "no row", and s.weight[i] ...
 *   scatter_add(be, op, s, dtable, dy, per);          dtable[key[i]] += weight[i] * dy[i / per], i ascending
 *
 * All of it lies in the workspace, so nothing else may ask for it in between. */
#ifndef OPS_CUDA_SCATTER_CUH
#define OPS_CUDA_SCATTER_CUH

#include "ops/cuda/cuda.cuh"

typedef struct Scatter {
    int64_t   items, keys, tiles, window, windows;
    uint32_t *key[2], *item[2];               /* before and after one pass of the sort */
    uint32_t *count;
    float    *weight;                         /* NULL: all are 1 */
    float    *part;                           /* two rows for each window */
} Scatter;

Scatter scatter_open(Backend *be, int64_t items, int64_t keys, int64_t width, bool weighted);
void    scatter_add(Backend *be, const char *op, Scatter s, Tensor dtable, Tensor dy, int64_t per);

#endif
