/* ops/attention.c -- softmax attention within the segments of a flat stream: contract, cost, CPU.
 *
 *   o[t,h,:] = sum over keys j of exp(scale q[t,h,:].k[j,g,:] - lse[h,t]) v[j,g,:],    g = h / (Hq / Hkv)
 *
 * q (T, Hq, C), k (S, Hkv, C), v (S, Hkv, Cv) and o (T, Hq, Cv), Cv <= C, are views with any stride between
 * rows and between heads; lse and delta (Hq, T) are f32. The keys of row t are the rows of its segment, under
 * seg.causal those up to t itself, with seg.window the last `window` of these. Rows outside all segments
 * (before starts[0], from starts[n] on) get o = 0, lse = 0, zero gradients.
 *
 * S = T unless seg.kv_starts gives the rows of the keys: a segment's queries are then the last rows of a
 * longer sequence (in a KV cache, or gathered from other ranks). Then query j of nq sees, under seg.causal,
 * keys up to nk - nq + j of nk, so nk >= nq; without a mask nk >= 1. For backward, neighbouring segments may
 * share keys if they begin with the same key; other segments have disjoint keys in ascending order.
 *
 * Backward overwrites dq, dk and dv, with 0 where no query sees a key. lse and o may be those of a softmax
 * over more keys than are here: the gradients of all its parts then add up. delta[h,t] =
 * dout[t,h,:].o[t,h,:] is scratch that backward fills.
 *
 * No T x T matrix exists: tiles pass through each thread's own workspace. A task stacks the query heads that
 * share a key head (up to ROWS rows of queries) and walks the keys BK at a time. Storage is f32 or bf16,
 * arithmetic f32; backward recomputes the scores (counted as Cost.extra). No two tasks write to the same
 * place, and each element is summed over ascending keys or query blocks: equal bits on any number of
 * threads. */
#include "ops/cpu/cpu_rows.h"
#include "ops/cpu/tile.h"

#include <limits.h>

enum { ROWS = 192, BK = 192 };                             /* multiples of both paddings of tile.h */
enum { MAX_C = 512, MAX_C_FWD = 1024 };                    /* of backward and on a GPU; of forward here */

int64_t attention_widest_head(const char *device) { return strcmp(device, "cuda") ? MAX_C_FWD : MAX_C; }

static bool borders_fit(Tensor x, int64_t n) { return x.dtype == I32 && x.n[0] == n; }

static bool shapes_fit(Tensor q, Tensor k, Tensor v, Segments seg, int64_t widest)
{
    int64_t T = q.n[0], S = k.n[0], H = q.n[1], G = k.n[1], C = q.n[2];
    return is_heads(q, T, H, C) && is_heads(k, S, G, C) && is_heads(v, S, G, v.n[2]) && v.n[2] <= C &&
           (!seg.window || (seg.causal && seg.window > 0)) && G > 0 && H % G == 0 && H / G <= ROWS &&
               C >= 1 && C <= widest && T < INT_MAX / 2 && S < INT_MAX / 2 &&
           borders_fit(seg.starts, seg.n + 1) && (t_has(seg.kv_starts) || (S == T && !t_has(seg.kv_used))) &&
           (!t_has(seg.kv_starts) || borders_fit(seg.kv_starts, seg.n + 1)) &&
           (!t_has(seg.kv_used) || borders_fit(seg.kv_used, seg.n));
}

Cost attention_fwd_cost(Backend *be, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Segments seg,
                        float scale)
{
    int64_t T = q.n[0], H = q.n[1], C = q.n[2];
    int64_t widest = attention_widest_head(be->device->name);
    REQUIRE(shapes_fit(q, k, v, seg, widest) && is_heads(o, T, H, v.n[2]) && is_rows_f32(lse, H, T),
            "attention_fwd: o%s lse%s q%s k%s v%s starts%s", t_fmt(o), t_fmt(lse), t_fmt(q), t_fmt(k),
            t_fmt(v), t_fmt(seg.starts));
    int64_t keys = t_has(seg.kv_starts) ? seg.keys : T;
    int64_t size = C * (int64_t)dtype_size((DType)k.dtype) + v.n[2] * (int64_t)dtype_size((DType)v.dtype);
    return (Cost){ .flops = 2.0 * (double)(H * (C + v.n[2])) * seg.pairs,
                   .rd    = t_bytes(q) + keys * k.n[1] * size,
                   .wr    = t_bytes(o) + t_bytes(lse) };
}

