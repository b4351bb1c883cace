/* ops/cuda/quant_block.cuh -- blocks of a weight, 128 x 128, as blocks of threads work on them. */
#ifndef OPS_CUDA_QUANT_BLOCK_CUH
#define OPS_CUDA_QUANT_BLOCK_CUH

#include "ops/cuda/quant.cuh"

namespace {

/* A stack of matrices; a null pointer is an absent output. */
struct Matrices { void *p; int64_t outer, row; };

Matrices matrices(Tensor t)
{
    return { t.data, t.rank == 3 ? t.s[0] : 0, t.s[t.rank == 3 ? 1 : 0] };
}

template <class T> __device__ T *at(Matrices m, int64_t e, int64_t r)
{
    return (T *)m.p + e * m.outer + r * m.row;
}

/* Elements of the group that starts at `from` of n. */
__device__ inline int group_width(int64_t n, int64_t from)
{
    return (int)min(n - from, (int64_t)QUANT_GROUP);
}

/* The block of a weight that a block of threads quantises. */
struct Where { int64_t e, n, k; int rows, cols; };

__device__ inline Where where(int64_t N, int64_t K)
{
    int64_t across = quant_groups(K), down = quant_groups(N), n = blockIdx.x / across % down * QUANT_GROUP,
            k = blockIdx.x % across * QUANT_GROUP;
    return { blockIdx.x / (across * down), n, k, group_width(N, n), group_width(K, k) };
}

__device__ inline uint32_t block_max(uint32_t amax)            /* over 256 threads */
{
    __shared__ uint32_t part[8];
    amax = lanes_max<32>(amax);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = amax;
    __syncthreads();
    return lanes_max<8>(part[threadIdx.x % 8]);
}

template <int N> __device__ inline void encode(uint32_t (&code)[N / 4], const float (&v)[N], float inverse)
{
    #pragma unroll
    for (int i = 0; i < N / 4; i++)
        code[i] = e4m3_four(v[4 * i] * inverse, v[4 * i + 1] * inverse, v[4 * i + 2] * inverse,
                            v[4 * i + 3] * inverse);
}

/* The scale of the block into both outputs, by one thread. */
__device__ inline void store_scale(Matrices q, Matrices scale, Matrices qt, Matrices scale_t, const Where &w,
                                   float s)
{
    if (threadIdx.x) return;
    if (q.p)  at<float>(scale, w.e, w.n / QUANT_GROUP)[w.k / QUANT_GROUP] = s;
    if (qt.p) at<float>(scale_t, w.e, w.k / QUANT_GROUP)[w.n / QUANT_GROUP] = s;
}

/* Codes of a block in shared memory: rows of 32 words, 4 words more after every 16 rows, so that columns of 4
 * bytes are read without bank conflicts. */
enum { CODE_WORDS = 128 * 32 + 7 * 4 };
__device__ inline int code_at(int row, int word) { return row * 32 + row / 16 * 4 + word; }

/* Four rows of four bytes become their columns. */
__device__ inline void transpose4(uint32_t (&v)[4])
{
    uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
    uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);
    v[0] = __byte_perm(a, b, 0x5410), v[1] = __byte_perm(a, b, 0x7632);
    v[2] = __byte_perm(c, d, 0x5410), v[3] = __byte_perm(c, d, 0x7632);
}

/* Words of 16 rows from `row` on become columns: word i of column j has rows 4 i .. + 3. place: where the
 * word of a row is. */
template <class Place>
__device__ inline void read_columns(uint32_t (&v)[4][4], const uint32_t *code, int row, Place place)
{
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        #pragma unroll
        for (int j = 0; j < 4; j++) v[i][j] = code[place(row + i * 4 + j)];
        transpose4(v[i]);
    }
}

/* A thread stores 16 codes each of four rows of qt. */
__device__ inline void store_transposed(Matrices qt, const uint32_t *code, const Where &w)
{
    int n = threadIdx.x % 8 * 16, k = threadIdx.x / 8 * 4;
    uint32_t v[4][4];
    if (n >= w.rows || k >= w.cols) return;
    read_columns(v, code, n, [&](int row) { return code_at(row, k / 4); });
    #pragma unroll
    for (int j = 0; j < 4; j++) {
        uint8_t *to = at<uint8_t>(qt, w.e, w.k + k + j) + w.n + n;
        *(uint4 *)to = make_uint4(v[0][j], v[1][j], v[2][j], v[3][j]);
    }
}

}

#endif
