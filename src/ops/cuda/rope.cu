/* ops/cuda/rope.cu -- kernels of rope.c: a thread rotates several pairs (j, h + j) at once, read as two
 * vectors.
 *
 * Without w a thread rotates the same pairs of a few heads, whose angles are the same. With w, LANES lanes
 * hold a head, 16 bytes of either half each, and sum its squares among themselves; a warp takes the heads of
 * one token side by side, so the angles of the token stay in registers. dw is summed in registers over all
 * heads of a lane, then over the lanes and warps of a block in order; each block writes one part to the
 * workspace. Other widths and mixtures take the plain kernels, a warp per head. */
#include "ops/cuda/rows.cuh"

namespace {

enum { WARPS = 8, THREADS = 32 * WARPS };

typedef struct Table {
    float         *cs;
    const int32_t *pos, *axis;
    const float   *inv;
    int64_t        cs_stride, pos_stride, A, T, h;
} Table;

/* sincosf reduces large angles exactly, as libm does. */
static __global__ void table_any(Table a)
{
    int64_t all = a.T * a.h, first = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (int64_t i = first; i < all; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t t = i / a.h, j = i % a.h, axis = a.axis[j];
        float   s, c;
        if (axis < 0 || axis >= a.A) __trap();
        sincosf((float)a.pos[axis * a.pos_stride + t] * a.inv[j], &s, &c);
        a.cs[t * a.cs_stride + j]       = c;
        a.cs[t * a.cs_stride + a.h + j] = s;
    }
}

}

extern "C" void cuda_rope_table(Backend *be, Tensor cs, Tensor pos, Tensor inv, Tensor axis)
{
    Table a = { (float *)cs.data, (const int32_t *)pos.data, (const int32_t *)axis.data,
                (const float *)inv.data, cs.s[0], pos.s[0], pos.n[0], cs.n[0], cs.n[1] / 2 };
    LAUNCH(be, "rope_table", table_any, cuda_blocks(be, a.T * a.h, THREADS, 16), THREADS, 0, a);
}

namespace {

/* The cosines or sines that go with V elements of 8 or 16 bytes in all: one vector or two. */
template <int V> __device__ inline void angles_load(float *to, const float *p)
{
    constexpr int W = V < 4 ? V : 4;
#pragma unroll
    for (int i = 0; i < V; i += W) {
        Vec<float, W> k = *(const Vec<float, W> *)(p + i);
#pragma unroll
        for (int q = 0; q < W; q++) to[i + q] = k.v[q];
    }
}

/* V elements, 8 or 16 bytes in all, rounded, in one store: here the compiler splits the assignment of a Vec
 * or Pack into one store per element. */
template <int V, class T> __device__ inline void vec_store(T *p, const float *x)
{
    constexpr int WORDS = V * (int)sizeof(T) / 4;
    uint32_t      w[WORDS];
#pragma unroll
    for (int i = 0; i < WORDS; i++) {
        if (sizeof(T) == 4) { w[i] = __float_as_uint(x[i]); continue; }
        __nv_bfloat162 two = __floats2bfloat162_rn(x[2 * i % V], x[(2 * i + 1) % V]);
        w[i] = *(uint32_t *)&two;
    }
    if (WORDS == 2) __stcg((uint2 *)p, make_uint2(w[0], w[1]));
    else            __stcg((uint4 *)p, make_uint4(w[0], w[1], w[2 % WORDS], w[3 % WORDS]));
}

/* y is x rotated by the angle (sign 1) or back (-1). */
typedef struct Rotation { RowView y, x; const float *cs; int64_t cs_stride, T, H, h; float sign; } Rotation;

/* Heads of a thread, which rotate by the same angles. */
enum { ROTATED = 4 };

/* One V of pairs of ROTATED heads per thread; neighbours have neighbouring pairs, then neighbouring heads. */
template <class T, int V> static __global__ void __launch_bounds__(THREADS) rotate_vecs(Rotation a)
{
    int64_t   per = a.h / V, apart = (a.H + ROTATED - 1) / ROTATED, all = a.T * apart * per;
    int64_t   i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= all) return;
    int64_t   row = divide(i, per, all), j = (i - row * per) * V;
    int64_t   t = divide(row, apart, all), first = row - t * apart;
    const T  *x = (const T *)a.x.p + t * a.x.s0 + j;
    T        *y = (T *)a.y.p + t * a.y.s0 + j;
    float     c[V], s[V];
    Vec<T, V> lo[ROTATED], hi[ROTATED];
#pragma unroll
    for (int n = 0; n < ROTATED; n++) {
        int64_t head = first + n * apart;
        if (head >= a.H) continue;
        lo[n] = *(const Vec<T, V> *)(x + head * a.x.s1);
        hi[n] = *(const Vec<T, V> *)(x + head * a.x.s1 + a.h);
    }
    angles_load<V>(c, a.cs + t * a.cs_stride + j);
    angles_load<V>(s, a.cs + t * a.cs_stride + a.h + j);
#pragma unroll
    for (int n = 0; n < ROTATED; n++) {
        int64_t head = first + n * apart;
        if (head >= a.H) continue;
        float u[V], v[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            float p = to_f32(lo[n].v[k]), q = to_f32(hi[n].v[k]), sk = a.sign * s[k];
            u[k] = p * c[k] - q * sk, v[k] = q * c[k] + p * sk;
        }
        vec_store<V>(y + head * a.y.s1, u);
        vec_store<V>(y + head * a.y.s1 + a.h, v);
    }
}

