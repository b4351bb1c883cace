/* comm/comm_sum.c -- adds the parts of several ranks: in the order of the members, a block at a time, so that
 * every transport that uses it gives the same bits. */
#include "comm/transport.h"

enum { BLOCK = 512 };

bool sum_has(DType d) { return d == F32 || d == BF16 || d == F64 || d == I32 || d == I64; }

/* A block is read from every part before it is written, because out may be one of the parts. */
#define SUM(name, elem, wide, load, store)                                                         \
    static void name(elem *out, const elem *const *part, int parts, int64_t n, Reduce r)           \
    {                                                                                              \
        wide acc[BLOCK];                                                                           \
        for (int64_t at = 0; at < n; at += BLOCK) {                                                \
            int m = (int)(n - at < BLOCK ? n - at : BLOCK);                                        \
            for (int i = 0; i < m; i++) acc[i] = load(part[0][at + i]);                            \
            for (int p = 1; p < parts; p++) {                                                      \
                const elem *x = part[p] + at;                                                      \
                if (r == RED_SUM) for (int i = 0; i < m; i++) acc[i] += load(x[i]);                \
                else for (int i = 0; i < m; i++) acc[i] = load(x[i]) > acc[i] ? load(x[i]) : acc[i]; \
            }                                                                                      \
            for (int i = 0; i < m; i++) out[at + i] = store(acc[i]);                               \
        }                                                                                          \
    }

SUM(sum_f32,  float,    float,    ,            )
SUM(sum_f64,  double,   double,   ,            )
SUM(sum_bf16, uint16_t, float,    bf16_to_f32, bf16_from_f32)
SUM(sum_i32,  int32_t,  int64_t,  ,            (int32_t))
SUM(sum_i64,  int64_t,  int64_t,  ,            )

void sum_parts(void *out, const void *const *part, int parts, DType d, int64_t n, Reduce r)
{
    switch (d) {
    case F32:  sum_f32 (out, (const float *const *)part, parts, n, r);    return;
    case F64:  sum_f64 (out, (const double *const *)part, parts, n, r);   return;
    case BF16: sum_bf16(out, (const uint16_t *const *)part, parts, n, r); return;
    case I32:  sum_i32 (out, (const int32_t *const *)part, parts, n, r);  return;
    case I64:  sum_i64 (out, (const int64_t *const *)part, parts, n, r);  return;
    default:   REQUIRE(false, "no sums of %s", dtype_name(d));
    }
}
