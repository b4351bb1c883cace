/* ops/gelu.h -- the constants of gelu.c, for every device.
 *
 * P(x), the normal distribution, has the tail 1 - P(t) = exp(-t^2/2) GELU_TAIL(v), t >= 0, where v is
 * k t / (1 + k t), k = GELU_BEND. The polynomial is exact at 0 and off by at most 1.5e-8 (1 + t^2) of the
 * tail (Remez exchange), no more than the rounding of t^2 costs the exponential. Each
 * device computes the quotient and the exponential with its own instructions. */
#ifndef OPS_GELU_H
#define OPS_GELU_H

#define TANH_K     0.797884560802865356f
#define TANH_CUBE  0.044715f
#define DENSITY_0  0.398942280401432678f                    /* 1 / sqrt(2 pi) */

#define GELU_BEND  0.3f
#define GELU_TAIL(v)                                                                                      \
    (0.5f + (v) * (-1.329808661f + (v) * (1.448020031f + (v) * (-0.7002711677f + (v) * (-0.04979966384f + \
     (v) * (0.1226713524f + (v) * (0.09639727649f + (v) * (-0.1197735318f + (v) * 0.03252834797f))))))))

#endif
