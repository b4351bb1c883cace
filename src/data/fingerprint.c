/* data/fingerprint.c -- see fingerprint.h. */
#include "data/fingerprint.h"

#include "base/folder.h"

#include <stdio.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_PATHS = 64, SAMPLE_BYTES = 64 << 10 };

static void hash_file(XXH3_state_t *x, const FormatFile *f)
{
    size_t n = f->len < SAMPLE_BYTES ? f->len : SAMPLE_BYTES;
    XXH3_128bits_update(x, f->path, strlen(f->path));
    XXH3_128bits_update(x, &f->len, sizeof f->len);
    if (!n) return;
    XXH3_128bits_update(x, f->bytes, n);
    XXH3_128bits_update(x, f->bytes + f->len - n, n);
}

/* Drawn by `treb data synth`, which leaves synth.json beside the lines. */
static bool is_synthetic(const FormatFile *f)
{
    Path        path;
    const char *slash = strrchr(f->path, '/');
    int         n = slash ? (int)(slash - f->path) + 1 : 0;
    return snprintf(path, sizeof path, "%.*ssynth.json", n, f->path) < (int)sizeof path && file_is(path);
}

Json *fingerprint_dataset(const Dataset *d)
{
    Json *paths = json_array();
    XXH3_state_t *x = XXH3_createState();
    double bytes = 0;
    char   hash[33] = "";
    bool   synthetic = false;
    if (x) XXH3_128bits_reset(x);
    for (int64_t i = 0; x && i < d->files; i++) {
        const FormatFile *f = &d->file[i].file;
        if (!f->path) continue;
        hash_file(x, f);
        bytes += (double)f->len, synthetic |= is_synthetic(f);
        if (i < MAX_PATHS)
            json_array_append_new(paths, json_pack("{s:s, s:I}", "path", f->path, "bytes",
                                                   (json_int_t)f->len));
    }
    if (x) {
        XXH128_hash_t h = XXH3_128bits_digest(x);
        snprintf(hash, sizeof hash, "%016llx%016llx", (unsigned long long)h.high64,
                 (unsigned long long)h.low64);
    }
    XXH3_freeState(x);
    return json_pack("{s:I, s:f, s:I, s:s, s:b, s:o}", "files", (json_int_t)d->files, "bytes", bytes,
                     "samples", (json_int_t)d->samples, "xxh128", hash, "synthetic", synthetic, "paths",
                     paths);
}
