/* tests/rowlab.h -- what tests of row-wise ops share: odd widths, matrices with gaps, bits, thread counts.
 *
 * A loose matrix is a view into one with three more columns, one before and two after each row, which hold
 * poison; gaps_intact checks that an op did not write them. */
#ifndef TESTS_ROWLAB_H
#define TESTS_ROWLAB_H

#include "numlab.h"
#include <omp.h>

static const Tensor  none;
static const DType   floats[] = { F32, BF16 };
static const int64_t widths[] = { 1, 2, 3, 5, 17, 64, 100, 257, 2100 };
#define EACH_WIDTH(D) (size_t i_ = 0; i_ < sizeof widths / sizeof *widths && ((D) = widths[i_], 1); i_++)
#define EACH_FLOAT(d) (int d##_ = 0; d##_ < 2 && ((d) = floats[d##_], 1); d##_++)

static inline double tolerance(DType d) { return d == F32 ? 2e-6 : 6e-3; }    /* of one rounded result */

static inline Tensor loose(DType d, int64_t n0, int64_t n1)
{
    return t_cols(num_poison(d, n0, n1 + 3), 1, n1);
}
static inline Tensor loose_copy(Tensor x)
{
    Tensor t = loose((DType)x.dtype, x.n[0], x.n[1]);
    for (int64_t i = 0; i < t_count(x); i++) put(t, i, get(x, i));
    return t;
}
static inline bool gaps_intact(Tensor t)
{
    int64_t w = (int64_t)dtype_size((DType)t.dtype);
    for (int64_t r = 0; r < t.n[0]; r++) {
        const uint8_t *row = (const uint8_t *)t.data + r * t.s[0] * w;
        for (int64_t i = 0; i < w; i++) if (row[i - w] != 0xff) return false;
        for (int64_t i = 0; i < 2 * w; i++) if (row[t.n[1] * w + i] != 0xff) return false;
    }
    return true;
}

static inline bool same_bits(Tensor a, Tensor b)
{
    if (!t_same(a, b)) return false;
    for (int64_t i = 0; i < t_count(a); i++) {
        float x = get(a, i), y = get(b, i);
        if (memcmp(&x, &y, 4)) return false;
    }
    return true;
}
static inline float rounded(DType d, double v)
{
    return d == BF16 ? bf16_to_f32(bf16_from_f32((float)v)) : (float)v;
}

static inline double largest(Tensor t)
{
    double big = 0;
    for (int64_t i = 0; i < t_count(t); i++) big = fmax(big, fabs(get(t, i)));
    return big;
}

/* Runs `work(arg)` with one thread, then with two; it fills outputs[i], which must come out equal. */
#define EXPECT_THREADS_AGREE(work, arg, outputs, n) do {                                          \
        Tensor one_[8];                                                                           \
        omp_set_num_threads(1); work(arg);                                                        \
        for (int i_ = 0; i_ < (n); i_++) one_[i_] = num_copy((outputs)[i_], (DType)(outputs)[i_].dtype); \
        omp_set_num_threads(2); work(arg);                                                        \
        for (int i_ = 0; i_ < (n); i_++)                                                          \
            EXPECT(same_bits(one_[i_], (outputs)[i_]), "output %d differs with the number of threads", i_); \
    } while (0)

/* At least two threads, also on one core: the workspace is sized for them. */
static inline void rowlab_open(void)
{
    omp_set_num_threads(2);
    numlab_open();
}

#endif