int64_t attention_bwd_workspace(const AttentionWork *w)
{
    const int64_t matrix = (int64_t)2 << 30;
    bool    vision = !w->causal && w->H == w->G && (w->C == 64 || w->C == 72 || w->C == 80);
    bool    fused = !w->repeat && vision && w->C == 72;
    int64_t docs = w->docs > ATTENTION_DOCS ? w->docs : ATTENTION_DOCS;
    int64_t row = w->H * w->C * 4, sums = (fused ? w->T / 64 * 64 + 64 * docs : w->T) * row;
    int64_t heads = (w->H == w->G ? 0 : w->T * row) + w->T * w->G * w->C * 4;    /* copies of v and dv */
    if (fused) return sums;
    if (vision || (w->repeat && 2.0 * w->H * w->longest * w->longest > matrix)) return 0;
    return heads + (w->repeat && sums < matrix ? matrix : sums);
}

static int64_t workspace_of(const Backend *be, Tensor q, Tensor k, Segments seg)
{
    AttentionWork w = { .T = q.n[0], .docs = seg.n, .longest = seg.longest, .H = q.n[1], .G = k.n[1],
                        .C = q.n[2], .causal = seg.causal, .repeat = be->repeat };
    return q.dtype != BF16 || t_has(seg.kv_starts) || !seg.n ? 0 : attention_bwd_workspace(&w);
}

Cost attention_bwd_cost(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor delta, Tensor dout, Tensor o,
                        Tensor lse, Tensor q, Tensor k, Tensor v, Segments seg, float scale)
{
    int64_t T = q.n[0], S = k.n[0], H = q.n[1], G = k.n[1], C = q.n[2];
    REQUIRE(shapes_fit(q, k, v, seg, MAX_C), "attention_bwd: q%s k%s v%s starts%s", t_fmt(q), t_fmt(k),
            t_fmt(v), t_fmt(seg.starts));
    REQUIRE(is_heads(dq, T, H, C) && is_heads(dk, S, G, C) && is_heads(dv, S, G, v.n[2]) &&
            is_heads(dout, T, H, v.n[2]) && is_heads(o, T, H, v.n[2]) && is_rows_f32(lse, H, T) &&
            is_rows_f32(delta, H, T),
            "attention_bwd: dq%s dk%s dv%s delta%s dout%s o%s lse%s of q%s", t_fmt(dq), t_fmt(dk), t_fmt(dv),
            t_fmt(delta), t_fmt(dout), t_fmt(o), t_fmt(lse), t_fmt(q));
    return (Cost){ .flops = 4.0 * (double)(H * (C + v.n[2])) * seg.pairs,
                   .extra = 2.0 * (double)(H * C) * seg.pairs,
                   .rd    = t_bytes(q) + t_bytes(k) + t_bytes(v) + t_bytes(dout) + t_bytes(o) + t_bytes(lse),
                   .wr    = t_bytes(dq) + t_bytes(dk) + t_bytes(dv),
                   .workspace = workspace_of(be, q, k, seg) };
}

static char *head_ptr(Tensor t, int64_t head, int64_t row)
{
    return (char *)t.data + (row * t.s[0] + head * t.s[1]) * (int64_t)dtype_size((DType)t.dtype);
}

/* Rows row .. row + rows - 1 of one head. */
static TileSource head_rows(Tensor t, int64_t head, int64_t row, int64_t rows)
{
    return (TileSource){ head_ptr(t, head, row), t.s[0], rows, t.n[2], (DType)t.dtype };
}

static void head_write(Tensor t, int64_t head, int64_t row, const float *src, int64_t ld, int64_t rows)
{
    tile_write(head_ptr(t, head, row), (DType)t.dtype, t.s[0], src, ld, rows, t.n[2]);
}

