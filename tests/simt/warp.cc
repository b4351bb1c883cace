/* tests/simt/warp.cc -- ldmatrix and mma.sync on the operands of a warp's lanes, and numbers of 8 bits; see
 * ptx.h. Lane l = 4 g + t. */
#include "simt/simt.h"

namespace simt {

/* ---- ldmatrix: lane l gives the address of row l % 8 of matrix l / 8 ---- */

static void load(void *const *operand, bool turned)
{
    uint16_t m[4][8][8];
    for (int l = 0; l < 32; l++) {
        if (!operand[l]) fail("ldmatrix without lane %d", l);
        memcpy(m[l / 8][l % 8], shared_pointer(((Matrices *)operand[l])->at, 16, 16), 16);
    }
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++) {
            int g = l / 4, t = l % 4 * 2;
            uint16_t low = turned ? m[i][t][g] : m[i][g][t], high = turned ? m[i][t + 1][g] : m[i][g][t + 1];
            *((Matrices *)operand[l])->v[i] = (uint32_t)high << 16 | low;
        }
}

void store_matrices(void *const *operand)               /* stmatrix, the reverse */
{
    uint16_t m[4][8][8];
    for (int l = 0; l < 32; l++) {
        if (!operand[l]) fail("stmatrix without lane %d", l);
        for (int i = 0; i < 4; i++) memcpy(&m[i][l / 4][l % 4 * 2], ((Matrices *)operand[l])->v[i], 4);
    }
    for (int l = 0; l < 32; l++)
        memcpy(shared_target(((Matrices *)operand[l])->at, 16, 16), m[l / 8][l % 8], 16);
}

void load_matrices(void *const *operand)            { load(operand, false); }
void load_matrices_transposed(void *const *operand) { load(operand, true); }

/* ---- mma.sync: d (16, 8) += a (16, K) b (K, 8) ----
 *
 * A word holds E neighbours along k: a's words 0, 1 rows g and g + 8 from k = E t, words 2, 3 the same from
 * E t + 4 E; b's words column g from E t and E t + 4 E; d[0], d[1] row g, columns 2 t and 2 t + 1, d[2], d[3]
 * row g + 8. */
template <int E, class F> static void multiply(void *const *operand, F value)
{
    float a[8 * E][16], b[8 * E][8], d[16][8] = { };
    for (int l = 0; l < 32; l++) {
        const Fragments *f = (const Fragments *)operand[l];
        if (!f) fail("mma.sync without lane %d", l);
        for (int e = 0; e < E; e++) {
            int g = l / 4, k = l % 4 * E + e;
            for (int w = 0; w < 4; w++) a[k + w / 2 * 4 * E][g + w % 2 * 8] = value(f->a[w], e);
            for (int w = 0; w < 2; w++) b[k + w * 4 * E][g] = value(f->b[w], e);
        }
    }
    for (int k = 0; k < 8 * E; k++)
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 8; j++) d[i][j] += a[k][i] * b[k][j];
    for (int l = 0; l < 32; l++)
        for (int i = 0; i < 4; i++)
            *((Fragments *)operand[l])->d[i] += d[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
}

void multiply_bf16(void *const *operand)
{
    multiply<2>(operand, [](uint32_t w, int e) { return __uint_as_float(e ? w & 0xffff0000u : w << 16); });
}

/* ---- e4m3: sign, 4 bits of exponent (bias 7), 3 of mantissa; 0x7f is NaN, there is no infinity ---- */

float e4m3_value(uint8_t code)
{
    int   e = code >> 3 & 15, m = code & 7;
    float x = (code & 127) == 127 ? NAN : e ? ldexpf((float)(8 + m), e - 10) : ldexpf((float)m, -9);
    return code >> 7 ? -x : x;
}

uint8_t e4m3_code(float x)
{
    unsigned sign = __float_as_uint(x) >> 31 << 7;
    float    y = fminf(fabsf(x), 448.0f);
    if (x != x) return (uint8_t)(sign | 127);
    int e = y < 0x1p-6f ? -6 : ilogbf(y), m = (int)nearbyintf(ldexpf(y, 3 - e));  /* 8 .. 16, or less at -6 */
    return (uint8_t)(sign | (unsigned)((e + 6) * 8 + m));
}

void multiply_e4m3(void *const *operand)
{
    static float table[256];
    if (table[1] == 0)
        for (int i = 0; i < 256; i++) table[i] = e4m3_value((uint8_t)i);
    multiply<4>(operand, [](uint32_t w, int e) { return table[w >> 8 * e & 255]; });
}

uint16_t half_of_e4m3(uint8_t code)                     /* exact; e4m3's subnormals are normal */
{
    float x = e4m3_value(code);
    if (x != x) return 0x7fff;
    if (x == 0) return (uint16_t)(code >> 7 << 15);
    int e = ilogbf(x);
    return (uint16_t)(code >> 7 << 15 | (e + 15) << 10 | ((int)ldexpf(fabsf(x), 10 - e) & 1023));
}

}
