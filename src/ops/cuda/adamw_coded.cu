/* ops/cuda/adamw_coded.cu -- kernel of adamw_coded.c.
 *
 * grid   a warp takes a block of moments (256 elements, eight a lane: four neighbours of each half) and then
 *        every grid-th one; block 128 threads = 4 warps, five blocks a multiprocessor
 * smem   both maps and their midpoints, 4 KB, written by each block from constant memory. An element is
 *        looked up in them twice for its old moments and twice for its new ones (moment_code)
 * reads  all streams once, 16 bytes of f32 and 4 of codes a lane; bases that are not aligned for that, and
 *        the last block of a tensor, by single elements
 * order  scales are extremes, which have no order: reruns, and the CPU, get the same bits */
#include "ops/cuda/adamw.cuh"
#include "ops/moment_code.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, EACH = MOMENT_BLOCK / 32, HALF = MOMENT_BLOCK / 2 };

__constant__ float first_table[DYNAMIC_ZERO] = {
#define X(v) v,
    DYNAMIC_VALUES(X)
};
__constant__ float second_table[MOMENT_CODES - 2] = {
    UNSIGNED_DYNAMIC_VALUES(X)
#undef X
};

struct Codes { uint8_t *m, *v; float *m_scale, *v_scale; };
struct Maps { MomentMap first, second; };

struct alignas(4) Four { uint8_t c[4]; };

/* Eight elements of a lane. */
struct Lane { float p[EACH], g[EACH], m[EACH], v[EACH]; };

/* Element j of the lane, counted from the block's first. */
static __device__ inline int element(int lane, int j) { return j / 4 * HALF + lane * 4 + j % 4; }

template <bool SPLIT>
static __device__ inline void load_four(Lane &x, int j, const Weights &s, const Codes &c, int64_t i,
                                        const Maps &maps, float m_scale, float v_scale)
{
    Run<float, 4> g = run_load<4>(s.g + i), p;
    Half<4>       near, rest;
    Four          m = *(const Four *)(c.m + i), v = *(const Four *)(c.v + i);
    if (SPLIT) near = *(const Half<4> *)(s.w16 + i), rest = *(const Half<4> *)(s.rest + i);
    else       p = run_load<4>(s.p + i);
    #pragma unroll
    for (int k = 0; k < 4; k++) {
        x.p[j + k] = SPLIT ? joined(near.v[k], rest.v[k]) : p.get(k);
        x.g[j + k] = g.get(k);
        x.m[j + k] = __fmul_rn(maps.first.value[m.c[k]], m_scale);
        x.v[j + k] = __fmul_rn(maps.second.value[v.c[k]], v_scale);
    }
}

/* An element past the end is 0, which changes no scale. */
template <bool SPLIT>
static __device__ inline void load_one(Lane &x, int j, const Weights &s, const Codes &c, int64_t i,
                                       const Maps &maps, float m_scale, float v_scale)
{
    bool in = i < s.n;
    x.p[j] = !in ? 0.0f : SPLIT ? joined(((const uint16_t *)s.w16)[i], s.rest[i]) : s.p[i];
    x.g[j] = in ? s.g[i] : 0.0f;
    x.m[j] = in ? __fmul_rn(maps.first.value[c.m[i]], m_scale) : 0.0f;
    x.v[j] = in ? __fmul_rn(maps.second.value[c.v[i]], v_scale) : 0.0f;
}

/* The scale of a warp's block. */
static __device__ inline float warp_scale(const float *x, Moment which)
{
    MomentRange r = moment_range(x[0]);
    #pragma unroll
    for (int j = 1; j < EACH; j++) r = moment_range_of_both(r, moment_range(x[j]));
    #pragma unroll
    for (int far = 16; far; far /= 2) {
        MomentRange other = { __shfl_xor_sync(~0u, r.low, far), __shfl_xor_sync(~0u, r.high, far), true };
        r = moment_range_of_both(r, other);
    }
    r.finite = __all_sync(~0u, r.finite);
    return moment_scale(r, which);
}

/* New scales of a warp's block, and the maps of its codes. */
struct Coder {
    const Maps &maps;
    float       m_scale, v_scale;

    __device__ uint8_t m(float x) const
    {
        return moment_code(&maps.first, MOMENT_FIRST, moment_ratio(x, m_scale));
    }
    __device__ uint8_t v(float x) const
    {
        return moment_code(&maps.second, MOMENT_SECOND, moment_ratio(x, v_scale));
    }
};