/* Rows from .. to - 1 of all heads = 0. */
static void zero_rows(Tensor t, int64_t from, int64_t to)
{
    for (int64_t r = from; r < to; r++)
        for (int64_t h = 0; h < t.n[1]; h++)
            memset(head_ptr(t, h, r), 0, (size_t)t.n[2] * dtype_size((DType)t.dtype));
}


/* Multiplications (pairs x head width x heads) under which waking other threads costs more than they save. */
#define SMALL 1e6

/* Queries per task: as many as stack to ROWS. */
static int32_t query_rows(int64_t group) { return (int32_t)(ROWS / group); }

typedef struct Mask { bool causal; int64_t window; } Mask;

static Mask mask_of(Segments seg) { return (Mask){ seg.causal, seg.window }; }

/* Columns of a row of scores that attend: keys k0 .. of query t up to itself. */
INLINE int64_t visible(int64_t cols, bool causal, int64_t t, int64_t k0)
{
    return !causal || t - k0 >= cols ? cols : t < k0 ? 0 : t - k0 + 1;
}

/* The first of these columns: the window of query t ends with t itself. */
INLINE int64_t window_from(int64_t seen, int64_t window, int64_t t, int64_t k0)
{
    int64_t from = window ? t - window + 1 - k0 : 0;
    return from < 0 ? 0 : from < seen ? from : seen;
}

/* The first tile of keys from k0 on that query t or a later one sees. */
INLINE int64_t first_tile(int64_t k0, int64_t window, int64_t t)
{
    int64_t skip = window ? t - window + 1 - k0 : 0;
    return skip > 0 ? k0 + skip / BK * BK : k0;
}

/* Work lists live in the shared workspace, longest segments first so that dynamic scheduling ends evenly.
 * A list is cut over rows alone; its tasks run once per head. */
typedef struct Task {
    int32_t q0, q1, k0, k1;   /* the task's queries and keys */
    int32_t ahead;            /* forward: distance from a query's row to its last visible key */
    int32_t first, last;      /* backward: first and last segment of the queries */
    bool    dq, dkv;          /* which gradients backward computes */
} Task;

static void add_task(Backend *be, int64_t *count, Task t)
{
    REQUIRE((size_t)(*count + 1) * sizeof t <= CPU_SHARED, "attention: over %lld tasks", (long long)*count);
    ((Task *)cpu_shared(be))[(*count)++] = t;
}

/* ---- forward ---- */

/* Turns scores s into exp(s - max), masked ones into 0, and rescales max, sum and the output o so far. Row r
 * is of head r / n and sees keys up to q0 + r % n. */
HOT static void softmax_tile(float *s, float *max, float *sum, float *o, int64_t rows, int64_t n,
                             int64_t cols, int64_t W, Mask mask, int64_t q0, int64_t k0)
{
    for (int64_t r = 0; r < rows; r++, s += BK, o += W) {
        int64_t seen = visible(cols, mask.causal, q0 + r % n, k0);
        int64_t from = window_from(seen, mask.window, q0 + r % n, k0);
        float   top = max[r], total = 0.0f;
        #pragma omp simd reduction(max : top)
        for (int64_t c = from; c < seen; c++) top = s[c] > top ? s[c] : top;
        #pragma omp simd reduction(+ : total)
        for (int64_t c = from; c < seen; c++) total += s[c] = fast_exp(s[c] - top);
        for (int64_t c = 0; c < from; c++) s[c] = 0.0f;
        for (int64_t c = seen; c < cols; c++) s[c] = 0.0f;
        if (seen == from || top == max[r]) { sum[r] += total; continue; }
        float fade = fast_exp(max[r] - top);
        for (int64_t c = 0; c < W; c++) o[c] *= fade;
        sum[r] = sum[r] * fade + total, max[r] = top;
    }
}

