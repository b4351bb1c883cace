/* checkpoint/base_model.c -- see base_model.h. */
#include "checkpoint/base_model.h"

#include "base/activity.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Bytes hashed of a tensor's data, and tensors hashed so: each may cost a disk seek. */
enum { EXCERPT_BYTES = 64, MAX_EXCERPTS = 4096 };

static void hash_tensor(XXH3_state_t *x, const StTensor *t, bool with_data)
{
    size_t n = t->bytes < EXCERPT_BYTES ? t->bytes : EXCERPT_BYTES;
    size_t at = t->bytes > n ? (size_t)(rng_stream(t->name) % (t->bytes - n)) : 0;
    int64_t head[2] = { t->dtype, t->rank };
    XXH3_128bits_update(x, t->name, strlen(t->name) + 1);
    XXH3_128bits_update(x, head, sizeof head);
    XXH3_128bits_update(x, t->shape, (size_t)t->rank * sizeof *t->shape);
    activity_mark();
    if (with_data) XXH3_128bits_update(x, (const char *)t->data + at, n);
}

static Status hash_files(XXH3_state_t *x, const char *folder)
{
    SafeTensors st;
    TRY(st_open(&st, folder));
    int every = st.count / MAX_EXCERPTS + 1;
    for (int i = 0; i < st.count; i++) hash_tensor(x, &st.tensor[i], i % every == 0);
    st_close(&st);
    return OK;
}

/* The manifest has the hashes of all files. */
static Status hash_checkpoint(XXH3_state_t *x, const char *folder)
{
    char  *text;
    size_t n;
    Path   path;
    TRY(path_join(path, folder, "MANIFEST.json"));
    TRY(file_load(&text, &n, path, 1 << 28));
    XXH3_128bits_update(x, text, n);
    free(text);
    return OK;
}

static Status hash_model(char out[33], const ModelSource *s, uint64_t seed)
{
    XXH3_state_t *x = XXH3_createState();
    char *config = json_dumps(s->hf, JSON_COMPACT | JSON_SORT_KEYS);
    Status st = x && config ? OK : fail(E_FIT, "no memory to hash the base model");
    if (!st) XXH3_128bits_reset(x), XXH3_128bits_update(x, config, strlen(config));
    if (!st && s->weights) st = s->is_checkpoint ? hash_checkpoint(x, s->weights) : hash_files(x, s->weights);
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
    TRY(hash_model(hash, s, seed));
    char *path = s->weights ? realpath(s->weights, NULL) : NULL, *folder = realpath(s->folder, NULL);
    *out = json_pack("{s:s?, s:s?, s:I, s:s?, s:s, s:s}", "path", path, "preset",
                     s->weights ? NULL : s->preset,
                     "seed", (json_int_t)seed, "folder", folder, "dtype", dtype_name(s->dtype), "hash", hash);
    free(path), free(folder);
    return *out ? OK : fail(E_FIT, "no memory to describe the base model");
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
    TRY(hash_model(hash, s, seed));
    *same = !strcmp(text(was, "hash"), hash);
    return OK;
}

Status base_model_check(const Json *was, const Json *now)
{
    if (strcmp(text(was, "hash"), text(now, "hash")))
        return fail(E_CONFIG,
                    "its adapters were trained on %s%s (hash %.8s), but the base model is now %s%s (hash "
                    "%.8s); set model.path, or model.preset and train.seed, to the former values",
                    *text(was, "path") ? "" : "preset ", base_model_name(was), text(was, "hash"),
                    *text(now, "path") ? "" : "preset ", base_model_name(now), text(now, "hash"));
    if (strcmp(text(was, "dtype"), text(now, "dtype")))
        return fail(E_CONFIG, "its base model was loaded as %s and is now loaded as %s; set model.dtype=%s",
                    text(was, "dtype"), text(now, "dtype"), text(was, "dtype"));
    return OK;
}
