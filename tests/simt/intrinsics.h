/* tests/simt/intrinsics.h -- CUDA's functions for threads, warps, atomics and arithmetic; simt.h has the
 * whole picture. */
#ifndef TESTS_SIMT_INTRINSICS_H
#define TESTS_SIMT_INTRINSICS_H

/* ---- barriers and fences ---- */

inline void __syncthreads(simt::Site at = simt::Site::here())
{
    simt::meet_block("__syncthreads", NULL, NULL, at);
}
inline void __syncwarp(unsigned mask = ~0u, simt::Site at = simt::Site::here())
{
    simt::meet_warp("__syncwarp", mask, &mask, NULL, at);
}
inline void __threadfence() { }
inline void __threadfence_system() { }
inline void __nanosleep(unsigned, simt::Site at = simt::Site::here()) { simt::sleep_thread(at); }
[[noreturn]] inline void __trap() { simt::fail("__trap"); }
inline size_t __cvta_generic_to_shared(const void *p) { return simt::shared_address(p); }

namespace simt {

inline void count_block(void *const *v)
{
    int n = 0;
    for (int i = 0; i < 1024; i++) n += v[i] && *(int *)v[i] != 0;
    for (int i = 0; i < 1024; i++)
        if (v[i]) *(int *)v[i] = n;
}
inline void all_block(void *const *v)
{
    int all = 1;
    for (int i = 0; i < 1024; i++) all &= !v[i] || *(int *)v[i] != 0;
    for (int i = 0; i < 1024; i++)
        if (v[i]) *(int *)v[i] = all;
}

/* ---- shuffles: `from` is the source lane ---- */

struct Shuffle { uint64_t in, out; int from; };

inline void shuffle(void *const *v)
{
    for (int i = 0; i < 32; i++) {
        Shuffle *s = (Shuffle *)v[i];
        if (!s) continue;
        if (!v[s->from]) fail("lane %d reads lane %d, which takes no part in the shuffle", i, s->from);
        s->out = ((Shuffle *)v[s->from])->in;
    }
}

template <class T> inline T shuffled(const char *name, unsigned mask, T x, int from, Site at)
{
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    Shuffle s = { 0, 0, from };
    memcpy(&s.in, &x, sizeof x);
    meet_warp(name, mask, &s, shuffle, at);
    memcpy(&x, &s.out, sizeof x);
    return x;
}

/* ---- votes, matches, reductions: every lane's number becomes the result ---- */

inline uint32_t &word(void *p) { return *(uint32_t *)p; }

template <class F> inline void reduce(void *const *v, uint32_t first, F f)
{
    for (int i = 0; i < 32; i++)
        if (v[i]) first = f(first, word(v[i]), i);
    for (int i = 0; i < 32; i++)
        if (v[i]) word(v[i]) = first;
}

inline void ballot(void *const *v)
{
    reduce(v, 0, [](uint32_t a, uint32_t x, int i) { return a | (uint32_t)(x != 0) << i; });
}
inline void add(void *const *v) { reduce(v, 0, [](uint32_t a, uint32_t x, int) { return a + x; }); }
inline void most(void *const *v)
{
    reduce(v, 0, [](uint32_t a, uint32_t x, int) { return a > x ? a : x; });
}
inline void least(void *const *v)
{
    reduce(v, ~0u, [](uint32_t a, uint32_t x, int) { return a < x ? a : x; });
}
inline void match(void *const *v)
{
    uint32_t same[32] = { };
    for (int i = 0; i < 32; i++)
        for (int j = 0; v[i] && j < 32; j++)
            if (v[j] && ((Shuffle *)v[i])->in == ((Shuffle *)v[j])->in) same[i] |= 1u << j;
    for (int i = 0; i < 32; i++)
        if (v[i]) ((Shuffle *)v[i])->out = same[i];
}

inline uint32_t voted(const char *name, unsigned mask, uint32_t x, Resolve f, Site at)
{
    meet_warp(name, mask, &x, f, at);
    return x;
}

}

#define SIMT_AT simt::Site at = simt::Site::here()

