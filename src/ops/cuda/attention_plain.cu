/* ops/cuda/attention_plain.cu -- attention for every case of attention.c: f32 arithmetic, any strides, KV
 * caches.
 *
 * A block of 16 x 16 threads holds a tile of B = 16 R rows of queries (dk, dv: of keys) and walks the tiles
 * of the other side; both are in shared memory as f32, padded with zeros. Thread (ty, tx) owns the scores of
 * rows ty + 16 i and columns tx + 16 j, so that a row of scores belongs to half a warp: its maximum and sum
 * need no barrier. Forward stacks the query heads that share a key head. Backward is two kernels, one per
 * side, so that every sum has one owner and a fixed order. Where few blocks would run (decoding), forward
 * cuts the keys into parts and a second kernel joins the parts in order.
 *
 * Segment i's tiles of n rows start at tile starts[i] / n + i, which leaves each segment enough tile numbers;
 * a block finds its segment by bisection. Tiles of a KV cache are numbered in the same way. */
#include "ops/cuda/attention_plain.cuh"

namespace {

/* ---- forward ---- */

/* Turns scores into exp(s - max), masked ones into 0, and rescales max, sum and the output so far. */
template <int R, int K, int NJ>
__device__ static void softmax_step(float (&s)[R][K], float (&o)[R][NJ], float (&top)[R], float (&sum)[R],
                                    const int (&seen)[R], int k0, const int (&from)[R])
{
    int tx = threadIdx.x % 16;
    #pragma unroll
    for (int i = 0; i < R; i++) {
        float high = -INFINITY, total = 0.0f;
        #pragma unroll
        for (int j = 0; j < K; j++)
            if (k0 + tx + 16 * j < seen[i] && k0 + tx + 16 * j >= from[i]) high = fmaxf(high, s[i][j]);
        high = fmaxf(half_max(high), top[i]);
        float fade = high == -INFINITY ? 1.0f : expf(top[i] - high);
        #pragma unroll
        for (int j = 0; j < K; j++) {
            bool on = k0 + tx + 16 * j < seen[i] && k0 + tx + 16 * j >= from[i];
            s[i][j] = on ? expf(s[i][j] - high) : 0.0f;
            total  += s[i][j];
        }
        sum[i] = sum[i] * fade + half_sum(total), top[i] = high;
        #pragma unroll
        for (int j = 0; j < NJ; j++) o[i][j] *= fade;
    }
}

/* Stores the output of a row, or its part where the keys are cut. */
template <int R, int NJ>
__device__ static void fwd_write(const Args &a, int i, int64_t t, int h, int part, const float (&o)[R][NJ],
                                 float top, float sum)
{
    int     tx = threadIdx.x % 16;
    int64_t at = (part * a.T + t) * a.H + h;
    float   inv = a.parts > 1 ? 1.0f : 1.0f / sum;
    #pragma unroll
    for (int j = 0; j < NJ; j++) {
        int c = Columns<NJ>::at(j);
        if (c >= a.o.C) continue;
        if (a.parts > 1) a.part_o[at * a.C + c] = o[i][j];
        else             view_put(a.o, t, h, c, o[i][j] * inv);
    }
    if (tx) return;
    if (a.parts > 1) a.part_max[at] = top, a.part_sum[at] = sum;
    else             a.lse[h * a.lse_row + t] = top + logf(sum);
}

template <int R, int KR, int NJ>
__global__ static void __launch_bounds__(256, 1) fwd_kernel(Args a)
{
    constexpr int B = 16 * R, BK = 16 * KR, CP = 16 * NJ, LD = CP + 4;
    extern __shared__ float4 smem[];
    float *Q = (float *)smem, *K = Q + B * LD, *W = K + BK * LD;
    int    group = a.H / a.G, stacks = (group + a.stack - 1) / a.stack, at = blockIdx.x;
    int    part = at % a.parts, stack = at / a.parts % stacks, g = at / a.parts / stacks % a.G;
    Tile   t;
    if (!tile_find(a, at / a.parts / stacks / a.G, a.queries, &t)) return;
    int h0 = g * group + stack * a.stack, heads = min(a.stack, group - stack * a.stack);
    int last = a.causal ? min(t.k1, t.q1 + t.ahead) : t.k1;
    int per = (last - t.k0 + a.parts * BK - 1) / (a.parts * BK) * BK;
    int k0 = t.k0 + part * per, k1 = min(last, k0 + per);

    tile_load_from<B, CP>(Q, a.q, a.scale, [&](int r) -> int64_t {   /* by head, then query */
        int h = r / a.queries, row = t.q0 + r % a.queries;
        return h < heads && row < t.q1 ? row * a.q.row + (h0 + h) * a.q.head : -1;
    });
    float o[R][NJ], top[R], sum[R];
    int   seen[R], from[R];
    #pragma unroll
    for (int i = 0; i < R; i++) {
        int row = t.q0 + (threadIdx.x / 16 + 16 * i) % a.queries;
        seen[i] = a.causal ? min(k1, row + t.ahead + 1) : k1;
        from[i] = row + t.ahead - a.window + 1;
        top[i]  = -INFINITY, sum[i] = 0.0f;
        #pragma unroll
        for (int j = 0; j < NJ; j++) o[i][j] = 0.0f;
    }
    for (; k0 < k1; k0 += BK) {
        float s[R][KR];
        __syncthreads();
        tile_load<BK, CP>(K, a.k, g, k0, k1, 1.0f);
        __syncthreads();
        tile_dot<R, KR, CP>(s, Q, K);
        softmax_step<R, KR, NJ>(s, o, top, sum, seen, k0, from);
        tile_keep<R, KR>(W, s);
        __syncthreads();
        tile_load<BK, CP>(K, a.v, g, k0, k1, 1.0f);
        __syncthreads();
        tile_add<R, KR, NJ>(o, W, K);
    }
    #pragma unroll
    for (int i = 0; i < R; i++) {
        int r = threadIdx.x / 16 + 16 * i, h = r / a.queries, row = t.q0 + r % a.queries;
        if (h < heads && row < t.q1) fwd_write<R, NJ>(a, i, row, h0 + h, part, o, top[i], sum[i]);
    }
}

/* A block joins the parts of one row and head. */
__global__ static void __launch_bounds__(128) join_kernel(Args a)
{
    int64_t t = blockIdx.x / a.H, all = a.T * a.H;
    int     h = blockIdx.x % a.H;
    float   top = -INFINITY, sum = 0.0f;
    if (t < a.starts[0] || t >= a.starts[a.n]) return;
    for (int p = 0; p < a.parts; p++) top = fmaxf(top, a.part_max[p * all + t * a.H + h]);
    for (int p = 0; p < a.parts; p++) {
        int64_t at = p * all + t * a.H + h;
        sum += a.part_sum[at] * expf(a.part_max[at] - top);          /* of a part out of the window 0 */
    }
    for (int c = threadIdx.x; c < a.o.C; c += 128) {
        float o = 0.0f;
        for (int p = 0; p < a.parts; p++) {
            int64_t at = p * all + t * a.H + h;
            o += a.part_o[at * a.C + c] * expf(a.part_max[at] - top);
        }
        view_put(a.o, t, h, c, o / sum);
    }
    if (!threadIdx.x) a.lse[h * a.lse_row + t] = top + logf(sum);
}

/* ---- backward ---- */

/* A tile of queries of one head: dq, summed over ascending keys. */
template <int R, int NJ>
__global__ static void __launch_bounds__(256, 1) dq_kernel(Args a)
{
    constexpr int B = 16 * R, CP = 16 * NJ, LD = CP + 4;
    extern __shared__ float4 smem[];
    float *Q = (float *)smem, *D = Q + B * LD, *K = D + B * LD, *V = K + B * LD, *W = V + B * LD;
    int    h = blockIdx.x % a.H, g = h / (a.H / a.G), ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    Tile   t;
    if (!tile_find(a, blockIdx.x / a.H, B, &t)) return;
    tile_load<B, CP>(Q, a.q, h, t.q0, t.q1, a.scale);
    tile_load<B, CP>(D, a.dout, h, t.q0, t.q1, 1.0f);
    float dq[R][NJ], lse[R], delta[R];
    #pragma unroll
    for (int i = 0; i < R; i++) {
        int row = min(t.q0 + ty + 16 * i, t.q1 - 1);
        lse[i] = a.lse[h * a.lse_row + row], delta[i] = a.delta[h * a.delta_row + row];
        #pragma unroll
        for (int j = 0; j < NJ; j++) dq[i][j] = 0.0f;
    }
    int last = a.causal ? min(t.k1, t.q1 + t.ahead) : t.k1;
    for (int k0 = t.k0; k0 < last; k0 += B) {
        float s[R][R], dp[R][R];
        __syncthreads();
        tile_load<B, CP>(K, a.k, g, k0, last, 1.0f);
        tile_load<B, CP>(V, a.v, g, k0, last, 1.0f);
        __syncthreads();
        tile_dot<R, R, CP>(s, Q, K);
        tile_dot<R, R, CP>(dp, D, V);
        #pragma unroll
        for (int i = 0; i < R; i++)
            #pragma unroll
            for (int j = 0; j < R; j++) {
                int key = k0 + tx + 16 * j;
                int  own = t.q0 + ty + 16 * i + t.ahead;           /* the query's own key */
                bool on = key < last && (!a.causal || key <= own) && key > own - a.window;
                s[i][j] = on ? expf(s[i][j] - lse[i]) * (dp[i][j] - delta[i]) : 0.0f;
            }
        tile_keep<R, R>(W, s);
        tile_add<R, R, NJ>(dq, W, K);
    }
    #pragma unroll
    for (int i = 0; i < R; i++)
        #pragma unroll
        for (int j = 0; j < NJ; j++) {
            int row = t.q0 + ty + 16 * i, c = Columns<NJ>::at(j);
            if (row < t.q1 && c < a.C) view_put(a.dq, row, h, c, a.scale * dq[i][j]);
        }
}

/* A tile of keys, and the first and last segment whose queries see it. In a KV cache several segments may
 * begin with the same key (attention.c). */
struct KeyTile { int k0, k1, first, last; };

__device__ static int keys_end(const Args &a, const int32_t *keys, int i)
{
    return a.kv_used ? keys[i] + a.kv_used[i] : keys[i + 1];
}

/* Tile numbers are assigned like those of queries (see the top), by where the keys start. Of segments that
 * start with the same key the last gets all the tile numbers but one each, so its tiles cover all of them. */
__device__ static bool key_tile_find(const Args &a, int at, int n, KeyTile *t)
{
    const int32_t *keys = a.kv_starts ? a.kv_starts : a.starts;
    int lo = 0, hi = a.n, end;
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (keys[mid] / n + mid <= at) lo = mid;
        else                           hi = mid;
    }
    if (at < keys[lo] / n + lo || (a.kv_starts && lo + 1 < a.n && keys[lo + 1] == keys[lo])) return false;
    t->k0 = keys[lo] + (at - keys[lo] / n - lo) * n, t->first = t->last = lo, end = keys_end(a, keys, lo);
    while (a.kv_starts && t->first > 0 && keys[t->first - 1] == keys[lo])
        end = max(end, keys_end(a, keys, --t->first));
    t->k1 = min(t->k0 + n, end);
    return t->k0 < end;
}

