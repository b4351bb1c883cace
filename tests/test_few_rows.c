/* tests/test_few_rows.c -- products of a few rows against the same rows inside a large product. */
#include "numlab.h"

#include "ops/cpu/few_rows.h"

static Tensor strided(DType d, int64_t rows, int64_t cols, int64_t gap)
{
    return t_cols(num_randn(d, rows, cols + gap), gap / 2, cols);
}

static void as_part_of_many(void)
{
    static const struct { int64_t N, K; } shapes[] = { { 1, 1 }, { 3, 17 }, { 4, 64 }, { 5, 33 }, { 67, 100 },
                                                       { 130, 512 }, { 700, 300 } };
    enum { MANY = 70 };
    for (int i = 0; i < 7 * 8 * 4; i++) {
        int64_t N = shapes[i / 32].N, K = shapes[i / 32].K, M = 1 + i / 4 % FEW_ROWS;
        DType   d = i % 2 ? BF16 : F32, dc = i / 2 % 2 ? d : F32;
        bool    add = i % 3 == 0, with_bias = i % 5 < 2;
        Tensor  a = strided(d, MANY, K, 3), b = strided(d, N, K, 6), none = { 0 };
        Tensor  bias = with_bias ? num_randn(d, 1, N) : none;
        Tensor  many = num_randn(dc, MANY, N), few = num_copy(t_rows(many, 7, M), dc);
        op_gemm(BE, many, a, b, bias, GEMM_NT | (add ? GEMM_ACC : 0));
        op_gemm(BE, few, t_rows(a, 7, M), b, bias, GEMM_NT | (add ? GEMM_ACC : 0));
        EXPECT_CLOSE(few, num_copy(t_rows(many, 7, M), F32), dc == F32 ? 2e-5 : 1e-2);
        num_clear();
    }
}

/* Rows of one expert, of several, of none; an expert with more than a few. */
static void by_expert(void)
{
    static const int32_t offsets[][5] = { { 0, 1, 1, 2, 2 }, { 0, 0, 0, 0, 5 }, { 0, 8, 9, 30, 33 },
                                          { 0, 2, 4, 6, 8 } };
    for (int i = 0; i < 16; i++) {
        const int32_t *off = offsets[i % 4];
        DType   d = i / 4 % 2 ? BF16 : F32;
        int64_t R = off[4] + i / 8, N = 37, K = 65;
        Tensor  a = num_randn(d, R, K), b = t_as3(num_randn(d, 4 * N, K), 4, N, K), c = num_poison(F32, R, N);
        op_grouped_gemm(BE, c, a, b, num_i32(5, off), (LoraTerm){ 0 }, GEMM_NT);
        for (int e = 0; e < 4; e++) {
            int64_t n = off[e + 1] - off[e];
            if (!n) continue;
            Tensor many = num_poison(F32, 70, N), rows = num_randn(d, 70, K);
            for (int64_t j = 0; j < n * K; j++) put(rows, j, get(a, off[e] * K + j));
            op_gemm(BE, many, rows, t_at(b, e), (Tensor){ 0 }, GEMM_NT);
            EXPECT_CLOSE(t_rows(c, off[e], n), num_copy(t_rows(many, 0, n), F32), d == F32 ? 2e-5 : 1e-2);
        }
        for (int64_t j = off[4] * N; j < R * N; j++) EXPECT(isnan(get(c, j)), "a padding row was written");
        num_clear();
    }
}

int main(void)
{
    numlab_open();
    RUN(as_part_of_many);
    RUN(by_expert);
    return numlab_report();
}