/* A warp per head. */
static __global__ void __launch_bounds__(THREADS) rotate_any(Rotation a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (row >= a.T * a.H) return;
    int64_t      x = view_row(a.x, row), y = view_row(a.y, row);
    const float *cs = a.cs + row / a.H * a.cs_stride;
    for (int64_t j = threadIdx.x & 31; j < a.h; j += 32) {
        float p = view_get(a.x, x + j), q = view_get(a.x, x + a.h + j), c = cs[j], s = a.sign * cs[a.h + j];
        view_put(a.y, y + j, p * c - q * s);
        view_put(a.y, y + a.h + j, q * c + p * s);
    }
}

/* Whether vectors of `bytes` never straddle their alignment: in every head, and in its second half. */
static bool aligned(Tensor t, int64_t bytes)
{
    int64_t size = (int64_t)dtype_size((DType)t.dtype);
    return (intptr_t)t.data % bytes == 0 && t.s[0] * size % bytes == 0 && t.s[1] * size % bytes == 0 &&
           t.n[2] / 2 * size % bytes == 0;
}

static void turn(Backend *be, const char *op, Tensor y, Tensor x, Tensor cs, float sign)
{
    Rotation a = { view_of(y), view_of(x), (const float *)cs.data, cs.s[0], x.n[0], x.n[1], x.n[2] / 2,
                   sign };
    int64_t groups = a.T * ceil_div(a.H, ROTATED);
    bool same = x.dtype == y.dtype && packs(cs);
    if (same && aligned(x, 16) && aligned(y, 16))
        BY_DTYPE(x.dtype, T, LAUNCH(be, op, (rotate_vecs<T, Pack<T>::N>),
                                    ceil_div(groups * (a.h / Pack<T>::N), THREADS), THREADS, 0, a));
    else if (same && aligned(x, 8) && aligned(y, 8))
        BY_DTYPE(x.dtype, T, LAUNCH(be, op, (rotate_vecs<T, Pack<T>::N / 2>),
                                    ceil_div(groups * (a.h / (Pack<T>::N / 2)), THREADS), THREADS, 0, a));
    else
        LAUNCH(be, op, rotate_any, ceil_div(a.T * a.H, WARPS), THREADS, 0, a);
}

