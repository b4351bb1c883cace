/* ops/capacity.c -- experts with a limited number of rows: contract, cost, CPU.
 *
 *   moe_drop   kept = idx, but of the slots of an expert only the `capacity` with the largest weight stay,
 *              the first among equals; the others become -1. offsets and src are sort_by_expert's of the same
 *              idx.
 *   moe_pad    pads every expert to exactly `capacity` rows: expert e's rows begin at e capacity, so that
 *              ranks need not exchange counts. offsets, rows and src are sort_by_expert's; out becomes the
 *              new offsets, rows is changed in place, to[r] = the slot in row r, -1 in padding rows.
 *
 * kept, idx, rows (T, K) i32, weight (T, K) f32; offsets, out (E + 1) i32; src (T K) i32; to (E capacity)
 * i32. No expert has more than `capacity` rows when moe_pad is called. Weights are compared by their bits,
 * which is their order while they are not negative: the same on every device. */
#include "ops/cpu/cpu_rows.h"

#include <stdlib.h>

static bool is_list(Tensor t, DType d, int64_t n) { return t.dtype == d && t_dense(t) && t_count(t) == n; }

Cost moe_drop_cost(Backend *be, Tensor kept, Tensor idx, Tensor weight, Tensor offsets, Tensor src,
                   int64_t capacity)
{
    int64_t n = t_count(idx);
    REQUIRE(is_list(kept, I32, n) && is_list(idx, I32, n) && is_list(weight, F32, n) &&
            is_list(src, I32, n) && is_list(offsets, I32, t_count(offsets)) && capacity >= 0,
            "moe_drop: kept %s idx %s weight %s offsets %s src %s", t_fmt(kept), t_fmt(idx), t_fmt(weight),
            t_fmt(offsets), t_fmt(src));
    return (Cost){ .rd = t_bytes(idx) + t_bytes(weight) + t_bytes(src), .wr = t_bytes(kept) };
}

/* A slot with a higher priority has the smaller rank: by falling weight, then rising slot. */
static uint64_t rank_of(const float *weight, int32_t slot)
{
    uint32_t bits;
    memcpy(&bits, weight + slot, sizeof bits);
    return (uint64_t)~bits << 32 | (uint32_t)slot;
}

static int by_rank(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

void cpu_moe_drop(Backend *be, Tensor kept, Tensor idx, Tensor weight, Tensor offsets, Tensor src,
                  int64_t capacity)
{
    int64_t        E = t_count(offsets) - 1;
    const int32_t *off = offsets.data, *slot = src.data;
    uint64_t      *rank = (uint64_t *)cpu_shared(be);
    memcpy(kept.data, idx.data, (size_t)t_bytes(idx));
    for (int64_t e = 0; e < E; e++) {
        int64_t n = off[e + 1] - off[e];
        if (n <= capacity) continue;
        REQUIRE((size_t)n * sizeof *rank <= CPU_SHARED, "moe_drop: %lld slots of an expert", (long long)n);
        for (int64_t i = 0; i < n; i++) rank[i] = rank_of(weight.data, slot[off[e] + i]);
        qsort(rank, (size_t)n, sizeof *rank, by_rank);
        for (int64_t i = capacity; i < n; i++) ((int32_t *)kept.data)[(uint32_t)rank[i]] = -1;
    }
}

Cost moe_pad_cost(Backend *be, Tensor out, Tensor rows, Tensor to, Tensor offsets, Tensor src,
                  int64_t capacity)
{
    int64_t E = t_count(offsets) - 1;
    REQUIRE(is_list(out, I32, E + 1) && is_list(offsets, I32, E + 1) && is_list(to, I32, E * capacity) &&
            is_list(rows, I32, t_count(rows)) && is_list(src, I32, t_count(rows)) && out.data != offsets.data,
            "moe_pad: out %s rows %s to %s offsets %s src %s, capacity %lld", t_fmt(out), t_fmt(rows),
            t_fmt(to), t_fmt(offsets), t_fmt(src), (long long)capacity);
    return (Cost){ .rd = t_bytes(src) + t_bytes(offsets), .wr = t_bytes(out) + t_bytes(to) + t_bytes(rows) };
}

void cpu_moe_pad(Backend *be, Tensor out, Tensor rows, Tensor to, Tensor offsets, Tensor src,
                 int64_t capacity)
{
    int64_t        E = t_count(offsets) - 1;
    const int32_t *off = offsets.data, *slot = src.data;
    int32_t       *o = out.data, *t = to.data;
    for (int64_t e = 0; e < E; e++) {
        o[e] = (int32_t)(e * capacity);
        REQUIRE(off[e + 1] - off[e] <= capacity, "moe_pad: expert %lld has %d rows, capacity %lld",
                (long long)e, off[e + 1] - off[e], (long long)capacity);
        for (int64_t j = 0; j < capacity; j++) {
            int32_t s = off[e] + j < off[e + 1] ? slot[off[e] + j] : -1;
            t[o[e] + j] = s;
            if (s >= 0) ((int32_t *)rows.data)[s] = (int32_t)(o[e] + j);
        }
    }
    o[E] = (int32_t)(E * capacity);
}
