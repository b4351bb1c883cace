/* ops/cuda/hopper.cuh -- PTX instructions of sm_90a as functions: mbarriers, the tensor memory accelerator
 * (TMA), warpgroup products (wgmma).
 *
 * Shared-memory addresses are 32 bit. Operands of wgmma are rows of 128 bytes with the 128-byte swizzle, as a
 * tensor map with CU_TENSOR_MAP_SWIZZLE_128B writes them to a base aligned to 1024 bytes. */
#ifndef OPS_CUDA_HOPPER_CUH
#define OPS_CUDA_HOPPER_CUH

#include "ops/cuda/ptx.cuh"

#include <cuda.h>

/* --- mbarriers: `count` arrivals and all announced bytes end a phase; phases alternate in parity --- */

__device__ inline void bar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count));
}
__device__ inline void bar_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void bar_expect(uint32_t bar, int bytes)      /* arrives, and announces bytes */
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(bar), "r"(bytes) : "memory");
}
__device__ inline void bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ inline void bar_wait(uint32_t bar, int parity)
{
    asm volatile("{\n.reg .pred done;\nagain:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\nbra again;\nover:\n}" :: "r"(bar), "r"(parity) : "memory");
}

/* --- clusters: blocks that read and write each other's shared memory --- */

__device__ inline int cluster_rank()
{
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* The address of another block's shared memory at the same place; only the functions below take it. */
__device__ inline uint32_t smem_of(uint32_t at, int rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
__device__ inline void cluster_arrive(uint32_t there)           /* at a barrier of another block */
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" :: "r"(there) : "memory");
}
/* Writes x to another block, and ends 4 of the bytes that this block's barrier was told to expect. */
__device__ inline void cluster_store(uint32_t there, int x, uint32_t bar)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];"
                 :: "r"(there), "r"(x), "r"(bar) : "memory");
}
__device__ inline float cluster_load_f32(uint32_t there)
{
    float x;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(x) : "r"(there) : "memory");
    return x;
}
__device__ inline double cluster_load_f64(uint32_t there)
{
    double x;
    asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(x) : "r"(there) : "memory");
    return x;
}
/* The two halves of cluster_sync, each by all threads of all blocks. */
__device__ inline void cluster_arrive_all() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ inline void cluster_wait_all()   { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
__device__ inline void cluster_sync()           /* by all threads of all blocks */
{
    cluster_arrive_all();
    cluster_wait_all();
}

/* --- warpgroups --- */

__device__ inline void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

__device__ inline void named_arrive(int id, int threads)        /* counts, but does not wait */
{
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
}

/* Tells the compiler that x is the same in all lanes: wgmma must not be in a branch that may diverge. */
__device__ inline int uniform(int x) { return __shfl_sync(~0u, x, 0); }

/* Registers of a warpgroup's threads. */
template <int N> __device__ inline void regs_more()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(N));
}
template <int N> __device__ inline void regs_less()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(N));
}

/* Makes ordinary writes to shared memory before it visible to TMA and wgmma after it. */
__device__ inline void async_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* --- TMA: boxes between global and shared memory --- */

__device__ inline void tma_load(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" :: "r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y) : "memory");
}
__device__ inline void tma_load(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z) : "memory");
}
/* The same into both blocks of a cluster of two (multicast), at the same place in each; each one's barrier
 * gets the bytes. */
__device__ inline void tma_load_both(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x, int y)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "h"((uint16_t)3) : "memory");
}
__device__ inline void tma_load_both(uint32_t dst, const CUtensorMap *map, uint32_t bar, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;"
                 :: "r"(dst), "l"(map), "r"(bar), "r"(x), "r"(y), "r"(z), "h"((uint16_t)3) : "memory");
}
__device__ inline void tma_store(const CUtensorMap *map, uint32_t src, int x, int y, int z)
{
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];"
                 :: "l"(map), "r"(src), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ inline void tma_add(const CUtensorMap *map, uint32_t src, int x, int y, int z)
{
    asm volatile("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];" :: "l"(map), "r"(src), "r"(x), "r"(y), "r"(z) : "memory");
}
__device__ inline void tma_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int N> __device__ inline void tma_read_done()         /* all but N groups have left shared memory */
{
    asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(N) : "memory");
}