typedef struct Forward {
    RowView         y, x, w;
    const float *cs;
    float       *rstd;
    int64_t      cs_stride, rstd_stride, T, H, C, parts;       /* parts: warps that share a token's heads */
    float        eps;
} Forward;

/* The sum over the lanes of one head: they are neighbours, a power of two of them. */
template <int LANES> __device__ inline float head_sum(float x)
{
#pragma unroll
    for (int o = LANES / 2; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}

/* The two halves of a lane's pairs: E of each. */
template <class T> struct Pair { Pack<T> lo, hi; };
template <class T> __device__ inline Pair<T> pair_load(const T *p, int64_t h)
{
    return Pair<T>{ pack_load(p), pack_load(p + h) };
}
template <class T> __device__ inline Pair<T> pair_stream(const T *p, int64_t h)
{
    return Pair<T>{ pack_stream(p), pack_stream(p + h) };
}

/* A warp takes STEPS times as many heads of a token as fit in it side by side, all loads in flight before the
 * first use. */
enum { STEPS = 4 };

template <class T, int LANES> static __global__ void __launch_bounds__(THREADS, 2) forward_heads(Forward a)
{
    constexpr int E = Pack<T>::N, SIDE = 32 / LANES;
    int64_t       item = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5);
    int64_t       t = divide(item, a.parts, a.T * a.parts + WARPS), h = a.C / 2;
    if (t >= a.T) return;
    int     j = (threadIdx.x & 31) % LANES * E;
    int     first = (int)(item - t * a.parts) * (SIDE * STEPS), side = (threadIdx.x & 31) / LANES;
    Pair<T> x[STEPS], w = pair_load((const T *)a.w.p + j, h);
    float   c[E], s[E];
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        int head = first + k * SIDE + side;
        x[k] = {};
        if (head < a.H) x[k] = pair_stream((const T *)a.x.p + t * a.x.s0 + head * a.x.s1 + j, h);
    }
    angles_load<E>(c, a.cs + t * a.cs_stride + j);
    angles_load<E>(s, a.cs + t * a.cs_stride + h + j);
#pragma unroll
    for (int k = 0; k < STEPS; k++) {
        int   head = first + k * SIDE + side;
        float sum = 0.0f, lo[E], hi[E];
        if (first + k * SIDE >= a.H) break;                    /* for all lanes alike */
#pragma unroll
        for (int i = 0; i < E; i++)
            sum += to_f32(x[k].lo.v[i]) * to_f32(x[k].lo.v[i]) + to_f32(x[k].hi.v[i]) * to_f32(x[k].hi.v[i]);
        float r = 1.0f / sqrtf(head_sum<LANES>(sum) / (float)a.C + a.eps);
        if (head >= a.H) continue;
#pragma unroll
        for (int i = 0; i < E; i++) {
            float p = to_f32(w.lo.v[i]) * (to_f32(x[k].lo.v[i]) * r);
            float q = to_f32(w.hi.v[i]) * (to_f32(x[k].hi.v[i]) * r);
            lo[i] = p * c[i] - q * s[i];
            hi[i] = q * c[i] + p * s[i];
        }
        T *y = (T *)a.y.p + t * a.y.s0 + head * a.y.s1 + j;
        vec_store<E>(y, lo);
        vec_store<E>(y + h, hi);
        if (!j) a.rstd[t * a.rstd_stride + head] = r;
    }
}

