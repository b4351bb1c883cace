/* ops/cuda/adamw_coded.cu -- kernel of adamw_coded.c.
 *
 * grid   a warp takes a block of moments (256 elements, eight a lane: four neighbours of each half) and then
 *        every grid-th one; block 448 threads = 14 warps, two blocks a multiprocessor
 * smem   73 KB, written by each block: both maps and their midpoints, each entry in COPIES words, so that
 *        lanes that look up different codes rarely meet in a bank; the bins of both maps
 * reads  all streams once, 16 bytes of f32 and 4 of codes a lane; bases that are not aligned for that, and
 *        the last block of a tensor, by single elements
 * math   Instructions are the limit, not bytes. Square roots and quotients are IEEE's; for moments of usual
 *        size (`usual`) they are computed without the branches of the compiler's own
 * order  scales are extremes, which have no order: reruns, and the CPU, get the same bits */
#include "ops/cuda/adamw.cuh"
#include "ops/moment_code.h"

namespace {

enum { THREADS = 448, WARPS = THREADS / 32, EACH = MOMENT_BLOCK / 32, HALF = MOMENT_BLOCK / 2, COPIES = 8 };

__constant__ float first_table[DYNAMIC_ZERO] = {
#define X(v) v,
    DYNAMIC_VALUES(X)
};
__constant__ float second_table[MOMENT_CODES - 2] = {
    UNSIGNED_DYNAMIC_VALUES(X)
#undef X
};

struct Codes { uint8_t *m, *v; float *m_scale, *v_scale; };

/* A map in shared memory. Entry c of value and middle is at [c * COPIES], and so it is from any of the first
 * COPIES words on (`shifted`). */
template <int BINS> struct Map {
    float    value[MOMENT_CODES * COPIES], middle[MOMENT_CODES * COPIES];
    unsigned base[BINS / 4];                                             /* four bins each */

    __device__ void set_values(const float *table, Moment which)
    {
        for (int i = threadIdx.x; i < MOMENT_CODES * COPIES; i += THREADS) {
            value[i]  = moment_value(table, which, i / COPIES);
            middle[i] = moment_middle(table, which, i / COPIES);
        }
    }
    __device__ void set_bins(Moment which)
    {
        for (int i = threadIdx.x; i < BINS / 4; i += THREADS) {
            unsigned four = 0;
            for (int k = 0; k < 4; k++)
                four |= (unsigned)moment_base(middle, COPIES, which, 4 * i + k) << 8 * k;
            base[i] = four;
        }
    }
};
struct Maps { Map<MOMENT_BINS_FIRST> first; Map<MOMENT_BINS_SECOND> second; };

struct alignas(4) Four { uint8_t c[4]; };

/* Eight elements of a lane. */
struct Lane { float p[EACH], g[EACH], m[EACH], v[EACH]; };

static __device__ inline const Maps &shifted(const Maps *maps, int words)
{
    return *(const Maps *)((const float *)maps + words);
}

/* A lane's copies of the tables. */
struct Lookup {
    const Maps &maps, &own;

