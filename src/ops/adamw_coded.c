/* ops/adamw_coded.c -- adamw with moments in 8 bits by block: contract, cost, CPU.
 *
 *   adamw_coded   the step of adamw (ops/adamw.c) on the decoded moments; the weight moves by the moments of
 *                 the step before they are rounded, then their blocks are coded again (ops/moment_code.h)
 *
 * w, master, g and sumsq as of adamw. m and v are u8 codes of the shape of w, m_scale and v_scale one f32 for
 * each MOMENT_BLOCK of them, flat from the first element. A block of zeros has scale 0, so zeroed memory is a
 * state of rest. The CPU and a GPU get the same bits (ops/adam_element.h). */
#include "ops/cpu/cpu_adamw.h"
#include "ops/moment_code.h"

_Static_assert(PIECE % MOMENT_BLOCK == 0, "a piece is of whole blocks");

static bool is_coded(Tensor t, Tensor scale, Tensor w)
{
    return t.dtype == U8 && adamw_same_shape(t, w) && scale.dtype == F32 && scale.rank == 1 &&
           t_dense(scale) && scale.n[0] == moment_blocks(t_count(w));
}

Cost adamw_coded_cost(Backend *be, Tensor w, Tensor master, Tensor m, Tensor m_scale, Tensor v,
                      Tensor v_scale, Tensor g, Tensor sumsq, AdamW h)
{
    Tensor p = t_has(master) ? master : w;
    REQUIRE(adamw_is_master(w, master) && is_coded(m, m_scale, w) && is_coded(v, v_scale, w) &&
            is_float(g) && adamw_same_shape(g, w),
            "adamw_coded: w %s master %s m %s scale %s v %s scale %s g %s", t_fmt(w), t_fmt(master), t_fmt(m),
            t_fmt(m_scale), t_fmt(v), t_fmt(v_scale), t_fmt(g));
    adamw_check_step(sumsq, &h);
    int64_t state = t_bytes(m) + t_bytes(v) + t_bytes(m_scale) + t_bytes(v_scale) + t_bytes(p);
    int64_t narrow = t_has(master) ? t_bytes(w) : 0;
    return (Cost){ .flops = 35.0 * (double)t_count(w),
                   .rd    = state + t_bytes(g) + (p.dtype == I16 ? narrow : 0),
                   .wr    = state + narrow };
}

static HOT void step_elements(float *restrict p, float *restrict m, float *restrict v,
                              const float *restrict g, AdamFactors f, int64_t n)
{
    for (int64_t i = 0; i < n; i++) adam_element(&p[i], &m[i], &v[i], g[i], f);
}

void cpu_adamw_coded(Backend *be, Tensor w, Tensor master, Tensor m, Tensor m_scale, Tensor v, Tensor v_scale,
                     Tensor g, Tensor sumsq, AdamW h)
{
    int64_t     n = t_count(w);
    AdamFactors f = cpu_adam_factors(h, sumsq);
    if (t_has(h.verdict) && *(const double *)h.verdict.data != STEP_GOOD) return;
    #pragma omp parallel for schedule(static) if(worth_threads(n))
    for (int64_t at = 0; at < n; at += PIECE) {
        float    pbuf[PIECE], gbuf[PIECE], first[PIECE], second[PIECE];
        int64_t  k = n - at < PIECE ? n - at : PIECE;
        int64_t  block = at / MOMENT_BLOCK;
        uint8_t *mc = (uint8_t *)m.data + at, *vc = (uint8_t *)v.data + at;
        float   *ms = (float *)m_scale.data + block, *vs = (float *)v_scale.data + block;
        float   *p = cpu_master_open(w, master, at, k, pbuf);
        moments_decode(first, MOMENT_FIRST, mc, ms, k);
        moments_decode(second, MOMENT_SECOND, vc, vs, k);
        step_elements(p, first, second, cpu_piece_open(g, at, k, gbuf), f, k);
        moments_encode(mc, ms, MOMENT_FIRST, first, k);
        moments_encode(vc, vs, MOMENT_SECOND, second, k);
        cpu_master_close(w, master, at, k, p);
    }
}