static void fwd_task(float *ws, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Task t, int64_t g,
                     Mask mask, float scale)
{
    int64_t C = q.n[2], Cv = v.n[2], W = tile_cols(C), n = t.q1 - t.q0, group = q.n[1] / k.n[1],
        rows = n * group;
    int64_t h0 = g * group;
    float  *S = ws, *Q = S + ROWS * BK, *O = Q + ROWS * W, *KT = O + ROWS * W, *V = KT + BK * W;
    float   max[ROWS], sum[ROWS] = { 0 };
    for (int64_t j = 0; j < group; j++) tile_read(Q + j * n * W, W, head_rows(q, h0 + j, t.q0, n), scale);
    for (int64_t r = 0; r < rows; r++) max[r] = -INFINITY;
    memset(O, 0, (size_t)(rows * W) * sizeof *O);
    for (int64_t k0 = first_tile(t.k0, mask.window, t.q0 + t.ahead); k0 < t.k1; k0 += BK) {
        int64_t cols = min_i64(BK, t.k1 - k0);
        tile_transpose(KT, BK, head_rows(k, g, k0, cols));
        tile_read(V, W, head_rows(v, g, k0, cols), 1.0f);
        tile_mul(false, S, BK, Q, W, 1, KT, BK, rows, cols, C);
        softmax_tile(S, max, sum, O, rows, n, cols, W, mask, t.q0 + t.ahead, k0);
        tile_mul(true, O, W, S, BK, 1, V, W, rows, Cv, cols);
    }
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < Cv; c++) O[r * W + c] /= sum[r];
        ((float *)row_ptr(lse, h0 + r / n))[t.q0 + r % n] = max[r] + logf(sum[r]);
    }
    for (int64_t j = 0; j < group; j++) head_write(o, h0 + j, t.q0, O + j * n * W, W, n);
}

/* Rows of keys that segment i has. */
typedef struct Span { int32_t from, to; } Span;

static Span keys_of(Segments seg, int64_t i)
{
    const int32_t *at = t_has(seg.kv_starts) ? seg.kv_starts.data : seg.starts.data, *used = seg.kv_used.data;
    return (Span){ at[i], used ? at[i] + used[i] : at[i + 1] };
}

/* Query blocks of all segments; under a causal mask the last blocks of a segment have the most keys. */
static int64_t fwd_tasks(Backend *be, Segments seg, int32_t n)
{
    const int32_t *at = seg.starts.data;
    int64_t count = 0;
    for (int64_t longest = INT_MAX; longest > 0; longest /= 2) {
        for (int64_t i = 0; i < seg.n; i++) {
            int32_t b = at[i], e = at[i + 1];
            Span    k = keys_of(seg, i);
            if (b == e || k.to - k.from > longest || k.to - k.from <= longest / 2) continue;
            for (int32_t q = b + (e - b - 1) / n * n; q >= b; q -= n) {
                int32_t end = (int32_t)min_i64(q + n, e);
                add_task(be, &count, (Task){ .q0 = q, .q1 = end, .k0 = k.from, .ahead = k.to - e,
                                             .k1 = seg.causal ? end + k.to - e : k.to });
            }
        }
    }
    return count;
}

static void check_keys(Segments seg, int64_t rows)
{
    const int32_t *at = seg.starts.data;
    for (int64_t i = 0; i < seg.n; i++) {
        Span    k = keys_of(seg, i);
        int32_t n = k.to - k.from, queries = at[i + 1] - at[i];
        REQUIRE(k.from >= 0 && k.to <= rows && n >= (seg.causal ? queries : queries > 0),
                "attention: segment %lld has keys %d .. %d of %lld for %d queries", (long long)i, k.from,
                k.to, (long long)rows, queries);
    }
}