/* A tile of keys of one key head: dk and dv, summed over the query heads that share it and ascending queries.
 * The queries carry the scale, so that dk needs none. */
template <int R, int NJ>
__global__ static void __launch_bounds__(256, 1) dkv_kernel(Args a)
{
    constexpr int B = 16 * R, CP = 16 * NJ, LD = CP + 4;
    extern __shared__ float4 smem[];
    float *K = (float *)smem, *V = K + B * LD, *Q = V + B * LD, *D = Q + B * LD, *W = D + B * LD;
    float *lse = W + B * (B + 4), *delta = lse + B;
    int    g = blockIdx.x % a.G, group = a.H / a.G, ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    const int32_t *keys = a.kv_starts ? a.kv_starts : a.starts;
    KeyTile t;
    if (!key_tile_find(a, blockIdx.x / a.G, B, &t)) return;
    tile_load<B, CP>(K, a.k, g, t.k0, t.k1, 1.0f);
    tile_load<B, CP>(V, a.v, g, t.k0, t.k1, 1.0f);
    float dk[R][NJ], dv[R][NJ];
    #pragma unroll
    for (int i = 0; i < R; i++)
        #pragma unroll
        for (int j = 0; j < NJ; j++) dk[i][j] = dv[i][j] = 0.0f;
    for (int at = 0; at < group * (t.last - t.first + 1); at++) {
        int h = g * group + at % group, seg = t.first + at / group;
        int begin = a.starts[seg], end = a.starts[seg + 1], seen = keys_end(a, keys, seg), ahead = seen - end;
        for (int q0 = a.causal ? max(begin, t.k0 - ahead) : begin; q0 < end; q0 += B) {
            float s[R][R], dp[R][R];
            __syncthreads();
            tile_load<B, CP>(Q, a.q, h, q0, end, a.scale);
            tile_load<B, CP>(D, a.dout, h, q0, end, 1.0f);
            if (threadIdx.x < B) {
                int row = min(q0 + (int)threadIdx.x, end - 1);
                lse[threadIdx.x]   = a.lse[h * a.lse_row + row];
                delta[threadIdx.x] = a.delta[h * a.delta_row + row];
            }
            __syncthreads();
            tile_dot<R, R, CP>(s, K, Q);
            tile_dot<R, R, CP>(dp, V, D);
            #pragma unroll
            for (int i = 0; i < R; i++)
                #pragma unroll
                for (int j = 0; j < R; j++) {
                    int  c = tx + 16 * j, query = q0 + c, key = t.k0 + ty + 16 * i;
                    bool on = query < end && key < seen && (!a.causal || key <= query + ahead) &&
                              key > query + ahead - a.window;
                    s[i][j]  = on ? expf(s[i][j] - lse[c]) : 0.0f;
                    dp[i][j] = on ? s[i][j] * (dp[i][j] - delta[c]) : 0.0f;
                }
            tile_keep<R, R>(W, s);
            tile_add<R, R, NJ>(dv, W, D);
            tile_keep<R, R>(W, dp);
            tile_add<R, R, NJ>(dk, W, Q);
        }
    }
    #pragma unroll
    for (int i = 0; i < R; i++)
        #pragma unroll
        for (int j = 0; j < NJ; j++) {
            int row = t.k0 + ty + 16 * i, c = Columns<NJ>::at(j);
            if (row >= t.k1 || c >= a.C) continue;
            view_put(a.dk, row, g, c, dk[i][j]);
            if (c < a.dv.C) view_put(a.dv, row, g, c, dv[i][j]);
        }
}

