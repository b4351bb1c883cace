/* The bookkeeping of expert dispatch on the GPU against the CPU: tags, owner masks, regrouping, capacity,
 * expanded rows. All results are bit-equal. */
#include "gpulab.h"

static Tensor choice(int64_t T, int64_t K, int64_t lo, int64_t hi)
{
    return t_as2(int_below(T * K, lo, hi), T, K);
}

static void tags(void)
{
    for (int i = 0; i < 12; i++) {
        int64_t T = any_size(0, 900), K = any_size(1, 9), base = any_size(0, 300);
        fresh();
        Tensor idx = choice(T, K, -1, 64), w = in2(F32, T, K, DENSE), meta = output(int2(T, 2 * K));
        CALL(moe_pack, meta, idx, w, (int64_t)8, (int64_t)5);
        Tensor key = output(int2(T, K)), gate = maybe() ? out2(F32, T, K, DENSE) : none;
        if (t_has(gate)) exact(gate);
        CALL(moe_unpack, key, gate, meta, base);
    }
}

static void owner_masks(void)
{
    for (int i = 0; i < 24; i++) {
        int64_t T = any_size(0, 700), K = any_size(1, 8), G = any_size(1, 70), keys = any_size(1, 9);
        int64_t etp = any_size(1, 4), first = any_size(0, 20), members = any_size(1, 8);
        fresh();
        Tensor key = choice(T, K, -1, 128), mask = output(int2(T, G));
        CALL(expert_owner_mask, mask, key, keys, etp, first, members);
        Tensor offsets = output(int1(G + 1)), rows = output(int2(T, G)), src = output(int1(T * G));
        CALL(sort_by_expert, offsets, rows, src, mask);
    }
}

static void regroups(void)
{
    for (int i = 0; i < 16; i++) {
        int64_t S = any_size(1, 64), E = any_size(1, 40), sum = 0;
        fresh();
        Tensor count = choice(S, E, 0, i & 1 ? 3 : 70);
        for (int64_t j = 0; j < S * E; j++) sum += ((int32_t *)count.data)[j];
        Tensor offsets = output(int1(E + 1)), rows = output(int1(sum + any_size(0, 5)));
        CALL(moe_regroup, offsets, rows, count);
    }
}

static void expanded_etp_rows(void)
{
    for (int i = 0; i < 6; i++) {
        int64_t T = any_size(0, 600), K = any_size(1, 8), P = any_size(1, 4), stride = any_size(0, 5000);
        fresh();
        Tensor rows = choice(T, K, -1, 4000), out = output(int2(T, K * P));
        CALL(expand_etp_rows, out, rows, stride);
    }
}

static void capacity(void)
{
    for (int i = 0; i < 20; i++) {
        int64_t T = any_size(1, 1500), K = any_size(1, 8), E = any_size(1, 130);
        int64_t C = i % 5 == 4 ? T * K : any_size(0, 2 * T * K / E + 2), most = 0;
        fresh();
        Tensor idx = choice(T, K, -1, i % 3 ? E : 1), w = in2(F32, T, K, DENSE);
        for (int64_t s = 0; s < T * K; s++)                                         /* with ties */
            ((float *)w.data)[s] = rintf(fabsf(((float *)w.data)[s]) * 4) / 8;
        Tensor offsets = output(int1(E + 1)), rows = output(int2(T, K)), src = output(int1(T * K));
        CALL(sort_by_expert, offsets, rows, src, idx);
        Tensor kept = output(int2(T, K));
        CALL(moe_drop, kept, idx, w, offsets, src, C);
        output(offsets), output(rows), output(src);
        CALL(sort_by_expert, offsets, rows, src, kept);
        for (int64_t e = 0; e < E; e++) {
            int64_t n = ((int32_t *)offsets.data)[e + 1] - ((int32_t *)offsets.data)[e];
            most = n > most ? n : most;
        }
        Tensor wide = output(int1(E + 1)), to = output(int1(E * most));
        output(rows);
        CALL(moe_pad, wide, rows, to, offsets, src, most);
    }
}

static void spread(void)
{
    static const int64_t widths_[] = { 1, 7, 8, 33, 64, 100, 768, 2048 };
    static const DType   types[] = { F32, BF16, I32 };
    for (int i = 0; i < 24; i++) {
        int64_t T = any_size(0, 300), K = any_size(1, 8), W = widths_[i % 8];
        DType   d = types[i % 3];
        fresh();
        Tensor rows = int2(T, K), x = d == I32 ? choice(T, W, -9, 99) : in2(d, T, W, any_layout());
        for (int64_t s = 0; s < T * K; s++)
            ((int32_t *)rows.data)[s] = num_below(5) ? (int32_t)(T * K - 1 - s) : -1;
        Tensor y = d == I32 ? output(int2(T * K, W)) : out2(d, T * K, W, any_layout());
        exact(y);
        CALL(expand_rows, y, x, rows);
        Tensor back = d == I32 ? output(int2(T * K, W)) : out2(d, T * K, W, any_layout());
        exact(back);
        CALL(gather_rows, back, y, rows, (int64_t)1);
    }
}

int main(void)
{
    gpulab_open();
    GPU_RUN(tags);
    GPU_RUN(owner_masks);
    GPU_RUN(regroups);
    GPU_RUN(expanded_etp_rows);
    GPU_RUN(capacity);
    GPU_RUN(spread);
    return gpulab_report();
}