    __device__ float m(uint8_t code, float scale) const
    {
        return __fmul_rn(own.first.value[code * COPIES], scale);
    }
    __device__ float v(uint8_t code, float scale) const
    {
        return __fmul_rn(own.second.value[code * COPIES], scale);
    }
    __device__ uint8_t m_code(float y, MomentUnit u) const
    {
        return moment_code_of((const uint8_t *)maps.first.base, own.first.middle, COPIES,
                              MOMENT_FIRST, u, y);
    }
    __device__ uint8_t v_code(float y, MomentUnit u) const
    {
        return moment_code_of((const uint8_t *)maps.second.base, own.second.middle, COPIES,
                              MOMENT_SECOND, u, y);
    }
};

/* Element j of the lane, counted from the block's first. */
static __device__ inline int element(int lane, int j) { return j / 4 * HALF + lane * 4 + j % 4; }

template <class G, bool SPLIT>
static __device__ inline void load_four(Lane &x, int j, const Weights &s, const Codes &c, int64_t i,
                                        const Lookup &at, float m_scale, float v_scale)
{
    Run<G, 4>     g = run_load<4>((const G *)s.g + i);
    Run<float, 4> p;
    Half<4>       near, rest;
    Four          m = *(const Four *)(c.m + i), v = *(const Four *)(c.v + i);
    if (SPLIT) near = *(const Half<4> *)(s.w16 + i), rest = *(const Half<4> *)(s.rest + i);
    else       p = run_load<4>(s.p + i);
    #pragma unroll
    for (int k = 0; k < 4; k++) {
        x.p[j + k] = SPLIT ? joined(near.v[k], rest.v[k]) : p.get(k);
        x.g[j + k] = g.get(k);
        x.m[j + k] = at.m(m.c[k], m_scale);
        x.v[j + k] = at.v(v.c[k], v_scale);
    }
}

/* An element past the end is 0, which changes no scale. */
template <class G, bool SPLIT>
static __device__ inline void load_one(Lane &x, int j, const Weights &s, const Codes &c, int64_t i,
                                       const Lookup &at, float m_scale, float v_scale)
{
    bool in = i < s.n;
    x.p[j] = !in ? 0.0f : SPLIT ? joined(((const uint16_t *)s.w16)[i], s.rest[i]) : s.p[i];
    x.g[j] = in ? to_f32(((const G *)s.g)[i]) : 0.0f;
    x.m[j] = in ? at.m(c.m[i], m_scale) : 0.0f;
    x.v[j] = in ? at.v(c.v[i], v_scale) : 0.0f;
}

/* The scale of a warp's block. */
static __device__ inline float warp_scale(const float *x, Moment which)
{
    unsigned most = moment_key(x[0], which);
    #pragma unroll
    for (int j = 1; j < EACH; j++) most = max(most, moment_key(x[j], which));
    return moment_scale(__reduce_max_sync(~0u, most), which);
}

/* ---- square roots and quotients without branches ---- */

static __device__ inline float near_root(float x)            /* 1 / sqrt(x) */
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float near_inverse(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* a / d, rounded once. r: 1 / d to an ulp. A zero keeps its sign. */
static __device__ inline float quotient(float a, float d, float r)
{
    float q = __fmul_rn(a, r);
    q = __fmaf_rn(-__fmaf_rn(d, q, -a), r, q);
    return __fmaf_rn(-__fmaf_rn(d, q, -a), r, q);
}

static __device__ inline float inverse(float d)
{
    float r = near_inverse(d);
    return __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
}

/* sqrt(x), rounded once, of 0 or LEAST at least. */
#define LEAST 0x1p-96f
static __device__ inline float root(float x)
{
    float r = near_root(fmaxf(x, LEAST)), s = __fmul_rn(x, r);
    return __fmaf_rn(__fmaf_rn(-s, s, x), __fmul_rn(0.5f, r), s);
}

/* The factors of a step, and whether quotients by them have normal remainders. */
struct Factors : AdamFactors {
    float root_inverse;
    bool  usual;

    __device__ explicit Factors(AdamFactors f) : AdamFactors(f)
    {
        root_inverse = __frcp_rn(f.root);
        usual = f.eps >= 0x1p-40f && f.eps <= 0x1p20f && f.root >= 0x1p-14f && f.root <= 1.0f;
    }
};

/* 2 |x| - 1 of the bits: zeros are the largest. */
static __device__ inline unsigned size_bits(float x) { return 2 * __float_as_uint(x) - 1; }

/* Whether all moments of a warp are 0 or LEAST at least, with sizes at which nothing leaves the normal
 * numbers: slopes are at least 2^-96 / (2^10 / 2^-14 + 2^20). */
static __device__ inline bool usual(const Lane &x, const Factors &f, float m_size, float v_size)
{
    unsigned least = size_bits(x.m[0]);
    #pragma unroll
    for (int j = 0; j < EACH; j++) least = min(least, min(size_bits(x.m[j]), size_bits(x.v[j])));
    bool scales = m_size >= 0x1p-74f && m_size <= 0x1p20f && v_size >= 0x1p-74f && v_size <= 0x1p20f;
    return __all_sync(~0u, f.usual && scales && least >= size_bits(LEAST));
}

template <bool USUAL>
static __device__ inline void move_weights(Lane &x, const Factors &f)
{
    #pragma unroll
    for (int j = 0; j < EACH; j++) {
        float below = USUAL ? __fadd_rn(quotient(root(x.v[j]), f.root, f.root_inverse), f.eps) : 0.0f;
        float slope = USUAL ? quotient(x.m[j], below, inverse(below)) : adam_slope(x.m[j], x.v[j], f);
        x.p[j] = adam_weight(x.p[j], slope, f);
    }
}

/* ---- a block ---- */

/* The units of a block's new scales. */
struct Units { MomentUnit m, v; };

template <bool SPLIT, bool BY4>
static __device__ inline void store_lane(Lane &x, const Lookup &at, Units u, const Weights &s, const Codes &c,
                                         int64_t base, int lane)
{
    #pragma unroll
    for (int j = 0; j < EACH; j += BY4 ? 4 : 1) {
        int64_t i = base + element(lane, j);
        if (BY4) {
            Four m, v;
            #pragma unroll
            for (int k = 0; k < 4; k++)
                m.c[k] = at.m_code(x.m[j + k], u.m), v.c[k] = at.v_code(x.v[j + k], u.v);
            *(Four *)(c.m + i) = m, *(Four *)(c.v + i) = v;
            masters_store<4, SPLIT>(s, i, x.p + j);
        } else if (i < s.n) {
            c.m[i] = at.m_code(x.m[j], u.m), c.v[i] = at.v_code(x.v[j], u.v);
            masters_store<1, SPLIT>(s, i, x.p + j);
        }
    }
}

template <class G, bool SPLIT, bool BY4>
static __device__ inline void step_block(const Weights &s, const Codes &c, const Lookup &at, const Factors &f,
                                         int block, int lane)
{
    int64_t base = (int64_t)block * MOMENT_BLOCK;
    Lane    x;
    float   m_scale = c.m_scale[block], v_scale = c.v_scale[block];
    #pragma unroll
    for (int j = 0; j < EACH; j += BY4 ? 4 : 1) {
        int64_t i = base + element(lane, j);
        if (BY4) load_four<G, SPLIT>(x, j, s, c, i, at, m_scale, v_scale);
        else     load_one<G, SPLIT>(x, j, s, c, i, at, m_scale, v_scale);
    }
    #pragma unroll
    for (int j = 0; j < EACH; j++) adam_moments(&x.m[j], &x.v[j], x.g[j], f);
    m_scale = warp_scale(x.m, MOMENT_FIRST), v_scale = warp_scale(x.v, MOMENT_SECOND);
    Units u = { moment_unit(m_scale), moment_unit(v_scale) };
    if (usual(x, f, u.m.size, u.v.size)) {
        move_weights<true>(x, f);
        #pragma unroll
        for (int j = 0; j < EACH; j++) x.m[j] = __uint_as_float(__float_as_uint(x.m[j]) ^ u.m.sign);
    } else {
        move_weights<false>(x, f);
        #pragma unroll
        for (int j = 0; j < EACH; j++)
            x.m[j] = moment_unsigned(x.m[j], u.m), x.v[j] = moment_unsigned(x.v[j], u.v);
    }
    if (!lane) c.m_scale[block] = m_scale, c.v_scale[block] = v_scale;
    store_lane<SPLIT, BY4>(x, at, u, s, c, base, lane);
}

template <class G, bool SPLIT>
static __global__ void __launch_bounds__(THREADS, 2) step_blocks(Weights s, Codes c, Given given, bool by4)
{
    extern __shared__ float4 smem[];
    __shared__ float clip;
    Maps  &maps = *(Maps *)smem;
    int    lane = threadIdx.x & 31;
    Lookup at = { maps, shifted(&maps, lane % COPIES) };
    maps.first.set_values(first_table, MOMENT_FIRST), maps.second.set_values(second_table, MOMENT_SECOND);
    if (!threadIdx.x) clip = decide(s, given.max_norm);
    __syncthreads();
    if (clip == SKIPPED) return;
    maps.first.set_bins(MOMENT_FIRST), maps.second.set_bins(MOMENT_SECOND);
    __syncthreads();
    Factors f(factors(given, clip));
    int blocks = (int)moment_blocks(s.n), whole = by4 ? (int)(s.n / MOMENT_BLOCK) : 0;
    for (int b = blockIdx.x * WARPS + threadIdx.x / 32; b < blocks; b += gridDim.x * WARPS) {
        if (b < whole) step_block<G, SPLIT, true>(s, c, at, f, b, lane);
        else           step_block<G, SPLIT, false>(s, c, at, f, b, lane);
    }
}

template <class G, bool SPLIT>
static void launch(Backend *be, const Weights &s, const Codes &c, Given f, bool by4)
{
    int64_t grid = cuda_blocks(be, moment_blocks(s.n), WARPS, 2);
    LAUNCH(be, "adamw_coded", (step_blocks<G, SPLIT>), grid, THREADS, sizeof(Maps), s, c, f, by4);
}

}

extern "C" void cuda_adamw_coded(Backend *be, Tensor w, Tensor master, Tensor m, Tensor m_scale, Tensor v,
                                 Tensor v_scale, Tensor g, Tensor sumsq, AdamW h)
{
    Weights s = weights_of(w, master, g, sumsq, h);
    Codes   c = { (uint8_t *)m.data, (uint8_t *)v.data, (float *)m_scale.data, (float *)v_scale.data };
    Given   f = given(h);
    bool    by4 = weights_start_on(w, master, g, 4) && starts_on(m, 4) && starts_on(v, 4);
    BY_DTYPE(g.dtype, G,
        if (is_split(master)) launch<G, true>(be, s, c, f, by4);
        else                  launch<G, false>(be, s, c, f, by4));
}
