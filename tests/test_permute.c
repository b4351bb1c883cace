/* tests/test_permute.c -- rows to expert order and back: the index, gather, scatter, combine. */
#include "numlab.h"

#include <omp.h>

static const Tensor none;

static int32_t at(Tensor t, int64_t i) { return ((const int32_t *)t.data)[i]; }

typedef struct Index { Tensor offsets, rows, src; } Index;

static Index index_of(Tensor idx, int64_t E)
{
    Index x = { num_i32(E + 1, NULL), num_poison(I32, idx.n[0], idx.n[1]), num_i32(t_count(idx), NULL) };
    memset(x.rows.data, 0x55, (size_t)t_bytes(x.rows));     /* not -1, which has a meaning here */
    memset(x.src.data, 0x55, (size_t)t_bytes(x.src));
    op_sort_by_expert(BE, x.offsets, x.rows, x.src, idx);
    return x;
}

static Tensor random_choice(int64_t T, int64_t K, int64_t from, int64_t to)      /* entries in from .. to-1 */
{
    Tensor idx = num_poison(I32, T, K);
    for (int64_t i = 0; i < T * K; i++) ((int32_t *)idx.data)[i] = (int32_t)(from + num_below(to - from));
    return idx;
}

static void index_known(void)
{
    int32_t e[] = { 2, 0,   0, -1,   3, 2,   2, 0 }, off[] = { 0, 3, 3, 6, 7 };  /* none for expert 1 */
    int32_t rows[] = { 3, 0, 1, -1, 6, 4, 5, 2 }, src[] = { 1, 2, 7, 0, 5, 6, 4, -1 };
    Index   x = index_of(t_as2(num_i32(8, e), 4, 2), 4);
    EXPECT(!memcmp(x.offsets.data, off, sizeof off), "offsets");
    EXPECT(!memcmp(x.rows.data, rows, sizeof rows), "rows");
    EXPECT(!memcmp(x.src.data, src, sizeof src), "src");
    num_clear();
}

static void check_index(Tensor idx, int64_t E)
{
    Index   x = index_of(idx, E);
    int64_t R = t_count(idx), r = 0, wrong = 0;
    for (int64_t e = 0; e < E; e++) {
        wrong += at(x.offsets, e) != r;
        for (int64_t i = 0; i < R; i++)
            if (at(idx, i) == e) wrong += at(x.rows, i) != r || at(x.src, r) != i, r++;
    }
    wrong += at(x.offsets, E) != r;
    for (int64_t i = 0; i < R; i++) wrong += (at(idx, i) < 0 || at(idx, i) >= E) && at(x.rows, i) != -1;
    for (; r < R; r++) wrong += at(x.src, r) != -1;
    EXPECT(wrong == 0, "%lld wrong entries: %s, %lld experts", (long long)wrong, t_fmt(idx), (long long)E);
}

static void index_agrees_with_naive(void)
{
    static const int64_t Es[] = { 1, 2, 5, 16, 100 };
    for (int i = 0; i < 5; i++) {
        int64_t E = Es[i];
        check_index(random_choice(37, 1 + i, 0, E), E);
        check_index(random_choice(37, 3, -2, E + 2), E);            /* some slots have no expert */
        check_index(random_choice(19, 2, E - 1, E), E);             /* all on one */
        check_index(random_choice(9, 2, -3, 0), E);                 /* none at all */
        check_index(random_choice(0, 2, 0, 1), E);
        check_index(random_choice(4099, 8, -1, E), E);              /* by chunks */
        num_clear();
    }
}

/* Views with a gap after each row: nothing beyond the row may be touched. */
static Tensor gappy(DType d, int64_t rows, int64_t D) { return t_cols(num_randn(d, rows, D + 3), 0, D); }

static bool gap_kept(Tensor t, const uint8_t *was)          /* was: the memory under the view, before */
{
    size_t size = dtype_size((DType)t.dtype);
    for (int64_t r = 0; r < t.n[0]; r++) {
        size_t from = (size_t)(r * t.s[0] + t.n[1]) * size;
        if (memcmp((char *)t.data + from, was + from, 3 * size)) return false;
    }
    return true;
}

