/* ops/cuda/cuda.cuh -- what the kernels of ops/cuda/<file>.cu share: the open GPU, launches, workspace,
 * 16-byte loads and sums of a fixed order.
 *
 * <file>.cu defines cuda_<op> for the ops of ops/<file>.c, with the same contract. The host side never waits
 * for the GPU: sizes come from the tensors' extents; what only the device knows (rows per expert) is read
 * there.
 *
 * Before the first step the engine runs it once with `preparing` set: an op then does everything that is slow
 * the first time (choose an algorithm, build a plan, report its workspace) and LAUNCH launches nothing. */
#ifndef OPS_CUDA_CUDA_CUH
#define OPS_CUDA_CUDA_CUH

#include "base/num.h"
#include "ops/ops.h"

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

/* part: that ended there; PART_IDLE: a clock started. */
typedef struct CudaMark { cudaEvent_t event; Part part; } CudaMark;

/* A copy of results to the host; marks: timing marks recorded before it, since the GPU was opened. */
typedef struct CudaPost { cudaEvent_t done; int64_t marks; } CudaPost;
typedef struct CommClock CommClock;                    /* comm_clock.cuh */
typedef struct KernelSet KernelSet;                    /* kernel_set.cuh */
typedef CUresult (*ProgressWrite)(CUstream, CUdeviceptr, cuuint32_t, unsigned);     /* progress.cuh */

/* Experts of a grouped product at most, and counters of a launch with a weight in codes. */
enum { EXPERTS_MOST = 512, CODE_COUNTERS = 1 + 2 * EXPERTS_MOST };

typedef struct Cuda {
    cudaStream_t stream, copy;        /* compute, and the upload of the next batch */
    int          sms, major, minor;
    size_t       smem_sm, smem_block; /* bytes of shared memory of an SM, and of a block at most */
    int         *tile_counter;        /* of the launch under way, see tile_queue.cuh */
    int         *code_counters;       /* the same, see code_ring.cuh */
    const KernelSet *kernels;
    char         name[64];
    void        *ws;                  /* scratch of one op; the next op overwrites it */
    size_t       ws_bytes, ws_needed;
    void       **retired;             /* workspaces that were too small */
    int          retired_n, retired_cap;
    CudaMark    *mark;                /* ends of model parts that were not read, after the last one read */
    int          marks, marks_cap;
    int64_t      marks_read;          /* since the GPU was opened */
    CudaPost     post[POST_ALL];
    CommClock   *comm_clock;          /* NULL: no transport measures calls on the device's clock */
    ProgressWrite progress_write;     /* cuStreamWriteValue32 */
    uint32_t    *progress;            /* Backend.progress: pinned, written by the compute stream */
    uint32_t     progress_marks;      /* that were queued */
    int          graphs;              /* open graphs, whose kernels must stay loaded */
    bool         going_ahead;         /* uploads use the copy stream */
    cudaEvent_t  freed, arrived;      /* the spare batch is free to write; its upload is done */
    cudaStream_t copy_stream[COPY_STREAMS];
    cudaEvent_t  compute_event[COPY_STREAMS]; /* what each copy stream waits for */
    cudaEvent_t  copy_event[COPY_EVENTS];
    void        *lt;                  /* cublaslt.cu: handle, algorithms */
    void        *dnn;                 /* attention_cudnn.cu: library, plans; NULL without cuDNN */
} Cuda;

static inline Cuda *cuda_of(Backend *be) { return (Cuda *)be->priv; }

/* Makes the GPU of this rank the current device of this thread, and returns its number. */
int cuda_own_gpu(void);

/* SMs for the blocks of a persistent kernel: all but those that are reserved for communication. What a sum's
 * order depends on (parts of a product, rows of partial sums) uses `sms` instead, so that reserving SMs
 * changes no bit of our kernels. */
static inline int64_t cuda_compute_sms(const Backend *be)
{
    const Cuda *c = (const Cuda *)be->priv;
    return be->reserved_sms < c->sms ? c->sms - be->reserved_sms : 1;
}

extern const SharedMemoryOps cuda_shared_memory;       /* shared_memory.cu */

/* Sticks the first error to the backend, with the op's name. */
void cuda_stick(Backend *be, cudaError_t e, const char *what);

/* At least this many bytes, 256-aligned, contents undefined; NULL while preparing, or when memory is short
 * (the backend then has a sticky error). The preparation reserves what a step needs, so that the workspace
 * seldom grows in a step. Growing loses the contents: an op that asks twice asks for the larger size
 * first. */
void *cuda_workspace(Backend *be, size_t bytes);

/* Counts a launch that the host began at clock_now() `from`. The driver's queue holds about a thousand; a
 * launch into a full one waits until the GPU has taken another. One that takes far longer than a launch does
 * has waited (Ledger.launch_wait). */
void cuda_launched(Backend *be, double from);

void cuda_put(Backend *be, void *dst, const void *host, size_t bytes);       /* Device.put; put.cu */

extern const GraphOps cuda_graphs;                                           /* graph.cu */

/* The two libraries, opened and closed with the GPU: cuBLASLt (cublaslt.cu), which is required, and cuDNN
 * (attention_cudnn.cu), which is optional. The descriptions are for `treb doctor`. */
Status lt_open(Cuda *c);
void   lt_close(Cuda *c);
void   lt_describe(char *out, size_t n);               /* version, algorithms cached by earlier runs */
Status dnn_open(Cuda *c);
void   dnn_close(Cuda *c);
void   dnn_describe(char *out, size_t n);             /* version, or that attention runs on our own kernels */