/* ---- host ---- */

static HeadView view_of(Tensor t)
{
    if (!t_has(t)) return HeadView{};
    return HeadView{ (char *)t.data, t.s[0], t.s[1], (int)t.n[2], t.dtype == BF16, packs(t) };
}

static Args args_of(const Attn *x)
{
    Args a = {};
    a.q = view_of(x->q), a.k = view_of(x->k), a.v = view_of(x->v), a.o = view_of(x->o);
    a.dq = view_of(x->dq), a.dk = view_of(x->dk), a.dv = view_of(x->dv), a.dout = view_of(x->dout);
    a.lse       = (float *)x->lse.data, a.lse_row = x->lse.s[0];
    a.delta     = (float *)x->delta.data, a.delta_row = x->delta.s[0];
    a.starts    = (const int32_t *)x->seg.starts.data;
    a.kv_starts = (const int32_t *)x->seg.kv_starts.data;
    a.kv_used   = (const int32_t *)x->seg.kv_used.data;
    a.T = x->q.n[0], a.S = x->k.n[0], a.n = (int)x->seg.n;
    a.H = (int)x->q.n[1], a.G = (int)x->k.n[1], a.C = (int)x->q.n[2];
    a.parts = 1, a.scale = x->scale, a.causal = x->seg.causal;
    a.window = x->seg.window ? (int)x->seg.window : 1 << 30;
    return a;
}

