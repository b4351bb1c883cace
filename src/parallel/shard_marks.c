/* parallel/shard_marks.c -- the host's bookkeeping of a step as numbers; see shard.h.
 *
 * Of a unit users, writers and whether its next backward is the last of the step; of a bucket whether its sum
 * has begun; of a parameter its ParamStep. Behind them, not part of the key, the backwards of each unit so
 * far: later micro-batches of a step do the same work. */
#include "parallel/shard_private.h"

enum { OF_UNIT = 3, OF_PARAM = 3 };

int shard_marks_key(const Shard *s)
{
    return OF_UNIT * s->units + s->buckets + OF_PARAM * s->conf.params->n;
}

int shard_marks_count(const Shard *s) { return shard_marks_key(s) + s->units; }

void shard_marks_clear(Shard *s, int micro)
{
    s->micro = micro;
    for (int u = 0; u < s->units; u++) s->unit[u].users = s->unit[u].writers = s->unit[u].backs = 0;
    EACH_BUCKET(b, s) b->begun = false;
    for (int i = 0; i < s->conf.params->n; i++) s->conf.params->p[i]->step = (ParamStep){ 0 };
}

void shard_marks_read(const Shard *s, int32_t *out)
{
    for (int u = 0; u < s->units; u++) {
        const ShardUnit *x = &s->unit[u];
        *out++ = x->users, *out++ = x->writers, *out++ = x->backs + 1 >= s->micro;
    }
    EACH_BUCKET(b, s) *out++ = b->begun;
    for (int i = 0; i < s->conf.params->n; i++) {
        const ParamStep *x = &s->conf.params->p[i]->step;
        *out++ = x->has_grad, *out++ = x->grad_unset, *out++ = x->squared;
    }
    for (int u = 0; u < s->units; u++) *out++ = s->unit[u].backs;
}

void shard_marks_restore(Shard *s, const int32_t *marks)
{
    const int32_t *backs = marks + shard_marks_key(s);
    for (int u = 0; u < s->units; u++) s->unit[u].backs = backs[u];
    shard_marks_advance(s, marks, marks);
}

void shard_marks_advance(Shard *s, const int32_t *before, const int32_t *after)
{
    const int32_t *at = after, *backs[2] = { before + shard_marks_key(s), after + shard_marks_key(s) };
    for (int u = 0; u < s->units; u++, at += OF_UNIT) s->unit[u].users = at[0], s->unit[u].writers = at[1];
    EACH_BUCKET(b, s) b->begun = *at++ != 0;
    for (int i = 0; i < s->conf.params->n; i++, at += OF_PARAM)
        s->conf.params->p[i]->step = (ParamStep){ .has_grad = at[0] != 0, .grad_unset = at[1] != 0,
                                                  .squared = at[2] != 0 };
    for (int u = 0; u < s->units; u++) s->unit[u].backs += backs[1][u] - backs[0][u];
}
