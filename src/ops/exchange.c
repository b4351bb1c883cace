/* ops/exchange.c -- bookkeeping of expert dispatch: routing tags, owner masks, row numbers. Contract, cost,
 * CPU.
 *
 * A tag travels with each row: for each of its K slots a key and the bits of its gate. key = expert * times +
 * plus names the expert and the slot's origin; a negative key is a slot without an expert.
 *
 *   moe_pack            meta[t] = the keys of idx[t,:], then weight[t,:]; a slot with idx < 0 gets key -1
 *   moe_unpack          key = the keys of meta minus base, gate = the gates of meta (gate may be absent)
 *   expert_owner_mask   which destinations a row goes to. Members (ranks of the expert group) own keys: `etp`
 *                       consecutive members, a tensor-parallel group of experts, own `keys` consecutive keys,
 *                       so key v belongs to members v / keys * etp .. v / keys * etp + etp - 1. Destination g
 *                       is members first + g members .. first + (g + 1) members - 1, for g < G. mask[t,g] = g
 *                       if a slot of row t belongs to a member of destination g, else -1.
 *   moe_regroup         received rows are ordered by source, then expert, count[s,e] of them; rows[i] =
 *                       position of the i-th received row in the order by expert, then source. Expert e's
 *                       rows begin at offsets[e]. Entries of rows beyond the sum of the counts are not
 *                       written.
 *   expand_etp_rows     each of P tensor-parallel members of an expert has its own copy of a row, `stride`
 *                       rows apart: out[t, k P + p] = rows[t,k] + p stride, or -1 where rows[t,k] < 0
 *
 * meta (T, 2K); key, idx (T, K); mask (T, G); count (S, E); offsets (E + 1); rows (T, K); out (T, K P): dense
 * i32. gate, weight (T, K): dense f32. */
#include "ops/cpu/cpu_rows.h"

static bool dense2(Tensor t, DType d, int64_t rows, int64_t cols)
{
    return t.dtype == d && t.rank == 2 && t.n[0] == rows && t.n[1] == cols && t_dense(t);
}

Cost moe_pack_cost(Backend *be, Tensor meta, Tensor idx, Tensor weight, int64_t times, int64_t plus)
{
    int64_t T = idx.n[0], K = idx.n[1];
    REQUIRE(dense2(idx, I32, T, K) && dense2(weight, F32, T, K) && dense2(meta, I32, T, 2 * K) && times >= 1,
            "moe_pack: meta %s idx %s weight %s", t_fmt(meta), t_fmt(idx), t_fmt(weight));
    return (Cost){ .rd = t_bytes(idx) + t_bytes(weight), .wr = t_bytes(meta) };
}

void cpu_moe_pack(Backend *be, Tensor meta, Tensor idx, Tensor weight, int64_t times, int64_t plus)
{
    int64_t        T = idx.n[0], K = idx.n[1];
    const int32_t *e = idx.data;
    int32_t       *out = meta.data;
    for (int64_t t = 0; t < T; t++, e += K, out += 2 * K) {
        for (int64_t k = 0; k < K; k++) out[k] = e[k] < 0 ? -1 : (int32_t)(e[k] * times + plus);
        memcpy(out + K, (const float *)weight.data + t * K, (size_t)K * 4);
    }
}

Cost moe_unpack_cost(Backend *be, Tensor key, Tensor gate, Tensor meta, int64_t base)
{
    int64_t A = key.n[0], K = key.n[1];
    REQUIRE(dense2(key, I32, A, K) && dense2(meta, I32, A, 2 * K) &&
            (!t_has(gate) || dense2(gate, F32, A, K)),
            "moe_unpack: key %s gate %s meta %s", t_fmt(key), t_fmt(gate), t_fmt(meta));
    return (Cost){ .rd = t_bytes(meta), .wr = t_bytes(key) + opt_bytes(gate) };
}

void cpu_moe_unpack(Backend *be, Tensor key, Tensor gate, Tensor meta, int64_t base)
{
    int64_t        A = key.n[0], K = key.n[1];
    const int32_t *in = meta.data;
    int32_t       *out = key.data;
    for (int64_t a = 0; a < A; a++, in += 2 * K, out += K) {
        for (int64_t k = 0; k < K; k++) out[k] = in[k] < 0 ? -1 : (int32_t)(in[k] - base);
        if (t_has(gate)) memcpy((float *)gate.data + a * K, in + K, (size_t)K * 4);
    }
}

