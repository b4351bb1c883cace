/* ops/cuda/delta_rule.cuh -- what the kernels of delta_rule.c share: the call, and the rows of a tile.
 *
 * Tile i is rows 64 i and on of the stream. A row is known by the row its segment begins with (-1: outside all
 * segments); rows inside are contiguous, so that a tile has a last one. `in` is the decay since the state
 * entered the tile, 0 for rows of other segments; `out` the decay until the tile's last inside row, 0 for rows
 * of other segments than its; `through` what the state that enters is multiplied by on its way out. */
#ifndef OPS_CUDA_DELTA_RULE_CUH
#define OPS_CUDA_DELTA_RULE_CUH

#include "ops/cuda/rows.cuh"

enum { TILE = 64 };

/* A tensor (T, heads, width). */
struct DeltaView { char *p; int64_t row, head; };

struct DeltaCall {
    DeltaView    q, k, v, o, dq, dk, dv, dout;
    const float *beta, *first, *dlast;            /* (T, Hv); (Hv, dk dv) or NULL */
    float       *dg, *dbeta, *last, *dfirst;
    const int   *begin, *final;                   /* of each row; the last inside row of each tile, or -1 */
    const float *sum;                             /* (T, Hv): of g since the segment's first row in the tile */
    int          T, tiles, Hk, Hv, group, C, Cv;  /* group: value heads of a key head; widths */
    float        scale;
    bool         half;                            /* bf16, not f32 */
};

namespace {

/* Rows of a tile for one value head, in shared memory. */
struct TileRows {
    float sum[TILE], beta[TILE], in[TILE], out[TILE], through;
    int   begin[TILE], final;
};

/* Whether a state enters the tile that starts at row `from`. */
__device__ inline bool tile_enters(const DeltaCall &a, int from)
{
    return a.begin[from] >= 0 && (a.begin[from] < from || !from);
}

/* By all threads of the block, which must not read r before; ends with a barrier. */
__device__ inline void tile_rows(TileRows &r, const DeltaCall &a, int tile, int u)
{
    int   from = tile * TILE, final = a.final[tile], i = threadIdx.x, t = from + i;
    int   first = tile_enters(a, from) ? a.begin[from] : -2, end = final < 0 ? -2 : a.begin[from + final];
    float all = final < 0 ? 0.0f : a.sum[(int64_t)(from + final) * a.Hv + u];
    if (i < TILE) {
        int   b = t < a.T ? a.begin[t] : -1;
        float s = b < 0 ? 0.0f : a.sum[(int64_t)t * a.Hv + u];
        r.begin[i] = b, r.sum[i] = s, r.beta[i] = b < 0 ? 0.0f : a.beta[(int64_t)t * a.Hv + u];
        r.in[i]  = b == first ? expf(s) : 0.0f;
        r.out[i] = b == end ? expf(all - s) : 0.0f;
    }
    if (!i) r.final = final, r.through = final < 0 ? 1.0f : end == first ? expf(all) : 0.0f;
    __syncthreads();
}

/* Decay from row j to row i of a tile; 0 where j is later or of another segment. */
__device__ inline float tile_decay(const TileRows &r, int i, int j)
{
    return j <= i && r.begin[i] >= 0 && r.begin[i] == r.begin[j] ? expf(r.sum[i] - r.sum[j]) : 0.0f;
}

/* Inside its segment row t reads: its data may be anything outside. */
__device__ inline bool row_inside(const DeltaCall &a, int t) { return t < a.T && a.begin[t] >= 0; }

}

/* delta_rule_plain.cu: any widths and dtypes. `states` is of the dtype of q. */
size_t delta_plain_bytes(const DeltaCall *a, bool backward);
void   delta_plain_fwd(Backend *be, const DeltaCall *a, void *memory);
void   delta_plain_bwd(Backend *be, const DeltaCall *a, void *states, void *memory);

/* delta_rule_fwd.cu, delta_rule_bwd.cu: bf16 heads of 128, rows on 16 bytes. */
size_t delta_fast_bytes(const DeltaCall *a, bool backward);
void   delta_fast_fwd(Backend *be, const DeltaCall *a, void *memory);
void   delta_fast_bwd(Backend *be, const DeltaCall *a, void *states, void *memory);

#endif