/* LAUNCH(be, "op", kernel<T>, blocks, threads, shared bytes, arguments...). An empty grid launches nothing.
 * CUDA loads a kernel at its first use; reading its attributes moves the load to the preparation. A place of
 * LAUNCH always launches the same kernel: it asks for more shared memory once, not at every launch. */
#define LAUNCH(be, what, kernel, blocks, threads, smem, ...)                                              \
    do {                                                                                                  \
        Cuda   *cuda_ = cuda_of(be);                                                                      \
        int64_t grid_ = (int64_t)(blocks);                                                                \
        size_t  smem_ = (size_t)(smem);                                                                   \
        auto    k_    = kernel;                                                                           \
        static size_t allowed_ = 48 * 1024;                                                               \
        if (smem_ > allowed_) {                                                                           \
            cuda_stick(be, cudaFuncSetAttribute((const void *)k_,                                         \
                       cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem_), what);                   \
            allowed_ = smem_;                                                                             \
        }                                                                                                 \
        if ((be)->preparing) {                                                                            \
            cudaFuncAttributes at_;                                                                       \
            cuda_stick(be, cudaFuncGetAttributes(&at_, (const void *)k_), what);                          \
        } else if (grid_ > 0 && !(be)->sticky) {                                                          \
            double from_ = clock_now();                                                                   \
            k_<<<(unsigned)grid_, (threads), smem_, cuda_->stream>>>(__VA_ARGS__);                        \
            cuda_stick(be, cudaGetLastError(), what);                                                     \
            cuda_launched(be, from_);                                                                     \
        }                                                                                                 \
    } while (0)

/* BY_DTYPE(dtype, T, statement): the statement with T as the element type, f32 or bf16. */
#define BY_DTYPE(dt, T, ...)                                       \
    do {                                                           \
        if ((dt) == F32) { typedef float T; __VA_ARGS__; }         \
        else             { typedef bf16 T;  __VA_ARGS__; }         \
    } while (0)

/* Enough blocks for n items at `per` a block, but at most `waves` per multiprocessor: for grid-stride
 * loops. */
static inline int64_t cuda_blocks(Backend *be, int64_t n, int64_t per, int waves)
{
    return min_i64(ceil_div(n, per), (int64_t)cuda_of(be)->sms * waves);
}

#ifdef __CUDACC__

__device__ inline float to_f32(float x) { return x; }
__device__ inline float to_f32(bf16 x)  { return __bfloat162float(x); }
template <class T> __device__ inline T from_f32(float x);
template <> __device__ inline float from_f32<float>(float x) { return x; }
template <> __device__ inline bf16  from_f32<bf16>(float x)  { return __float2bfloat16_rn(x); }

/* 16 bytes: 4 floats or 8 bf16. Where every row of a tensor starts on 16 bytes, rows are walked by Pack. */
template <class T> struct alignas(16) Pack {
    static constexpr int N = 16 / (int)sizeof(T);
    T v[N];
};
template <class T> __device__ inline Pack<T> pack_load(const T *p)          { return *(const Pack<T> *)p; }
template <class T> __device__ inline void    pack_store(T *p, Pack<T> x)    { *(Pack<T> *)p = x; }
template <class T> __device__ inline Pack<T> pack_stream(const T *p)   /* read once: evict first */
{
    Pack<T> x;
    *(int4 *)&x = __ldcs((const int4 *)p);
    return x;
}

/* N neighbours that are read and written as one: 16 bytes at most, on a border of their size. */
template <class T, int N> struct alignas(N * sizeof(T)) Vec { T v[N]; };

/* Sums and maxima over a warp: a butterfly, the same order and the same value in every copy_stream. */
__device__ inline float warp_sum(float x)
{
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}
__device__ inline double warp_sum(double x)
{
    for (int o = 16; o; o >>= 1) x += __shfl_xor_sync(~0u, x, o);
    return x;
}
__device__ inline float warp_max(float x)
{
    for (int o = 16; o; o >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, o));
    return x;
}

/* Over a block of up to 32 whole warps, into every thread; `part` is 32 elements of shared memory. */
template <class F> __device__ inline F block_sum(F x, F *part)
{
    int copy_stream = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    x = warp_sum(x);
    __syncthreads();
    if (!copy_stream) part[warp] = x;
    __syncthreads();
    return warp_sum(copy_stream < warps ? part[copy_stream] : (F)0);
}
__device__ inline float block_max(float x, float *part)
{
    int copy_stream = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    x = warp_max(x);
    __syncthreads();
    if (!copy_stream) part[warp] = x;
    __syncthreads();
    return warp_max(copy_stream < warps ? part[copy_stream] : -INFINITY);
}

#endif

/* Whether rows of t can be walked by Pack: base, row stride and width are multiples of 16 bytes. */
static inline bool packs(Tensor t)
{
    int64_t size = (int64_t)dtype_size((DType)t.dtype), ok = ((int64_t)(intptr_t)t.data % 16) == 0;
    for (int i = 0; i + 1 < t.rank; i++) ok = ok && t.s[i] * size % 16 == 0;
    return ok && t.n[t.rank - 1] * size % 16 == 0;
}

/* gemm_scaled with dropout (grouped_gemm.cu). */
void gemm_dropped(Backend *be, Tensor c, Tensor a, Tensor b, float scale, Dropout drop, int flags);

extern "C" {
#define OP(name, kind, params, args) void cuda_##name params;
#include "ops/ops.def"
#undef OP
}

#endif
