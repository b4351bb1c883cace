/* ops/exchange.c -- what ranks need to know to send rows to each other's experts: contract, price, CPU.
 *
 * A tag is what travels beside a row: for each of its K slots a key and the bits of its gate. A key names the
 * expert and who asks, key = expert * times + plus, or is negative: then the slot has no expert.
 *
 *   moe_pack      meta[t] = keys of idx[t,:], then weight[t,:]; a slot with idx < 0 gets key -1
 *   moe_unpack    key = the keys of meta less base, gate = its gates (gate may be absent)
 *   expert_owner_mask     Experts are spread over members in groups of `wide`: keys unit i .. unit (i+1) - 1 are of
 *                 members wide i .. wide (i+1) - 1, and blocks of `block` members from member `from` on are G
 *                 places. hit[t,g] = g if a slot of row t is of a member of place g, else -1.
 *   moe_regroup   rows that came by source and within one by expert, count[s,e] of them, change to by expert
 *                 and within one by source: rows[i] = new row of the i-th that came; expert e's begin at
 *                 offsets[e]. rows may be longer than the counts' sum: what is past it stays.
 *   expand_etp_rows    out[t, k P + p] = rows[t,k] + p stride, or -1 where rows[t,k] < 0
 *
 * meta (T, 2K); key, idx (T, K); hit (T, G); count (S, E); offsets (E + 1); rows (T, K); out (T, K P): dense
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

Cost expert_owner_mask_cost(Backend *be, Tensor hit, Tensor key, int64_t unit, int64_t wide, int64_t from,
                    int64_t block)
{
    REQUIRE(dense2(key, I32, key.n[0], key.n[1]) && dense2(hit, I32, key.n[0], hit.n[1]) && unit >= 1 &&
            wide >= 1 && from >= 0 && block >= 1, "expert_owner_mask: hit %s key %s", t_fmt(hit), t_fmt(key));
    return (Cost){ .rd = t_bytes(key), .wr = t_bytes(hit) };
}

void cpu_expert_owner_mask(Backend *be, Tensor hit, Tensor key, int64_t unit, int64_t wide, int64_t from,
                   int64_t block)
{
    int64_t A = key.n[0], K = key.n[1], G = hit.n[1];
    #pragma omp parallel for schedule(static) if(worth_threads(A * (K + G)))
    for (int64_t a = 0; a < A; a++) {
        const int32_t *v = (const int32_t *)key.data + a * K;
        int32_t       *h = (int32_t *)hit.data + a * G;
        for (int64_t g = 0; g < G; g++) h[g] = -1;
        for (int64_t k = 0; k < K; k++) {
            int64_t first = v[k] < 0 ? 0 : v[k] / unit * wide, last = v[k] < 0 ? 0 : first + wide;
            for (int64_t m = first < from ? from : first; m < last && (m - from) / block < G; m++)
                h[(m - from) / block] = (int32_t)((m - from) / block);
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
    int64_t        S = count.n[0], E = count.n[1], room = t_count(rows), i = 0;
    const int32_t *n = count.data;
    int32_t       *off = offsets.data, *to = rows.data, *next = (int32_t *)cpu_shared(be), total = 0;
    for (int64_t e = 0; e < E; e++) {
        off[e] = total;
        for (int64_t s = 0; s < S; s++) next[s * E + e] = total, total += n[s * E + e];
    }
    off[E] = total;
    REQUIRE(total <= room, "moe_regroup: %d rows in %s", total, t_fmt(rows));
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
