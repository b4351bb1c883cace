/* ops/moment_code.h -- AdamW moments in 8 bits by block (optim.state_dtype: int8), on every device.
 *
 * A block is MOMENT_BLOCK neighbouring elements of a flat tensor, fewer at its end; it has one f32 scale. An
 * element is map[its code] * scale, rounded to f32. The maps are the dynamic maps of 8-bit Adam: 256 sorted
 * values whose spacing grows with their magnitude, over seven decades.
 *
 *   first moment    signed map: the values of DYNAMIC_VALUES (ops/weight_code.h), their negatives, 0 and 1.
 *                   The scale is the element of largest magnitude with its sign; of two that differ in sign
 *                   alone, the positive one
 *   second moment   unsigned map: 0, the values below, 1. The scale is the largest element
 *
 * The code of x is the number of midpoints between neighbours of the map that lie below x / scale. Nothing is
 * rounded there: middle * scale is compared with x by one FMA, and ties go to the lower value. A positive
 * second moment never gets the code of 0 but that of the least positive value (its first midpoint is at 0): a
 * moment that vanishes would leave eps alone in the denominator. (Elements whose gradients are less than
 * about 1 / 2000 of the largest of their block take smaller steps.)
 *
 *   all elements are 0                    scale 0
 *   the largest magnitude < 2^-100        first moment: scale 0; second: scale 2^-100. No product underflows
 *   an element is infinite or NaN         scale NaN, so the block is NaN: quantisation hides nothing
 *
 * The element that gives the scale has the code of 1 and is exact. Hence decoding and coding again returns
 * the same elements: a checkpoint holds decoded f32 moments and loses nothing.
 *
 * The maps are those of bitsandbytes; it differs in two rules: its scale of the first moment is a magnitude
 * (the signed map has 1 but not -1), and its second moments may round to 0. */
#ifndef OPS_MOMENT_CODE_H
#define OPS_MOMENT_CODE_H

#include "ops/weight_code.h"

enum { MOMENT_BLOCK = 256, MOMENT_CODES = 256 };

