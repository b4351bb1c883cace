/* ops/permute.c -- rows from token order to expert order and back: contract, cost, CPU.
 *
 *   sort_by_expert slots (t, k) sorted by expert, in slot order within one: expert e owns the sorted rows
 *                  offsets[e] .. offsets[e+1] - 1; rows[t,k] = sorted row of slot (t, k), src[r] = t K + k.
 *                  A slot with no expert (idx < 0 or >= E) has rows = -1; src past offsets[E] is -1.
 *   gather_rows    y[i] = x[src[i] / div], a zero row where src[i] < 0
 *   scatter_rows   y[rows[i]] = x[i], or += with add; rows[i] < 0 is skipped, the others are distinct
 *   expand_rows    y[rows[t,k]] = x[t]; rows < 0 are skipped, the others are distinct
 *   combine        y[t] = sum_k x[rows[t,k]] + res[t]; rows < 0 are skipped, res may be absent
 *
 * offsets (E + 1), rows and idx (T, K), src (T K): i32. Matrices are f32 or bf16, of one dtype in a call;
 * gather_rows and expand_rows, which only move, take i32 too.
 * Sums run in f32 in slot order, res last, and round once. y of combine may alias res. */
#include "ops/cpu/cpu_rows.h"

static bool is_index(Tensor t) { return t.dtype == I32 && t_dense(t); }
static bool movable(Tensor y, Tensor x)       /* matrices whose rows can be copied */
{
    return (is_float(x) || x.dtype == I32) && x.rank == 2 && y.rank == 2 && y.dtype == x.dtype &&
           y.n[1] == x.n[1];
}
static bool alike(Tensor y, Tensor x) { return is_float(x) && movable(y, x); }

Cost sort_by_expert_cost(Backend *be, Tensor offsets, Tensor rows, Tensor src, Tensor idx)
{
    REQUIRE(is_index(offsets) && is_index(rows) && is_index(src) && is_index(idx) && t_count(offsets) >= 2 &&
            t_same(rows, idx) && t_count(src) == t_count(idx),
            "sort_by_expert: offsets %s rows %s src %s idx %s",
            t_fmt(offsets), t_fmt(rows), t_fmt(src), t_fmt(idx));
    return (Cost){ .rd = t_bytes(idx), .wr = t_bytes(offsets) + t_bytes(rows) + t_bytes(src) };
}

Cost gather_rows_cost(Backend *be, Tensor y, Tensor x, Tensor src, int64_t div)
{
    REQUIRE(movable(y, x) && is_index(src) && t_count(src) == y.n[0] && div >= 1,
            "gather_rows: y %s x %s src %s div %lld", t_fmt(y), t_fmt(x), t_fmt(src), (long long)div);
    int64_t once = t_bytes(x) < t_bytes(y) ? t_bytes(x) : t_bytes(y);
    return (Cost){ .rd = once + t_bytes(src), .wr = t_bytes(y) };
}

Cost scatter_rows_cost(Backend *be, Tensor y, Tensor x, Tensor rows, bool add)
{
    REQUIRE(alike(y, x) && is_index(rows) && t_count(rows) == x.n[0],
            "scatter_rows: y %s x %s rows %s", t_fmt(y), t_fmt(x), t_fmt(rows));
    return (Cost){ .flops = add ? (double)t_count(x) : 0.0,
                   .rd    = t_bytes(x) * (add ? 2 : 1) + t_bytes(rows),
                   .wr    = t_bytes(x) };
}

/* In chunked expert execution each chunk has its share of all rows. */
static int64_t shares(const Backend *be) { return be->ledger.shares > 1 ? be->ledger.shares : 1; }

Cost expand_rows_cost(Backend *be, Tensor y, Tensor x, Tensor rows)
{
    REQUIRE(movable(y, x) && is_index(rows) && rows.rank == 2 && rows.n[0] == x.n[0],
            "expand_rows: y %s x %s rows %s", t_fmt(y), t_fmt(x), t_fmt(rows));
    return (Cost){ .rd = t_bytes(x) + t_bytes(rows), .wr = t_bytes(y) / shares(be) };
}

Cost combine_cost(Backend *be, Tensor y, Tensor x, Tensor rows, Tensor res)
{
    REQUIRE(alike(y, x) && is_index(rows) && rows.rank == 2 && rows.n[0] == y.n[0] &&
            (!t_has(res) || t_same(res, y)),
            "combine: y %s x %s rows %s res %s", t_fmt(y), t_fmt(x), t_fmt(rows), t_fmt(res));
    int64_t own   = x.n[0] / shares(be), most = t_count(rows) < own ? t_count(rows) : own;
    int64_t taken = most * row_width(x), size = (int64_t)dtype_size((DType)x.dtype);
    return (Cost){ .flops = (double)taken,
                   .rd    = taken * size + t_bytes(rows) + opt_bytes(res),
                   .wr    = t_bytes(y) };
}

/* Slots are cut into chunks that are counted and placed in parallel; `at` (chunks, E) holds first the slots
 * of each chunk and expert, then the position of the next of them. */
static void count_chunk(int32_t *at, const int32_t *idx, int64_t from, int64_t to, int64_t E)
{
    memset(at, 0, (size_t)E * sizeof *at);
    for (int64_t i = from; i < to; i++)
        if (idx[i] >= 0 && idx[i] < E) at[idx[i]]++;
}

