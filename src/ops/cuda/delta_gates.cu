/* ops/cuda/delta_gates.cu -- kernels of delta_gates.c: forward a thread per head of a row, backward a block
 * per head, whose threads sum tokens in a fixed order. */
#include "ops/cuda/rows.cuh"

namespace {

enum { THREADS = 256 };

/* Dense over heads; a row of a matrix. */
typedef struct Stat { float *p; int64_t stride; } Stat;

typedef struct Gates {
    RowView a, b, decay, shift, da, db;
    Stat    g, beta, dg, dbeta;
    float  *ddecay, *dshift;
    int64_t T;
    int     H, M;
    bool    narrow;
} Gates;

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ inline int64_t head_at(RowView v, int64_t t, int h, int M)
{
    return t * v.s0 + h / M * v.s1 + h % M;
}
__device__ inline float *stat_at(Stat s, int64_t t, int h) { return s.p + t * s.stride + h; }

static __global__ void __launch_bounds__(THREADS) gates_rows(Gates c)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = i / c.H;
    int     h = (int)(i % c.H);
    if (t >= c.T) return;
    float step = sigmoid(view_get(c.b, head_at(c.b, t, h, c.M)));
    float a = view_get(c.a, head_at(c.a, t, h, c.M));
    *stat_at(c.beta, t, h) = c.narrow ? rounded<bf16>(step) : step;
    *stat_at(c.g, t, h) = -expf(view_get(c.decay, h)) * softplus(a + view_get(c.shift, h));
}

static __global__ void __launch_bounds__(THREADS) gates_grads(Gates c)
{
    __shared__ double part[32];
    int    h = blockIdx.x;
    float  rate = expf(view_get(c.decay, h)), shift = view_get(c.shift, h);
    double decay = 0.0, sum = 0.0;
    for (int64_t t = threadIdx.x; t < c.T; t += THREADS) {
        float step = *stat_at(c.beta, t, h), dg = *stat_at(c.dg, t, h);
        float d = -dg * rate * sigmoid(view_get(c.a, head_at(c.a, t, h, c.M)) + shift);
        view_put(c.db, head_at(c.db, t, h, c.M), *stat_at(c.dbeta, t, h) * step * (1.0f - step));
        view_put(c.da, head_at(c.da, t, h, c.M), d);
        decay += (double)(dg * *stat_at(c.g, t, h)), sum += (double)d;
    }
    decay = block_sum(decay, part), sum = block_sum(sum, part);
    if (threadIdx.x) return;
    if (c.ddecay) c.ddecay[h] += (float)decay;
    if (c.dshift) c.dshift[h] += (float)sum;
}

static Stat stat_of(Tensor t)
{
    Stat s = { (float *)t.data, t.s[0] };
    return s;
}

static Gates args_of(Tensor g, Tensor beta, Tensor a, Tensor decay, Tensor shift)
{
    Gates c = {};
    c.a = view_of(a), c.decay = view_of(decay), c.shift = view_of(shift);
    c.g = stat_of(g), c.beta = stat_of(beta), c.T = a.n[0], c.H = (int)(a.n[1] * a.n[2]), c.M = (int)a.n[2];
    return c;
}

}

extern "C" void cuda_delta_gates_fwd(Backend *be, Tensor g, Tensor beta, Tensor a, Tensor b, Tensor decay,
                                     Tensor shift)
{
    Gates c = args_of(g, beta, a, decay, shift);
    c.b = view_of(b), c.narrow = b.dtype != F32;
    LAUNCH(be, "delta_gates_fwd", gates_rows, ceil_div(c.T * c.H, THREADS), THREADS, 0, c);
}

extern "C" void cuda_delta_gates_bwd(Backend *be, Tensor da, Tensor db, Tensor ddecay, Tensor dshift,
                                     Tensor dg, Tensor dbeta, Tensor g, Tensor beta, Tensor a, Tensor decay,
                                     Tensor shift)
{
    Gates c = args_of(g, beta, a, decay, shift);
    c.da = view_of(da), c.db = view_of(db), c.dg = stat_of(dg), c.dbeta = stat_of(dbeta);
    c.ddecay = (float *)ddecay.data, c.dshift = (float *)dshift.data;
    LAUNCH(be, "delta_gates_bwd", gates_grads, c.H, THREADS, 0, c);
}
