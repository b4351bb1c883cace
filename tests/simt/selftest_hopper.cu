/* tests/simt/selftest_hopper.cu -- products of warpgroups, TMA, mbarriers and clusters on the emulated GPU:
 * known values, and the faults that must be found. */
#include "ops/cuda/hopper_mma.cuh"
#include "ops/cuda/hopper_fp8.cuh"
#include "ops/cuda/cuda.cuh"
#include "simt/cases.h"

#include <stdlib.h>

namespace {

enum { M = 64, K = 64, N_MOST = 256, SPACE = 1 << 20, CHUNK = 64 * 128 };

char         *space;                            /* SPACE bytes of pinned host memory, which kernels read */
float        *out;                              /* the same; results */
cudaStream_t  stream;

CUtensorMap map_boxes(CUtensorMapDataType type, void *base, int cols, int rows, int box_cols, int box_rows,
                      CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B)
{
    int size = type == CU_TENSOR_MAP_DATA_TYPE_FLOAT32 ? 4 : type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 ? 2 : 1;
    cuuint64_t n[3] = { (cuuint64_t)cols, (cuuint64_t)rows, 1 };
    cuuint64_t s[2] = { (cuuint64_t)(cols * size), (cuuint64_t)(cols * size * rows) };
    cuuint32_t box[3] = { (cuuint32_t)box_cols, (cuuint32_t)box_rows, 1 }, one[3] = { 1, 1, 1 };
    CUtensorMap map = { };
    find_encode()(&map, type, 3, base, n, s, box, one, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return map;
}

/* ---- products of one warpgroup, with and without faults ---- */

enum Fault {
    NONE, NO_BYTES_WAIT, NO_BEGIN, NO_END, OVERWRITE, TOUCH, UNFENCED, FENCED, THREE_WARPS, ODD_WARP
};
enum Form { SHARED, REGISTERS, E4M3 };

struct Smem { enum { A = 0, B = CHUNK, BAR = B + 4 * CHUNK, BYTES = BAR + 8 }; };

/* b is N rows along K, or K rows along N (TB) in chunks of 64 columns. */
template <int N, int TB, Form F>
__device__ void load(const CUtensorMap *a, const CUtensorMap *b, uint32_t base)
{
    enum { CHUNKS = TB ? (N + 63) / 64 : 1, BYTES = TB ? CHUNKS * CHUNK : N * 128 };
    bar_init(base + Smem::BAR, 1);
    bar_init_done();
    bar_expect(base + Smem::BAR, (F == REGISTERS ? 0 : CHUNK) + BYTES);
    if (F != REGISTERS) tma_load(base, a, base + Smem::BAR, 0, 0, 0);
    for (int c = 0; c < CHUNKS; c++) tma_load(base + Smem::B + c * CHUNK, b, base + Smem::BAR, c * 64, 0, 0);
}

template <int N, int TA, int TB, Form F> struct Multiply {
    __device__ static void run(float (&d)[N / 2], const uint32_t *, uint64_t a, uint64_t b, int k)
    {
        Wgmma<N>::template mma<TA, TB>(d, a + k * (TA ? 128 : 2), b + k * (TB ? 128 : 2), k > 0);
    }
};
template <int N, int TB> struct Multiply<N, 0, TB, REGISTERS> {
    __device__ static void run(float (&d)[N / 2], const uint32_t *p, uint64_t, uint64_t b, int k)
    {
        WgmmaA<N>::template mma<TB>(d, p + 4 * k, b + k * (TB ? 128 : 2), k > 0);
    }
};
template <int N> struct Multiply<N, 0, 0, E4M3> {
    __device__ static void run(float (&d)[N / 2], const uint32_t *, uint64_t a, uint64_t b, int k)
    {
        wgmma_e4m3(d, a + k * 2, b + k * 2, k > 0);
    }
};

template <int N, int TA, int TB, Form F>
__global__ void product(const __grid_constant__ CUtensorMap ma, const __grid_constant__ CUtensorMap mb,
                        const bf16 *rows, float *y, Fault fault)
{
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem), words[K / 4];
    int      t = threadIdx.x, row = t / 32 * 16 + t % 32 / 4;
    float    d[N / 2];
    if (!t) load<N, TB, F>(&ma, &mb, base);
    __syncthreads();
    for (int i = 0; F == REGISTERS && i < K / 4; i++)
        words[i] = *(const uint32_t *)&rows[(row + i % 2 * 8) * K + i / 4 * 16 + i / 2 % 2 * 8 + t % 4 * 2];
    if (fault != NO_BYTES_WAIT) bar_wait(base + Smem::BAR, 0);
    if ((fault == UNFENCED || fault == FENCED) && t == 40) smem_store(base, smem_word(base));
    if (fault == FENCED) async_fence();
    __syncthreads();
    if (fault == THREE_WARPS && t >= 96) return;
    uint64_t a = wgmma_operand(base, CHUNK, 1024), b = wgmma_operand(base + Smem::B, CHUNK, 1024);
    if (fault == ODD_WARP && t >= 96) b += 2;
    if (fault != NO_BEGIN) wgmma_begin();
    for (int k = 0; k < 4; k++) Multiply<N, TA, TB, F>::run(d, words, a, b, k);
    wgmma_commit();
    if (fault == OVERWRITE && t == 40) smem_store(base + Smem::B, 0x3f803f80), async_fence();
    if (fault == TOUCH && t == 40) d[N / 2 - 1] = 0;
    if (fault != NO_END) wgmma_wait<0>();
    wgmma_pin(d);
    for (int i = 0; i < N / 2; i++)
        y[(row + i / 2 % 2 * 8) * N + i / 4 * 8 + t % 4 * 2 + i % 2] = d[i];
    if (fault == NO_END) wgmma_wait<0>();
}

int a_at(int m, int k) { return (m * 7 + k * 3) % 9 - 4; }
int b_at(int n, int k) { return (n * 5 + k * 11) % 7 - 3; }

/* x as bf16, or as e4m3, where 0 to 4 in magnitude are exact. */
void put(char *p, int i, int x, bool e4m3)
{
    static const uint8_t codes[] = { 0x00, 0x38, 0x40, 0x44, 0x48 };
    if (e4m3) p[i] = (char)(codes[abs(x)] | (x < 0 ? 0x80 : 0));
    else      ((bf16 *)p)[i] = __float2bfloat16_rn((float)x);
}

template <int N, int TA, int TB, Form F> bool multiplied(Fault fault = NONE)
{
    constexpr bool CODES = F == E4M3;
    constexpr int  KS = CODES ? 128 : 64;
    CUtensorMapDataType type = CODES ? CU_TENSOR_MAP_DATA_TYPE_UINT8 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    char *a = space, *b = space + (64 << 10);
    for (int k = 0; k < KS; k++) {
        for (int m = 0; m < M; m++) put(a, TA ? k * M + m : m * KS + k, a_at(m, k), CODES);
        for (int n = 0; n < N; n++) put(b, TB ? k * N + n : n * KS + k, b_at(n, k), CODES);
    }
    CUtensorMap ma = map_boxes(type, a, TA ? M : KS, TA ? KS : M, KS, 64);
    CUtensorMap mb = map_boxes(type, b, TB ? N : KS, TB ? KS : N, KS, TB ? 64 : N);
    auto kernel = product<N, TA, TB, F>;
    cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Smem::BYTES);
    kernel<<<1, 128, Smem::BYTES, stream>>>(ma, mb, (const bf16 *)a, out, fault);
    cudaStreamSynchronize(stream);
    bool ok = true;
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            int sum = 0;
            for (int k = 0; k < KS; k++) sum += a_at(m, k) * b_at(n, k);
            ok = ok && out[m * N + n] == (float)sum;
        }
    return ok;
}

