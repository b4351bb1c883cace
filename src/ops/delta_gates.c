/* ops/delta_gates.c -- decay and step of gated delta rules: contract, cost, CPU.
 *
 *   delta_gates_fwd   beta = sigmoid(b)       g = -exp(decay) softplus(a + shift)
 *   delta_gates_bwd   db = dbeta beta (1 - beta)             da = -dg exp(decay) sigmoid(a + shift)
 *                     dshift += sum over t of da             ddecay += sum over t of dg g
 *
 * a, b, da, db (T, G, M) are f32 or bf16, with any stride between rows and between groups: a token has H = G
 * M heads. g, beta, dg, dbeta (T, H) f32; decay, shift (1, H) either, ddecay and dshift (1, H) f32 or absent.
 * Where b is bf16, beta is rounded to it as the reference model does. Sums go over tokens in their order, in
 * double: equal bits on any number of threads. */
#include "ops/cpu/segment.h"

static bool fits(Tensor a, Tensor stat, Tensor head)
{
    int64_t H = a.n[1] * a.n[2];
    return is_heads(a, a.n[0], a.n[1], a.n[2]) && is_rows_f32(stat, a.n[0], H) && is_rows(head, 1, H);
}

Cost delta_gates_fwd_cost(Backend *be, Tensor g, Tensor beta, Tensor a, Tensor b, Tensor decay, Tensor shift)
{
    REQUIRE(fits(a, g, decay) && fits(b, beta, shift) && b.n[0] == a.n[0] && b.n[1] == a.n[1] &&
            b.n[2] == a.n[2],
            "delta_gates_fwd: g %s beta %s a %s b %s decay %s shift %s", t_fmt(g), t_fmt(beta), t_fmt(a),
            t_fmt(b), t_fmt(decay), t_fmt(shift));
    return (Cost){ .flops = 10.0 * (double)t_count(a), .rd = t_bytes(a) + t_bytes(b),
                   .wr = t_bytes(g) + t_bytes(beta) };
}

Cost delta_gates_bwd_cost(Backend *be, Tensor da, Tensor db, Tensor ddecay, Tensor dshift, Tensor dg,
                          Tensor dbeta, Tensor g, Tensor beta, Tensor a, Tensor decay, Tensor shift)
{
    int64_t H = a.n[1] * a.n[2];
    REQUIRE(fits(a, g, decay) && fits(da, dg, shift) && fits(db, dbeta, shift) &&
                is_rows_f32(beta, a.n[0], H),
            "delta_gates_bwd: da %s db %s dg %s dbeta %s g %s beta %s a %s", t_fmt(da), t_fmt(db), t_fmt(dg),
            t_fmt(dbeta), t_fmt(g), t_fmt(beta), t_fmt(a));
    REQUIRE((!t_has(ddecay) || is_rows_f32(ddecay, 1, H)) && (!t_has(dshift) || is_rows_f32(dshift, 1, H)),
            "delta_gates_bwd: ddecay %s dshift %s", t_fmt(ddecay), t_fmt(dshift));
    return (Cost){ .flops = 12.0 * (double)t_count(a),
                   .rd = t_bytes(a) + t_bytes(g) + t_bytes(beta) + t_bytes(dg) + t_bytes(dbeta),
                   .wr = t_bytes(da) + t_bytes(db) };
}

INLINE float softplus(float x) { return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x))); }

/* Element h of a token, or of a row of heads. */
static char *element(Tensor t, int64_t row, int64_t h)
{
    int64_t at = t.rank == 3 ? row * t.s[0] + h / t.n[2] * t.s[1] + h % t.n[2] : row * t.s[0] + h;
    return (char *)t.data + at * (int64_t)dtype_size((DType)t.dtype);
}
static float get(Tensor t, int64_t row, int64_t h)
{
    char *p = element(t, row, h);
    return t.dtype == F32 ? *(float *)p : bf16_to_f32(*(uint16_t *)p);
}
static void store_element(Tensor t, int64_t row, int64_t h, float x)
{
    char *p = element(t, row, h);
    if (t.dtype == F32) *(float *)p = x;
    else                *(uint16_t *)p = bf16_from_f32(x);
}

void cpu_delta_gates_fwd(Backend *be, Tensor g, Tensor beta, Tensor a, Tensor b, Tensor decay, Tensor shift)
{
    int64_t H = a.n[1] * a.n[2];
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(a)))
    for (int64_t t = 0; t < a.n[0]; t++)
        for (int64_t h = 0; h < H; h++) {
            float step = sigmoid(get(b, t, h));
            store_element(beta, t, h, b.dtype == F32 ? step : bf16_to_f32(bf16_from_f32(step)));
            store_element(g, t, h, -expf(get(decay, 0, h)) * softplus(get(a, t, h) + get(shift, 0, h)));
        }
}

/* One head of all tokens. */
static void head_grads(Tensor da, Tensor db, Tensor dg, Tensor dbeta, Tensor g, Tensor beta, Tensor a,
                       float rate, float shift, int64_t h, double sums[2])
{
    for (int64_t t = 0; t < a.n[0]; t++) {
        float step = get(beta, t, h), d = -get(dg, t, h) * rate * sigmoid(get(a, t, h) + shift);
        store_element(db, t, h, get(dbeta, t, h) * step * (1.0f - step));
        store_element(da, t, h, d);
        sums[0] += (double)(get(dg, t, h) * get(g, t, h)), sums[1] += (double)d;
    }
}

void cpu_delta_gates_bwd(Backend *be, Tensor da, Tensor db, Tensor ddecay, Tensor dshift, Tensor dg,
                         Tensor dbeta, Tensor g, Tensor beta, Tensor a, Tensor decay, Tensor shift)
{
    int64_t H = a.n[1] * a.n[2];
    #pragma omp parallel for schedule(static) if (worth_threads(t_count(a)))
    for (int64_t h = 0; h < H; h++) {
        double sums[2] = { 0 };
        head_grads(da, db, dg, dbeta, g, beta, a, expf(get(decay, 0, h)), get(shift, 0, h), h, sums);
        if (t_has(ddecay)) store_element(ddecay, 0, h, get(ddecay, 0, h) + (float)sums[0]);
        if (t_has(dshift)) store_element(dshift, 0, h, get(dshift, 0, h) + (float)sums[1]);
    }
}