/* What a block has on every GPU: compute capability 8.6, 8.9 and 12.0 have no more. */
constexpr size_t SMEM_LEAST = 99 << 10;

/* Tile numbers for tiles of n of `rows` rows: see the top. */
static int64_t tiles(const Args &a, int64_t rows, int n) { return rows / n + a.n + 1; }

/* tiles16 times 16 rows, the scores, two statistics a row. */
static constexpr size_t smem_bytes(int R, int K, int NJ, int tiles16)
{
    return sizeof(float) * (tiles16 * 16 * (16 * NJ + 4) + 16 * R * (16 * K + 4) + 32 * R);
}

/* Decoding has few queries and many keys: the keys are cut so that each multiprocessor has `each` blocks. */
static void fwd_parts(Backend *be, Args *a, int64_t blocks, int each)
{
    enum { MOST = 32 };
    int64_t want = min_i64(MOST, (int64_t)each * cuda_of(be)->sms / blocks);
    if (!a->kv_starts || want < 2) return;
    size_t rows = (size_t)(want * a->T * a->H);
    a->part_o   = (float *)cuda_workspace(be, rows * (size_t)(a->C + 2) * sizeof(float));
    if (!a->part_o && !be->preparing) return;
    a->part_max = a->part_o + rows * a->C, a->part_sum = a->part_max + rows;
    a->parts    = (int)want;
}

