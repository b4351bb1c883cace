/* ops/cpu/topk.c -- the K largest of a row of some hundred values: a threshold that few pass, then an exact
 * ranking of those. In plain C for every CPU, and with AVX-512, which packs the lanes that pass in one
 * instruction. */
#include "ops/cpu/topk.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { LANES = TOPK_LANES, BLOCK = TOPK_BLOCK };

/* A value that at least K of the row reach: the K-th largest of its LANES column maxima. About K + 3 values
 * of 128 pass it, so the exact ranking behind it is short. */
INLINE float cut_at(const float *v, int32_t E, int32_t K)
{
    float   m[LANES], cut = INFINITY;
    int32_t above[LANES] = { 0 };
    if (K > LANES) return -INFINITY;
    for (int j = 0; j < LANES; j++) m[j] = v[j];
    for (int b = LANES; b < E; b += LANES) {
        #pragma omp simd
        for (int j = 0; j < LANES; j++) m[j] = v[b + j] > m[j] ? v[b + j] : m[j];
    }
    for (int i = 0; i < LANES; i++) {
        #pragma omp simd
        for (int j = 0; j < LANES; j++) above[j] += m[i] > m[j];
    }
    #pragma omp simd reduction(min:cut)
    for (int j = 0; j < LANES; j++) cut = above[j] < K && m[j] < cut ? m[j] : cut;
    return cut;
}

/* Bit j: v[j] reaches the cut. */
INLINE uint64_t reached(const float *v, float cut)
{
    uint64_t mask = 0;
    for (int b = 0; b < BLOCK; b += LANES) {
        uint32_t bits = 0;
        #pragma omp simd reduction(|:bits)
        for (int j = 0; j < LANES; j++) bits |= v[b + j] >= cut ? (uint32_t)1 << j : 0;
        mask |= (uint64_t)bits << b;
    }
    return mask;
}

/* Ranks the n candidates into best; those that rank below K go to best[K]. */
INLINE void rank_all(TopKRow d, int32_t n, int32_t K)
{
    for (int32_t b = 0; b < n; b += LANES) {
        int32_t rank[LANES] = { 0 };
        for (int32_t i = 0; i < n; i++) {
            #pragma omp simd
            for (int32_t j = 0; j < LANES; j++)
                rank[j] += (d.cand[i] > d.cand[b + j]) | ((d.cand[i] == d.cand[b + j]) & (i < b + j));
        }
        for (int32_t j = 0; j < LANES && b + j < n; j++) d.best[rank[j] < K ? rank[j] : K] = d.at[b + j];
    }
}

/* Collects the candidates of one row. Reading just-written data in other sizes stalls until it reaches the
 * cache, so several rows are collected before the first is ranked. */
INLINE int32_t collect(TopKRow d, int32_t E, int32_t K)
{
    float   cut = cut_at(d.v, E, K);
    int32_t n = 0;
    for (int32_t b = 0; b < E; b += BLOCK) {
        uint64_t mask = reached(d.v + b, cut);
        if (E - b < BLOCK) mask &= ((uint64_t)1 << (E - b)) - 1;
        for (; mask; mask &= mask - 1, n++) {
            d.at[n]   = b + __builtin_ctzll(mask);
            d.cand[n] = d.v[d.at[n]];
        }
    }
    return n;
}

HOT void topk_plain(const TopKRow *d, int rows, int32_t E, int32_t K)
{
    int32_t n[TOPK_ROWS];
    for (int r = 0; r < rows; r++) n[r] = collect(d[r], E, K);
    for (int r = 0; r < rows; r++) rank_all(d[r], n[r], K);
}

#if defined(__x86_64__)
#define WIDE TARGET_V4

/* For each lane of c: how many of the LANES values at p are larger. */
WIDE INLINE __m512i larger(__m512 c, const float *p)
{
    __m512i n = _mm512_setzero_si512(), one = _mm512_set1_epi32(1);
    _Pragma("GCC unroll 16")
    for (int i = 0; i < LANES; i++)
        n = _mm512_mask_add_epi32(n, _mm512_cmp_ps_mask(c, _mm512_set1_ps(p[i]), _CMP_LT_OQ), n, one);
    return n;
}

WIDE INLINE void wide_maxima(TopKRow d, int32_t E)
{
    __m512 m = _mm512_loadu_ps(d.v);
    for (int32_t b = LANES; b < E; b += LANES) m = _mm512_max_ps(m, _mm512_loadu_ps(d.v + b));
    _mm512_storeu_ps(d.cand, m);
}

/* With a cut of -inf the padding passes too; then the plain C version runs, which knows the end of the
 * row. */
WIDE INLINE int32_t wide_collect(TopKRow d, int32_t E, int32_t K)
{
    __m512    m = _mm512_loadu_ps(d.cand), low = _mm512_set1_ps(-INFINITY);
    __mmask16 first = _mm512_cmplt_epi32_mask(larger(m, d.cand), _mm512_set1_epi32(K));
    float     cut = K > LANES ? -INFINITY : _mm512_mask_reduce_min_ps(first, m);
    if (cut == -INFINITY) return collect(d, E, K);
    __m512    least = _mm512_set1_ps(cut);
    __m512i   at = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    int32_t   n = 0;
    for (int32_t b = 0; b < E; b += LANES, at = _mm512_add_epi32(at, _mm512_set1_epi32(LANES))) {
        __m512    v = _mm512_loadu_ps(d.v + b);
        __mmask16 in = _mm512_cmp_ps_mask(v, least, _CMP_GE_OQ);
        _mm512_storeu_ps(d.cand + n, _mm512_maskz_compress_ps(in, v));
        _mm512_storeu_si512(d.at + n, _mm512_maskz_compress_epi32(in, at));
        n += __builtin_popcount(in);
    }
    _mm512_storeu_ps(d.cand + n, low);
    return n;
}

/* For candidates that fill at most one vector, padded with -inf. Equal candidates would get the same rank,
 * which shows in the sum of all ranks; returns whether all were distinct. */
WIDE INLINE bool wide_rank(TopKRow d, int32_t n, int32_t K)
{
    __mmask16 here = (__mmask16)((1u << n) - 1);
    __m512i   rank = larger(_mm512_loadu_ps(d.cand), d.cand);
    __mmask16 wins = _mm512_mask_cmplt_epi32_mask(here, rank, _mm512_set1_epi32(K));
    _mm512_mask_i32scatter_epi32(d.best, wins, rank, _mm512_loadu_si512(d.at), 4);
    return _mm512_mask_reduce_add_epi32(here, rank) == n * (n - 1) / 2;
}

WIDE static void topk_wide(const TopKRow *d, int rows, int32_t E, int32_t K)
{
    int32_t n[TOPK_ROWS];
    for (int r = 0; r < rows; r++) wide_maxima(d[r], E);
    for (int r = 0; r < rows; r++) n[r] = wide_collect(d[r], E, K);
    for (int r = 0; r < rows; r++)
        if (n[r] > LANES || !wide_rank(d[r], n[r], K)) rank_all(d[r], n[r], K);
}

TopK *topk_best(void) { return CPU_HAS_V4 ? topk_wide : topk_plain; }
#else
TopK *topk_best(void) { return topk_plain; }
#endif