template <int N> bool all_forms()
{
    return multiplied<N, 0, 0, SHARED>() && multiplied<N, 0, 1, SHARED>() && multiplied<N, 1, 0, SHARED>() &&
           multiplied<N, 1, 1, SHARED>();
}
bool shapes()
{
    return all_forms<64>() && all_forms<72>() && all_forms<80>() && all_forms<96>() && all_forms<128>() &&
           all_forms<256>();
}
bool shapes_of_registers()
{
    return multiplied<64, 0, 1, REGISTERS>() && multiplied<72, 0, 1, REGISTERS>() &&
           multiplied<80, 0, 1, REGISTERS>() && multiplied<64, 0, 0, REGISTERS>();
}
bool shape_of_codes() { return multiplied<128, 0, 0, E4M3>(); }

/* In each order of threads: some launches do at once what others do late. */
template <Fault F> bool always()
{
    bool ok = true;
    for (int i = 0; i < 8; i++) ok = multiplied<128, 0, 0, SHARED>(F) && ok;
    return ok;
}
template <Fault F> bool shows() { return !always<F>(); }

/* ---- TMA and mbarriers ---- */

enum { COLS = 32, ROWS = 16, BOX = COLS * ROWS * 4 };   /* a box of f32, rows of 128 bytes */
enum Load { PLAIN, NEVER_PUBLISHED, TWO_ARRIVALS, TOO_FEW_BYTES, MISPLACED, LEFT };

