/* ops/moment_code.c -- maps of coded moments, coding and decoding on the CPU; see moment_code.h. */
#include "ops/moment_code.h"

#include "base/hot.h"

#include <pthread.h>

static MomentMap maps[2];

static void fill(MomentMap *map, const float *table, Moment which)
{
    for (int i = 0; i < MOMENT_CODES; i++) {
        map->value[i]  = moment_value(table, which, i);
        map->middle[i] = moment_middle(table, which, i);
    }
    for (int i = 0; i < moment_bins(which); i++) map->base[i] = moment_base(map->middle, 1, which, i);
}

static void fill_maps(void)
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
    fill(&maps[MOMENT_FIRST], first, MOMENT_FIRST);
    fill(&maps[MOMENT_SECOND], second, MOMENT_SECOND);
}

const MomentMap *moment_map(Moment which)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_maps);
    return &maps[which];
}

static HOT void decode_block(float *restrict x, const float *restrict value, const uint8_t *restrict code,
                             float scale, int64_t n)
{
    for (int64_t i = 0; i < n; i++) x[i] = value[code[i]] * scale;
}

void moments_decode(float *x, Moment which, const uint8_t *code, const float *scale, int64_t n)
{
    const float *value = moment_map(which)->value;
    for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
        int64_t k = n - at < MOMENT_BLOCK ? n - at : MOMENT_BLOCK;
        decode_block(x + at, value, code + at, scale[at / MOMENT_BLOCK], k);
    }
}

static HOT void encode_block(uint8_t *restrict code, const MomentMap *map, Moment which,
                             const float *restrict x, float scale, int64_t n)
{
    MomentUnit u = moment_unit(scale);
    for (int64_t i = 0; i < n; i++)
        code[i] = moment_code_of(map->base, map->middle, 1, which, u, moment_unsigned(x[i], u));
}

static HOT float block_scale(const float *x, Moment which, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t key = moment_key(x[i], which);
        most = key > most ? key : most;
    }
    return moment_scale(most, which);
}

void moments_encode(uint8_t *code, float *scale, Moment which, const float *x, int64_t n)
{
    const MomentMap *map = moment_map(which);
    for (int64_t at = 0; at < n; at += MOMENT_BLOCK) {
        int64_t k = n - at < MOMENT_BLOCK ? n - at : MOMENT_BLOCK;
        float  *of = &scale[at / MOMENT_BLOCK];
        *of = block_scale(x + at, which, k);
        encode_block(code + at, map, which, x + at, *of, k);
    }
}