inline int __syncthreads_count(int x, SIMT_AT)
{
    simt::meet_block("__syncthreads_count", &x, simt::count_block, at);
    return x;
}
inline int __syncthreads_and(int x, SIMT_AT)
{
    simt::meet_block("__syncthreads_and", &x, simt::all_block, at);
    return x;
}

template <class T> inline T __shfl_sync(unsigned mask, T x, int from, int width = 32, SIMT_AT)
{
    int me = simt::lane();
    return simt::shuffled("__shfl_sync", mask, x, (me & ~(width - 1)) | (from & (width - 1)), at);
}
template <class T> inline T __shfl_xor_sync(unsigned mask, T x, int with, int width = 32, SIMT_AT)
{
    int me = simt::lane(), from = me ^ with;
    return simt::shuffled("__shfl_xor_sync", mask, x, from / width > me / width ? me : from, at);
}
template <class T> inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = 32, SIMT_AT)
{
    int me = simt::lane(), from = me - (int)by;
    return simt::shuffled("__shfl_up_sync", mask, x, from < (me & ~(width - 1)) ? me : from, at);
}

inline unsigned __ballot_sync(unsigned mask, int x, SIMT_AT)
{
    return simt::voted("__ballot_sync", mask, x != 0, simt::ballot, at);
}
inline int __any_sync(unsigned mask, int x, SIMT_AT)
{
    return simt::voted("__any_sync", mask, x != 0, simt::ballot, at) != 0;
}
inline int __all_sync(unsigned mask, int x, SIMT_AT)
{
    return simt::voted("__all_sync", mask, x == 0, simt::ballot, at) == 0;
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned x, SIMT_AT)
{
    return simt::voted("__reduce_add_sync", mask, x, simt::add, at);
}
inline unsigned __reduce_max_sync(unsigned mask, unsigned x, SIMT_AT)
{
    return simt::voted("__reduce_max_sync", mask, x, simt::most, at);
}
inline unsigned __reduce_min_sync(unsigned mask, unsigned x, SIMT_AT)
{
    return simt::voted("__reduce_min_sync", mask, x, simt::least, at);
}
inline int __reduce_add_sync(unsigned mask, int x, SIMT_AT)
{
    return (int)simt::voted("__reduce_add_sync", mask, (unsigned)x, simt::add, at);
}
inline int __reduce_max_sync(unsigned mask, int x, SIMT_AT)     /* with the sign bit flipped, as unsigned */
{
    return (int)(simt::voted("__reduce_max_sync", mask, (unsigned)x ^ 1u << 31, simt::most, at) ^ 1u << 31);
}
inline int __reduce_min_sync(unsigned mask, int x, SIMT_AT)
{
    return (int)(simt::voted("__reduce_min_sync", mask, (unsigned)x ^ 1u << 31, simt::least, at) ^ 1u << 31);
}
template <class T> inline unsigned __match_any_sync(unsigned mask, T x, SIMT_AT)
{
    simt::Shuffle s = { };
    memcpy(&s.in, &x, sizeof x);
    simt::meet_warp("__match_any_sync", mask, &s, simt::match, at);
    return (unsigned)s.out;
}
#undef SIMT_AT

/* ---- atomics: one host thread runs all kernels ---- */

template <class T> using simt_same = std::common_type_t<T>;         /* converts the other operands */
template <class T> inline T simt_exchange(T *p, T x) { T old = *p; *p = x; return old; }
template <class T> inline T atomicAdd(T *p, simt_same<T> x) { return simt_exchange(p, (T)(*p + x)); }
template <class T> inline T atomicAdd_system(T *p, simt_same<T> x) { return atomicAdd(p, x); }
template <class T> inline T atomicMax(T *p, simt_same<T> x) { return simt_exchange(p, *p > x ? *p : x); }
template <class T> inline T atomicCAS(T *p, simt_same<T> old, simt_same<T> x)
{
    return simt_exchange(p, *p == old ? x : *p);
}

/* ---- loads and stores with hints ---- */

