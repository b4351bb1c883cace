/* ops/elementwise.c -- fill, copy, add, mix: contract, cost, CPU.
 *
 *   fill   y[i] = value            f32, bf16, f64, or i32 (the value cut to an integer)
 *   copy   y[i] = x[i]             f32 and bf16 in any pairing, i32 to i32
 *   add    y[i] = a[i] + b[i]      f32 and bf16 in any mixture; y may alias a or b
 *   mix    y[i] = ca a[i] + cb b[i]      dense f32; y may alias a or b; an operand with factor 0 is not read
 *
 * Ranks 1 to 3, equal extents, rows may have gaps. Sums are f32, rounded once into y. */
#include "ops/cpu/cpu_rows.h"

static bool walkable(Tensor t) { return t.rank >= 1 && t.rank <= 3; }
static bool same_extents(Tensor a, Tensor b) { return a.rank == b.rank && !memcmp(a.n, b.n, sizeof a.n); }

Cost fill_cost(Backend *be, Tensor y, float value)
{
    REQUIRE(walkable(y) && (is_float(y) || y.dtype == I32 || y.dtype == F64), "fill: y %s", t_fmt(y));
    return (Cost){ .wr = t_bytes(y) };
}

static HOT void fill32(uint32_t *y, uint32_t v, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = v; }
static HOT void fill64(double *y, double v, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = v; }
static HOT void fill16(uint16_t *y, uint16_t v, int64_t n) { for (int64_t i = 0; i < n; i++) y[i] = v; }

void cpu_fill(Backend *be, Tensor y, float value)
{
    union { float f; int32_t i; uint32_t bits; } v = { .f = value };
    if (y.dtype == I32) v.i = (int32_t)value;
    if (t_dense(y)) y = flat(y);
    Pieces p = pieces_of(y);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t i = 0; i < p.count; i++) {
        Tensor yi = piece(y, p, i);
        if (y.dtype == BF16)     fill16(yi.data, bf16_from_f32(value), yi.n[0]);
        else if (y.dtype == F64) fill64(yi.data, (double)value, yi.n[0]);
        else                     fill32(yi.data, v.bits, yi.n[0]);
    }
}

Cost copy_cost(Backend *be, Tensor y, Tensor x)
{
    REQUIRE(walkable(y) && same_extents(y, x) &&
            ((is_float(y) && is_float(x)) || (y.dtype == I32 && x.dtype == I32)),
            "copy: y %s x %s", t_fmt(y), t_fmt(x));
    return (Cost){ .rd = t_bytes(x), .wr = t_bytes(y) };
}

void cpu_copy(Backend *be, Tensor y, Tensor x)
{
    if (t_dense(y) && t_dense(x)) y = flat(y), x = flat(x);
    Pieces p = pieces_of(y);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t i = 0; i < p.count; i++) {
        Tensor yi = piece(y, p, i), xi = piece(x, p, i);
        if (y.dtype == x.dtype)  memcpy(yi.data, xi.data, (size_t)t_bytes(yi));
        else if (y.dtype == F32) cpu_widen(yi.data, xi.data, yi.n[0]);
        else                     cpu_narrow(yi.data, xi.data, yi.n[0]);
    }
}

Cost add_cost(Backend *be, Tensor y, Tensor a, Tensor b)
{
    REQUIRE(walkable(y) && same_extents(y, a) && same_extents(y, b) &&
            is_float(y) && is_float(a) && is_float(b),
            "add: y %s a %s b %s", t_fmt(y), t_fmt(a), t_fmt(b));
    return (Cost){ .flops = (double)t_count(y), .rd = t_bytes(a) + t_bytes(b), .wr = t_bytes(y) };
}

void cpu_add(Backend *be, Tensor y, Tensor a, Tensor b)
{
    if (t_dense(y) && t_dense(a) && t_dense(b)) y = flat(y), a = flat(a), b = flat(b);
    Pieces p = pieces_of(y);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t i = 0; i < p.count; i++) {
        float *buf = cpu_own(be);
        Tensor yi = piece(y, p, i), ai = piece(a, p, i), bi = piece(b, p, i);
        float *out = row_edit(yi, 0, buf);
        rows_add(out, row_read(ai, 0, buf), row_read(bi, 0, buf + PIECE), yi.n[0]);
        row_store(yi, 0, out);
    }
}

Cost mix_cost(Backend *be, Tensor y, Tensor a, Tensor b, Factor ca, Factor cb)
{
    REQUIRE(y.dtype == F32 && t_same(y, a) && t_same(y, b) && t_dense(y) && t_dense(a) && t_dense(b),
            "mix: y %s a %s b %s", t_fmt(y), t_fmt(a), t_fmt(b));
    return (Cost){ .flops = 3.0 * (double)t_count(y), .rd = t_bytes(a) + t_bytes(b), .wr = t_bytes(y) };
}

static HOT void mix(float *y, const float *a, const float *b, float ca, float cb, int64_t n)
{
    if (ca == 0.0f)      for (int64_t i = 0; i < n; i++) y[i] = cb * b[i];
    else if (cb == 0.0f) for (int64_t i = 0; i < n; i++) y[i] = ca * a[i];
    else                 for (int64_t i = 0; i < n; i++) y[i] = ca * a[i] + cb * b[i];
}

void cpu_mix(Backend *be, Tensor y, Tensor a, Tensor b, Factor ca, Factor cb)
{
    Tensor fy = flat(y), fa = flat(a), fb = flat(b);
    Pieces p = pieces_of(fy);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t i = 0; i < p.count; i++) {
        Tensor yi = piece(fy, p, i);
        mix(yi.data, piece(fa, p, i).data, piece(fb, p, i).data, factor_value(ca), factor_value(cb),
            yi.n[0]);
    }
}