__global__ void box_of(const __grid_constant__ CUtensorMap map, float *y, int x, int row, Load how)
{
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem), bar = base + 2 * BOX;
    if (!threadIdx.x) {
        bar_init(bar, 1);
        if (how != NEVER_PUBLISHED) bar_init_done();
        bar_expect(bar, how == TOO_FEW_BYTES ? BOX - 16 : BOX);
        if (how == TWO_ARRIVALS) bar_arrive(bar);
        tma_load(base + (how == MISPLACED ? 64 : 0), &map, bar, x, row, 0);
    }
    __syncthreads();
    if (how == LEFT) return;
    bar_wait(bar, 0);
    for (int i = threadIdx.x; i < COLS * ROWS; i += blockDim.x) y[i] = ((float *)smem)[i];
}

/* A tensor of 40 x 24; elements outside are zero. 16 bytes lie at their place ^ the row modulo 8. */
bool loaded(int x, int row, Load how = PLAIN)
{
    float *t = (float *)space;
    for (int i = 0; i < 40 * 24; i++) t[i] = (float)(i + 1);
    CUtensorMap map = map_boxes(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, t, 40, 24, COLS, ROWS);
    box_of<<<1, 64, 2 * BOX + 8, stream>>>(map, out, x, row, how);
    cudaStreamSynchronize(stream);
    bool ok = true;
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            bool  in = row + r >= 0 && row + r < 24 && x + c >= 0 && x + c < 40;
            float want = in ? t[(row + r) * 40 + x + c] : 0;
            ok = ok && out[r * COLS + ((c / 4) ^ (r % 8)) * 4 + c % 4] == want;
        }
    return ok;
}
bool boxes()  { return loaded(0, 0) && loaded(8, 4) && loaded(24, 20) && loaded(-4, -3) && loaded(40, 24); }
template <Load L> bool faulty_load() { loaded(0, 0, L); return false; }
bool box_unaligned() { loaded(1, 0); return false; }

enum Put { STORED, ADDED, CHANGED, NOT_READ, NOT_FENCED };

__global__ void box_to(const __grid_constant__ CUtensorMap map, int x, int row, Put how)
{
    extern __shared__ __align__(1024) char smem[];
    uint32_t base = smem_at(smem);
    for (int i = threadIdx.x; i < COLS * ROWS; i += blockDim.x) {
        int r = i / COLS, c = i % COLS;
        smem_store(base + r * 128 + ((c / 4 ^ r % 8) << 4) + c % 4 * 4, __float_as_int(1000.0f + i));
    }
    if (how != NOT_FENCED) async_fence();
    __syncthreads();
    if (!threadIdx.x) {
        if (how == ADDED) tma_add(&map, base, x, row, 0);
        else              tma_store(&map, base, x, row, 0);
        tma_commit();
        if (how == CHANGED) smem_store(base, 0);
        if (how != NOT_READ) tma_read_done<0>();
    }
}

bool stored(int x, int row, Put how)
{
    float *t = (float *)space;
    for (int i = 0; i < 40 * 24; i++) t[i] = (float)(i + 1);
    CUtensorMap map = map_boxes(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, t, 40, 24, COLS, ROWS);
    box_to<<<1, 64, BOX, stream>>>(map, x, row, how);
    cudaStreamSynchronize(stream);
    bool ok = true;
    for (int i = 0; i < 40 * 24; i++) {
        int   r = i / 40 - row, c = i % 40 - x;
        bool  in = r >= 0 && r < ROWS && c >= 0 && c < COLS;
        float put = 1000.0f + (float)(r * COLS + c), was = (float)(i + 1);
        ok = ok && t[i] == (!in ? was : how == ADDED ? was + put : put);
    }
    return ok;
}
bool stores() { return stored(0, 0, STORED) && stored(16, 12, STORED) && stored(-8, 3, ADDED); }
template <Put P> bool faulty_store()
{
    for (int i = 0; i < 8; i++) stored(0, 0, P);
    return false;
}

