/* tests/test_exchange.c -- tags, owner masks, regrouping and capacity: the bookkeeping of expert dispatch. */
#include "numlab.h"

static const Tensor none;

static int32_t at(Tensor t, int64_t i) { return ((const int32_t *)t.data)[i]; }

static Tensor ints(int64_t rows, int64_t cols)
{
    Tensor t = num_poison(I32, rows, cols);
    memset(t.data, 0x55, (size_t)t_bytes(t));               /* not -1, which has a meaning here */
    return t;
}

static Tensor random_choice(int64_t T, int64_t K, int64_t from, int64_t to)      /* entries in from .. to-1 */
{
    Tensor idx = ints(T, K);
    for (int64_t i = 0; i < T * K; i++) ((int32_t *)idx.data)[i] = (int32_t)(from + num_below(to - from));
    return idx;
}

static bool holds(Tensor t, const int32_t *want) { return !memcmp(t.data, want, (size_t)t_bytes(t)); }

static void tags_carry_keys_and_gates(void)
{
    int32_t e[] = { 3, -1, 0, 2 }, keys[] = { 3 * 5 + 4, -1, 4, 2 * 5 + 4 };
    Tensor  idx = t_as2(num_i32(4, e), 2, 2), w = num_randn(F32, 2, 2), meta = ints(2, 4);
    Tensor  key = ints(2, 2), gate = num_poison(F32, 2, 2);
    op_moe_pack(BE, meta, idx, w, 5, 4);
    op_moe_unpack(BE, key, gate, meta, 0);
    EXPECT(holds(key, keys), "keys");
    EXPECT_CLOSE(gate, w, 0);
    op_moe_unpack(BE, key, none, meta, 10);
    EXPECT(at(key, 0) == 9 && at(key, 1) == -1 && at(key, 2) == -6 && at(key, 3) == 4, "keys less a base");
    num_clear();
}

/* 8 experts, 2 per rank, etp 2: members 0 .. 7. */
static void places_that_are_wanted(void)
{
    int32_t e[] = { 0, 1,   7, 2,   -1, 4 }, domains[] = { 0, -1,  0, 1,  -1, 1 };
    int32_t ranks[]  = { 0, 1, -1, -1, -1, -1, 2, 3, -1, -1, -1, -1 },
            second[] = { -1, -1, -1, -1, -1, -1, 2, 3, 0, 1, -1, -1 };
    Tensor  idx = t_as2(num_i32(6, e), 3, 2), by_domain = ints(3, 2), by_rank = ints(3, 4);
    op_expert_owner_mask(BE, by_domain, idx, 2, 2, 0, 4);
    EXPECT(holds(by_domain, domains), "domains");
    op_expert_owner_mask(BE, by_rank, idx, 2, 2, 0, 1);
    EXPECT(holds(by_rank, ranks), "ranks of the first domain");
    op_expert_owner_mask(BE, by_rank, idx, 2, 2, 4, 1);
    EXPECT(holds(by_rank, second), "ranks of the second domain");
    num_clear();
}

static void owner_mask_agrees_with_naive(void)
{
    for (int i = 0; i < 20; i++) {
        int64_t A = num_below(300), K = 1 + num_below(6), unit = 1 + num_below(5), wide = 1 + num_below(4);
        int64_t block = 1 + num_below(4), from = num_below(6), G = 1 + num_below(7), wrong = 0;
        Tensor  key = random_choice(A, K, -1, 30), hit = ints(A, G);
        op_expert_owner_mask(BE, hit, key, unit, wide, from, block);
        for (int64_t a = 0; a < A; a++)
            for (int64_t g = 0; g < G; g++) {
                bool want = false;
                for (int64_t k = 0; k < K; k++)
                    for (int64_t m = 0; m < wide && at(key, a * K + k) >= 0; m++) {
                        int64_t member = at(key, a * K + k) / unit * wide + m;
                        want |= member >= from && (member - from) / block == g;
                    }
                wrong += at(hit, a * G + g) != (want ? g : -1);
            }
        EXPECT(!wrong, "%lld wrong", (long long)wrong);
        num_clear();
    }
}

