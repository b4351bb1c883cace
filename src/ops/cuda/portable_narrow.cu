/* ops/cuda/portable_narrow.cu -- kernels of grouped_narrow.cu on every GPU since compute capability 8.0: the
 * tiles of portable_grouped.cuh, 64 columns wide, written element by element. */
#include "ops/cuda/portable_grouped.cuh"

namespace {

struct Put {
    typedef struct Args {
        void   *c;
        int64_t expert, i, j;       /* strides, see NarrowCall */
        float   scale;
        bool    half, add;
    } Args;

    template <class C>
    __device__ static void put_row(C *c, const Args &a, int col, int N, const float (*d)[4], int h)
    {
        #pragma unroll
        for (int x = 0; x < NARROW / 8; x++) {
            int j = col + x / 2 * 8 + threadIdx.x % 4 * 2 + x % 2;
            if (j < N) put_one(c + j * a.j, a.scale * d[x / 2][2 * h + x % 2], a.add);
        }
    }
    __device__ static void put(const Args &a, const TileJob &g, const Tile &t, const Sums<NARROW> &s,
                                float *)
    {
        int     n = t.n + s.col(), rows = g.M ? g.M : t.rows;
        int64_t at = g.M ? t.e * a.expert : t.first * a.i;
        each_row(t.m + s.row(), [&](int row, int i, int h) {
            int64_t from = at + row * a.i;
            if (row >= rows) return;
            if (a.half) put_row((bf16 *)a.c + from, a, n, g.N, s.d[i], h);
            else        put_row((float *)a.c + from, a, n, g.N, s.d[i], h);
        });
    }
};

template <int MODE, bool DROP> using Slim = Product<MODE, NARROW, Put, DROP>;

template <int MODE> void launch(Backend *be, const NarrowCall &q, const TileJob &g, const Put::Args &end)
{
    constexpr bool DROP = MODE != GEMM_NN;      /* in NN dropout applies to c: portable_grouped.cu */
    if (DROP && q.drops) launch_tiles<Slim<MODE, DROP>>(be, "grouped_gemm", g, end, q.a.n[0]);
    else                 launch_tiles<Slim<MODE, false>>(be, "grouped_gemm", g, end, q.a.n[0]);
}

}

void portable_narrow(Backend *be, const NarrowCall &q)
{
    bool      tn = q.mode == GEMM_TN;
    int64_t   N = tn ? q.b.n[1] : q.b.n[q.mode == GEMM_NT ? 1 : 2];
    TileJob   g = tile_job(be, q.offsets, q.E, q.every, tn ? q.a.n[1] : 0, N);
    Put::Args end = { q.c, q.expert, q.i, q.j, q.scale, q.dtype == BF16, q.add };
    g.first.parts = (int)q.parts, g.order = q.counters + 3, g.dropout = q.dropout;
    g.main = tn ? gradient_term(q.a, q.b) : term_of(q.a, q.b);
    if (tn)                     launch<GEMM_TN>(be, q, g, end);
    else if (q.mode == GEMM_NT) launch<GEMM_NT>(be, q, g, end);
    else                        launch<GEMM_NN>(be, q, g, end);
}