/* The values of the unsigned dynamic map between 0 and 1, ascending. */
#define UNSIGNED_DYNAMIC_VALUES(X)                                                                           \
    X(3.2500003e-07f) X(7.7499999e-07f) X(2.12499981e-06f) X(4.37499966e-06f) X(6.62499997e-06f)             \
    X(8.87499937e-06f) X(1.56249989e-05f) X(2.68750009e-05f) X(3.81249993e-05f) X(4.93749976e-05f)           \
    X(6.06250032e-05f) X(7.18750016e-05f) X(8.31249927e-05f) X(9.43749983e-05f) X(0.000128125001f)           \
    X(0.000184375007f) X(0.000240625013f) X(0.00029687502f) X(0.000353124982f) X(0.000409375032f)            \
    X(0.000465625024f) X(0.000521875045f) X(0.000578125007f) X(0.000634375028f) X(0.000690625049f)           \
    X(0.000746875012f) X(0.000803125091f) X(0.000859375054f) X(0.000915625016f) X(0.000971875037f)           \
    X(0.00114062498f) X(0.00142187497f) X(0.00170312496f) X(0.00198437506f) X(0.00226562493f)                \
    X(0.00254687481f) X(0.00282812491f) X(0.00310937478f) X(0.00339062512f) X(0.00367187499f)                \
    X(0.00395312486f) X(0.0042343745f) X(0.00451562507f) X(0.00479687471f) X(0.00507812481f)                 \
    X(0.00535937492f) X(0.00564062456f) X(0.00592187513f) X(0.00620312477f) X(0.00648437487f)                \
    X(0.00676562544f) X(0.00704687461f) X(0.00732812518f) X(0.00760937436f) X(0.00789062493f)                \
    X(0.00817187503f) X(0.0084531242f) X(0.00873437524f) X(0.00901562441f) X(0.00929687452f)                 \
    X(0.00957812555f) X(0.00985937472f) X(0.010703126f) X(0.0121093756f) X(0.0135156242f)                    \
    X(0.0149218757f) X(0.0163281243f) X(0.0177343767f) X(0.0191406254f) X(0.020546874f)                      \
    X(0.0219531264f) X(0.0233593751f) X(0.0247656237f) X(0.0261718761f) X(0.0275781285f)                     \
    X(0.0289843734f) X(0.0303906258f) X(0.0317968726f) X(0.033203125f) X(0.0346093737f)                      \
    X(0.036015626f) X(0.0374218784f) X(0.0388281234f) X(0.0402343757f) X(0.0416406244f)                      \
    X(0.0430468731f) X(0.0444531254f) X(0.0458593741f) X(0.0472656265f) X(0.0486718714f)                     \
    X(0.0500781238f) X(0.0514843725f) X(0.0528906249f) X(0.0542968772f) X(0.0557031296f)                     \
    X(0.057109382f) X(0.0585156269f) X(0.0599218719f) X(0.0613281243f) X(0.0627343804f)                      \
    X(0.0641406327f) X(0.0655468777f) X(0.0669531226f) X(0.068359375f) X(0.0697656274f)                      \
    X(0.0711718798f) X(0.0725781247f) X(0.0739843771f) X(0.0753906295f) X(0.0767968819f)                     \
    X(0.0782031268f) X(0.0796093792f) X(0.0810156241f) X(0.0824218765f) X(0.0838281289f)                     \
    X(0.0852343738f) X(0.0866406262f) X(0.0880468711f) X(0.0894531235f) X(0.0908593759f)                     \
    X(0.0922656283f) X(0.0936718807f) X(0.0950781256f) X(0.096484378f) X(0.0978906304f)                      \
    X(0.0992968753f) X(0.103515625f) X(0.110546872f) X(0.117578126f) X(0.124609374f) X(0.131640613f)         \
    X(0.138671875f) X(0.145703137f) X(0.152734369f) X(0.159765631f) X(0.166796863f) X(0.173828125f)          \
    X(0.180859387f) X(0.187890619f) X(0.194921881f) X(0.201953113f) X(0.208984375f) X(0.216015637f)          \
    X(0.223046869f) X(0.230078131f) X(0.237109363f) X(0.244140625f) X(0.251171857f) X(0.258203119f)          \
    X(0.265234381f) X(0.272265613f) X(0.279296875f) X(0.286328137f) X(0.293359369f) X(0.300390601f)          \
    X(0.307421863f) X(0.314453125f) X(0.321484387f) X(0.328515619f) X(0.335546851f) X(0.342578113f)          \
    X(0.349609375f) X(0.356640637f) X(0.363671869f) X(0.370703101f) X(0.377734363f) X(0.384765625f)          \
    X(0.391796887f) X(0.398828119f) X(0.405859351f) X(0.412890613f) X(0.419921875f) X(0.426953137f)          \
    X(0.433984369f) X(0.441015601f) X(0.448046863f) X(0.455078125f) X(0.462109387f) X(0.469140619f)          \
    X(0.476171851f) X(0.483203113f) X(0.490234375f) X(0.497265607f) X(0.504296899f) X(0.511328101f)          \
    X(0.518359363f) X(0.525390625f) X(0.532421827f) X(0.539453149f) X(0.546484351f) X(0.553515673f)          \
    X(0.560546875f) X(0.567578137f) X(0.574609399f) X(0.581640601f) X(0.588671923f) X(0.595703125f)          \
    X(0.602734387f) X(0.609765649f) X(0.616796851f) X(0.623828173f) X(0.630859375f) X(0.637890637f)          \
    X(0.644921899f) X(0.651953101f) X(0.658984423f) X(0.666015625f) X(0.673046887f) X(0.680078149f)          \
    X(0.687109351f) X(0.694140673f) X(0.701171875f) X(0.708203137f) X(0.715234399f) X(0.722265601f)          \
    X(0.729296923f) X(0.736328125f) X(0.743359387f) X(0.750390649f) X(0.757421851f) X(0.764453173f)          \
    X(0.771484375f) X(0.778515577f) X(0.785546899f) X(0.792578101f) X(0.799609423f) X(0.806640625f)          \
    X(0.813671827f) X(0.820703149f) X(0.827734351f) X(0.834765673f) X(0.841796875f) X(0.848828077f)          \
    X(0.855859399f) X(0.862890601f) X(0.869921923f) X(0.876953125f) X(0.883984327f) X(0.891015649f)          \
    X(0.898046851f) X(0.905078173f) X(0.912109375f) X(0.919140577f) X(0.926171899f) X(0.933203101f)          \
    X(0.940234423f) X(0.947265625f) X(0.954296827f) X(0.961328149f) X(0.968359351f) X(0.975390673f)          \
    X(0.982421875f) X(0.989453077f) X(0.996484399f)

typedef enum { MOMENT_FIRST, MOMENT_SECOND } Moment;

/* The bins of x * (1 / scale) in which the search of a code starts are floats with equal leading bits: sign,
 * exponent and 6 bits of the fraction in the signed map, exponent and 7 bits in the unsigned one. A bin has
 * one midpoint at most. */
enum { MOMENT_SHIFT_FIRST = 17, MOMENT_SHIFT_SECOND = 16, MOMENT_BINS_FIRST = 0x5fc4,
       MOMENT_BINS_SECOND = 0x3f84 };

/* A map, the midpoints of its neighbours, the last one beyond every element, and for each bin a number of
 * midpoints that lie below all of it: all that do, but one at most. */
typedef struct MomentMap {
    float   value[MOMENT_CODES], middle[MOMENT_CODES];
    uint8_t base[MOMENT_BINS_FIRST];
} MomentMap;

OPS_INLINE int moment_bins(Moment which)
{
    return which == MOMENT_FIRST ? MOMENT_BINS_FIRST : MOMENT_BINS_SECOND;
}
OPS_INLINE int moment_shift(Moment which)
{
    return which == MOMENT_FIRST ? MOMENT_SHIFT_FIRST : MOMENT_SHIFT_SECOND;
}

