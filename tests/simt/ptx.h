/* tests/simt/ptx.h -- the PTX instructions of the kernels' inline assembly, each by its whole text. A text
 * that is not here does not compile. Fragments of ldmatrix and mma.sync are those of the PTX manual. */
#ifndef TESTS_SIMT_PTX_H
#define TESTS_SIMT_PTX_H

#include <time.h>

namespace simt {

constexpr uint64_t text_step(uint64_t h, char c)                             /* FNV-1a */
{
    return (h ^ (uint64_t)(unsigned char)c) * 0x100000001b3u;
}
constexpr uint64_t text_hash(const char *s)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (; *s; s++) h = text_step(h, *s);
    return h;
}

template <uint64_t TEXT> struct Ptx;                                /* undefined: no such instruction here */

#define SIMT_PTX(text, ...) simt::Ptx<simt::text_hash(text)>::run(__VA_ARGS__)
#define SIMT_INSTRUCTION(text) template <> struct Ptx<text_hash(text)>

SIMT_INSTRUCTION("") { template <class... A> static void run(A &...) { } };     /* keeps registers */

/* ---- asynchronous copies ---- */

struct CopyAsync { static void run(uint32_t to, const void *from, int n) { copy_async(to, from, n); } };
SIMT_INSTRUCTION("cp.async.cg.shared.global [%0], [%1], 16, %2;") : CopyAsync { };
SIMT_INSTRUCTION("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;") : CopyAsync { };
SIMT_INSTRUCTION("cp.async.cg.shared.global [%0], [%1], 16;")
{
    static void run(uint32_t to, const void *from) { copy_async(to, from, 16); }
};
SIMT_INSTRUCTION("cp.async.wait_all;") { static void run() { copy_async_wait(-1); } };
SIMT_INSTRUCTION("cp.async.commit_group;") { static void run() { copy_async_commit(); } };
SIMT_INSTRUCTION("cp.async.wait_group %0;") { static void run(int n) { copy_async_wait(n); } };

/* ---- instructions of a warp ---- */

struct Matrices { uint32_t *v[4], at; };                 /* of ldmatrix: a lane's words and its address */
struct Fragments { float *d[4]; uint32_t a[4], b[2]; };  /* of mma.sync */

void load_matrices(void *const *operand);
void load_matrices_transposed(void *const *operand);
void multiply_bf16(void *const *operand);
void multiply_e4m3(void *const *operand);

template <Resolve F> struct LoadMatrices {
    static void run(uint32_t &v0, uint32_t &v1, uint32_t &v2, uint32_t &v3, uint32_t at,
                    Site s = Site::here())
    {
        Matrices m = { { &v0, &v1, &v2, &v3 }, at };
        meet_warp("ldmatrix", ~0u, &m, F, s);
    }
};
SIMT_INSTRUCTION("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];")
    : LoadMatrices<load_matrices> { };
SIMT_INSTRUCTION("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];")
    : LoadMatrices<load_matrices_transposed> { };

template <Resolve F> struct Multiply {
    static void run(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2,
                    uint32_t a3, uint32_t b0, uint32_t b1, Site s = Site::here())
    {
        Fragments f = { { &d0, &d1, &d2, &d3 }, { a0, a1, a2, a3 }, { b0, b1 } };
        meet_warp("mma.sync", ~0u, &f, F, s);
    }
};
SIMT_INSTRUCTION("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};") : Multiply<multiply_bf16> { };
SIMT_INSTRUCTION("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};") : Multiply<multiply_e4m3> { };

/* ---- shared memory by address ---- */

