/* ops/cuda/warp_mma.cuh -- products of bf16 matrices in shared memory by single warps (mma.sync), and copies
 * of rows to shared memory.
 *
 * A warp computes 16 rows of a product. Either operand may lie as it is needed (its k side by side) or
 * turned; rows of all matrices are padded by 16 bytes, so that the eight rows that ldmatrix reads lie in
 * different banks. Fragments of a product: element i of column tile n is row lane / 4 + 8 (i / 2), column 8 n
 * + lane % 4 * 2 + i % 2. */
#ifndef OPS_CUDA_WARP_MMA_CUH
#define OPS_CUDA_WARP_MMA_CUH

#include "ops/cuda/cuda.cuh"

#ifndef WARP_MMA_LEAVES
#define WARP_MMA_LEAVES

/* Four 8 x 8 matrices; lane l gives the address of row l % 8 of matrix l / 8. */
__device__ inline void matrix_load(uint32_t (&v)[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)) : "memory");
}
__device__ inline void matrix_load_turned(uint32_t (&v)[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(p)) : "memory");
}

/* c (16, 8) += a (16, 16) b (16, 8) */
__device__ inline void mma_16x8(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                 "{%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 bytes to shared memory, or zeros; they are there after copies_wait<N>, which leaves the N newest groups
 * of copies_commit under way, and a barrier. */
__device__ inline void copy_16(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N> __device__ inline void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(N) : "memory");
}

#endif

/* c (16, 8 NT) += a b over k < K, NT even. a: (16, K) with rows of lda, or turned (K, 16); b: (K, 8 NT) as
 * its transpose (8 NT, K) with rows of ldb, or turned (K, 8 NT). */
template <int NT, bool A_TURNED, bool B_TURNED>
__device__ inline void warp_product(float (&c)[NT][4], const bf16 *a, int lda, const bf16 *b, int ldb, int K)
{
    int lane = threadIdx.x & 31, low = lane & 7, second = lane >> 3 & 1, third = lane >> 4;
    const bf16 *pa = A_TURNED ? a + (low + 8 * third) * lda + 8 * second
                              : a + (low + 8 * second) * lda + 8 * third;
    const bf16 *pb = B_TURNED ? b + (low + 8 * second) * ldb + 8 * third
                              : b + (low + 8 * third) * ldb + 8 * second;
#pragma unroll 4
    for (int k = 0; k < K; k += 16) {
        uint32_t fa[4];
        if (A_TURNED) matrix_load_turned(fa, pa + k * lda);
        else          matrix_load(fa, pa + k);
#pragma unroll
        for (int n = 0; n < NT; n += 2) {
            uint32_t fb[4];
            if (B_TURNED) matrix_load_turned(fb, pb + k * ldb + 8 * n);
            else          matrix_load(fb, pb + 8 * n * ldb + k);
            mma_16x8(c[n], fa, fb[0], fb[1]);
            mma_16x8(c[n + 1], fa, fb[2], fb[3]);
        }
    }
}

/* Row and column, in the warp's product, of element i of column tile n. */
__device__ inline int piece_row(int i)        { return (threadIdx.x & 31) / 4 + 8 * (i / 2); }
__device__ inline int piece_col(int n, int i) { return 8 * n + (threadIdx.x & 3) * 2 + i % 2; }

template <int NT> __device__ inline void pieces_clear(float (&c)[NT][4])
{
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) c[n][i] = 0.0f;
}

/* Two neighbours, i and i + 1 with i even, to bf16. */
__device__ inline void pair_store(bf16 *to, float x, float y)
{
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(x, y);
}

/* The warp's product to shared or device memory, rows of ld; only rows below `rows`. */
template <int NT> __device__ inline void pieces_store(bf16 *to, int64_t ld, const float (&c)[NT][4], int rows)
{
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        int r = piece_row(i);
        if (r >= rows) continue;
#pragma unroll
        for (int n = 0; n < NT; n++) pair_store(to + r * ld + piece_col(n, i), c[n][i], c[n][i + 1]);
    }
}

#endif
