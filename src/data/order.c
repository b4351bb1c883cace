/* data/order.c -- see order.h. The swap-or-not shuffle (Hoang, Morris, Rogaway, CRYPTO 2012): each round
 * pairs the positions x and K - x and swaps them or not by a pseudorandom bit of the pair. O(log n) rounds
 * mix well for any n. */
#include "data/order.h"

#include "base/rng.h"
#include "base/status.h"

/* The finaliser of SplitMix64: every bit of the result depends on every bit of x. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

int64_t order_at(int64_t n, uint64_t seed, uint64_t stream, int64_t i)
{
    REQUIRE(i >= 0 && i < n, "position %lld of %lld", (long long)i, (long long)n);
    uint64_t key = rng_u64(seed, stream, 0), x = (uint64_t)i, N = (uint64_t)n;
    int      bits = 64 - __builtin_clzll(N), rounds = 4 * bits + 24;
    for (int r = 0; r < rounds; r++) {
        uint64_t k     = mix(key += 0x9e3779b97f4a7c15ull);
        uint64_t pivot = (uint64_t)((unsigned __int128)k * N >> 64);
        uint64_t other = pivot >= x ? pivot - x : pivot + N - x;
        uint64_t high  = x > other ? x : other;
        if (mix(k ^ high * 0xd6e8feb86659fd93ull) >> 63) x = other;
    }
    return (int64_t)x;
}
