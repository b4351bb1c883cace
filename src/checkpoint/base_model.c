/* checkpoint/base_model.c -- see base_model.h. */
#include "checkpoint/base_model.h"

#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { SAMPLE = 64, MOST_SAMPLES = 4096 };   /* bytes; tensors looked into: each may cost a disk a seek */

static void hash_tensor(XXH3_state_t *x, const StTensor *t, bool look)
{
    size_t n = t->bytes < SAMPLE ? t->bytes : SAMPLE;
    size_t at = t->bytes > n ? (size_t)(rng_stream(t->name) % (t->bytes - n)) : 0;
    int64_t head[2] = { t->dtype, t->rank };
    XXH3_128bits_update(x, t->name, strlen(t->name) + 1);
    XXH3_128bits_update(x, head, sizeof head);
    XXH3_128bits_update(x, t->shape, (size_t)t->rank * sizeof *t->shape);
    if (look) XXH3_128bits_update(x, (const char *)t->data + at, n);
}

static Status hash_files(XXH3_state_t *x, const char *folder)
{
    SafeTensors st;
    TRY(st_open(&st, folder));
    int every = st.count / MOST_SAMPLES + 1;
    for (int i = 0; i < st.count; i++) hash_tensor(x, &st.tensor[i], i % every == 0);
    st_close(&st);
    return OK;
}

static Status hash_base(char out[33], const ModelSource *s, uint64_t seed)
{
    XXH3_state_t *x = XXH3_createState();
    char *config = json_dumps(s->hf, JSON_COMPACT | JSON_SORT_KEYS);
    Status st = x && config ? OK : fail(E_FIT, "no memory to tell models apart");
    if (!st) XXH3_128bits_reset(x), XXH3_128bits_update(x, config, strlen(config));
    if (!st && s->weights) st = hash_files(x, s->weights);
    else if (!st) XXH3_128bits_update(x, &seed, sizeof seed);
    XXH128_hash_t h = st ? (XXH128_hash_t){ 0 } : XXH3_128bits_digest(x);
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    XXH3_freeState(x);
    free(config);
    return st;
}

Status base_model_describe(Json **out, const ModelSource *s, uint64_t seed)
{
    char hash[33];
    TRY(hash_base(hash, s, seed));
    char *path = s->weights ? realpath(s->weights, NULL) : NULL, *folder = realpath(s->folder, NULL);
    *out = json_pack("{s:s?, s:s?, s:I, s:s?, s:s, s:s}", "path", path, "preset",
                     s->weights ? NULL : s->preset,
                     "seed", (json_int_t)seed, "folder", folder, "dtype", dtype_name(s->dtype), "hash", hash);
    free(path), free(folder);
    return *out ? OK : fail(E_FIT, "no memory for the description of a base model");
}

static const char *text(const Json *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

const char *base_model_name(const Json *base)
{
    const char *path = text(base, "path");
    return *path ? path : text(base, "preset");
}

Status base_model_matches(bool *same, const Json *was, const ModelSource *s, uint64_t seed)
{
    char hash[33];
    TRY(hash_base(hash, s, seed));
    *same = !strcmp(text(was, "hash"), hash);
    return OK;
}

Status base_model_check(const Json *was, const Json *now)
{
    if (strcmp(text(was, "hash"), text(now, "hash")))
        return fail(E_CONFIG,
                    "its adapters were trained on %s%s (%.8s), this is %s%s (%.8s): other weights; set "
                    "model.path or model.preset and train.seed as they were",
                    *text(was, "path") ? "" : "preset ", base_model_name(was), text(was, "hash"),
                    *text(now, "path") ? "" : "preset ", base_model_name(now), text(now, "hash"));
    if (strcmp(text(was, "dtype"), text(now, "dtype")))
        return fail(E_CONFIG, "its base was held as %s, wanted as %s; set model.dtype as it was",
                    text(was, "dtype"), text(now, "dtype"));
    return OK;
}