bool maps_refused()
{
    cuuint64_t n[2] = { 64, 8 }, s[1] = { 128 }, odd[1] = { 120 };
    cuuint32_t box[2] = { 64, 8 }, wide[2] = { 128, 8 }, tall[2] = { 64, 257 }, one[2] = { 1, 1 };
    CUtensorMap map;
    auto encode = [&](void *p, const cuuint64_t *stride, const cuuint32_t *b) {
        return find_encode()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, n, stride, b, one,
                             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    };
    return encode(space, s, box) == CUDA_SUCCESS && encode(space + 8, s, box) == CUDA_ERROR_INVALID_VALUE &&
           encode(space, odd, box) == CUDA_ERROR_INVALID_VALUE &&
           encode(space, s, wide) == CUDA_ERROR_INVALID_VALUE &&
           encode(space, s, tall) == CUDA_ERROR_INVALID_VALUE;
}

/* A ring of two slots: warp 0 writes 0 .. n - 1, warp 1 reads them. SKIPS: without waiting for free slots;
 * FREES: slots that it then reads. */
enum Ring { RIGHT, SKIPS, FREES };
template <Ring R> __global__ void ring(float *y, int n)
{
    extern __shared__ __align__(16) char smem[];
    uint32_t base = smem_at(smem), slots = base + 32;
    int      warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (!threadIdx.x)
        for (int i = 0; i < 4; i++) bar_init(base + i * 8, 1);
    __syncthreads();
    for (int i = 0; i < n; i++) {
        uint32_t full = base + i % 2 * 8, empty = full + 16, at = slots + (i % 2 * 32 + lane) * 4;
        if (warp == 0) {
            if (R != SKIPS) bar_wait(empty, i / 2 % 2 ^ 1);
            smem_store(at, i);
            __syncwarp();
            if (!lane) bar_arrive(full);
        } else {
            bar_wait(full, i / 2 % 2);
            if (R == FREES && !lane) bar_arrive(empty);
            if (!lane) y[i] = (float)smem_word(at);
            __syncwarp();
            if (R != FREES && !lane) bar_arrive(empty);
        }
    }
}
template <Ring R> bool ringed()
{
    bool ok = true;
    for (int k = 0; k < 8; k++) {
        ring<R><<<1, 64, 32 + 64 * 4, stream>>>(out, 9);
        cudaStreamSynchronize(stream);
        for (int i = 0; i < 9; i++) ok = ok && out[i] == (float)i;
    }
    return ok;
}
bool freed_early() { return !ringed<FREES>(); }

__global__ void no_barrier()
{
    __shared__ __align__(8) char bar[8];
    bar_wait(smem_at(bar), 0);
}
bool barrier_absent() { no_barrier<<<1, 32, 0, stream>>>(); cudaStreamSynchronize(stream); return false; }

/* Two lanes of a warp arrive, each at a barrier of its own: neither waits for the other. */
__global__ void two_arrivals(float *y)
{
    __shared__ uint64_t bar[2];
    int t = threadIdx.x;
    if (t < 2) bar_init(smem_at(&bar[t]), 1);
    __syncthreads();
    if (t == 0)      bar_arrive(smem_at(&bar[0]));
    else if (t == 1) bar_arrive(smem_at(&bar[1]));
    bar_wait(smem_at(&bar[0]), 0), bar_wait(smem_at(&bar[1]), 0);
    y[t] = (float)t;
}
bool arrivals_of_two_lanes()
{
    bool ok = true;
    for (int i = 0; i < 12; i++) {
        two_arrivals<<<1, 32, 0, stream>>>(out);
        cudaStreamSynchronize(stream);
        for (int t = 0; t < 32; t++) ok = ok && out[t] == (float)t, out[t] = -1;
    }
    return ok;
}

/* ---- clusters ---- */

enum Leave { TOGETHER, EARLY };

/* Each of two blocks loads half of a box into both, stores a word to the other, and reads its sum. `dims` are
 * those of the map. */
