/* data/index_cache.c -- see index_cache.h. */
#include "data/index_cache.h"

#include "base/file_version.h"
#include "base/folder.h"
#include "base/str.h"
#include "data/chat_template.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { KEPT = 32 }; /* files; older ones are removed */

typedef struct Header {
    char     magic[8];
    int64_t  version, n;
    uint64_t hash;
} Header;

static const char magic[8] = "trebsize";

/* ---- the key ---- */

static void add(XXH3_state_t *x, const void *v, size_t n) { XXH3_128bits_update(x, v, n); }
static void add_number(XXH3_state_t *x, int64_t v) { add(x, &v, sizeof v); }
static void add_text(XXH3_state_t *x, const char *s) { add(x, s, strlen(s) + 1); }

static Status add_files(XXH3_state_t *x, const Dataset *d)
{
    for (int64_t i = 0; i < d->files; i++) {
        const FormatFile *f = &d->file[i].file;
        struct stat       st;
        if (!f->path) continue;
        if (stat(f->path, &st)) return fail(E_IO, "%s: %s", f->path, strerror(errno));
        char *real = realpath(f->path, NULL);
        add_text(x, real ? real : f->path);
        free(real);
        add_number(x, st.st_size), add_number(x, st.st_mtim.tv_sec), add_number(x, st.st_mtim.tv_nsec);
        add_number(x, d->file[i].first), add_number(x, f->samples);
    }
    return OK;
}

/* Every token's bytes; an id may have none. */
static void add_vocabulary(XXH3_state_t *x, const Tokenizer *t)
{
    Text text = { 0 };
    for (int32_t id = 0; t && id < tokenizer_size(t); id++) {
        text.n = 0;
        if (tokenizer_decode(t, &text, &id, 1, false)) text.n = 0;
        add_number(x, (int64_t)text.n), add(x, text.n ? text.v : "", text.n);
    }
    text_close(&text);
}

static void add_patches(XXH3_state_t *x, const PatchShape *p)
{
    add_number(x, p->patch), add_number(x, p->frames), add_number(x, p->merge);
    add_number(x, p->min_pixels), add_number(x, p->max_pixels);
}

static void add_conf(XXH3_state_t *x, const SampleConf *c)
{
    int64_t template = c->chat.template ? (int64_t)c->chat.template->fingerprint : 0;
    add_patches(x, &c->picture), add_patches(x, &c->frame);
    add(x, &c->video.fps, sizeof c->video.fps);
    add_number(x, c->video.min_frames), add_number(x, c->video.max_frames);
    add_number(x, c->budget.tokens), add_number(x, c->budget.patches), add_number(x, c->max_length);
    add_number(x, c->truncation), add_number(x, c->chat.loss), add_number(x, template);
    add_number(x, c->chat.video_outer), add_number(x, c->chat.merge);
    add_text(x, c->media_dir ? c->media_dir : ""), add_text(x, c->columns ? c->columns : "");
}

