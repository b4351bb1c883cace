/* base/rng.c -- the shapes drawn from rng.h's words: normal, bounded, filled arrays, permutations. */
#include "base/rng.h"

enum { PARALLEL = 1 << 14 };          /* blocks of four; below this, threads cost more than they bring */

float rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    float four[4];
    rng_normals(four, rng_block(seed, stream, index / 4));
    return four[index % 4];
}

/* The high half of a 64 x 64 product. For n below 2^32 the bias is under 2^-32, which no epoch can see. */
uint64_t rng_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t n)
{
    return (uint64_t)((unsigned __int128)rng_u64(seed, stream, index) * n >> 64);
}

/* FNV-1a. The top bit is set, so that named streams never meet the small numbers used by hand. */
uint64_t rng_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325ull;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 0x100000001b3ull;
    return h | 1ull << 63;
}

/* The slice need not begin or end on a block; the overhang is drawn and thrown away. */
static void fill(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first,
                 float add, float scale, void draw(float *, Rng4))
{
    int64_t lead = (int64_t)(first % 4), blocks = (lead + n + 3) / 4;
    #pragma omp parallel for if (blocks > PARALLEL)
    for (int64_t b = 0; b < blocks; b++) {
        float four[4];
        draw(four, rng_block(seed, stream, first / 4 + (uint64_t)b));
        for (int64_t i = 0; i < 4; i++) {
            int64_t at = 4 * b + i - lead;
            if (at >= 0 && at < n) out[at] = add + scale * four[i];
        }
    }
}

static void uniforms(float out[4], Rng4 b)
{
    for (int i = 0; i < 4; i++) out[i] = rng_unit(b.v[i]);
}

void rng_fill_uniform(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first,
                      float lo, float hi)
{
    fill(out, n, seed, stream, first, lo, hi - lo, uniforms);
}

void rng_fill_normal(float *out, int64_t n, uint64_t seed, uint64_t stream, uint64_t first,
                     float mean, float std)
{
    fill(out, n, seed, stream, first, mean, std, rng_normals);
}

void rng_shuffle(int64_t *order, int64_t n, uint64_t seed, uint64_t stream)
{
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)rng_below(seed, stream, (uint64_t)i, (uint64_t)i + 1), t = order[i];
        order[i] = order[j];
        order[j] = t;
    }
}