__global__ void __cluster_dims__(2)
pair(const __grid_constant__ CUtensorMap map, int dims, float *y, Leave leave)
{
    extern __shared__ __align__(1024) char smem[];
    __shared__ double own;
    uint32_t base = smem_at(smem), bar = base + 2 * BOX, word = bar + 16;
    int      rank = cluster_rank(), other = rank ^ 1, t = threadIdx.x;
    if (!t) {
        bar_init(bar, 2), bar_init(bar + 8, 1);
        bar_init_done();
        own = 10.0 + rank;
    }
    cluster_sync();
    if (!t) {
        bar_expect(bar, 2 * BOX + 4);
        if (dims == 2) tma_load_both(base + rank * BOX, &map, bar, 0, rank * ROWS);
        else           tma_load_both(base + rank * BOX, &map, bar, 0, rank * ROWS, 0);
        cluster_store(smem_of(word, other), 100 + rank, smem_of(bar, other));
        cluster_arrive(smem_of(bar, other));
        if (leave == EARLY && rank) bar_expect(bar + 8, 0);
    }
    bar_wait(bar, 0);
    float *box = (float *)smem;
    y += rank * (2 * ROWS + 2);
    for (int r = t; r < 2 * ROWS; r += blockDim.x) y[r] = box[r * 32 + r % 8 * 4];     /* column 0 */
    if (!t) y[2 * ROWS] = (float)smem_word(word);
    if (!t) y[2 * ROWS + 1] = (float)cluster_load_f64(smem_of(smem_at(&own), other));
    if (leave == TOGETHER) cluster_sync();
}