static uint8_t *snapshot(Tensor t)
{
    size_t   bytes = (size_t)(t.n[0] * t.s[0]) * dtype_size((DType)t.dtype);
    uint8_t *copy = arena_push(&num_.a, "lab", bytes);
    memcpy(copy, t.data, bytes);
    return copy;
}

static void check_gather(DType d, int64_t N, int64_t M, int64_t D, int64_t div)
{
    Tensor   x = gappy(d, M, D), y = gappy(d, N, D), ref = num_zeros(F32, N, D), src = num_i32(N, NULL);
    uint8_t *was = snapshot(y);
    for (int64_t i = 0; i < N; i++) ((int32_t *)src.data)[i] = (int32_t)num_below(M * div + 2) - 2;
    for (int64_t i = 0; i < N; i++)
        for (int64_t c = 0; c < D && at(src, i) >= 0; c++)
            put(ref, i * D + c, get(x, at(src, i) / div * D + c));
    op_gather_rows(BE, y, x, src, div);
    EXPECT_CLOSE(y, ref, 0);
    EXPECT(gap_kept(y, was), "wrote past the row");
}

static void check_scatter(DType d, int64_t N, int64_t M, int64_t D, bool add)
{
    Tensor   x = gappy(d, N, D), y = gappy(d, M, D), ref = num_copy(y, F32), rows = num_i32(N, NULL);
    uint8_t *was = snapshot(y);
    for (int64_t i = 0, next = 0; i < N; i++)                      /* distinct rows, some slots without one */
        ((int32_t *)rows.data)[i] = num_below(4) && next < M ? (int32_t)(M - 1 - next++) : -1;
    for (int64_t i = 0; i < N; i++)
        for (int64_t c = 0; c < D && at(rows, i) >= 0; c++) {
            int64_t to = at(rows, i) * D + c;
            put(ref, to, (add ? get(ref, to) : 0) + get(x, i * D + c));
        }
    op_scatter_rows(BE, y, x, rows, add);
    EXPECT_CLOSE(y, num_copy(ref, d), 0);
    EXPECT(gap_kept(y, was), "wrote past the row");
}

static void check_combine(DType d, int64_t T, int64_t K, int64_t D, bool with_res)
{
    int64_t  R = T * K + 1;
    Tensor   x = gappy(d, R, D), y = gappy(d, T, D), res = with_res ? gappy(d, T, D) : none;
    Tensor   rows = random_choice(T, K, -1, R), ref = num_zeros(d, T, D);
    uint8_t *was = snapshot(y);
    for (int64_t t = 0; t < T; t++)
        for (int64_t c = 0; c < D; c++) {
            float s = 0;
            for (int64_t k = 0; k < K; k++)
                if (at(rows, t * K + k) >= 0) s += get(x, at(rows, t * K + k) * D + c);
            put(ref, t * D + c, with_res ? s + get(res, t * D + c) : s);
        }
    op_combine(BE, y, x, rows, res);
    EXPECT_CLOSE(y, ref, 0);
    EXPECT(gap_kept(y, was), "wrote past the row");
    if (!with_res) return;
    op_combine(BE, res, x, rows, res);                              /* in place */
    EXPECT_CLOSE(res, ref, 0);
}

