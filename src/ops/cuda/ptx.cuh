/* ops/cuda/ptx.cuh -- PTX instructions of every GPU since compute capability 8.0 as functions: shared memory,
 * asynchronous copies, matrix loads, products of a warp (mma.sync). Shared-memory addresses are 32 bit. */
#ifndef OPS_CUDA_PTX_CUH
#define OPS_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

__device__ inline uint32_t smem_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* --- asynchronous copies from global to shared memory, 16 bytes each, of the calling thread --- */

/* Copies the first `bytes` of 16; the others become zero. With 0 bytes `src` is not read. */
__device__ inline void copy_async16(uint32_t dst, const void *src, int bytes)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :: "r"(dst), "l"(src), "r"(bytes) : "memory");
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void copy_async_wait()       /* all but the last N groups have arrived */
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

/* --- four 8x8 blocks of 16-bit elements; lane l gives the address of row l%8 of block l/8 --- */

/* Word i of a lane: elements 2 (lane%4) and the next of row lane/4 of block i. */
__device__ inline void ldmatrix4(uint32_t at, uint32_t (&v)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}
__device__ inline void ldmatrix4_transposed(uint32_t at, uint32_t (&v)[4])      /* of the blocks transposed */
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}

/* --- d (16, 8) f32 += a (16, 16) b (16, 8) in bf16, by a warp ---
 *
 * Lane l holds rows l/4 and l/4 + 8: d[0], d[1] are columns 2 (l%4) and the next of the upper row, d[2], d[3]
 * those of the lower. a: words of ldmatrix4 of the blocks (upper, left), (lower, left), (upper, right),
 * (lower, right). b: words of the transposed blocks of the upper and the lower 8 rows. */
__device__ inline void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* --- words --- */

/* Byte i of the result is the byte of (b, a) that nibble i of `bytes` names; from 8 on, its sign in all
 * bits. */
__device__ inline uint32_t prmt(uint32_t a, uint32_t b, uint32_t bytes)
{
    uint32_t x;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(bytes));
    return x;
}
/* Two products of bf16, subnormals included; compute capability 9.0. */
__device__ inline uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
    uint32_t x;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(x) : "r"(a), "r"(b));
    return x;
}

/* --- loads and stores --- */

__device__ inline uint4 smem_load(uint32_t at)
{
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(at) : "memory");
    return x;
}
__device__ inline int smem_word(uint32_t at)
{
    int x;
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
    return x;
}
__device__ inline void smem_store(uint32_t at, int x)
{
    asm volatile("st.shared.s32 [%0], %1;" :: "r"(at), "r"(x) : "memory");
}
__device__ inline void smem_store(uint32_t at, uint32_t x, uint32_t y)
{
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" :: "r"(at), "r"(x), "r"(y) : "memory");
}
__device__ inline void smem_store(uint32_t at, uint4 x)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(at), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
}
__device__ inline void smem_zero(uint32_t at)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" :: "r"(at), "r"(0) : "memory");
}

#endif