inline const uint32_t *shared_words(uint32_t at, int n)
{
    return (const uint32_t *)shared_pointer(at, (uint32_t)n * 4, (uint32_t)n * 4);
}
inline uint32_t *words_to_store(uint32_t at, int n)
{
    return (uint32_t *)shared_target(at, (uint32_t)n * 4, (uint32_t)n * 4);
}
SIMT_INSTRUCTION("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];")
{
    static void run(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t at)
    {
        const uint32_t *p = shared_words(at, 4);
        a = p[0], b = p[1], c = p[2], d = p[3];
    }
};
SIMT_INSTRUCTION("ld.shared.s32 %0, [%1];")
{
    static void run(int &x, uint32_t at) { x = (int)*shared_words(at, 1); }
};
SIMT_INSTRUCTION("st.shared.s32 [%0], %1;")
{
    static void run(uint32_t at, int x) { *words_to_store(at, 1) = (uint32_t)x; }
};
SIMT_INSTRUCTION("st.shared.v2.u32 [%0], {%1, %2};")
{
    static void run(uint32_t at, uint32_t a, uint32_t b)
    {
        uint32_t *p = words_to_store(at, 2);
        p[0] = a, p[1] = b;
    }
};
SIMT_INSTRUCTION("st.shared.v4.u32 [%0], {%1, %2, %3, %4};")
{
    static void run(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
    {
        uint32_t *p = words_to_store(at, 4);
        p[0] = a, p[1] = b, p[2] = c, p[3] = d;
    }
};
SIMT_INSTRUCTION("st.shared.v4.u32 [%0], {%1, %1, %1, %1};")
{
    static void run(uint32_t at, uint32_t a)
    {
        uint32_t *p = words_to_store(at, 4);
        p[0] = p[1] = p[2] = p[3] = a;
    }
};

/* ---- arithmetic ---- */

/* Subnormals are zero, as input and as output. */
inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

SIMT_INSTRUCTION("ex2.approx.ftz.f32 %0, %1;")
{
    static void run(float &y, float x) { y = flushed(exp2f(flushed(x))); }
};
SIMT_INSTRUCTION("rcp.approx.ftz.f32 %0, %1;")
{
    static void run(float &y, float x) { y = flushed(1.0f / flushed(x)); }
};
SIMT_INSTRUCTION("rsqrt.approx.ftz.f32 %0, %1;")
{
    static void run(float &y, float x) { y = flushed(1.0f / sqrtf(flushed(x))); }
};
SIMT_INSTRUCTION("mul.wide.u32 %0, %1, %2;")
{
    static void run(uint64_t &y, uint32_t a, uint32_t b) { y = (uint64_t)a * b; }
};

uint8_t e4m3_code(float x);                              /* the nearest, ties to even, 448 at most */
float   e4m3_value(uint8_t code);

SIMT_INSTRUCTION("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;")
{
    static void run(uint16_t &y, float high, float low)
    {
        y = (uint16_t)(e4m3_code(high) << 8 | e4m3_code(low));
    }
};
uint16_t half_of_e4m3(uint8_t code);
SIMT_INSTRUCTION("prmt.b32 %0, %1, %2, %3;")
{
    static void run(uint32_t &x, uint32_t a, uint32_t b, uint32_t s) { x = __byte_perm(a, b, s); }
};
SIMT_INSTRUCTION("mul.rn.bf16x2 %0, %1, %2;")
{
    static uint32_t half(uint32_t a, uint32_t b)
    {
        return __float2bfloat16_rn(__uint_as_float(a << 16) * __uint_as_float(b << 16)).bits;
    }
    static void run(uint32_t &x, uint32_t a, uint32_t b)
    {
        x = half(a >> 16, b >> 16) << 16 | half(a & 0xffff, b & 0xffff);
    }
};
SIMT_INSTRUCTION("cvt.rn.f16x2.e4m3x2 %0, %1;")
{
    static void run(uint32_t &y, uint16_t two)
    {
        y = (uint32_t)half_of_e4m3((uint8_t)(two >> 8)) << 16 | half_of_e4m3((uint8_t)two);
    }
};

/* ---- the clock, and words that other devices see ---- */

struct GlobalTimer {
    template <class T> static void run(T &ns)
    {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        ns = (T)(t.tv_sec * 1000000000ll + t.tv_nsec);
    }
};
SIMT_INSTRUCTION("mov.u64 %0, %globaltimer;") : GlobalTimer { };
SIMT_INSTRUCTION("mov.u64 %0, %%globaltimer;") : GlobalTimer { };
SIMT_INSTRUCTION("ld.acquire.sys.global.b64 %0, [%1];")
{
    template <class T> static void run(T &x, const void *p) { x = *(const T *)p; }
};
SIMT_INSTRUCTION("ld.acquire.gpu.global.s32 %0, [%1];")
{
    static void run(int &x, const int *p) { x = *p; }
};
SIMT_INSTRUCTION("red.release.gpu.global.add.s32 [%0], 1;")
{
    static void run(int *p) { atomicAdd(p, 1); }
};
SIMT_INSTRUCTION("fence.proxy.async.global;") { static void run() { } };
SIMT_INSTRUCTION("cp.async.bulk.prefetch.L2.global [%0], %1;") { static void run(const void *, int) { } };
SIMT_INSTRUCTION("st.release.sys.global.b64 [%0], %1;")
{
    template <class T> static void run(void *p, T x) { *(T *)p = x; }
};

}

#endif
