/* base/rng.h -- random numbers as a pure function: Philox4x32-10 of (seed, stream, index).
 *
 * There is no state to save, restore or share. Number `index` of a stream is the same on every rank
 * and in any order, so a tensor initialised in slices by eight ranks equals the one made by a single
 * rank. Streams keep subjects apart: a parameter uses rng_stream(its name), data order uses its epoch, …
 *
 * Layout: the key is the seed; the counter is (index / 4, stream), 64 bits each; index % 4 picks the word.
 * The functions up to rng_normals are inline so that kernels can draw the same numbers. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define RNG_INLINE static inline __host__ __device__
#else
#define RNG_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Rng4 { uint32_t v[4]; } Rng4;

/* In assembly on a GPU: nvcc would add zeros to the upper half of the product. */
RNG_INLINE uint64_t rng_product(uint32_t a, uint32_t b)
{
#ifdef __CUDA_ARCH__
    uint64_t p;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(p) : "r"(a), "r"(b));
    return p;
#else
    return (uint64_t)a * b;
#endif
}

/* Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011). Ten rounds are the usual margin;
 * seven are the fewest that passed all of its tests. */
RNG_INLINE Rng4 rng_rounds(Rng4 c, uint32_t k0, uint32_t k1, int rounds)
{
    for (int round = 0; round < rounds; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        uint64_t a = rng_product(0xD2511F53u, c.v[0]), b = rng_product(0xCD9E8D57u, c.v[2]);
        Rng4     n = { { (uint32_t)(b >> 32) ^ c.v[1] ^ k0, (uint32_t)b,
                         (uint32_t)(a >> 32) ^ c.v[3] ^ k1, (uint32_t)a } };
        c = n;
    }
    return c;
}

RNG_INLINE Rng4 rng_philox(Rng4 c, uint32_t k0, uint32_t k1) { return rng_rounds(c, k0, k1, 10); }

RNG_INLINE Rng4 rng_counter(uint64_t stream, uint64_t block)
{
    Rng4 c = { { (uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32) } };
    return c;
}

RNG_INLINE Rng4 rng_block(uint64_t seed, uint64_t stream, uint64_t block)    /* numbers 4 block … */
{
    return rng_philox(rng_counter(stream, block), (uint32_t)seed, (uint32_t)(seed >> 32));
}

RNG_INLINE uint32_t rng_u32(uint64_t seed, uint64_t stream, uint64_t index)
{
    return rng_block(seed, stream, index / 4).v[index % 4];
}

RNG_INLINE uint64_t rng_u64(uint64_t seed, uint64_t stream, uint64_t index)  /* words 2 index … */
{
    Rng4 b = rng_block(seed, stream, index / 2);
    int  i = (int)(index % 2) * 2;
    return (uint64_t)b.v[i + 1] << 32 | b.v[i];
}

RNG_INLINE float rng_unit(uint32_t u) { return (float)(u >> 8) * 0x1p-24f; }   /* [0, 1), exact */

RNG_INLINE float rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    return rng_unit(rng_u32(seed, stream, index));
}

/* Box-Muller on both halves of a block: words 0, 1 make normals 0, 1 and words 2, 3 make 2, 3. The work is
 * in double and rounded to float at the end, so that libraries which differ in the last bit of a double
 * give the same float but for rare ties. */
RNG_INLINE void rng_normals(float out[4], Rng4 b)
{
    for (int i = 0; i < 4; i += 2) {
        double radius = sqrt(-2.0 * log((b.v[i] + 1.0) * 0x1p-32));     /* the log's argument is in (0, 1] */
        double angle  = 2.0 * 3.14159265358979323846 * (b.v[i + 1] * 0x1p-32);
        out[i]     = (float)(radius * cos(angle));
        out[i + 1] = (float)(radius * sin(angle));
    }
}

float    rng_normal(uint64_t seed, uint64_t stream, uint64_t index);                /* mean 0, deviation 1 */
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n);     /* 0 … n - 1, n > 0 */
uint64_t rng_stream(const char *name);                                              /* a stream per name */

/* Numbers first … first + n - 1 of the stream: filling in pieces gives the same as filling at once. */
void rng_fill_uniform(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first,
                      float lo, float hi);
void rng_fill_normal(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first,
                     float mean, float std);

/* A permutation of 0 … n - 1 (Fisher-Yates), for epochs. */
void rng_shuffle(int64_t *order, int64_t n, uint64_t seed, uint64_t stream);

#ifdef __cplusplus
}
#endif
#endif