bool paired(Leave leave, int dims)
{
    float *t = (float *)space;
    bool   ok = true;
    for (int i = 0; i < 32 * 32; i++) t[i] = (float)i;
    CUtensorMap map = map_boxes(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, t, COLS, 2 * ROWS, COLS, ROWS);
    cuuint64_t n[2] = { COLS, 2 * ROWS }, s[1] = { 128 };
    cuuint32_t box[2] = { COLS, ROWS }, one[2] = { 1, 1 };
    if (dims == 2)
        find_encode()(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, t, n, s, box, one,
                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    for (int i = 0; i < 12; i++) {
        pair<<<4, 64, 2 * BOX + 32, stream>>>(map, dims, out, leave);
        cudaStreamSynchronize(stream);
        for (int rank = 0; rank < 2; rank++) {
            const float *y = out + rank * (2 * ROWS + 2);
            for (int r = 0; r < 2 * ROWS; r++) ok = ok && y[r] == (float)(r * 32);
            ok = ok && y[2 * ROWS] == (float)(101 - rank) && y[2 * ROWS + 1] == (float)(11 - rank);
        }
    }
    return ok;
}
bool cluster_of_two()      { return paired(TOGETHER, 2) && paired(TOGETHER, 3); }
bool cluster_left_early()  { paired(EARLY, 2); return false; }
bool cluster_cut()
{
    CUtensorMap map = { };
    pair<<<3, 64, 2 * BOX + 32, stream>>>(map, 2, out, TOGETHER);
    cudaStreamSynchronize(stream);
    return false;
}

/* ---- named barriers, registers, matrices ---- */

/* Warps 0 and 1 hand over to warps 2 and 3. */
template <int COUNT> __global__ void hand_over(float *y)
{
    __shared__ float x[64];
    if (threadIdx.x < 64) {
        x[threadIdx.x] = (float)threadIdx.x;
        named_arrive(3, COUNT);
    } else {
        named_sync(3, COUNT);
        y[threadIdx.x - 64] = x[127 - threadIdx.x];
    }
}
template <int COUNT> bool handed_over()
{
    hand_over<COUNT><<<1, 128, 0, stream>>>(out);
    cudaStreamSynchronize(stream);
    return out[0] == 63 && out[63] == 0;
}

/* Of three warpgroups, `warps` of the first ask for more registers than the 168 that a thread begins with. */
__global__ void registers(int warps, bool less)
{
    if (threadIdx.x >= 128) { if (less) regs_less<24>(); }
    else if (threadIdx.x / 32 < warps) regs_more<240>();
}
template <int WARPS, bool LESS> bool registers_moved()
{
    registers<<<1, 384, 0, stream>>>(WARPS, LESS);
    cudaStreamSynchronize(stream);
    return true;
}

__global__ void turned(float *y)                        /* stmatrix, then ldmatrix */
{
    extern __shared__ __align__(16) char smem[];
    uint32_t at = smem_at(smem) + threadIdx.x * 16, v[4], w[4];
    for (int i = 0; i < 4; i++) v[i] = threadIdx.x * 4 + i;
    stmatrix4(at, v[0], v[1], v[2], v[3]);
    __syncwarp();
    ldmatrix4(at, w);
    for (int i = 0; i < 4; i++) y[threadIdx.x * 4 + i] = (float)w[i];
    if (!threadIdx.x) y[128] = (float)smem_word(smem_at(smem) + 16 + 4);     /* matrix 0: row 1, column 2 */
}
bool matrices()
{
    turned<<<1, 32, 512, stream>>>(out);
    cudaStreamSynchronize(stream);
    bool ok = out[128] == 5 * 4;
    for (int i = 0; i < 128; i++) ok = ok && out[i] == (float)i;
    return ok;
}

/* ---- the cases ---- */

const Case cases[] = {
    { "wgmma of every shape", shapes, NULL },
    { "wgmma with a in registers", shapes_of_registers, NULL },
    { "wgmma of e4m3", shape_of_codes, NULL },
    { "wgmma in every order of threads", always<NONE>, NULL },
    { "wgmma before the bytes are there", always<NO_BYTES_WAIT>, "changes before wgmma.wait_group" },
    { "wgmma without wgmma.fence", always<NO_BEGIN>, "no wgmma.fence" },
    { "accumulators before wgmma.wait_group", shows<NO_END>, NULL },
    { "an operand that is written over", always<OVERWRITE>, "changes before wgmma.wait_group" },
    { "accumulators that are written", always<TOUCH>, "writes to accumulators before" },
    { "a store without fence.proxy.async", always<UNFENCED>, "which thread 40 stored to" },
    { "a store with fence.proxy.async", always<FENCED>, NULL },
    { "wgmma of three warps", always<THREE_WARPS>, "ends without wgmma" },
    { "wgmma of different operands", always<ODD_WARP>, "with other operands" },
    { "TMA loads, also beyond the tensor", boxes, NULL },
    { "a box that is not on 16 bytes", box_unaligned, "which is not on 16 bytes" },
    { "a box at no multiple of 128", faulty_load<MISPLACED>, "is not a multiple of 128" },
    { "an mbarrier without its fence", faulty_load<NEVER_PUBLISHED>, "without fence.mbarrier_init" },
    { "one arrival too many", faulty_load<TWO_ARRIVALS>, "more than 1 arrivals" },
    { "fewer bytes announced than come", faulty_load<TOO_FEW_BYTES>, "-16 bytes are missing" },
    { "a block that leaves before its bytes", faulty_load<LEFT>, "asynchronous writes to its shared memory" },
    { "TMA stores and sums", stores, NULL },
    { "a store's source that is written over", faulty_store<CHANGED>, "changes before a store has read it" },
    { "a store that nobody waits for", faulty_store<NOT_READ>, "TMA stores may still read" },
    { "a store of what is not fenced", faulty_store<NOT_FENCED>, "without fence.proxy.async since" },
    { "tensor maps that the driver refuses", maps_refused, NULL },
    { "a ring of mbarriers", ringed<RIGHT>, NULL },
    { "a ring without its second barriers", ringed<SKIPS>, "1 of 1 arrivals" },
    { "a slot that is freed before it is read", freed_early, NULL },
    { "an mbarrier that is none", barrier_absent, "there is no mbarrier" },
    { "arrivals of two lanes", arrivals_of_two_lanes, NULL },
    { "a cluster: multicast, st.async, mapa", cluster_of_two, NULL },
    { "a block that leaves its cluster early", cluster_left_early, "of the cluster, which has ended" },
    { "a grid that is no multiple of clusters", cluster_cut, "a grid of 3 blocks in clusters of 2" },
    { "named barriers", handed_over<128>, NULL },
    { "a named barrier of too few threads", handed_over<160>, "threads wait for others that never come" },
    { "setmaxnreg", registers_moved<4, true>, NULL },
    { "setmaxnreg of part of a warpgroup", registers_moved<3, true>, "ends without setmaxnreg.inc" },
    { "more registers than there are", registers_moved<4, false>, "the block has 64512" },
    { "stmatrix", matrices, NULL },
};

void open()
{
    cudaHostAlloc((void **)&space, SPACE, cudaHostAllocMapped);
    cudaHostAlloc((void **)&out, SPACE, cudaHostAllocMapped);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
}

}

int main()
{
    setenv("SIMT_CAPABILITY", "9.0", 1);
    return run_cases(cases, open);
}