template <class T> inline T __ldcs(const T *p) { return *p; }
template <class T> inline T __ldcv(const T *p) { return *(const volatile T *)p; }
template <class T> inline void __stcs(T *p, T x) { *p = x; }
template <class T> inline void __stcg(T *p, T x) { *p = x; }

/* ---- arithmetic ---- */

template <class A, class B> constexpr std::common_type_t<A, B> min(A a, B b)
{
    typedef std::common_type_t<A, B> T;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <class A, class B> constexpr std::common_type_t<A, B> max(A a, B b)
{
    typedef std::common_type_t<A, B> T;
    return (T)a < (T)b ? (T)b : (T)a;
}

template <class To, class From> inline To simt_bits(From x)
{
    To y;
    static_assert(sizeof x == sizeof y, "");
    memcpy(&y, &x, sizeof y);
    return y;
}
inline unsigned __float_as_uint(float x)  { return simt_bits<unsigned>(x); }
inline int      __float_as_int(float x)   { return simt_bits<int>(x); }
inline float    __uint_as_float(unsigned x) { return simt_bits<float>(x); }
inline float    __int_as_float(int x)     { return simt_bits<float>(x); }
inline int      __popc(unsigned x)        { return __builtin_popcount(x); }
inline int      __ffs(int x)              { return __builtin_ffs(x); }
inline long long __double2ll_rn(double x) { return llrint(x); }
inline float    rsqrtf(float x)           { return 1.0f / sqrtf(x); }
inline float    __fmul_rn(float a, float b) { return a * b; }
inline float    __fadd_rn(float a, float b) { return a + b; }
inline float    __frcp_rn(float a)        { return 1.0f / a; }
inline float    __fdiv_rn(float a, float b) { return a / b; }
inline float    __fsqrt_rn(float a)       { return sqrtf(a); }
inline float    __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double   __dadd_rn(double a, double b) { return a + b; }
inline double   __dmul_rn(double a, double b) { return a * b; }

/* 0 for divisors from 2^126 on, as the instruction has it. */
inline float __fdividef(float a, float b)
{
    return fabsf(b) > 0x1p126f && !isinf(b) ? a * 0.0f : a / b;
}

/* Byte i of the result is the byte of (y, x) that nibble i of s names; its high bit: that byte's sign. */
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned __vmaxu2(unsigned a, unsigned b)
{
    unsigned low = (a & 0xffff) > (b & 0xffff) ? a : b, high = a >> 16 > b >> 16 ? a : b;
    return (low & 0xffff) | (high & 0xffff0000u);
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned s)
{
    uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (int i = 0; i < 4; i++) {
        unsigned nibble = s >> 4 * i & 15, byte = (unsigned)(both >> 8 * (nibble & 7)) & 255;
        out |= (nibble & 8 ? (byte & 128 ? 255u : 0u) : byte) << 8 * i;
    }
    return out;
}

/* ---- bf16 and half ---- */

struct __nv_bfloat16 { uint16_t bits; };
struct __nv_bfloat162 { __nv_bfloat16 x, y; };
struct alignas(4) __half2 { uint16_t x, y; };

inline float __bfloat162float(__nv_bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }
inline __nv_bfloat16 __float2bfloat16_rn(float x)                       /* ties to even */
{
    unsigned u = __float_as_uint(x);
    if (x != x) return { 0x7fff };
    return { (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16) };
}
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return { __float2bfloat16_rn(x), __float2bfloat16_rn(y) };
}
inline float2 __bfloat1622float2(__nv_bfloat162 v)
{
    return { __bfloat162float(v.x), __bfloat162float(v.y) };
}

inline float simt_half(uint16_t h)
{
    float    sign = h >> 15 ? -1.0f : 1.0f;
    unsigned e = h >> 10 & 31, m = h & 1023;
    if (e == 31) return m ? NAN : sign * INFINITY;
    return sign * (e ? ldexpf(1024.0f + (float)m, (int)e - 25) : ldexpf((float)m, -24));
}
inline float2 __half22float2(__half2 v) { return { simt_half(v.x), simt_half(v.y) }; }

#endif