template <int R, int KR, int NJ>
static void fwd_launch(Backend *be, Args a)
{
    int group = a.H / a.G;
    a.stack = (int)min_i64(group, 16 * R), a.queries = 16 * R / a.stack;
    int64_t blocks = tiles(a, a.T, a.queries) * a.G * ceil_div(group, a.stack);
    fwd_parts(be, &a, blocks, R == 1 ? 4 : 2);
    LAUNCH(be, "attention_fwd", (fwd_kernel<R, KR, NJ>), blocks * a.parts, 256,
           smem_bytes(R, KR, NJ, R + KR), a);
    if (a.parts > 1) LAUNCH(be, "attention_fwd", join_kernel, a.T * a.H, 128, 0, a);
}

/* Tiles of 16 R rows, or of fewer on a GPU whose blocks have too little shared memory for them. */
template <int R, int NJ>
static void bwd_launch(Backend *be, Args a)
{
    constexpr size_t bytes = smem_bytes(R, R, NJ, 4 * R);
    size_t most = cuda_of(be)->smem_block;
    if constexpr (R > 1 && bytes > SMEM_LEAST)
        if (bytes > most) { bwd_launch<R / 2, NJ>(be, a); return; }
    if (bytes > most && !be->sticky)
        be->sticky = fail(E_CONFIG, "attention_bwd: heads of %d columns take %zu KB of shared memory, a "
                          "block of this GPU has %zu; use another GPU, or --backend cpu", a.C, bytes >> 10,
                          most >> 10);
    LAUNCH(be, "attention_bwd", (dq_kernel<R, NJ>), tiles(a, a.T, 16 * R) * a.H, 256, bytes, a);
    LAUNCH(be, "attention_bwd", (dkv_kernel<R, NJ>), tiles(a, a.S, 16 * R) * a.G, 256, bytes, a);
}

}

/* Takes tiles as large as shared memory and registers allow; where no segment has more than 16 rows to stack
 * (decoding), tiles of 16 rows and more keys at a time. */
void plain_fwd(Backend *be, const Attn *x)
{
    Args a = args_of(x);
    bool few = x->seg.longest * (a.H / a.G) <= 16;
    if (few) {
        if (a.C <= 32)       fwd_launch<1, 4, 2>(be, a);
        else if (a.C <= 64)  fwd_launch<1, 4, 4>(be, a);
        else if (a.C <= 80)  fwd_launch<1, 4, 5>(be, a);
        else if (a.C <= 128) fwd_launch<1, 4, 8>(be, a);
        else if (a.C <= 256) fwd_launch<1, 2, 16>(be, a);
        else                 fwd_launch<1, 1, 32>(be, a);
    } else {
        if (a.C <= 32)       fwd_launch<4, 4, 2>(be, a);
        else if (a.C <= 64)  fwd_launch<4, 4, 4>(be, a);
        else if (a.C <= 80)  fwd_launch<4, 4, 5>(be, a);
        else if (a.C <= 128) fwd_launch<4, 4, 8>(be, a);
        else if (a.C <= 256) fwd_launch<2, 2, 16>(be, a);
        else                 fwd_launch<1, 1, 32>(be, a);
    }
}

void plain_bwd(Backend *be, const Attn *x)
{
    Args a = args_of(x);
    if (a.C <= 32)       bwd_launch<4, 2>(be, a);
    else if (a.C <= 64)  bwd_launch<4, 4>(be, a);
    else if (a.C <= 80)  bwd_launch<4, 5>(be, a);
    else if (a.C <= 128) bwd_launch<4, 8>(be, a);
    else if (a.C <= 256) bwd_launch<2, 16>(be, a);
    else                 bwd_launch<1, 32>(be, a);
}