/* Gathered back through the same rows, every copy is the row it was made of. */
static void check_expand(DType d, int64_t T, int64_t K, int64_t D)
{
    int64_t R = T * K;
    Tensor  x = d == I32 ? random_choice(T, D, -5, 90) : gappy(d, T, D);
    Tensor  y = d == I32 ? num_poison(I32, R, D) : gappy(d, R, D);
    Tensor  rows = num_poison(I32, T, K), back = num_poison(d, R, D), want = num_poison(d, R, D);
    uint8_t *was = d == I32 ? NULL : snapshot(y);
    for (int64_t i = 0; i < R; i++)                                /* distinct rows, some slots without one */
        ((int32_t *)rows.data)[i] = num_below(4) ? (int32_t)(R - 1 - i) : -1;
    op_expand_rows(BE, y, x, rows);
    op_gather_rows(BE, back, y, rows, 1);
    for (int64_t i = 0; i < R; i++) {
        size_t bytes = (size_t)D * dtype_size(d);
        char  *to = (char *)want.data + (size_t)i * bytes;
        if (at(rows, i) < 0) memset(to, 0, bytes);
        else memcpy(to, (char *)x.data + (size_t)(i / K * x.s[0]) * dtype_size(d), bytes);
    }
    EXPECT(!memcmp(back.data, want.data, (size_t)t_bytes(want)), "expand_rows of %s", t_fmt(x));
    EXPECT(!was || gap_kept(y, was), "wrote past the row");
}

static void rows_agree_with_naive(void)
{
    static const int64_t Ds[] = { 1, 2, 3, 17, 64, 2051 };
    for (int i = 0; i < 12; i++) {
        DType   d = i & 1 ? BF16 : F32;
        int64_t D = Ds[i / 2];
        check_gather(d, 23, 9, D, 1);
        check_gather(d, 23, 4, D, 5);
        check_gather(d, 0, 4, D, 5);
        check_scatter(d, 13, 16, D, i & 2);
        check_scatter(d, 16, 7, D, !(i & 2));
        check_combine(d, 9, 1 + i % 5, D, i & 2);
        check_combine(d, 7, 8, D, !(i & 2));
        check_expand(d, 11, 1 + i % 4, D);
        check_expand(I32, 6, 3, D);
        check_expand(d, 0, 2, D);
        num_clear();
    }
}

/* There and back: K copies of a row summed are K times the row, and each slot finds its own row again. */
static void round_trips(void)
{
    enum { T = 41, D = 24, K = 5, E = 6 };
    for (int i = 0; i < 2; i++) {
        DType  d = i ? BF16 : F32;
        Tensor x = num_randn(d, T, D), y = num_poison(d, T, D), sorted = num_poison(d, T * K, D);
        Tensor slots = num_randn(d, T * K, D), back = num_poison(d, T * K, D);
        Tensor put_back = num_poison(d, T * K, D), want = num_poison(d, T, D);
        Index  n = index_of(random_choice(T, K, 0, E), E);
        for (int j = 0; j < T * D; j++) put(want, j, K * get(x, j));
        op_gather_rows(BE, sorted, x, n.src, K);
        op_combine(BE, y, sorted, n.rows, none);
        EXPECT_CLOSE(y, want, i ? 0 : 1e-6);
        op_gather_rows(BE, sorted, slots, n.src, 1);
        op_gather_rows(BE, back, sorted, n.rows, 1);                /* (T, K) indices, read as a list */
        op_scatter_rows(BE, put_back, sorted, n.src, false);
        EXPECT_CLOSE(back, slots, 0);
        EXPECT_CLOSE(put_back, slots, 0);
        num_clear();
    }
}

static void threads_do_not_matter(void)
{
    int    many = omp_get_max_threads();
    Tensor x = num_randn(BF16, 512, 96), idx = random_choice(512, 8, 0, 16), y[2];
    for (int i = 0; i < 2; i++) {
        omp_set_num_threads(i ? many : 1);
        Index  n = index_of(idx, 16);
        Tensor s = num_poison(BF16, 4096, 96);
        y[i] = num_poison(BF16, 512, 96);
        op_gather_rows(BE, s, x, n.src, 8);
        op_combine(BE, y[i], s, n.rows, x);
    }
    EXPECT(!memcmp(y[0].data, y[1].data, (size_t)t_bytes(y[0])), "combine");
    num_clear();
}

int main(void)
{
    numlab_open();
    RUN(index_known);
    RUN(index_agrees_with_naive);
    RUN(rows_agree_with_naive);
    RUN(round_trips);
    RUN(threads_do_not_matter);
    return numlab_report();
}
