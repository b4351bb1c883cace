/* ops/cuda/grouped_narrow.cu -- grouped_gemm.c for a c with few columns, or few rows in TN: the narrow sides
 * of LoRA adapters, and their gradients.
 *
 * The wide operand is a, the narrow one b: in TN with few rows the operands change places, and c is written
 * transposed. The kernels are those of the GPU's kernel set.
 *
 * Where TN has fewer tiles than multiprocessors (an adapter shared by all experts, few experts) the rows of
 * each expert are cut into parts; their sums go to the workspace and are added in order. The number of parts
 * depends on the shapes alone. */
#include "ops/cuda/kernel_set.cuh"

namespace {

enum { PARTS_MOST = 32 };

/* Sums the parts of each expert's c in order; elements of an expert and of a part are numbered alike, and
 * rows of c are `row` apart. */
template <class C>
__global__ void add_parts(C *c, int64_t expert, int64_t row, int64_t M, int64_t N, const float *part,
                          int parts, int64_t all, bool add)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, each = M * N;
    if (i >= all) return;
    int64_t e = i / each, at = i % each;
    float   sum = 0.0f;
    for (int x = 0; x < parts; x++) sum += part[(e * parts + x) * each + at];
    put_one(c + e * expert + at / N * row + at % N, sum, add);
}

void by_rows(Backend *be, const GroupedCall &q)
{
    NarrowCall n = { q.a, q.b, q.offsets, q.mode, q.E, q.every, 1, q.c.data, (DType)q.c.dtype, 0, q.c.s[0], 1,
                     q.scale, q.add, q.drops, q.dropout, NULL };
    cuda_of(be)->kernels->narrow(be, n);
}

/* Parts per expert that keep all multiprocessors busy; a function of the shapes alone. */
int64_t parts_of(Backend *be, int64_t E, int64_t each, int64_t rows)
{
    int64_t parts = ceil_div(2 * cuda_of(be)->sms, E * each), long_enough = ceil_div(rows, 8 * 64 * E);
    if (E * each >= cuda_of(be)->sms) return 1;
    parts = min_i64(min_i64(parts, long_enough), min_i64(PARTS_MOST, EXPERTS_MOST / E));
    return parts > 0 ? parts : 1;
}

void gradient(Backend *be, const GroupedCall &q)
{
    int64_t M = q.a.n[1], N = q.b.n[1];
    bool    transposed = M < N || q.drops;          /* b is the narrow operand, a the one with dropout */
    Tensor  wide = transposed ? q.b : q.a, slim = transposed ? q.a : q.b;
    int64_t each = ceil_div(wide.n[1], 128) * ceil_div(slim.n[1], NARROW);
    int64_t parts = parts_of(be, q.E, each, q.a.n[0]), E = q.E * parts, head = (3 + E + 63) / 64 * 64;
    int64_t partial = parts > 1 ? E * M * N : 0, row = parts > 1 ? N : q.c.s[1];
    int    *counters = (int *)cuda_workspace(be, (size_t)(head + partial) * sizeof(int));
    float  *sums = (float *)(counters + head);
    Firsts  first = { (const int *)q.offsets.data, (int)q.every, (int)parts };
    NarrowCall n = { wide, slim, q.offsets, GEMM_TN, E, q.every, parts,
                     parts > 1 ? (void *)sums : q.c.data, parts > 1 ? F32 : (DType)q.c.dtype,
                     parts > 1 ? M * N : q.c.s[0], transposed ? 1 : row, transposed ? row : 1, q.scale,
                     q.add && parts == 1, q.drops, q.dropout, counters };
    if (be->sticky) return;                     /* no workspace */
    LAUNCH(be, "grouped_gemm", order_experts, 1, EXPERTS_MOST, 0, counters + 3, counters, first, (int)E);
    cuda_of(be)->kernels->narrow(be, n);
    if (parts > 1)
        BY_DTYPE(q.c.dtype, C, LAUNCH(be, "grouped_gemm", add_parts<C>, ceil_div(q.E * M * N, 256), 256, 0,
                                      (C *)q.c.data, q.c.s[0], q.c.s[1], M, N, sums, (int)parts, q.E * M * N,
                                      q.add));
}

}

bool grouped_narrow(Backend *be, const GroupedCall &q)
{
    bool tn = q.mode == GEMM_TN;
    int64_t slim = tn ? min_i64(q.a.n[1], q.b.n[1]) : q.c.n[1];
    if (t_has(q.lora.low_rank) || (slim > NARROW && q.scale == 1.0f && !q.drops)) return false;
    if (tn) gradient(be, q);
    else    by_rows(be, q);
    return true;
}
