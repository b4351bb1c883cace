/* ops/gelu.h -- the numbers of gelu.c, for every machine that computes it.
 *
 * P(x), the normal distribution: its tail is (1 - P(t)) exp(t^2/2) = GELU_TAIL(u), u = 1 / (1 + 0.32 t), interpolated
 * at the Chebyshev points of u in [0, 1] (6e-8 relative). Near 0 the rounding of u would be felt; there the Taylor
 * terms (-1)^n s^n / (2^n n! (2n + 1)), s = x^2, take over: GELU_NEAR(s). Both are formed with what the machine has
 * for a quotient and an exponential. */
#ifndef OPS_GELU_H
#define OPS_GELU_H

#define TANH_K     0.797884560802865356f
#define TANH_CUBE  0.044715f
#define DENSITY_0  0.398942280401432678f                    /* 1 / sqrt(2 pi) */

#define GELU_TAIL(u)                                                                                      \
    ((u) * (0.127661538f + (u) * (0.12765991f + (u) * (0.114647028f + (u) * (0.0875935303f +              \
     (u) * (0.0597993265f + (u) * (-0.012534f + (u) * (0.0704682625f + (u) * (-0.151607696f +             \
     (u) * (0.0979352158f - (u) * 0.0216231325f))))))))))

#define GELU_NEAR(s)                                                                                      \
    (1.0f + (s) * (-1.0f / 6 + (s) * (1.0f / 40 + (s) * (-1.0f / 336 + (s) * (1.0f / 3456 +               \
     (s) * (-1.0f / 42240 + (s) * (1.0f / 599040 - (s) * (1.0f / 9676800))))))))

#endif
