/* ops/cuda/delta_rule.cuh -- what the kernels of delta_rule.c share: the call, and the rows of a tile.
 *
 * Tile i is rows 64 i and on of the stream. A row is known by the row its segment begins with (-1: outside
 * all segments). All that decays give is known before the kernels of the rule run (delta_rule.cu: TileRows):
 * `in` is the decay since the state entered the tile, 0 for rows of other segments than its; `out` the decay
 * until the tile's last row, 0 for rows of other segments than that one's; `through` what the state that
 * enters is multiplied by on its way out. */
#ifndef OPS_CUDA_DELTA_RULE_CUH
#define OPS_CUDA_DELTA_RULE_CUH

#include "ops/cuda/rows.cuh"

enum { TILE = 64, PARTS = 8 };

/* A tensor (T, heads, width). */
struct DeltaView { char *p; int64_t row, head; };

/* Rows of a tile for one value head. sum: of g since the segment's first row in the tile. */
struct alignas(16) TileRows {
    float sum[TILE], beta[TILE], in[TILE], out[TILE];
    int   begin[TILE];
    float through;
    int   final;                                  /* the last row; -1 where it is outside segments */
};

struct DeltaCall {
    DeltaView       q, k, v, o, dq, dk, dv, dout;
    const float    *first, *dlast;                /* (Hv, dk dv) or NULL */
    float          *dg, *dbeta, *last, *dfirst;
    int64_t         dg_row, dbeta_row;            /* strides of dg and dbeta (T, Hv) */
    const TileRows *rows;                         /* (tiles, Hv) */
    const int      *breaks; /* of each part of the tiles, the first that no state passes */
    const int      *inside; /* the first row inside segments, and the first behind them */
    int             T, tiles, Hk, Hv, group, C, Cv;   /* group: value heads of a key head; widths */
    float           scale;
    bool            half;                         /* bf16, not f32 */
};

namespace {

/* Decay from row j to row i of a tile; 0 where j is later or of another segment. */
__device__ inline float tile_decay(const TileRows &r, int i, int j)
{
    return j <= i && r.begin[i] >= 0 && r.begin[i] == r.begin[j] ? expf(r.sum[i] - r.sum[j]) : 0.0f;
}

/* Rows that are inside segments; what others hold may be anything. */
struct Inside { int from, to; };

__device__ inline Inside inside_of(const DeltaCall &a) { return Inside{ a.inside[0], a.inside[1] }; }
__device__ inline bool   is_inside(Inside s, int t)    { return t >= s.from && t < s.to; }

}

/* delta_rule_plain.cu: any widths and dtypes. `states` is of the dtype of q. */
size_t delta_plain_bytes(const DeltaCall *a, bool backward);
void   delta_plain_fwd(Backend *be, const DeltaCall *a, void *memory);
void   delta_plain_bwd(Backend *be, const DeltaCall *a, void *states, void *memory);

/* delta_rule_fwd.cu, delta_rule_bwd.cu: bf16 heads of 128, rows on 16 bytes. A block of the backward needs
 * 160 KB of shared memory, which compute capability 8.0, 9.0 and 10.0 have; others take the plain kernels. */
size_t delta_fast_bytes(const DeltaCall *a, bool backward);
void   delta_fast_fwd(Backend *be, const DeltaCall *a, void *memory);
bool   delta_fast_bwd_fits(const Backend *be);
void   delta_fast_bwd(Backend *be, const DeltaCall *a, void *states, void *memory);

#endif