template <bool SPLIT, bool BY4>
static __device__ inline void store_lane(Lane &x, const Coder &coder, const Weights &s, const Codes &c,
                                         int64_t base, int lane)
{
    #pragma unroll
    for (int j = 0; j < EACH; j += BY4 ? 4 : 1) {
        int64_t i = base + element(lane, j);
        if (BY4) {
            Four m, v;
            #pragma unroll
            for (int k = 0; k < 4; k++) m.c[k] = coder.m(x.m[j + k]), v.c[k] = coder.v(x.v[j + k]);
            *(Four *)(c.m + i) = m, *(Four *)(c.v + i) = v;
            masters_store<4, SPLIT>(s, i, x.p + j);
        } else if (i < s.n) {
            c.m[i] = coder.m(x.m[j]), c.v[i] = coder.v(x.v[j]);
            masters_store<1, SPLIT>(s, i, x.p + j);
        }
    }
}

template <bool SPLIT, bool BY4>
static __device__ inline void step_block(const Weights &s, const Codes &c, const Maps &maps, AdamFactors f,
                                         int64_t block, int lane)
{
    int64_t base = block * MOMENT_BLOCK;
    Lane    x;
    float   m_scale = c.m_scale[block], v_scale = c.v_scale[block];
    #pragma unroll
    for (int j = 0; j < EACH; j += BY4 ? 4 : 1) {
        int64_t i = base + element(lane, j);
        if (BY4) load_four<SPLIT>(x, j, s, c, i, maps, m_scale, v_scale);
        else     load_one<SPLIT>(x, j, s, c, i, maps, m_scale, v_scale);
    }
    #pragma unroll
    for (int j = 0; j < EACH; j++) adam_element(&x.p[j], &x.m[j], &x.v[j], x.g[j], f);
    Coder coder = { maps, warp_scale(x.m, MOMENT_FIRST), warp_scale(x.v, MOMENT_SECOND) };
    if (!lane) c.m_scale[block] = coder.m_scale, c.v_scale[block] = coder.v_scale;
    store_lane<SPLIT, BY4>(x, coder, s, c, base, lane);
}

template <bool SPLIT>
static __global__ void __launch_bounds__(THREADS, 5) step_blocks(Weights s, Codes c, Given given, bool by4)
{
    __shared__ Maps  maps;
    __shared__ float clip;
    int lane = threadIdx.x & 31;
    for (int code = threadIdx.x; code < MOMENT_CODES; code += THREADS) {
        moment_map_set(&maps.first, first_table, MOMENT_FIRST, code);
        moment_map_set(&maps.second, second_table, MOMENT_SECOND, code);
    }
    if (!threadIdx.x) clip = decide(s, given.max_norm);
    __syncthreads();
    if (clip == SKIPPED) return;
    AdamFactors f = factors(given, clip);
    int64_t     blocks = moment_blocks(s.n), step = (int64_t)gridDim.x * WARPS;
    for (int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < blocks; b += step) {
        if (by4 && (b + 1) * MOMENT_BLOCK <= s.n) step_block<SPLIT, true>(s, c, maps, f, b, lane);
        else                                      step_block<SPLIT, false>(s, c, maps, f, b, lane);
    }
}

}

extern "C" void cuda_adamw_coded(Backend *be, Tensor w, Tensor master, Tensor m, Tensor m_scale, Tensor v,
                                 Tensor v_scale, Tensor g, Tensor sumsq, AdamW h)
{
    Weights s = weights_of(w, master, g, sumsq, h);
    Codes   c = { (uint8_t *)m.data, (uint8_t *)v.data, (float *)m_scale.data, (float *)v_scale.data };
    Given   f = given(h);
    bool    by4 = weights_start_on(w, master, g, 4) && starts_on(m, 4) && starts_on(v, 4);
    int64_t grid = cuda_blocks(be, moment_blocks(s.n), WARPS, 5);
    if (is_split(master)) LAUNCH(be, "adamw_coded", step_blocks<true>, grid, THREADS, 0, s, c, f, by4);
    else                  LAUNCH(be, "adamw_coded", step_blocks<false>, grid, THREADS, 0, s, c, f, by4);
}
