/* ops/cpu/cpu.c -- conversions between bf16 storage and f32 arithmetic. */
#include "ops/cpu/cpu.h"

HOT void cpu_widen(float *dst, const uint16_t *bf16, int64_t n)
{
    uint32_t *out = (uint32_t *)dst;
    for (int64_t i = 0; i < n; i++) out[i] = (uint32_t)bf16[i] << 16;
}

HOT void cpu_narrow(uint16_t *bf16, const float *src, int64_t n)
{
    for (int64_t i = 0; i < n; i++) bf16[i] = bf16_from_f32(src[i]);
}
