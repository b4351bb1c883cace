/* engine/batching.c -- see batching.h. */
#include "engine/batching.h"

#include <string.h>

enum { MAX_DOCS = 4096, MAX_MICRO = 1 << 20 };

Budget batching_budget(const Config *c, const ModelShape *s)
{
    int64_t T = c->train.micro_tokens, docs = T / 8 + 1, block = s->vision.merge * s->vision.merge;
    return (Budget){ .tokens      = T,
                     .patches     = s->vision.depth ? c->train.micro_patches / block * block : 0,
                     .docs        = docs < MAX_DOCS ? docs : MAX_DOCS,
                     .supervised  = T,
                     .by_document = !strcmp(c->moe.aux_loss_type, "sequence") };
}

PatchShape batching_patches(const Config *c, const VisionShape *v)
{
    return (PatchShape){ .patch = v->patch, .frames = v->frames, .merge = v->merge, .channels = v->channels,
                         .min_pixels = c->image.min_pixels, .max_pixels = c->image.max_pixels };
}

/* Tokens of a step over the tokens of one micro-batch on every data-parallel rank. */
Status batching_micro(int *out, const struct cfg_train *c, int ranks)
{
    int64_t one = c->micro_tokens * ranks, n = c->global_tokens ? c->global_tokens / one : 1;
    *out = (int)n;
    if (n >= 1 && n <= MAX_MICRO && (!c->global_tokens || c->global_tokens == n * one)) return OK;
    return fail(E_CONFIG,
                "train.global_tokens = %lld: must be a multiple of train.micro_tokens = %lld%s, such as %lld",
                (long long)c->global_tokens, (long long)c->micro_tokens,
                ranks > 1 ? " times the data-parallel ranks" : "", (long long)((n < 1 ? 1 : n) * one));
}
