/* tests/statelab.h -- a hash of weights and optimizer state, independent of how the state is stored. */
#ifndef TESTS_STATELAB_H
#define TESTS_STATELAB_H

#include "lab.h"
#include "ops/moment_code.h"
#include "parallel/shard.h"

static inline uint64_t state_mix(uint64_t h, uint32_t u)
{
    h ^= u, h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* A host copy of a dense tensor of any backend; an absent tensor stays absent. */
static inline Tensor state_copy(Backend *be, Tensor t)
{
    int64_t n = t_has(t) ? t_count(t) : 0;
    if (!t_has(t)) return t;
    Tensor c = t_wrap(malloc((size_t)t_bytes(t) + 1), (DType)t.dtype, 1, &n);
    if (n) backend_fetch(be, c.data, t_wrap(t.data, (DType)t.dtype, 1, &n));
    return c;
}

/* Element i as f32 bits, of a weight, a moment, or a master weight, which may be split. */
static inline uint32_t state_bits(Tensor t, int64_t i)
{
    return t.dtype == F32 ? ((const uint32_t *)t.data)[i] : (uint32_t)((const uint16_t *)t.data)[i] << 16;
}
static inline uint32_t master_bits(Tensor w, Tensor master, int64_t i)
{
    if (!t_has(master) || master.dtype == F32) return state_bits(t_has(master) ? master : w, i);
    return bits_join(((const uint16_t *)w.data)[i], ((const uint16_t *)master.data)[i]);
}

/* A host copy of a moment, decoded to f32 if it is in codes. */
static inline Tensor moment_copy(Backend *be, Tensor t, Tensor scale, Moment which)
{
    Tensor c = state_copy(be, t), s = state_copy(be, scale);
    if (!t_has(scale)) return c;
    int64_t n = t_count(t);
    Tensor  wide = t_wrap(malloc((size_t)n * 4 + 1), F32, 1, &n);
    moments_decode(wide.data, which, c.data, s.data, n);
    free(c.data), free(s.data);
    return wide;
}

static inline uint64_t state_of(uint64_t h, Backend *be, const Param *p)
{
    Tensor w = state_copy(be, p->shard.w), own = state_copy(be, shard_slice(p, p->shard.w));
    Tensor master = state_copy(be, p->shard.master);
    Tensor m = moment_copy(be, p->shard.m, p->shard.m_scale, MOMENT_FIRST);
    Tensor v = moment_copy(be, p->shard.v, p->shard.v_scale, MOMENT_SECOND);
    for (int64_t i = 0; i < t_count(w); i++) h = state_mix(h, state_bits(w, i));
    for (int64_t i = 0; t_has(m) && i < p->shard.len; i++) {
        h = state_mix(h, master_bits(own, master, i));
        h = state_mix(state_mix(h, state_bits(m, i)), state_bits(v, i));
    }
    free(w.data), free(own.data), free(master.data), free(m.data), free(v.data);
    return h;
}

/* Hash of the weights, and of masters and moments of the elements that this rank updates. */
static inline uint64_t state_hash(Backend *be, const ParamSet *s)
{
    uint64_t h = 1;
    backend_copy_sync(be);
    for (int k = 0; k < s->n; k++) h = state_of(h, be, s->p[k]);
    return h;
}

#endif
