/* ops/cuda/code_ring.cuh -- grouped products with a frozen weight in codes (grouped_coded.c) on Hopper GPUs:
 * the products' own kernel decodes the weight ahead of itself.
 *
 * Three warps of a block have nothing to do beside the producer warp. Here they decode matrix after matrix
 * to bf16, into a ring in device memory; the producer waits until the matrix of its tile is there, and loads
 * it by TMA as ever. So each matrix is decoded once, beside the products, and nearly half of its bf16 form
 * never leaves the L2 cache. Decoding into shared memory was slower: wgmma and TMA use all of its bandwidth.
 * Codes of 8 bits alone: those of nf4 take longer than the products.
 *
 * Matrices of experts without rows are left out; the others are numbered. Their chunks are drawn from a
 * counter in order, two ahead of the one at hand: blocks that run decode all that they need, whichever
 * others have not started. A slot of the ring is filled again when all tiles of its matrix have been read.
 * The smallest chunk that is not decoded is at hand in some warp, and waits at most for tiles of matrices
 * that are, so this ends. */
#ifndef OPS_CUDA_CODE_RING_CUH
#define OPS_CUDA_CODE_RING_CUH

#include "ops/cuda/grouped_call.cuh"
#include "ops/cuda/weight_decode.cuh"

/* A line is 256 elements of a row, 8 for each lane of a warp, and a chunk some lines, IN_FLIGHT of them at a
 * time. */
enum { LINE = 32 * UNIT, CHUNK_LINES = 64, IN_FLIGHT = 4 };

/* Matrices of a ring at least, unless it holds all: 132 blocks have tiles of five at the same time. */
enum { RING_LEAST = 6 };

/* b in codes: where it is decoded to, and how far that is. */
struct CodeRing {
    Codes      codes;
    CodeFormat format;
    bf16      *to;              /* (slots, N, K) */
    int        slots, lines, chunks;            /* lines and chunks of a matrix */
    int        across;          /* tiles in a row of c */
    int       *drawn;           /* CODE_COUNTERS, at first 0: chunks drawn; chunks decoded and tiles read of
                                   each matrix */
};

__device__ inline int *chunks_decoded(const CodeRing &r, int matrix) { return r.drawn + 1 + matrix; }
__device__ inline int *tiles_read(const CodeRing &r, int matrix)
{
    return r.drawn + 1 + EXPERTS_MOST + matrix;
}

/* The matrices that are decoded, in ascending order. */
struct MatrixWalk {
    const int *off;
    int        E, e, number;

    __device__ MatrixWalk(const int *offsets, int experts) : off(offsets), E(experts), e(-1), number(-1) { }

    __device__ bool has_rows() const { return off[e + 1] > off[e]; }
    __device__ bool find_number(int wanted)
    {
        while (number < wanted) {
            if (++e >= E) return false;
            number += has_rows();
        }
        return true;
    }
    __device__ void find_expert(int wanted)
    {
        while (e < wanted) e++, number += has_rows();
    }
};

/* --- counters in device memory --- */

__device__ inline int load_acquire(const int *p)
{
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
/* Makes writes to memory before it visible to TMA, and TMA see what the counters say. */
__device__ inline void memory_fence() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

/* All by a warp. */
__device__ inline bool has_come(const int *counter, int value)
{
    return uniform(load_acquire(counter)) >= value;
}
__device__ inline void wait_for(const int *counter, int value)
{
    while (!has_come(counter, value)) __nanosleep(40);
}
__device__ inline void count_written(int *counter)              /* what the warp has written is there */
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" :: "l"(counter) : "memory");
}
__device__ inline void count_read(int *counter)                 /* nothing was written */
{
    if (threadIdx.x % 32 == 0) atomicAdd(counter, 1);
}

/* --- the producer warp --- */