static void place_chunk(int32_t *at, int32_t *rows, int32_t *src, const int32_t *idx, int64_t from,
                        int64_t to, int64_t E)
{
    for (int64_t i = from; i < to; i++) {
        rows[i] = idx[i] >= 0 && idx[i] < E ? at[idx[i]]++ : -1;
        if (rows[i] >= 0) src[rows[i]] = (int32_t)i;
    }
}

void cpu_sort_by_expert(Backend *be, Tensor offsets, Tensor rows, Tensor src, Tensor idx)
{
    int64_t        R = t_count(idx), E = t_count(offsets) - 1;
    int            chunks = R < 16384 || R < CPU_CHUNKS * E ? 1 : CPU_CHUNKS;
    const int32_t *e = idx.data;
    int32_t       *at = (int32_t *)cpu_shared(be), *off = offsets.data, total = 0;
    #pragma omp parallel for schedule(static) if(chunks > 1)
    for (int c = 0; c < chunks; c++) count_chunk(at + c * E, e, R * c / chunks, R * (c + 1) / chunks, E);
    for (int64_t x = 0; x < E; x++) {
        off[x] = total;
        for (int c = 0; c < chunks; c++) {
            int32_t n = at[c * E + x];
            at[c * E + x] = total, total += n;
        }
    }
    off[E] = total;
    #pragma omp parallel for schedule(static) if(chunks > 1)
    for (int c = 0; c < chunks; c++)
        place_chunk(at + c * E, rows.data, src.data, e, R * c / chunks, R * (c + 1) / chunks, E);
    for (int64_t r = total; r < R; r++) ((int32_t *)src.data)[r] = -1;
}

/* Single-column tensors (gates): too short for memcpy by row. */
static void gather_column(Tensor y, Tensor x, const int32_t *src, int64_t div)
{
    float       *out = y.data;
    const float *in  = x.data;
    for (int64_t i = 0; i < y.n[0]; i++) out[i * y.s[0]] = src[i] < 0 ? 0.0f : in[src[i] / div * x.s[0]];
}

void cpu_gather_rows(Backend *be, Tensor y, Tensor x, Tensor src, int64_t div)
{
    const int32_t *from  = src.data;
    size_t         bytes = (size_t)row_width(y) * dtype_size((DType)y.dtype);
    if (y.n[1] == 1 && y.dtype == F32) {
        gather_column(y, x, from, div);
        return;
    }
    #pragma omp parallel for schedule(static) if(worth_threads(t_count(y)))
    for (int64_t i = 0; i < y.n[0]; i++) {
        if (from[i] >= 0) memcpy(row_ptr(y, i), row_ptr(x, from[i] / div), bytes);
        else memset(row_ptr(y, i), 0, bytes);
    }
}

void cpu_scatter_rows(Backend *be, Tensor y, Tensor x, Tensor rows, bool add)
{
    const int32_t *to = rows.data;
    int64_t        D  = row_width(x);
    #pragma omp parallel for schedule(static) if(worth_threads(t_count(x)))
    for (int64_t i = 0; i < x.n[0]; i++) {
        if (to[i] < 0) continue;
        if (!add) {
            memcpy(row_ptr(y, to[i]), row_ptr(x, i), (size_t)D * dtype_size((DType)x.dtype));
            continue;
        }
        for (int64_t c = 0; c < D; c += PIECE) {
            float   acc[PIECE];
            int64_t n = D - c < PIECE ? D - c : PIECE;
            memset(acc, 0, (size_t)n * sizeof *acc);
            piece_add(acc, y, to[i], c, n);
            piece_add(acc, x, i, c, n);
            piece_store(y, to[i], c, acc, n);
        }
    }
}

void cpu_expand_rows(Backend *be, Tensor y, Tensor x, Tensor rows)
{
    int64_t K = rows.n[1];
    size_t  bytes = (size_t)row_width(x) * dtype_size((DType)x.dtype);
    #pragma omp parallel for schedule(static) if(worth_threads(t_count(y)))
    for (int64_t t = 0; t < x.n[0]; t++) {
        const int32_t *to = (const int32_t *)rows.data + t * K;
        for (int64_t k = 0; k < K; k++)
            if (to[k] >= 0) memcpy(row_ptr(y, to[k]), row_ptr(x, t), bytes);
    }
}

void cpu_combine(Backend *be, Tensor y, Tensor x, Tensor rows, Tensor res)
{
    int64_t T = y.n[0], D = row_width(y), K = rows.n[1];
    #pragma omp parallel for schedule(static) if(worth_threads(T * D * K))
    for (int64_t t = 0; t < T; t++) {
        const int32_t *r = (const int32_t *)rows.data + t * K;
        for (int64_t c = 0; c < D; c += PIECE) {
            float   acc[PIECE];
            int64_t n = D - c < PIECE ? D - c : PIECE;
            memset(acc, 0, (size_t)n * sizeof *acc);
            for (int64_t k = 0; k < K; k++)
                if (r[k] >= 0) piece_add(acc, x, r[k], c, n);
            if (t_has(res)) piece_add(acc, res, t, c, n);
            piece_store(y, t, c, acc, n);
        }
    }
}
