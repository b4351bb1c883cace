/* tests/test_topk.c -- the K largest of a row: every implementation against a plain sort. */
#include "numlab.h"
#include "ops/cpu/topk.h"

enum { WIDEST = 300 };

static const float *row_;                      /* by_rank compares its values: larger first, then by index */
static int by_rank(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return row_[i] > row_[j] ? -1 : row_[i] < row_[j] ? 1 : i - j;
}

static void check(TopK *top_k, const char *name, const float *v, int rows, int32_t E, int32_t K)
{
    static float work[TOPK_ROWS * 4 * (WIDEST + 2 * TOPK_BLOCK)];
    TopKRow d[TOPK_ROWS] = { 0 };
    for (int r = 0; r < rows; r++) {
        d[r] = topk_desk(work + r * topk_desk_size(E), E);
        for (int64_t e = 0; e < topk_padded(E); e++) d[r].v[e] = e < E ? v[r * E + e] : -INFINITY;
    }
    top_k(d, rows, E, K);
    for (int r = 0; r < rows; r++) {
        int32_t want[WIDEST], wrong = -1;
        for (int32_t e = 0; e < E; e++) want[e] = e;
        row_ = v + r * E;
        qsort(want, (size_t)E, sizeof *want, by_rank);
        for (int32_t k = K - 1; k >= 0; k--) if (d[r].best[k] != want[k]) wrong = k;
        EXPECT(wrong < 0, "%s: row %d of %d, %d of %d: place %d is %d, want %d", name, r, rows, K, E, wrong,
               d[r].best[wrong], want[wrong]);
    }
}

/* Values of few kinds make ties, of all kinds none; some rows have infinities, or nothing else. */
static void ways_agree(void)
{
    float v[TOPK_ROWS * WIDEST];
    for (int round = 0; round < 1500; round++) {
        int32_t E = 1 + (int32_t)num_below(round % 2 ? WIDEST : 40);
        int32_t K = 1 + (int32_t)num_below(E < 24 ? E : 24);
        int     rows = 1 + (int)num_below(TOPK_ROWS);
        int64_t kinds = round % 3 == 0 ? 3 : round % 3 == 1 ? 40 : 1 << 24;
        for (int i = 0; i < rows * E; i++) {
            v[i] = (float)num_below(kinds) - (float)(kinds / 2);
            if (round % 5 == 0 && num_below(4) == 0) v[i] = num_below(8) ? -INFINITY : INFINITY;
            if (round % 50 == 0 && i < E) v[i] = -INFINITY;
            if (v[i] == 0.0f && num_below(2)) v[i] = -0.0f;
        }
        check(topk_plain, "plain", v, rows, E, K);
        check(topk_best(), "best", v, rows, E, K);
    }
}

int main(void)
{
    numlab_open();
    RUN(ways_agree);
    return numlab_report();
}