template <bool CODED> struct CodeReader {
    __device__ CodeReader(const CodeRing &, const int *, int) { }
    __device__ bool begin_tile(int) { return true; }
    __device__ void wait_decoded() { }
    __device__ void end_last_tile() { }
    __device__ void close() { }
    __device__ int  matrix(int e) const { return e; }
};
template <> struct CodeReader<true> {
    const CodeRing &r;
    MatrixWalk      walk;
    int             now, last;                  /* matrices of the tile and of the one before; -1: counted */

    __device__ CodeReader(const CodeRing &ring, const int *off, int E)
        : r(ring), walk(off, E), now(-1), last(-1) { }

    __device__ bool begin_tile(int e)           /* false: its matrix is not there yet */
    {
        walk.find_expert(e);
        last = now, now = walk.number;
        bool there = has_come(chunks_decoded(r, now), r.chunks);
        if (there) memory_fence();
        return there;
    }
    __device__ void wait_decoded()
    {
        wait_for(chunks_decoded(r, now), r.chunks);
        memory_fence();
    }
    __device__ int matrix(int) const { return now % r.slots; }          /* where it is */

    __device__ void end_last_tile()             /* all of the tile before has been read */
    {
        if (last >= 0) count_read(tiles_read(r, last));
        last = -1;
    }
    __device__ void close() { last = now, end_last_tile(); }
};

/* --- the warps that decode --- */

/* Eight elements in bf16. With a scale that is a power of two a code of e4m3 needs one exact product: its
 * bits at the same places of a bf16 are its value times 2^-120, subnormals too. 2^127 is the largest power
 * of a bf16, so scales above 2^7 have two factors. */
__device__ inline uint32_t pair_of_scale(float x) { return prmt(__float_as_uint(x), 0, 0x3232); }
__device__ inline uint32_t two_of_fp8(uint32_t codes, uint32_t bytes, uint32_t by)
{
    return mul_bf16x2(prmt(codes, 0, bytes) << 4 & 0x87f087f0u, by);           /* a byte, its sign above it */
}
__device__ inline uint4 bf16_of_fp8(uint2 codes, float scale)
{
    bool     large = scale > 0x1p7f;
    uint32_t by = pair_of_scale((large ? 0x1p7f : scale) * 0x1p120f);
    uint4    x = make_uint4(two_of_fp8(codes.x, 0x9180, by), two_of_fp8(codes.x, 0xb3a2, by),
                            two_of_fp8(codes.y, 0x9180, by), two_of_fp8(codes.y, 0xb3a2, by));
    if (!large) return x;
    by = pair_of_scale(scale * 0x1p-7f);
    return make_uint4(mul_bf16x2(x.x, by), mul_bf16x2(x.y, by), mul_bf16x2(x.z, by), mul_bf16x2(x.w, by));
}

/* The lane's elements of lines, one line after another, by format: their scales, and the elements. */
template <int FORMAT> struct LineFormat;

template <> struct LineFormat<CODE_INT8> {
    const float *scale;                         /* of the row */
    int          K, col;

    __device__ LineFormat(const Codes &d, int e, int line) : K(d.K)
    {
        int row = line / (d.K / LINE);
        scale = (const float *)d.scale + row_of_stack(d, e, row), col = line * LINE - row * d.K;
    }
    __device__ float next_scale()
    {
        float x = *scale;
        if ((col += LINE) == K) col = 0, scale++;
        return x;
    }
    __device__ static uint4 elements(uint2 codes, float x) { return unit_bf16<CODE_INT8>(codes, x); }
};

template <> struct LineFormat<CODE_FP8> {
    const float *band;                          /* scales of the blocks that the row lies in */
    uint32_t     K, row, col;                   /* col: of the lane */

    __device__ LineFormat(const Codes &d, int e, int line)
        : K(d.K), row(line / (d.K / LINE)), col(line * LINE - row * K + threadIdx.x % 32 * UNIT)
    {
        int bands = (d.N + QUANT_GROUP - 1) / QUANT_GROUP;
        band = (const float *)d.scale + ((int64_t)e * bands + row / QUANT_GROUP) * (K / QUANT_GROUP);
    }
    __device__ float next_scale()
    {
        float x = band[col / QUANT_GROUP];
        if ((col += LINE) < K) return x;
        col -= K;
        if (++row % QUANT_GROUP == 0) band += K / QUANT_GROUP;
        return x;
    }
    __device__ static uint4 elements(uint2 codes, float x) { return bf16_of_fp8(codes, x); }
};