void cpu_attention_fwd(Backend *be, Tensor o, Tensor lse, Tensor q, Tensor k, Tensor v, Segments seg,
                       float scale)
{
    const int32_t *at = seg.starts.data;
    const Task    *tasks = (Task *)cpu_shared(be);
    int64_t T = q.n[0], H = q.n[1], G = k.n[1], count;
    check_keys(seg, k.n[0]);
    count = fwd_tasks(be, seg, query_rows(H / G));
    zero_rows(o, 0, at[0]), zero_rows(o, at[seg.n], T);
    for (int64_t h = 0; h < H; h++) {
        float *row = (float *)row_ptr(lse, h);
        memset(row, 0, (size_t)at[0] * sizeof *row);
        memset(row + at[seg.n], 0, (size_t)(T - at[seg.n]) * sizeof *row);
    }
    #pragma omp parallel for schedule(dynamic) if (seg.pairs * (double)(H * q.n[2]) > SMALL)
    for (int64_t i = 0; i < count * G; i++) {
        activity_mark();
        fwd_task(cpu_own(be), o, lse, q, k, v, tasks[i / G], i % G, mask_of(seg), scale);
    }
}

/* ---- backward ---- */

HOT static void delta_rows(Tensor delta, Tensor dout, Tensor o, int64_t t)
{
    float d[MAX_C], y[MAX_C];
    for (int64_t h = 0; h < o.n[1]; h++) {
        float sum = 0.0f;
        tile_read(d, MAX_C, head_rows(dout, h, t, 1), 1.0f);
        tile_read(y, MAX_C, head_rows(o, h, t, 1), 1.0f);
        #pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < o.n[2]; c++) sum += d[c] * y[c];
        ((float *)row_ptr(delta, h))[t] = sum;
    }
}

/* Scores s and products ds = dout.v become probabilities and gradients of the unscaled scores; the padding of
 * the columns becomes 0, because its rows in dk and dv belong to other keys. */
HOT static void gradient_tile(float *s, float *ds, const float *lse, const float *delta, int64_t rows,
                              int64_t n, int64_t cols, Mask mask, int64_t q0, int64_t k0)
{
    for (int64_t r = 0; r < rows; r++, s += BK, ds += BK) {
        int64_t seen = visible(cols, mask.causal, q0 + r % n, k0);
        int64_t from = window_from(seen, mask.window, q0 + r % n, k0);
        for (int64_t c = 0; c < from; c++) s[c] = ds[c] = 0.0f;
        for (int64_t c = from; c < seen; c++) {
            s[c]  = fast_exp(s[c] - lse[r]);
            ds[c] = s[c] * (ds[c] - delta[r]);
        }
        for (int64_t c = seen; c < tile_rows(cols); c++) s[c] = ds[c] = 0.0f;
    }
}

typedef struct Grads { Tensor dq, dk, dv, delta, dout, lse, q, k, v; Segments seg; float scale; } Grads;

/* A task's tiles in a thread's workspace. */
typedef struct Tiles { float *S, *dS, *Q, *dO, *dQ, *K, *KT, *VT, *dK, *dV; } Tiles;

static Tiles tiles_of(float *ws, int64_t W, int64_t keys)
{
    Tiles r = { .S = ws };
    r.dS = r.S + ROWS * BK, r.Q = r.dS + ROWS * BK, r.dO = r.Q + ROWS * W, r.dQ = r.dO + ROWS * W;
    r.K = r.dQ + ROWS * W, r.KT = r.K + BK * W, r.VT = r.KT + BK * W, r.dK = r.VT + BK * W;
    r.dV = r.dK + tile_rows(keys) * W;
    return r;
}

/* Queries q of one segment and key head g with the task's keys up to `end`: dq is summed over the keys, dk
 * and dv over the queries and the query heads that share the key head. q carries the scale, so that dk needs
 * none; dq gets it at last. */