/* The value of a code; table: DYNAMIC_VALUES or UNSIGNED_DYNAMIC_VALUES. */
OPS_INLINE float moment_value(const float *table, Moment which, int code)
{
    if (code == MOMENT_CODES - 1) return 1.0f;
    if (which == MOMENT_SECOND) return code ? table[code - 1] : 0.0f;
    if (code == DYNAMIC_ZERO) return 0.0f;
    return code > DYNAMIC_ZERO ? table[code - DYNAMIC_ZERO - 1] : -table[DYNAMIC_ZERO - 1 - code];
}

/* The midpoint above the value of a code. */
OPS_INLINE float moment_middle(const float *table, Moment which, int code)
{
    if (code == MOMENT_CODES - 1) return quant_float(0x7f800000u);
    if (which == MOMENT_SECOND && !code) return 0.0f;
    return code_midpoint(moment_value(table, which, code), moment_value(table, which, code + 1));
}

/* The midpoints below a bin, whose lower border gives way by 2^-18 of itself: by more than x * (1 / scale) is
 * rounded. Entry i of the midpoints lies at middle[i * each]. */
OPS_INLINE uint8_t moment_base(const float *middle, int each, Moment which, int bin)
{
    uint32_t low = (uint32_t)bin << moment_shift(which), high = ((uint32_t)bin + 1) << moment_shift(which);
    float    from = quant_float(low);
    int      code = 0;
    if ((low & 0x7fffffffu) < quant_bits(0x1p-25f)) return which == MOMENT_FIRST ? DYNAMIC_ZERO : 0;
    if (low >> 31) from = quant_float(high - 1);             /* the larger magnitude is the lower border */
    from -= quant_float(quant_magnitude(from)) * 0x1p-18f;
    for (int half = MOMENT_CODES / 2; half; half /= 2)
        if (middle[(code + half - 1) * each] < from) code += half;
    return (uint8_t)code;
}

OPS_INLINE int64_t moment_blocks(int64_t n) { return (n + MOMENT_BLOCK - 1) / MOMENT_BLOCK; }

/* The scale of a block is that of its largest key: magnitudes in the order of their bits, and above the sign,
 * where there is one. Infinite or NaN elements have the largest keys. */
OPS_INLINE uint32_t moment_key(float x, Moment which)
{
    uint32_t u = quant_bits(x);
    return which == MOMENT_SECOND ? u : (u << 1 | u >> 31) ^ 1;
}

OPS_INLINE float moment_scale(uint32_t key, Moment which)
{
    const float least = 0x1p-100f;
    float scale = quant_float(which == MOMENT_SECOND ? key : (key ^ 1) >> 1 | (key ^ 1) << 31);
    if (quant_magnitude(scale) >= 0x7f800000u) return quant_float(0x7fc00000u);
    if (quant_magnitude(scale) >= quant_bits(least)) return scale;
    return which == MOMENT_SECOND && scale > 0.0f ? least : 0.0f;
}

/* A scale as it is compared with: its sign bit, its size and the reciprocal of that. With a scale of 0 or NaN
 * every element has the code of 0. */
typedef struct MomentUnit { uint32_t sign; float size, inverse; } MomentUnit;

OPS_INLINE MomentUnit moment_unit(float scale)
{
    MomentUnit u = { quant_bits(scale) & 0x80000000u, quant_float(quant_magnitude(scale)), 0.0f };
    if (u.size > 0.0f) u.inverse = 1.0f / u.size;
    else               u.size = 0.0f;
    return u;
}

/* 1 where x lies above scale * middle: the sign of their difference, which rounding keeps. */
OPS_INLINE int moment_above(float x, float scale, float middle)
{
#ifdef __CUDA_ARCH__
    float below = __fmaf_rn(scale, middle, -x);
#else
    float below = __builtin_fmaf(scale, middle, -x);
#endif
    return (int)(quant_bits(below) >> 31);
}

/* base and middle as in MomentMap and moment_base; y: the element with the sign of u taken off. */
OPS_INLINE uint8_t moment_code_of(const uint8_t *base, const float *middle, int each, Moment which,
                                  MomentUnit u, float y)
{
    int code = base[quant_bits(y * u.inverse) >> moment_shift(which)];
    return (uint8_t)(code + moment_above(y, u.size, middle[code * each]));
}

OPS_INLINE float moment_unsigned(float x, MomentUnit u)
{
    return u.inverse > 0.0f ? quant_float(quant_bits(x) ^ u.sign) : 0.0f;
}

/* ---- the CPU's: moment_code.c ---- */

#ifdef __cplusplus
extern "C" {
#endif

const MomentMap *moment_map(Moment which);
/* n elements; scale has moment_blocks(n). */
void moments_decode(float *x, Moment which, const uint8_t *code, const float *scale, int64_t n);
void moments_encode(uint8_t *code, float *scale, Moment which, const float *x, int64_t n);

#ifdef __cplusplus
}
#endif

#endif