/* A chunk of a matrix. Codes of the next lines are read before those at hand are decoded. */
template <int FORMAT> struct ChunkDecoder {
    LineFormat<FORMAT> format;
    const uint8_t     *q;                       /* of the lane, as `to` */
    bf16              *to;
    int                lines;

    __device__ ChunkDecoder(const CodeRing &r, int e, int slot, int chunk)
        : format(r.codes, e, chunk * CHUNK_LINES),
          lines(min((int)CHUNK_LINES, r.lines - chunk * CHUNK_LINES))
    {
        int64_t each = (int64_t)r.codes.N * r.codes.K;
        int     at = chunk * CHUNK_LINES * LINE + threadIdx.x % 32 * UNIT;
        q = r.codes.q + e * each + at, to = r.to + slot * each + at;
    }
    __device__ void read(uint2 (&codes)[IN_FLIGHT], int line)
    {
        #pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++)
            if (line + i < lines) codes[i] = *(const uint2 *)(q + (line + i) * LINE);
    }
    /* `wait` ends when memory may be written. */
    template <class WAIT> __device__ void decode(WAIT wait)
    {
        uint2 codes[IN_FLIGHT], next[IN_FLIGHT];
        float scale[IN_FLIGHT];
        read(next, 0);
        wait();
        #pragma unroll 1
        for (int line = 0; line < lines; line += IN_FLIGHT) {
            #pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++) {
                codes[i] = next[i];
                if (line + i < lines) scale[i] = format.next_scale();
            }
            read(next, line + IN_FLIGHT);
            #pragma unroll
            for (int i = 0; i < IN_FLIGHT; i++)
                if (line + i < lines)
                    *(uint4 *)(to + (line + i) * LINE) = format.elements(codes[i], scale[i]);
        }
    }
};

__device__ inline int draw_chunk(const CodeRing &r)             /* in lane 0 */
{
    return threadIdx.x % 32 == 0 ? atomicAdd(r.drawn, 1) : 0;
}

/* Brings the codes of a chunk into the L2 cache. */
__device__ inline void fetch_codes(const CodeRing &r, int e, int chunk)
{
    int     from = chunk * CHUNK_LINES, n = min((int)CHUNK_LINES, r.lines - from) * LINE;
    int64_t at = (int64_t)e * r.codes.N * r.codes.K + (int64_t)from * LINE;
    if (threadIdx.x % 32 == 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" :: "l"(r.codes.q + at), "r"(n) : "memory");
}

/* Waits until all tiles of the matrix that was in the slot have been read. */
template <int ROWS> __device__ inline void wait_for_slot(const CodeRing &r, MatrixWalk &old, int matrix)
{
    if (matrix < r.slots) return;
    old.find_number(matrix - r.slots);
    wait_for(tiles_read(r, old.number), (old.off[old.e + 1] - old.off[old.e] + ROWS - 1) / ROWS * r.across);
}

/* Decodes until nothing is left. ROWS: of a tile. */
template <int FORMAT, int ROWS> __device__ void decode_matrices(const CodeRing &r, const int *off, int E)
{
    MatrixWalk walk(off, E), old(off, E), ahead(off, E);
    int chunk = uniform(draw_chunk(r)), next = uniform(draw_chunk(r));
    while (walk.find_number(chunk / r.chunks)) {
        int third = draw_chunk(r);
        if (ahead.find_number(next / r.chunks)) fetch_codes(r, ahead.e, next % r.chunks);
        ChunkDecoder<FORMAT> decoder(r, walk.e, walk.number % r.slots, chunk % r.chunks);
        decoder.decode([&]() { wait_for_slot<ROWS>(r, old, walk.number); });
        memory_fence();
        count_written(chunks_decoded(r, walk.number));
        chunk = next, next = uniform(third);
    }
}
template <int ROWS> __device__ void decode_ahead(const CodeRing &r, const int *off, int E)
{
    if (r.format == CODE_FP8) decode_matrices<CODE_FP8, ROWS>(r, off, E);
    else                      decode_matrices<CODE_INT8, ROWS>(r, off, E);
}

/* --- host --- */

/* The ring of a call, which is `panel`; across: tiles in a row of c. */
static inline CodeRing code_ring(Backend *be, const WeightCodes &z, Tensor panel, int64_t across)
{
    CodeRing r = { codes_of(z), z.format, (bf16 *)panel.data };
    r.slots = (int)panel.n[0], r.lines = (int)(panel.n[1] * panel.n[2] / LINE);
    r.chunks = (int)ceil_div(r.lines, CHUNK_LINES), r.across = (int)across;
    r.drawn = cuda_of(be)->code_counters;
    if (!be->preparing)
        cuda_stick(be, cudaMemsetAsync(r.drawn, 0, CODE_COUNTERS * sizeof(int), cuda_of(be)->stream),
                   "clearing counters");
    return r;
}

#endif