static __global__ void __launch_bounds__(THREADS) forward_any(Forward a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5), h = a.C / 2;
    if (row >= a.T * a.H) return;
    int64_t      t = row / a.H, x = view_row(a.x, row), y = view_row(a.y, row);
    const float *cs = a.cs + t * a.cs_stride;
    float        sum = 0.0f;
    for (int64_t j = threadIdx.x & 31; j < a.C; j += 32) sum += view_get(a.x, x + j) * view_get(a.x, x + j);
    float r = 1.0f / sqrtf(warp_sum(sum) / (float)a.C + a.eps);
    if (!(threadIdx.x & 31)) a.rstd[t * a.rstd_stride + row % a.H] = r;
    for (int64_t j = threadIdx.x & 31; j < h; j += 32) {
        float p = view_get(a.w, j) * (view_get(a.x, x + j) * r), c = cs[j], s = cs[h + j];
        float q = view_get(a.w, h + j) * (view_get(a.x, x + h + j) * r);
        view_put(a.y, y + j, p * c - q * s);
        view_put(a.y, y + h + j, q * c + p * s);
    }
}

/* Lanes that hold a head of t, 16 bytes of either half each: 4, 8, 16 or 32, or 0 if none do. */
static int lanes_of(Tensor t, Tensor cs, Tensor w)
{
    int64_t half = t.n[2] / 2 * (int64_t)dtype_size((DType)t.dtype);
    bool    ok = aligned(t, 16) && w.dtype == t.dtype && packs(w) && packs(cs);
    return ok && (half == 64 || half == 128 || half == 256 || half == 512) ? (int)(half / 16) : 0;
}
#define BY_LANES(lanes, N, ...)                                           \
    do {                                                                  \
        int lanes_ = (lanes);                                             \
        if (lanes_ == 4)       { constexpr int N = 4;  __VA_ARGS__; }     \
        else if (lanes_ == 8)  { constexpr int N = 8;  __VA_ARGS__; }     \
        else if (lanes_ == 16) { constexpr int N = 16; __VA_ARGS__; }     \
        else                   { constexpr int N = 32; __VA_ARGS__; }     \
    } while (0)

}

extern "C" void cuda_rope_fwd(Backend *be, Tensor y, Tensor rstd, Tensor x, Tensor w, Tensor cs, float eps)
{
    if (!t_count(x)) return;
    if (!t_has(w)) {
        turn(be, "rope_fwd", y, x, cs, 1.0f);
        return;
    }
    int     lanes = lanes_of(x, cs, w);
    Forward a = { view_of(y), view_of(x), view_of(w), (const float *)cs.data, (float *)rstd.data, cs.s[0],
                  rstd.s[0], x.n[0], x.n[1], x.n[2], 1, eps };
    if (!lanes || y.dtype != x.dtype || !aligned(y, 16)) {
        LAUNCH(be, "rope_fwd", forward_any, ceil_div(a.T * a.H, WARPS), THREADS, 0, a);
        return;
    }
    a.parts = ceil_div(a.H, 32 / lanes * STEPS);
    BY_DTYPE(x.dtype, T, BY_LANES(lanes, N,
        LAUNCH(be, "rope_fwd", (forward_heads<T, N>), ceil_div(a.T * a.parts, WARPS), THREADS, 0, a)));
}

