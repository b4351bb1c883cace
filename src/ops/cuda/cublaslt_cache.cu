/* ops/cuda/cublaslt_cache.cu -- see cublaslt.cuh: the measured algorithms as a file.
 *
 *   in folder_cache(), gemm-<GPU>-<library version>.bin
 *   CacheHead, then head.entries LtKnown, then the FNV-1a hash of all before it
 *
 * Any other file counts as absent and is replaced by the next write; writing renames a complete file into
 * place, so that a reader never sees half of one. Of two runs that write at once the last wins. */
#include "ops/cuda/cublaslt.cuh"

#include "base/folder.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace {

typedef struct CacheHead {
    char     magic[8];
    uint32_t format, entry_bytes, entries, library;
    char     gpu[64];
} CacheHead;

typedef struct CacheFile {                    /* at its largest */
    CacheHead head;
    LtKnown   entry[LT_KNOWN + 1];            /* the hash comes right after the last one */
} CacheFile;

static CacheHead head_of(int entries, const char *gpu)
{
    CacheHead h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "TREBGEMM", sizeof h.magic);
    h.format = 1, h.entry_bytes = sizeof(LtKnown), h.entries = (uint32_t)entries;
    h.library = (uint32_t)cublasLtGetVersion();
    snprintf(h.gpu, sizeof h.gpu, "%.63s", gpu);
    return h;
}

static size_t bytes_before_hash(int entries) { return sizeof(CacheHead) + (size_t)entries * sizeof(LtKnown); }

static uint64_t hash_of(const CacheFile *f, size_t bytes)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < bytes; i++) h = (h ^ ((const unsigned char *)f)[i]) * 0x100000001B3u;
    return h;
}

static bool path_of(Path out, const char *folder, const char *gpu)
{
    char word[64];
    snprintf(word, sizeof word, "%.63s", gpu);
    for (char *p = word; *p; p++)
        if (!isalnum((unsigned char)*p)) *p = '-';
    int n = snprintf(out, PATH_MAX, "%s/gemm-%s-%zu.bin", folder, word, cublasLtGetVersion());
    return n > 0 && n < PATH_MAX;
}

/* Entries of a file of `bytes` bytes; -1: not such a file, truncated, or of another GPU or library. */
static int check(const CacheFile *f, size_t bytes, const char *gpu)
{
    uint64_t hash;
    if (bytes < sizeof f->head + sizeof hash || f->head.entries > LT_KNOWN) return -1;
    int       n = (int)f->head.entries;
    size_t    body = bytes_before_hash(n);
    CacheHead want = head_of(n, gpu);
    if (bytes != body + sizeof hash || memcmp(&f->head, &want, sizeof want)) return -1;
    memcpy(&hash, (const char *)f + body, sizeof hash);
    return hash == hash_of(f, body) ? n : -1;
}

}

int lt_load(LtKnown *known, int max, const char *gpu)
{
    Path folder, path;
    if (folder_cache(folder) || !path_of(path, folder, gpu)) return 0;
    CacheFile *f = (CacheFile *)calloc(1, sizeof *f);
    FILE *in = f ? fopen(path, "rb") : NULL;
    int   n = in ? check(f, fread(f, 1, sizeof *f, in), gpu) : 0;
    if (n > max) n = max;
    for (int i = 0; i < n; i++) known[i] = f->entry[i];
    if (in) fclose(in);
    free(f);
    return n < 0 ? 0 : n;
}

namespace {

static void write_file(const CacheFile *f, size_t bytes, const char *folder, const char *gpu)
{
    Path path, fresh;
    if (folder_make(folder) || !path_of(path, folder, gpu)) return;
    int n = snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    if (n <= 0 || n >= (int)sizeof fresh) return;
    if (file_write(fresh, f, bytes) || rename(fresh, path)) unlink(fresh);
}

}

void lt_save(const Lt *lt)
{
    Path folder;
    CacheFile *f = (CacheFile *)calloc(1, sizeof *f);
    int n = 0;
    if (f && !folder_cache(folder)) {
        for (int i = 0; i < lt->knowns; i++)
            if (lt->known[i].measured) f->entry[n++] = lt->known[i];
        f->head = head_of(n, lt->gpu);
        size_t   body = bytes_before_hash(n);
        uint64_t hash = hash_of(f, body);
        memcpy((char *)f + body, &hash, sizeof hash);
        write_file(f, body + sizeof hash, folder, lt->gpu);
    }
    free(f);
}
