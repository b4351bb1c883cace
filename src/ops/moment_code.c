/* ops/moment_code.c -- maps of coded moments, coding and decoding on the CPU; see moment_code.h. */
#include "ops/moment_code.h"

#include "base/hot.h"

void moment_map_fill(MomentMap *map, Moment which)
{
    static const float first[] = {
#define X(v) v,
        DYNAMIC_VALUES(X)
    };
    static const float second[] = {
        UNSIGNED_DYNAMIC_VALUES(X)
#undef X
    };
    _Static_assert(sizeof first == DYNAMIC_ZERO * 4 && sizeof second == (MOMENT_CODES - 2) * 4, "maps");
    for (int i = 0; i < MOMENT_CODES; i++)
        moment_map_set(map, which == MOMENT_FIRST ? first : second, which, i);
}

static HOT void decode_block(float *restrict x, const float *restrict value, const uint8_t *restrict code,
                             float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = value[code[i]] * scale;
}

void moments_decode(float *x, const MomentMap *map, const uint8_t *code, const float *scale, int64_t n)
{
    for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
        int64_t k = n - at < MOMENT_BLOCK ? n - at : MOMENT_BLOCK;
        decode_block(x + at, map->value, code + at, scale[at / MOMENT_BLOCK], k);
    }
}

static HOT void encode_block(uint8_t *restrict code, const MomentMap *map, Moment which,
                             const float *restrict x, float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) code[i] = moment_code(map, which, moment_ratio(x[i], scale));
}

static HOT float block_scale(const float *x, Moment which, int64_t n)
{
    MomentRange r = moment_range(x[0]);
    for (int64_t i = 1; i < n; i++) r = moment_range_of_both(r, moment_range(x[i]));
    return moment_scale(r, which);
}

void moments_encode(uint8_t *code, float *scale, const MomentMap *map, Moment which, const float *x,
                    int64_t n)
{
    for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
        int64_t k = n - at < MOMENT_BLOCK ? n - at : MOMENT_BLOCK;
        float  *of = &scale[at / MOMENT_BLOCK];
        *of = block_scale(x + at, which, k);
        encode_block(code + at, map, which, x + at, *of, k);
    }
}