namespace {

typedef struct Backward {
    RowView         dx, dy, x, w;
    const float *cs, *rstd;
    float       *part;                                         /* gridDim.x rows of C */
    int64_t      cs_stride, rstd_stride, T, H, C, steps;       /* steps: iterations of a warp for one token */
    bool         dw;
} Backward;

/* A lane's state over all heads (w and its part of dw), and its share of one head (r = 0 without one). */
template <class T> struct Share { Pair<T> w; float lo[Pack<T>::N], hi[Pack<T>::N]; };
template <class T> struct Head { Pair<T> dy, x; float r; int64_t t; int at; };

/* Iteration q: heads side by side of token q / steps. */
template <class T, int LANES> __device__ inline Head<T> head_load(const Backward &a, int64_t q, int j)
{
    int64_t t = divide(q, a.steps, a.T * a.steps), h = a.C / 2;
    int     at = (int)(q - t * a.steps) * (32 / LANES) + (threadIdx.x & 31) / LANES;
    Head<T> one = { {}, {}, 0.0f, t, at };
    if (at >= a.H) return one;
    one.dy = pair_stream((const T *)a.dy.p + t * a.dy.s0 + at * a.dy.s1 + j, h);
    one.x  = pair_stream((const T *)a.x.p + t * a.x.s0 + at * a.x.s1 + j, h);
    one.r  = a.rstd[t * a.rstd_stride + at];
    return one;
}

/* lo, hi: first dn, then g = w * dn, then dx. */
template <class T, int LANES>
__device__ inline void head_backward(const Backward &a, Share<T> &own, const Head<T> &one, int j)
{
    constexpr int E = Pack<T>::N;
    int64_t       h = a.C / 2;
    const float  *cs = a.cs + one.t * a.cs_stride + j;
    float         r = one.r, sum = 0.0f, lo[E], hi[E];
#pragma unroll
    for (int i = 0; i < E; i += 4) {
        Pack<float> c = pack_load(cs + i), s = pack_load(cs + h + i);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float p = to_f32(one.dy.lo.v[i + k]), q = to_f32(one.dy.hi.v[i + k]);
            lo[i + k] = p * c.v[k] + q * s.v[k];
            hi[i + k] = q * c.v[k] - p * s.v[k];
        }
    }
#pragma unroll
    for (int i = 0; i < E; i++) {
        float xl = to_f32(one.x.lo.v[i]), xh = to_f32(one.x.hi.v[i]);
        own.lo[i] += lo[i] * (xl * r), own.hi[i] += hi[i] * (xh * r);
        lo[i] *= to_f32(own.w.lo.v[i]), hi[i] *= to_f32(own.w.hi.v[i]);
        sum += lo[i] * xl + hi[i] * xh;
    }
    float k3 = r * r * r / (float)a.C * head_sum<LANES>(sum);
    if (one.at >= a.H) return;
#pragma unroll
    for (int i = 0; i < E; i++) {
        lo[i] = r * lo[i] - to_f32(one.x.lo.v[i]) * k3;
        hi[i] = r * hi[i] - to_f32(one.x.hi.v[i]) * k3;
    }
    T *dx = (T *)a.dx.p + one.t * a.dx.s0 + one.at * a.dx.s1 + j;
    vec_store<E>(dx, lo);
    vec_store<E>(dx + h, hi);
}

/* The lanes of a warp that hold the same pairs, then the warps of the block in order. */
template <class T, int LANES> __device__ inline void share_store(const Backward &a, Share<T> &own, int j)
{
    constexpr int    E = Pack<T>::N, C = 2 * LANES * E;
    __shared__ float line[WARPS][C];
    int              lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
    for (int i = 0; i < E; i++) {
#pragma unroll
        for (int o = LANES; o < 32; o <<= 1) {
            own.lo[i] += __shfl_xor_sync(~0u, own.lo[i], o);
            own.hi[i] += __shfl_xor_sync(~0u, own.hi[i], o);
        }
        if (lane < LANES) line[warp][j + i] = own.lo[i], line[warp][C / 2 + j + i] = own.hi[i];
    }
    __syncthreads();
    for (int col = threadIdx.x; col < C; col += THREADS) {
        float s = line[0][col];
        for (int k = 1; k < WARPS; k++) s += line[k][col];
        a.part[(int64_t)blockIdx.x * C + col] = s;
    }
}

template <class T, int LANES> static __global__ void __launch_bounds__(THREADS, 2) backward_heads(Backward a)
{
    int      j = (threadIdx.x & 31) % LANES * Pack<T>::N;
    int64_t  q = (int64_t)blockIdx.x * WARPS + (threadIdx.x >> 5), all = a.T * a.steps;
    int64_t  stride = (int64_t)gridDim.x * WARPS;
    Share<T> own = {};
    Head<T>  one, next = {};
    own.w = pair_load((const T *)a.w.p + j, a.C / 2);
    if (q < all) next = head_load<T, LANES>(a, q, j);
    for (; q < all; q += stride) {
        one = next;
        if (q + stride < all) next = head_load<T, LANES>(a, q + stride, j);
        head_backward<T, LANES>(a, own, one, j);
    }
    if (a.dw) share_store<T, LANES>(a, own, j);
}