/* --- wgmma: d (64, N) f32 in registers += a (64, 16) b (16, N), bf16 in shared memory, by a warpgroup ---
 *
 * Thread t of the warpgroup holds rows 16 (t/32) + (t%32)/4 and 8 below it: d[4j], d[4j+1] are columns 8j
 * + 2 (t%4) and the next of the upper row, d[4j+2], d[4j+3] those of the lower. TA, TB: the operand's rows
 * of shared memory run along M or N (1), not along K (0). */

/* The descriptor of a swizzled operand. `stride` is the distance between groups of 8 rows. Where rows run
 * along M or N, `lead` is the distance between 64 columns and the next 64; where they run along K it is
 * unused. */
__device__ inline uint64_t wgmma_operand(uint32_t at, int lead, int stride)
{
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)(lead >> 4) << 16 | (uint64_t)(stride >> 4) << 32 |
           1ull << 62;
}
__device__ inline void wgmma_begin()  { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ inline void wgmma_wait()            /* all but N commits are done */
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}

/* Nothing that uses d may be moved above this. */
template <int R> __device__ inline void wgmma_pin(float (&d)[R])
{
    #pragma unroll
    for (int i = 0; i < R; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}

/* Keeps the computation of d above and later waits below: ptxas moves a wait to the top of its basic block,
 * above arithmetic that should overlap with the products, so the basic block must end. `bar` is a barrier
 * whose phase of this parity is complete and whose next phase is not: the loop on it ends at once. */
template <int R> __device__ inline void wgmma_beside(float (&d)[R], uint32_t bar, int parity)
{
    wgmma_pin(d);
    bar_wait(bar, parity);
}

/* The bits of an accumulator. Assembly, because a cast that the compiler sees makes it carry d as integers
 * from one product to the next, and convert in between. */
__device__ inline uint32_t word_of(float x)
{
    uint32_t y;
    asm volatile("mov.b32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
}

template <int N> struct Wgmma;
template <> struct Wgmma<256> {
    template <int TA, int TB> __device__ static void mma(float (&d)[128], uint64_t a, uint64_t b, int add)
    {
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
        "%128, %129, p, 1, 1, %131, %132;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
          "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
          "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
          "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
          "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
          "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
          "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
          "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]),
          "+f"(d[54]), "+f"(d[55]), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]),
          "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]), "+f"(d[65]),
          "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
          "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]),
          "+f"(d[78]), "+f"(d[79]), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]),
          "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]), "+f"(d[89]),
          "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
          "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]),
          "+f"(d[102]), "+f"(d[103]), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]),
          "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]), "+f"(d[113]),
          "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
          "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]),
          "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
    }
};

/* --- tensor maps, made on the host --- */

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                const cuuint64_t *, const cuuint32_t *, const cuuint32_t *,
                                CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                CUtensorMapFloatOOBfill);

/* Found through the runtime, so that the driver's library is not linked. */
static inline EncodeTiled find_encode(void)
{
    void *f = NULL;
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                                     &found);
    return e == cudaSuccess && found == cudaDriverEntryPointSuccess ? (EncodeTiled)f : NULL;
}

/* --- ordinary loads and stores --- */

/* Four 8x8 blocks of 16-bit elements as wgmma leaves them; lane l gives the address of row l%8 of block
 * l/8. */
__device__ inline void stmatrix4(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 :: "r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
__device__ inline void add_to(float *p, uint4 x)                /* four f32, without reading them back */
{
    asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "l"(p), "f"(__uint_as_float(x.x)), "f"(__uint_as_float(x.y)), "f"(__uint_as_float(x.z)),
                    "f"(__uint_as_float(x.w)) : "memory");
}

#endif
