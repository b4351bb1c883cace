/* ops/state_pass.c -- what a chunk of tokens makes of the states of gated delta nets that enter it: contract,
 * cost, CPU.
 *
 *   y[h] = a[h] x[h] + b[h]        back: y[h] = a[h]' x[h] + b[h]
 *
 * a (H, dk dk), x, b, y (H, dk dv) f32, dense rows with any stride; x absent: y = b. y overlaps none of the
 * others. Sums go over ascending columns of a (back: rows), in f32, then b is added: equal bits on any number
 * of threads. */
#include "ops/cpu/cpu_rows.h"

static int64_t side_of(Tensor a)
{
    int64_t n = 1;
    while (n * n < a.n[1]) n++;
    return n;
}

static bool fits(Tensor y, Tensor a, Tensor x, Tensor b)
{
    int64_t H = y.n[0], dk = side_of(a);
    return is_rows_f32(a, H, dk * dk) && dk > 0 && y.n[1] % dk == 0 && is_rows_f32(y, H, y.n[1]) &&
           (!t_has(x) || is_rows_f32(x, H, y.n[1])) && is_rows_f32(b, H, y.n[1]);
}

Cost state_pass_cost(Backend *be, Tensor y, Tensor a, Tensor x, Tensor b, bool back)
{
    REQUIRE(fits(y, a, x, b), "state_pass: y %s a %s x %s b %s", t_fmt(y), t_fmt(a), t_fmt(x), t_fmt(b));
    return (Cost){ .flops = t_has(x) ? 2.0 * (double)(side_of(a) * t_count(y)) : 0,
                   .rd = (t_has(x) ? t_bytes(a) + t_bytes(x) : 0) + t_bytes(b), .wr = t_bytes(y) };
}

static HOT void add_row(float *y, const float *x, float f, int64_t n)
{
    for (int64_t c = 0; c < n; c++) y[c] += f * x[c];
}

/* Row i of head h. */
static void state_row(Tensor y, Tensor a, Tensor x, Tensor b, bool back, int64_t h, int64_t i, int64_t dk)
{
    int64_t dv = y.n[1] / dk;
    float  *to = (float *)row_ptr(y, h) + i * dv;
    const float *map = (const float *)row_ptr(a, h), *plus = (const float *)row_ptr(b, h) + i * dv;
    memset(to, 0, (size_t)dv * sizeof *to);
    for (int64_t j = 0; t_has(x) && j < dk; j++)
        add_row(to, (const float *)row_ptr(x, h) + j * dv, back ? map[j * dk + i] : map[i * dk + j], dv);
    add_row(to, plus, 1.0f, dv);
}

void cpu_state_pass(Backend *be, Tensor y, Tensor a, Tensor x, Tensor b, bool back)
{
    int64_t dk = side_of(a), rows = y.n[0] * dk;
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y) * dk))
    for (int64_t r = 0; r < rows; r++) state_row(y, a, x, b, back, r / dk, r % dk, dk);
}