/* One warp a block, so that column j of a part and of a row always belongs to the same lane. */
static __global__ void backward_any(Backward a)
{
    float  *dw = a.part + blockIdx.x * a.C;
    int64_t h = a.C / 2;
    for (int64_t row = blockIdx.x; row < a.T * a.H; row += gridDim.x) {
        int64_t      t = row / a.H, x = view_row(a.x, row);
        int64_t      dx = view_row(a.dx, row), dy = view_row(a.dy, row);
        const float *cs = a.cs + t * a.cs_stride;
        float        r = a.rstd[t * a.rstd_stride + row % a.H], sum = 0.0f;
        bool         fresh = row == blockIdx.x;
        for (int64_t j = threadIdx.x; j < h; j += 32) {
            float p = view_get(a.dy, dy + j), q = view_get(a.dy, dy + h + j), c = cs[j], s = cs[h + j];
            float lo = p * c + q * s, hi = q * c - p * s;
            float xl = view_get(a.x, x + j), xh = view_get(a.x, x + h + j);
            sum += lo * view_get(a.w, j) * xl + hi * view_get(a.w, h + j) * xh;
            if (!a.dw) continue;
            dw[j]     = (fresh ? 0.0f : dw[j]) + lo * (xl * r);
            dw[h + j] = (fresh ? 0.0f : dw[h + j]) + hi * (xh * r);
        }
        float k3 = r * r * r / (float)a.C * warp_sum(sum);
        for (int64_t j = threadIdx.x; j < h; j += 32) {
            float p = view_get(a.dy, dy + j), q = view_get(a.dy, dy + h + j), c = cs[j], s = cs[h + j];
            float lo = (p * c + q * s) * view_get(a.w, j), hi = (q * c - p * s) * view_get(a.w, h + j);
            float xl = view_get(a.x, x + j), xh = view_get(a.x, x + h + j);
            view_put(a.dx, dx + j, r * lo - xl * k3);
            view_put(a.dx, dx + h + j, r * hi - xh * k3);
        }
    }
}

}

extern "C" void cuda_rope_bwd(Backend *be, Tensor dx, Tensor dw, Tensor dy, Tensor x, Tensor w, Tensor rstd,
                              Tensor cs)
{
    if (!t_count(dy)) return;
    if (!t_has(w)) {
        turn(be, "rope_bwd", dx, dy, cs, -1.0f);
        return;
    }
    Backward a = { view_of(dx), view_of(dy), view_of(x), view_of(w), (const float *)cs.data,
                   (const float *)rstd.data, NULL, cs.s[0], rstd.s[0], dy.n[0], dy.n[1], dy.n[2], 1,
                   t_has(dw) };
    int      lanes = lanes_of(dy, cs, w);
    bool     fast = lanes && x.dtype == dy.dtype && dx.dtype == dy.dtype && aligned(x, 16) && aligned(dx, 16);
    int64_t  blocks = min_i64(a.T * a.H, 16 * SPLIT);
    if (fast) {
        a.steps = ceil_div(a.H, 32 / lanes);
        blocks  = min_i64(ceil_div(a.T * a.steps, WARPS), 2 * SPLIT);
    }
    if (a.dw) a.part = (float *)cuda_workspace(be, (size_t)(blocks * a.C) * 4);
    if (be->sticky) return;
    if (fast)
        BY_DTYPE(dy.dtype, T, BY_LANES(lanes, N,
            LAUNCH(be, "rope_bwd", (backward_heads<T, N>), blocks, THREADS, 0, a)));
    else
        LAUNCH(be, "rope_bwd", backward_any, blocks, 32, 0, a);
    if (a.dw) parts_add(be, "rope_bwd", dw, a.part, blocks, a.C);
}