Status index_cache_key(char key[INDEX_KEY], const SampleConf *c)
{
    XXH3_state_t *x = XXH3_createState();
    if (!x) return fail(E_FIT, "no memory to hash");
    XXH3_128bits_reset(x);
    add_number(x, INDEX_CACHE_VERSION);
    add_conf(x, c);
    Status st = add_files(x, c->data);
    add_vocabulary(x, c->chat.tokenizer);
    XXH128_hash_t h = XXH3_128bits_digest(x);
    snprintf(key, INDEX_KEY, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    XXH3_freeState(x);
    return st;
}

/* ---- the file ---- */

static Status cache_path(Path out, const char *key, const char *end)
{
    Path cache;
    char name[80];
    snprintf(name, sizeof name, "index/%s%s", key, end);
    TRY(folder_cache(cache));
    return path_join(out, cache, name);
}

static uint64_t hash_rows(const IndexRow *row, int64_t n)
{
    return XXH3_64bits(row, (size_t)n * sizeof *row);
}

static bool is_whole(const Header *h, size_t len, int64_t n)
{
    return len >= sizeof *h && !memcmp(h->magic, magic, sizeof magic) && h->version == INDEX_CACHE_VERSION &&
           h->n == n && len == sizeof *h + (size_t)n * sizeof(IndexRow) &&
           h->hash == hash_rows((const IndexRow *)(h + 1), n);
}

bool index_cache_load(Index *x, const char *key)
{
    Path   path;
    char  *bytes = NULL;
    size_t len = 0, most = sizeof(Header) + (size_t)x->n * sizeof(IndexRow);
    if (cache_path(path, key, ".sizes") || !file_is(path) || file_load(&bytes, &len, path, most))
        return false;
    bool good = is_whole((const Header *)bytes, len, x->n);
    if (good) memcpy(x->row, bytes + sizeof(Header), (size_t)x->n * sizeof *x->row);
    free(bytes);
    if (good) utimensat(AT_FDCWD, path, NULL, 0); /* used now: removed last */
    return good;
}

static int is_index(const struct dirent *e)
{
    return strstr(e->d_name, ".sizes") || strstr(e->d_name, ".steps");
}

/* Removes the file that was used longest ago while there are more than KEPT. */
static void remove_old(const char *folder)
{
    struct dirent **entry;
    struct stat     st;
    Path            path, oldest = "";
    time_t          least = 0;
    int             n     = scandir(folder, &entry, is_index, NULL);
    for (int i = 0; i < n; i++) {
        bool there = !path_join(path, folder, entry[i]->d_name) && !stat(path, &st);
        if (there && (!*oldest || st.st_mtime < least))
            least = st.st_mtime, memcpy(oldest, path, sizeof path);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    if (n > KEPT) unlink(oldest);
}

/* Under a name of this process first: ranks may save at the same time. */
static Status write_rows(const Index *x, const char *path, const char *part)
{
    Header h = { .version = INDEX_CACHE_VERSION, .n = x->n, .hash = hash_rows(x->row, x->n) };
    memcpy(h.magic, magic, sizeof magic);
    FILE *f = fopen(part, "wbe");
    if (!f) return fail(E_IO, "%s: %s", part, strerror(errno));
    bool good =
        fwrite(&h, sizeof h, 1, f) == 1 && fwrite(x->row, sizeof *x->row, (size_t)x->n, f) == (size_t)x->n;
    good = !fclose(f) && good;
    if (good && !rename(part, path)) return OK;
    Status st = fail(E_IO, "%s: %s", path, strerror(errno));
    unlink(part);
    return st;
}

Status index_cache_save(const Index *x, const char *key)
{
    Path path, part, folder;
    char end[32];
    snprintf(end, sizeof end, ".%ld.part", (long)getpid());
    TRY(cache_path(folder, "", ""));
    TRY(cache_path(path, key, ".sizes"));
    TRY(cache_path(part, key, end));
    TRY(folder_make(folder));
    TRY(write_rows(x, path, part));
    remove_old(folder);
    return OK;
}

/* ---- steps ---- */

static void add_source(XXH3_state_t *x, const DataSource *s)
{
    add(x, &s->conf->weight, sizeof s->conf->weight);
    add_number(x, s->first), add_number(x, s->all), add_number(x, s->held), add_number(x, s->n);
    add_number(x, s->drawn);
}

static void steps_key(char key[INDEX_KEY], const StepsAsk *a)
{
    const Dataset *d = a->data;
    XXH3_state_t  *x = XXH3_createState();
    REQUIRE(x, "out of host memory");
    XXH3_128bits_reset(x);
    add_text(x, a->key);
    add(x, &a->epochs, sizeof a->epochs);
    add_number(x, a->ranks), add_number(x, a->micro), add_number(x, (int64_t)d->conf.seed);
    add_number(x, d->conf.once), add_number(x, d->conf.held_out), add_number(x, d->pass);
    for (int i = 0; i < d->sources; i++) add_source(x, &d->source[i]);
    XXH128_hash_t h = XXH3_128bits_digest(x);
    snprintf(key, INDEX_KEY, "%016llx%016llx", (unsigned long long)h.high64, (unsigned long long)h.low64);
    XXH3_freeState(x);
}

bool index_cache_load_steps(int64_t *steps, const StepsAsk *ask)
{
    char   key[INDEX_KEY], *text = NULL;
    Path   path;
    size_t n;
    steps_key(key, ask);
    bool good = !cache_path(path, key, ".steps") && file_is(path) && !file_load(&text, &n, path, 64) &&
                str_whole(text, steps) && *steps > 0;
    free(text);
    return good;
}

Status index_cache_save_steps(int64_t steps, const StepsAsk *ask)
{
    char key[INDEX_KEY], name[64], text[32];
    Path folder;
    steps_key(key, ask);
    snprintf(name, sizeof name, "%s.steps", key);
    snprintf(text, sizeof text, "%lld", (long long)steps);
    TRY(cache_path(folder, "", ""));
    TRY(folder_make(folder));
    TRY(file_write_atomic(folder, name, text, strlen(text)));
    return remove_old(folder), OK;
}