static void regrouped_by_expert(void)
{
    int32_t n[] = { 2, 0, 1,   1, 3, 0 }, off[] = { 0, 3, 6, 7 }, rows[] = { 0, 1, 6, 2, 3, 4, 5 };
    Tensor  count = t_as2(num_i32(6, n), 2, 3), offsets = num_i32(4, NULL), to = num_i32(7, NULL);
    op_moe_regroup(BE, offsets, to, count);
    EXPECT(holds(offsets, off), "offsets");
    EXPECT(holds(to, rows), "rows");
    num_clear();
}

static void etp_rows_are_expanded(void)
{
    int32_t r[] = { 4, -1, 0 }, want[] = { 4, 14, -1, -1, 0, 10 };
    Tensor  out = ints(1, 6);
    op_expand_etp_rows(BE, out, t_as2(num_i32(3, r), 1, 3), 10);
    EXPECT(holds(out, want), "planes");
    num_clear();
}

typedef struct Index { Tensor offsets, rows, src; } Index;

static Index index_of(Tensor idx, int64_t E)
{
    Index x = { num_i32(E + 1, NULL), ints(idx.n[0], idx.n[1]), num_i32(t_count(idx), NULL) };
    op_sort_by_expert(BE, x.offsets, x.rows, x.src, idx);
    return x;
}

/* A slot stays if fewer than `capacity` slots of its expert are better; equals rank by their place. */
static void largest_gates_stay(void)
{
    for (int i = 0; i < 12; i++) {
        int64_t T = 1 + num_below(60), K = 1 + num_below(3), E = 1 + num_below(6), C = num_below(12),
                wrong = 0;
        Tensor  idx = random_choice(T, K, i & 1 ? -1 : 0, E), w = num_zeros(F32, T, K), kept = ints(T, K);
        for (int64_t s = 0; s < T * K; s++) put(w, s, (float)num_below(7) / 8);       /* with ties */
        Index   x = index_of(idx, E);
        op_moe_drop(BE, kept, idx, w, x.offsets, x.src, C);
        for (int64_t s = 0; s < T * K; s++) {
            int64_t better = 0;
            for (int64_t o = 0; o < T * K; o++)
                better += at(idx, o) == at(idx, s) &&
                          (get(w, o) > get(w, s) || (get(w, o) == get(w, s) && o < s));
            wrong += at(kept, s) != (at(idx, s) >= 0 && better < C ? at(idx, s) : -1);
        }
        EXPECT(!wrong, "%lld wrong slots", (long long)wrong);
        num_clear();
    }
}

static void padded_to_equal_capacity(void)
{
    int32_t e[] = { 2, 0,   0, -1,   3, 2 }, off[] = { 0, 3, 6, 9, 12 };
    int32_t rows[] = { 6, 0, 1, -1, 9, 7 }, to[] = { 1, 2, -1,  -1, -1, -1,  0, 5, -1,  4, -1, -1 };
    Index   x = index_of(t_as2(num_i32(6, e), 3, 2), 4);
    Tensor  out = num_i32(5, NULL), src = num_i32(12, NULL);
    op_moe_pad(BE, out, x.rows, src, x.offsets, x.src, 3);
    EXPECT(holds(out, off), "offsets");
    EXPECT(holds(x.rows, rows), "rows");
    EXPECT(holds(src, to), "slots");
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(tags_carry_keys_and_gates);
    RUN(places_that_are_wanted);
    RUN(owner_mask_agrees_with_naive);
    RUN(regrouped_by_expert);
    RUN(etp_rows_are_expanded);
    RUN(largest_gates_stay);
    RUN(padded_to_equal_capacity);
    return numlab_report();
}
