/* ops/attention_merge.c -- attention over two sets of keys from attention over each: contract, cost, CPU.
 *
 *   l = log(exp(lse[h,t]) + exp(part_lse[h,t]))
 *   o[t,h,:] = o[t,h,:] exp(lse[h,t] - l) + part[t,h,:] exp(part_lse[h,t] - l),   lse[h,t] = l
 *
 * o (T, H, C) f32 and lse (H, T) f32 hold what has been merged so far; part is f32 or bf16. Views with any
 * stride between rows and between heads. Both sides of every row have seen keys: their lse are finite. */
#include "ops/cpu/cpu_rows.h"

Cost attention_merge_cost(Backend *be, Tensor o, Tensor lse, Tensor part, Tensor part_lse)
{
    int64_t T = o.n[0], H = o.n[1];
    REQUIRE(o.rank == 3 && o.dtype == F32 && part.rank == 3 && is_float(part) && part.n[0] == T &&
            part.n[1] == H && part.n[2] == o.n[2] && is_rows_f32(lse, H, T) && is_rows_f32(part_lse, H, T),
            "attention_merge: o%s lse%s part%s lse%s", t_fmt(o), t_fmt(lse), t_fmt(part), t_fmt(part_lse));
    return (Cost){ .flops = 3.0 * (double)t_count(o) + 8.0 * (double)t_count(lse),
                   .rd    = t_bytes(o) + t_bytes(lse) + t_bytes(part) + t_bytes(part_lse),
                   .wr    = t_bytes(o) + t_bytes(lse) };
}

HOT static void blend(float *o, const float *part, float a, float b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) o[i] = o[i] * a + part[i] * b;
}

void cpu_attention_merge(Backend *be, Tensor o, Tensor lse, Tensor part, Tensor part_lse)
{
    int64_t rows = o.n[0] * o.n[1], H = o.n[1];
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(o)))
    for (int64_t r = 0; r < rows; r++) {
        float *at = (float *)row_ptr(lse, r % H) + r / H, a = *at;
        float  b = ((float *)row_ptr(part_lse, r % H))[r / H], top = a > b ? a : b;
        float  l = top + logf(expf(a - top) + expf(b - top));
        blend((float *)row_ptr(o, r), row_read(part, r, cpu_own(be)), expf(a - l), expf(b - l), o.n[2]);
        *at = l;
    }
}
