/* ops/weight_code.h -- formats of frozen weights under adapters (model.base_quant), on every device.
 *
 *   fp8    e4m3 in blocks of 128 x 128 with power-of-two scales: ops/quant.h
 *   int8   by row: scale = amax / 127, code = round(x * (127 / amax)) to nearest even, element = code * scale
 *   nf4    16 values (NormalFloat, QLoRA) times the amax of 64 elements, two codes a byte, the first in the
 *          high half; amaxes are in 8 bits themselves
 *
 * nf4 is that of bitsandbytes with double quantisation. A matrix is flat: block i is elements 64 i .. 64 i +
 * 63, across rows where a row is no multiple of 64. offset is the mean of the amaxes of the matrix, f32. The
 * differences amax - offset are coded in groups of 256 blocks, by the largest magnitude of the group, with
 * the 256 values of a dynamic map: those below, their negatives, 0 and 1. So
 *
 *   amax of a block = map[its code] * largest of its group + offset        both operations rounded to f32
 *   element         = value[its code] * amax of its block                  rounded to the dtype of the model
 *
 * The code of x among sorted values is the number of midpoints between neighbours that lie below x. The
 * mean is a sum in f64 of 256 sums of every 256th amax, each in ascending order, over the count.
 *
 * A row without magnitude has scale 0 (int8), a block amax 0 and the code of 0 (nf4). Elements that are
 * infinite or NaN make their row, or for nf4 the matrix, NaN: quantisation hides nothing. */
#ifndef OPS_WEIGHT_CODE_H
#define OPS_WEIGHT_CODE_H

#include "ops/quant.h"

enum { NF4_BLOCK = 64, NF4_GROUP = 256, NF4_GROUP_ELEMS = NF4_BLOCK * NF4_GROUP };

#define NF4_VALUES(X)                                                                                        \
    X(-1.0f) X(-0.696192801f) X(-0.525073051f) X(-0.394917488f) X(-0.284441382f) X(-0.18477343f)             \
    X(-0.0910500363f) X(0.0f) X(0.0795802996f) X(0.160930201f) X(0.246112302f) X(0.337915242f)               \
    X(0.440709829f) X(0.562617004f) X(0.722956836f) X(1.0f)

/* The positive values of the dynamic map below 1, ascending. */
#define DYNAMIC_VALUES(X)                                                                                    \
    X(5.50000038e-07f) X(3.25000019e-06f) X(7.7499999e-06f) X(2.12499981e-05f) X(4.37499984e-05f)            \
    X(6.62500024e-05f) X(8.87499991e-05f) X(0.000156250011f) X(0.000268750038f) X(0.000381250022f)           \
    X(0.000493750034f) X(0.000606250076f) X(0.00071875006f) X(0.000831249985f) X(0.000943750085f)            \
    X(0.00128124992f) X(0.00184375001f) X(0.00240624999f) X(0.00296874996f) X(0.00353124971f)                \
    X(0.00409374991f) X(0.00465624966f) X(0.00521875033f) X(0.00578125007f) X(0.00634374982f)                \
    X(0.00690625003f) X(0.00746874977f) X(0.00803124998f) X(0.00859375019f) X(0.00915624946f)                \
    X(0.00971874967f) X(0.0114062503f) X(0.0142187504f) X(0.0170312505f) X(0.0198437516f) X(0.0226562507f)   \
    X(0.0254687499f) X(0.028281251f) X(0.0310937501f) X(0.0339062512f) X(0.0367187522f) X(0.0395312496f)     \
    X(0.0423437469f) X(0.0451562516f) X(0.047968749f) X(0.05078125f) X(0.053593751f) X(0.0564062484f)        \
    X(0.0592187531f) X(0.0620312504f) X(0.0648437515f) X(0.0676562563f) X(0.0704687461f) X(0.0732812509f)    \
    X(0.0760937482f) X(0.078906253f) X(0.0817187577f) X(0.0845312476f) X(0.0873437524f) X(0.0901562497f)     \
    X(0.0929687545f) X(0.0957812592f) X(0.0985937491f) X(0.107031256f) X(0.12109375f) X(0.135156244f)        \
    X(0.149218753f) X(0.163281247f) X(0.177343756f) X(0.19140625f) X(0.205468744f) X(0.219531253f)           \
    X(0.233593747f) X(0.247656241f) X(0.26171875f) X(0.275781274f) X(0.289843738f) X(0.303906262f)           \
    X(0.317968726f) X(0.33203125f) X(0.346093744f) X(0.360156238f) X(0.374218762f) X(0.388281226f)           \
    X(0.40234375f) X(0.416406244f) X(0.430468738f) X(0.444531262f) X(0.458593726f) X(0.47265625f)            \
    X(0.486718714f) X(0.500781238f) X(0.514843702f) X(0.528906226f) X(0.54296875f) X(0.557031274f)           \
    X(0.571093798f) X(0.585156262f) X(0.599218726f) X(0.61328125f) X(0.627343774f) X(0.641406298f)           \
    X(0.655468762f) X(0.669531226f) X(0.68359375f) X(0.697656274f) X(0.711718798f) X(0.725781262f)           \
    X(0.739843726f) X(0.75390625f) X(0.767968774f) X(0.782031238f) X(0.796093762f) X(0.810156226f)           \
    X(0.82421875f) X(0.838281274f) X(0.852343738f) X(0.866406262f) X(0.880468726f) X(0.89453125f)            \
    X(0.908593774f) X(0.922656238f) X(0.936718762f) X(0.950781226f) X(0.96484375f) X(0.978906274f)           \
    X(0.992968738f)

enum { DYNAMIC_ZERO = 127 };                       /* the code of 0; 128 .. 254: positive values; 255: 1 */

OPS_INLINE int64_t nf4_blocks(int64_t n) { return n / NF4_BLOCK; }
OPS_INLINE int64_t nf4_groups(int64_t n) { return (nf4_blocks(n) + NF4_GROUP - 1) / NF4_GROUP; }

/* Bits of an element's code. */
OPS_INLINE int code_bits(CodeFormat f) { return f == CODE_NF4 ? 4 : 8; }
OPS_INLINE int64_t code_bytes(CodeFormat f, int64_t elements) { return elements * code_bits(f) / 8; }

/* Midpoint of neighbours, as f32. */
OPS_INLINE float code_midpoint(float a, float b) { return (a + b) / 2; }

#endif
