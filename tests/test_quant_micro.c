/* tests/test_quant_micro.c -- MXFP8 and NVFP4: every code, ties, limits, groups of random values. */
#include "fp8_torch.h"
#include "lab.h"
#include "base/rng.h"
#include "ops/quant_micro.h"

#include <float.h>
#include <math.h>

static void e8m0_codes(void)
{
    for (int c = 0; c < 255; c++) {
        float v = e8m0_to_f32((uint8_t)c);
        EXPECT(v == (float)ldexp(1, c - 127), "code %02x is %g", c, v);
        EXPECT(quant_bits(v) == torch_e8m0[c], "code %02x: PyTorch has %08x", c, torch_e8m0[c]);
        EXPECT(v * e8m0_inverse((uint8_t)c) == 1, "inverse of code %02x", c);
    }
    EXPECT(isnan(e8m0_to_f32(0xff)) && isnan(e8m0_inverse(0xff)), "0xff is NaN");
    EXPECT(e8m0_scale(0) == 127, "zeros");
    EXPECT(e8m0_scale(0x7f800000) == 0xff && e8m0_scale(0x7fc00000) == 0xff, "not finite");
    EXPECT(e8m0_scale(quant_bits(448)) == 127 && e8m0_scale(quant_bits(448) + 1) == 128, "just above 448");
    EXPECT(e8m0_scale(quant_bits(FLT_MAX)) == 247 && e8m0_scale(1) == 0, "ends");
}

static const float e2m1[8] = { 0, 0.5f, 1, 1.5f, 2, 3, 4, 6 };

static void e2m1_codes(void)
{
    for (int c = 0; c < 16; c++) {
        float v = e2m1_to_f32((uint8_t)c);
        EXPECT(v == (c & 8 ? -e2m1[c & 7] : e2m1[c & 7]) && !signbit(v) == (c < 8), "code %x is %g", c, v);
        EXPECT(e2m1_from_f32(v) == c, "code %x comes back as %x", c, e2m1_from_f32(v));
    }
    for (int c = 0; c < 7; c++) {
        float mid = (e2m1[c] + e2m1[c + 1]) / 2;
        EXPECT(e2m1_from_f32(mid) == c + (c & 1), "%g becomes %x", mid, e2m1_from_f32(mid));
        EXPECT(e2m1_from_f32(-nextafterf(mid, 0)) == (8 | c), "just below %g", mid);
        EXPECT(e2m1_from_f32(nextafterf(mid, 9)) == c + 1, "just above %g", mid);
    }
    EXPECT(e2m1_from_f32(7) == 7 && e2m1_from_f32(-INFINITY) == 15 && e2m1_from_f32(NAN) == 7 &&
           e2m1_from_f32(-0.0f) == 8 && e2m1_from_f32(FLT_TRUE_MIN) == 0, "limits");
}

static float draw(uint64_t i) { return ldexpf(rng_normal(5, 6, i), (int)(i / 64 % 60) - 30); }

/* The largest magnitude of a group. */
static uint32_t amax_of(const float *x, int n)
{
    uint32_t amax = 0;
    for (int i = 0; i < n; i++) amax = quant_magnitude(x[i]) > amax ? quant_magnitude(x[i]) : amax;
    return amax;
}

/* Nothing saturates, and an element is off by half a step of its code at most. */
static void mxfp8_groups(void)
{
    for (int g = 0; g < 500; g++) {
        float x[MXFP8_GROUP];
        for (int i = 0; i < MXFP8_GROUP; i++) x[i] = draw((uint64_t)(g * MXFP8_GROUP + i));
        uint8_t code = e8m0_scale(amax_of(x, MXFP8_GROUP));
        float   scale = e8m0_to_f32(code);
        EXPECT(quant_float(amax_of(x, MXFP8_GROUP)) <= 448 * scale, "group %d saturates", g);
        for (int i = 0; i < MXFP8_GROUP; i++) {
            float got = e4m3_to_f32(e4m3_from_f32(x[i] * e8m0_inverse(code))) * scale;
            EXPECT(fabsf(got - x[i]) <= fmaxf(fabsf(x[i]) / 16, scale * 0x1p-10f), "%g becomes %g", x[i],
                   got);
        }
    }
}

static void mxfp8_as_pytorch(void)
{
    for (int g = 0; g < TORCH_ROWS * TORCH_COLS / MXFP8_GROUP; g++) {
        float x[MXFP8_GROUP];
        memcpy(x, torch_x + g * MXFP8_GROUP, sizeof x);
        uint8_t code = e8m0_scale(amax_of(x, MXFP8_GROUP));
        EXPECT(code == torch_mx_scale[g], "group %d: scale %02x, not %02x", g, code, torch_mx_scale[g]);
        for (int i = 0; i < MXFP8_GROUP; i++)
            EXPECT(e4m3_from_f32(x[i] * e8m0_inverse(code)) == torch_mx_q[g * MXFP8_GROUP + i], "[%d]", i);
    }
}

static void nvfp4_known(void)
{
    float tensor = nvfp4_tensor_scale(quant_bits(448 * 6));
    EXPECT(tensor == 1 && nvfp4_scale(quant_bits(6), tensor) == 0x38, "6 has scale 1");
    EXPECT(nvfp4_scale(quant_bits(448 * 6), tensor) == 0x7e, "the largest");
    EXPECT(nvfp4_scale(quant_bits(1e-4f), tensor) == 0 && nvfp4_inverse(0, tensor) == 0, "rounded to 0");
    EXPECT(nvfp4_tensor_scale(0) == 1 && nvfp4_scale(0, 1) == 0x38, "zeros");
    EXPECT(isnan(nvfp4_tensor_scale(quant_bits(NAN))) && nvfp4_scale(0x7f800000, 1) == 0x7f &&
           isnan(nvfp4_inverse(0x7f, 1)), "not finite");
}

/* An element is off by half a step of its code at most, and by what the rounded scale makes saturate. */
static void nvfp4_groups(void)
{
    for (int g = 0; g < 500; g++) {
        float x[NVFP4_GROUP];
        for (int i = 0; i < NVFP4_GROUP; i++) x[i] = rng_normal(5, 7, (uint64_t)(g * NVFP4_GROUP + i));
        uint32_t amax = amax_of(x, NVFP4_GROUP);
        float    tensor = nvfp4_tensor_scale(quant_bits(4.0f));
        uint8_t  scale = nvfp4_scale(amax, tensor);
        float    s = e4m3_to_f32(scale) * tensor;
        for (int i = 0; i < NVFP4_GROUP; i++) {
            float got = e2m1_to_f32(e2m1_from_f32(x[i] * nvfp4_inverse(scale, tensor))) * s;
            EXPECT(fabsf(got - x[i]) <= fmaxf(fabsf(x[i]) / 4 * 1.01f, s * 0.26f), "%g becomes %g", x[i],
                   got);
        }
    }
}

int main(void)
{
    RUN(e8m0_codes);
    RUN(e2m1_codes);
    RUN(mxfp8_groups);
    RUN(mxfp8_as_pytorch);
    RUN(nvfp4_known);
    RUN(nvfp4_groups);
    return lab_report();
}
