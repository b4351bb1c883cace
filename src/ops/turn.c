/* ops/turn.c -- rotary positions of latent attention: of pairs of neighbours or of halves, and of one row
 * that all heads of a token share: contract, cost, CPU.
 *
 *   turn_fwd   a pair (a, b) of x becomes (a cos - b sin, b cos + a sin) in its places of y; with `pairs`
 *              pair j is components 2j and 2j + 1, else j and R/2 + j
 *   turn_bwd   dx is dy rotated back; where x has one head, that of the sum of dy over its heads
 *
 * y, dy (T, H, R) and x, dx (T, H, R) or (T, 1, R) are f32 or bf16 each, heads and rows may lie apart; cs
 * (T, R) as rope_table makes it. With H heads of x, y may be x and dx may be dy. Arithmetic in f32,
 * rounded once; heads are summed in order. */
#include "ops/cpu/cpu_rows.h"

static Cost turn_cost(const char *op, Tensor many, Tensor few, Tensor cs)
{
    int64_t T = many.n[0], H = many.n[1], R = many.n[2];
    REQUIRE(is_heads(many, T, H, R) && is_heads(few, T, few.n[1], R) && (few.n[1] == H || few.n[1] == 1) &&
            is_rows_f32(cs, T, R) && R % 2 == 0, "%s: %s %s cs %s", op, t_fmt(many), t_fmt(few), t_fmt(cs));
    return (Cost){ .flops = 3.0 * (double)t_count(many), .rd = t_bytes(cs) };
}

Cost turn_fwd_cost(Backend *be, Tensor y, Tensor x, Tensor cs, bool pairs)
{
    Cost c = turn_cost("turn_fwd", y, x, cs);
    c.rd += t_bytes(x), c.wr = t_bytes(y);
    return c;
}

Cost turn_bwd_cost(Backend *be, Tensor dx, Tensor dy, Tensor cs, bool pairs)
{
    Cost c = turn_cost("turn_bwd", dy, dx, cs);
    c.rd += t_bytes(dy), c.wr = t_bytes(dx);
    return c;
}

static HOT void rotate(float *y, const float *x, const float *cs, float sign, int64_t R, bool pairs)
{
    for (int64_t j = 0; j < R / 2; j++) {
        int64_t p = pairs ? 2 * j : j, q = pairs ? 2 * j + 1 : R / 2 + j;
        float   a = x[p], b = x[q], c = cs[j], s = sign * cs[R / 2 + j];
        y[p] = a * c - b * s, y[q] = b * c + a * s;
    }
}

void cpu_turn_fwd(Backend *be, Tensor y, Tensor x, Tensor cs, bool pairs)
{
    int64_t H = y.n[1], R = y.n[2], rows = y.n[0] * H;
    cpu_check_own("turn_fwd", 2, R);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(y)))
    for (int64_t r = 0; r < rows; r++) {
        const float *in = row_read(x, x.n[1] == H ? r : r / H, cpu_own(be));
        float       *out = row_edit(y, r, cpu_own(be) + R);
        rotate(out, in, (const float *)row_ptr(cs, r / H), 1.0f, R, pairs);
        row_store(y, r, out);
    }
}

/* The sum over the heads of token t, in `sum`. */
static void sum_heads(float *sum, Tensor dy, int64_t t, float *buf)
{
    int64_t H = dy.n[1], R = dy.n[2];
    memset(sum, 0, (size_t)R * sizeof *sum);
    for (int64_t h = 0; h < H; h++) {
        const float *d = row_read(dy, t * H + h, buf);
        for (int64_t j = 0; j < R; j++) sum[j] += d[j];
    }
}

void cpu_turn_bwd(Backend *be, Tensor dx, Tensor dy, Tensor cs, bool pairs)
{
    int64_t R = dy.n[2], Hx = dx.n[1], rows = dx.n[0] * Hx;
    bool    sums = Hx != dy.n[1];
    cpu_check_own("turn_bwd", 3, R);
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(dy)))
    for (int64_t r = 0; r < rows; r++) {
        float       *sum = cpu_own(be), *out = row_edit(dx, r, sum + R);
        const float *in = sum;
        if (sums) sum_heads(sum, dy, r, sum + 2 * R);
        else      in = row_read(dy, r, sum);
        rotate(out, in, (const float *)row_ptr(cs, r / Hx), -1.0f, R, pairs);
        row_store(dx, r, out);
    }
}