static void bwd_rows(const Tiles *m, const Grads *x, Task t, int64_t g, Span q, int64_t end, int64_t ahead)
{
    int64_t C = x->q.n[2], Cv = x->v.n[2], W = tile_cols(C), group = x->q.n[1] / x->k.n[1], h0 = g * group;
    int64_t step = query_rows(group);
    Mask    mask = mask_of(x->seg);
    float   lse[ROWS], delta[ROWS];
    for (int64_t q0 = q.from; q0 < q.to; q0 += step) {
        int64_t n = min_i64(step, q.to - q0), rows = n * group;
        int64_t last = mask.causal ? min_i64(end, q0 + n + ahead) : end;
        for (int64_t j = 0; j < group; j++) {
            tile_read(m->Q + j * n * W, W, head_rows(x->q, h0 + j, q0, n), x->scale);
            tile_read(m->dO + j * n * W, W, head_rows(x->dout, h0 + j, q0, n), 1.0f);
            memcpy(lse + j * n, (float *)row_ptr(x->lse, h0 + j) + q0, (size_t)n * sizeof *lse);
            memcpy(delta + j * n, (float *)row_ptr(x->delta, h0 + j) + q0, (size_t)n * sizeof *delta);
        }
        if (t.dq) memset(m->dQ, 0, (size_t)(rows * W) * sizeof *m->dQ);
        for (int64_t k0 = first_tile(t.k0, mask.window, q0 + ahead); k0 < last; k0 += BK) {
            int64_t cols = min_i64(BK, last - k0), at = (k0 - t.k0) * W;
            tile_transpose(m->KT, BK, head_rows(x->k, g, k0, cols));
            tile_transpose(m->VT, BK, head_rows(x->v, g, k0, cols));
            tile_mul(false, m->S, BK, m->Q, W, 1, m->KT, BK, rows, cols, C);
            tile_mul(false, m->dS, BK, m->dO, W, 1, m->VT, BK, rows, cols, Cv);
            gradient_tile(m->S, m->dS, lse, delta, rows, n, cols, mask, q0 + ahead, k0);
            if (t.dkv) tile_mul(true, m->dV + at, W, m->S, 1, BK, m->dO, W, cols, Cv, rows);
            if (t.dkv) tile_mul(true, m->dK + at, W, m->dS, 1, BK, m->Q, W, cols, C, rows);
            if (!t.dq) continue;
            tile_read(m->K, W, head_rows(x->k, g, k0, cols), 1.0f);
            tile_mul(true, m->dQ, W, m->dS, BK, 1, m->K, W, rows, C, cols);
        }
        if (!t.dq) continue;
        for (int64_t i = 0; i < rows * W; i++) m->dQ[i] *= x->scale;
        for (int64_t j = 0; j < group; j++) head_write(x->dq, h0 + j, q0, m->dQ + j * n * W, W, n);
    }
}

static void bwd_task(float *ws, const Grads *x, Task t, int64_t g)
{
    const int32_t *at = x->seg.starts.data;
    int64_t W = tile_cols(x->q.n[2]), n = query_rows(x->q.n[1] / x->k.n[1]), keys = t.k1 - t.k0;
    Tiles    m = tiles_of(ws, W, keys);
    if (t.dkv) memset(m.dK, 0, (size_t)(2 * tile_rows(keys) * W) * sizeof *m.dK);
    for (int32_t i = t.first; i <= t.last; i++) {
        Span    k = keys_of(x->seg, i);
        Span    q = { max_int(at[i], t.q0), min_int(at[i + 1], t.q1) };
        int32_t ahead = k.to - at[i + 1], skip = t.k0 - ahead - q.from;
        if (!t.dq && x->seg.causal && skip > 0) q.from += (int32_t)(skip / n * n);   /* they see none */
        bwd_rows(&m, x, t, g, q, min_i64(t.k1, k.to), ahead);
    }
    if (t.dkv) head_write(x->dk, g, t.k0, m.dK, W, keys), head_write(x->dv, g, t.k0, m.dV, W, keys);
}

/* The last segment that begins with the same key as `first` in the KV cache; keys: the keys of all of
 * them. */
static int64_t sharers(Segments seg, int64_t first, Span *keys)
{
    int64_t last = first;
    *keys = keys_of(seg, first);
    for (; t_has(seg.kv_starts) && last + 1 < seg.n; last++) {
        Span k = keys_of(seg, last + 1);
        if (k.from != keys->from) break;
        if (k.to > keys->to) keys->to = k.to;
    }
    return last;
}

/* Cuts the keys that segments first .. last share, with all their queries, into tasks. If a whole head is a
 * fair share of the work, and its sums fit the workspace, it is one task per head, which computes its scores
 * once. Otherwise it is cut twice, by keys for dk and dv and by queries for dq; tiles, order and bits are the
 * same. */