Cost expert_owner_mask_cost(Backend *be, Tensor mask, Tensor key, int64_t keys, int64_t etp, int64_t first,
                            int64_t members)
{
    REQUIRE(dense2(key, I32, key.n[0], key.n[1]) && dense2(mask, I32, key.n[0], mask.n[1]) && keys >= 1 &&
            etp >= 1 && first >= 0 && members >= 1,
            "expert_owner_mask: mask %s key %s", t_fmt(mask), t_fmt(key));
    return (Cost){ .rd = t_bytes(key), .wr = t_bytes(mask) };
}

void cpu_expert_owner_mask(Backend *be, Tensor mask, Tensor key, int64_t keys, int64_t etp, int64_t first,
                           int64_t members)
{
    int64_t A = key.n[0], K = key.n[1], G = mask.n[1];
    #pragma omp parallel for schedule(static) if(worth_threads(A * (K + G)))
    for (int64_t a = 0; a < A; a++) {
        const int32_t *v = (const int32_t *)key.data + a * K;
        int32_t       *out = (int32_t *)mask.data + a * G;
        for (int64_t g = 0; g < G; g++) out[g] = -1;
        for (int64_t k = 0; k < K; k++) {
            int64_t from = v[k] < 0 ? 0 : v[k] / keys * etp, to = v[k] < 0 ? 0 : from + etp;
            for (int64_t m = max_i64(from, first); m < to && (m - first) / members < G; m++)
                out[(m - first) / members] = (int32_t)((m - first) / members);
        }
    }
}

Cost moe_regroup_cost(Backend *be, Tensor offsets, Tensor rows, Tensor count)
{
    REQUIRE(dense2(count, I32, count.n[0], count.n[1]) && offsets.dtype == I32 && t_dense(offsets) &&
            t_count(offsets) == count.n[1] + 1 && rows.dtype == I32 && t_dense(rows),
            "moe_regroup: offsets %s rows %s count %s", t_fmt(offsets), t_fmt(rows), t_fmt(count));
    return (Cost){ .rd = t_bytes(count), .wr = t_bytes(offsets) + t_bytes(rows) };
}

void cpu_moe_regroup(Backend *be, Tensor offsets, Tensor rows, Tensor count)
{
    int64_t        S = count.n[0], E = count.n[1], capacity = t_count(rows), i = 0;
    const int32_t *n = count.data;
    int32_t       *off = offsets.data, *to = rows.data, *next = (int32_t *)cpu_shared(be), total = 0;
    for (int64_t e = 0; e < E; e++) {
        off[e] = total;
        for (int64_t s = 0; s < S; s++) next[s * E + e] = total, total += n[s * E + e];
    }
    off[E] = total;
    REQUIRE(total <= capacity, "moe_regroup: %d rows in %s", total, t_fmt(rows));
    for (int64_t c = 0; c < S * E; c++)
        for (int32_t j = 0; j < n[c]; j++) to[i++] = next[c] + j;
}

Cost expand_etp_rows_cost(Backend *be, Tensor out, Tensor rows, int64_t stride)
{
    int64_t T = rows.n[0], K = rows.n[1];
    REQUIRE(dense2(rows, I32, T, K) && dense2(out, I32, T, out.n[1]) && K && out.n[1] % K == 0,
            "expand_etp_rows: out %s rows %s", t_fmt(out), t_fmt(rows));
    return (Cost){ .rd = t_bytes(rows), .wr = t_bytes(out) };
}

void cpu_expand_etp_rows(Backend *be, Tensor out, Tensor rows, int64_t stride)
{
    const int32_t *r = rows.data;
    int32_t       *o = out.data;
    int64_t        P = out.n[1] / rows.n[1];
    for (int64_t i = 0; i < t_count(rows); i++)
        for (int64_t p = 0; p < P; p++) o[i * P + p] = r[i] < 0 ? -1 : (int32_t)(r[i] + p * stride);
}
