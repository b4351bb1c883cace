/* ops/cuda/cublaslt_tune.cu -- see cublaslt.cuh: which of the proposed algorithms is the fastest for a
 * product.
 *
 * Conditions are those of a step: operands of realistic spread (on zeros the GPU clocks higher), a cold
 * cache, the median of a few runs. Operands and workspace are one temporary allocation; where memory is short
 * the product is measured with fewer rows. */
#include "ops/cuda/cublaslt.cuh"

#include <string.h>

namespace {

enum { TIMED = 8, REPEATS = 3, HALVINGS = 4 };

#define FLUSH ((size_t)128 << 20)             /* twice the second-level cache */
#define HOPELESS 1.25f                        /* a first run this much slower than the best is not repeated */

/* Sums of four bytes of a hash: approximately normal. */
template <class T> static __global__ void randomize(T *x, int64_t n, float scale, uint32_t seed)
{
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, step = (int64_t)gridDim.x * blockDim.x;
    for (; i < n; i += step) {
        uint32_t h = (uint32_t)i * 0x9E3779B9u + (uint32_t)(i >> 32) + seed;
        h = (h ^ h >> 16) * 0x7FEB352Du, h = (h ^ h >> 15) * 0x846CA68Bu, h ^= h >> 16;
        int sum = (int)(h & 255) + (int)(h >> 8 & 255) + (int)(h >> 16 & 255) + (int)(h >> 24);
        x[i] = from_f32<T>(scale * (float)(sum - 510) / 147.8f);
    }
}

static size_t span(Tensor t)                  /* with the gaps between rows */
{
    if (!t_has(t)) return 0;
    int64_t wide = t.s[0] > t.n[1] ? t.s[0] : t.n[1];
    return ((size_t)(t.n[0] * wide) * dtype_size((DType)t.dtype) + 255) & ~(size_t)255;
}

typedef struct Trial {
    LtCall       call;
    LtPlan       plan;
    char        *memory;                      /* operands, then the workspace, then what flushes the cache */
    char        *workspace, *flush;
    cudaStream_t stream;
    cudaEvent_t  begin, end;
} Trial;

/* The same product with rows / 2^halved. */
static LtCall fewer_rows(LtCall q, int halved)
{
    if (q.mode == GEMM_TN) {
        q.a.n[0] = (q.a.n[0] >> halved) > 0 ? q.a.n[0] >> halved : 1;
        q.b.n[0] = q.a.n[0];
        return q;
    }
    q.d.n[0] = (q.d.n[0] >> halved) > 0 ? q.d.n[0] >> halved : 1;
    q.a.n[0] = q.c.n[0] = q.aux.n[0] = q.d.n[0];
    return q;
}

static size_t bias_bytes(const LtCall *q)     /* N values, or M */
{
    return q->bias ? ((size_t)(q->d.n[0] + q->d.n[1]) * 4 + 255) & ~(size_t)255 : 0;
}

static void place(void **data, size_t bytes, char **at)
{
    if (bytes) *data = *at;
    *at += bytes;
}

static bool take_memory(Trial *t, const LtCall *q, int halved)
{
    LtCall c = fewer_rows(*q, halved);
    bool   in_place = t_has(c.c) && c.c.data == c.d.data;
    size_t add = in_place ? 0 : span(c.c), operands = span(c.a) + span(c.b) + span(c.d) + add + span(c.aux) +
                                                      bias_bytes(&c);
    if (cudaMalloc((void **)&t->memory, operands + LT_WORKSPACE + FLUSH) != cudaSuccess) {
        cudaGetLastError();                             /* handled here: clear it for later launches */
        t->memory = NULL;
        return false;
    }
    char *at = t->memory;
    place(&c.a.data, span(c.a), &at);
    place(&c.b.data, span(c.b), &at);
    place(&c.d.data, span(c.d), &at);
    place(&c.c.data, add, &at);
    place(&c.aux.data, span(c.aux), &at);
    place(&c.bias, bias_bytes(&c), &at);
    if (in_place) c.c.data = c.d.data;
    t->call = c, t->workspace = at, t->flush = at + LT_WORKSPACE;
    return cudaMemsetAsync(t->memory, 0, operands, t->stream) == cudaSuccess;
}

static void fill(Trial *t, Tensor x, float scale, uint32_t seed)
{
    BY_DTYPE(x.dtype, T, randomize<T><<<1024, 256, 0, t->stream>>>((T *)x.data,
                                       (int64_t)(span(x) / sizeof(T)), scale, seed));
}

static bool open_trial(Trial *t, const LtCall *q, int halved)
{
    while (halved < HALVINGS && !take_memory(t, q, halved)) {
        if (t->memory) return false;                    /* it failed for another reason than memory */
        halved++;
    }
    if (!t->memory) return false;
    fill(t, t->call.a, 1.0f, 1);
    fill(t, t->call.b, 0.02f, 2);
    if (t_has(t->call.aux)) fill(t, t->call.aux, 1.0f, 3);
    return lt_plan(&t->plan, &t->call) && cudaEventCreate(&t->begin) == cudaSuccess &&
           cudaEventCreate(&t->end) == cudaSuccess && cudaGetLastError() == cudaSuccess;
}

static void close_trial(Trial *t)
{
    cudaStreamSynchronize(t->stream);
    if (t->begin) cudaEventDestroy(t->begin);
    if (t->end) cudaEventDestroy(t->end);
    if (t->memory) cudaFree(t->memory);
}

/* Milliseconds of one run on a cold cache, negative when it does not run. The cache flush takes long
 * enough for the launches to be queued behind it, so the time is that of the GPU alone. */
static float run_once(Lt *lt, Trial *t, const cublasLtMatmulAlgo_t *algo)
{
    float ms = -1.0f;
    if (cudaMemsetAsync(t->flush, 0, FLUSH, t->stream) != cudaSuccess) return -1.0f;
    cudaEventRecord(t->begin, t->stream);
    if (lt_launch(lt, &t->call, &t->plan, algo, t->workspace, t->stream) != CUBLAS_STATUS_SUCCESS)
        return -1.0f;
    cudaEventRecord(t->end, t->stream);
    if (cudaEventSynchronize(t->end) != cudaSuccess) return -1.0f;
    return cudaEventElapsedTime(&ms, t->begin, t->end) == cudaSuccess ? ms : -1.0f;
}

/* The median of the repeats; the first run loads code and is not counted. */
static float run_some(Lt *lt, Trial *t, const cublasLtMatmulAlgo_t *algo, float best)
{
    float ms[REPEATS];
    if (run_once(lt, t, algo) < 0) return -1.0f;
    for (int i = 0; i < REPEATS; i++) {
        float now = run_once(lt, t, algo);
        if (now < 0) return -1.0f;
        if (!i && best > 0 && now > HOPELESS * best) return now;
        int at = i;
        for (; at > 0 && ms[at - 1] > now; at--) ms[at] = ms[at - 1];
        ms[at] = now;
    }
    return ms[REPEATS / 2];
}

}

int lt_measure(Lt *lt, cudaStream_t stream, const LtCall *q, const cublasLtMatmulHeuristicResult_t *tried,
               int n)
{
    Trial t;
    float best = -1.0f;
    int   found = -1;
    memset(&t, 0, sizeof t);
    t.stream = stream;
    if (open_trial(&t, q, 0))
        for (int i = 0; i < n && i < TIMED; i++) {
            float ms = run_some(lt, &t, &tried[i].algo, best);
            if (ms > 0 && (best < 0 || ms < best)) best = ms, found = i;
        }
    close_trial(&t);
    return found;
}

void lt_warm(Lt *lt, cudaStream_t stream, const LtCall *q, const cublasLtMatmulAlgo_t *algo)
{
    Trial t;
    memset(&t, 0, sizeof t);
    t.stream = stream;
    if (open_trial(&t, q, HALVINGS - 1)) run_once(lt, &t, algo);
    close_trial(&t);
}