static void bwd_cut(Backend *be, int64_t *count, const int32_t *at, Task all, int32_t n, bool whole)
{
    if (whole) {
        all.dq = all.dkv = true;
        add_task(be, count, all);
        return;
    }
    for (int32_t k = all.k0; k < all.k1; k += BK) {
        Task t = all;
        t.k0 = k, t.k1 = (int32_t)min_i64(k + BK, all.k1), t.dkv = true;
        add_task(be, count, t);
    }
    for (int32_t i = all.last; i >= all.first; i--)
        for (int32_t b = at[i], e = at[i + 1], q = b + (e - b - 1) / n * n; e > b && q >= b; q -= n) {
            Task t = all;
            t.q0 = q, t.q1 = (int32_t)min_i64(q + n, e), t.first = t.last = i, t.dq = true;
            add_task(be, count, t);
        }
}

static int64_t bwd_tasks(Backend *be, Segments seg, int64_t G, int32_t n, int64_t W)
{
    const int32_t *at = seg.starts.data;
    int64_t count = 0, fit = (int64_t)(CPU_OWN / sizeof(float)) - 2 * ROWS * BK - (3 * ROWS + 3 * BK) * W;
    double  share = 0;
    for (int64_t i = 0; i < seg.n; i++) {
        Span k = keys_of(seg, i);
        share += (double)(at[i + 1] - at[i]) * (double)(k.to - k.from);
    }
    share *= (double)G / omp_get_max_threads();
    for (int64_t longest = INT_MAX; longest > 0; longest /= 2)
        for (int64_t i = 0, last; i < seg.n; i = last + 1) {
            Span    k;
            last = sharers(seg, i, &k);
            int32_t b = at[i], e = at[last + 1], keys = k.to - k.from;
            if (b == e || keys > longest || keys <= longest / 2) continue;
            bool whole = (double)(e - b) * keys <= share && 2 * tile_rows(keys) * W <= fit;
            bwd_cut(be, &count, at, (Task){ .q0 = b, .q1 = e, .k0 = k.from, .k1 = k.to, .first = (int32_t)i,
                                            .last = (int32_t)last }, n, whole);
        }
    return count;
}

static void check_apart(Segments seg)
{
    for (int64_t i = 0, end = 0, last; i < seg.n; i = last + 1) {
        Span k;
        last = sharers(seg, i, &k);
        REQUIRE(k.from >= end, "attention_bwd: keys of segment %lld lie in those before", (long long)i);
        end = k.to;
    }
}

void cpu_attention_bwd(Backend *be, Tensor dq, Tensor dk, Tensor dv, Tensor delta, Tensor dout, Tensor o,
                       Tensor lse, Tensor q, Tensor k, Tensor v, Segments seg, float scale)
{
    const int32_t *at = seg.starts.data;
    const Task    *tasks = (Task *)cpu_shared(be);
    const Tensor   outs[] = { dq, dk, dv };
    const Grads    x = { dq, dk, dv, delta, dout, lse, q, k, v, seg, scale };
    int64_t T = q.n[0], G = k.n[1], count;
    bool    large = seg.pairs * (double)(q.n[1] * q.n[2]) > SMALL, elsewhere = t_has(seg.kv_starts);
    check_keys(seg, k.n[0]);
    check_apart(seg);
    count = bwd_tasks(be, seg, G, query_rows(q.n[1] / G), tile_cols(q.n[2]));
    for (int i = 0; i < 3; i++) {
        if (i > 0 && elsewhere) zero_rows(outs[i], 0, k.n[0]);
        else                    zero_rows(outs[i], 0, at[0]), zero_rows(outs[i], at[seg.n], T);
    }
    #pragma omp parallel for if (large)
    for (int64_t t = 0; t < T; t++) delta_rows(delta, dout, o, t);
    #pragma omp parallel for schedule(dynamic) if (large)
    for (int64_t i = 0; i < count * G; i++) {
        activity_mark();
        bwd_task(cpu_own(be), &x, tasks[i / G], i % G);
    }
}
