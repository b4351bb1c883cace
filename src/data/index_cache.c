/* data/index_cache.c -- see index_cache.h. */
#include "data/index_cache.h"

#include "base/file_version.h"
#include "data/cache_file.h"
#include "data/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- the key ---- */

static void add(XXH3_state_t *x, const void *v, size_t n) { XXH3_128bits_update(x, v, n); }
static void add_number(XXH3_state_t *x, int64_t v) { add(x, &v, sizeof v); }
static void add_text(XXH3_state_t *x, const char *s) { add(x, s, strlen(s) + 1); }

static Status add_files(XXH3_state_t *x, const Dataset *d)
{
    for (int64_t i = 0; i < d->files; i++) {
        const FormatFile *f = &d->file[i].file;
        if (!f->path) continue;
        TRY(cache_key_add_file(x, f->path));
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

Status index_cache_key(char key[CACHE_KEY], const SampleConf *c)
{
    XXH3_state_t *x = XXH3_createState();
    if (!x) return fail(E_FIT, "no memory to hash");
    XXH3_128bits_reset(x);
    add_number(x, INDEX_CACHE_VERSION);
    add_conf(x, c);
    Status st = add_files(x, c->data);
    add_vocabulary(x, c->chat.tokenizer);
    cache_key_text(key, x);
    return st;
}

/* ---- sizes ---- */

static void name_of(char name[CACHE_KEY + 8], const char *key, const char *end)
{
    snprintf(name, CACHE_KEY + 8, "%s%s", key, end);
}

bool index_cache_load(Index *x, const char *key)
{
    char   name[CACHE_KEY + 8], *bytes;
    size_t len, want = (size_t)x->n * sizeof *x->row;
    name_of(name, key, ".sizes");
    if (!cache_file_load(&bytes, &len, name, want)) return false;
    if (len == want) memcpy(x->row, bytes, want);
    return free(bytes), len == want;
}

Status index_cache_save(const Index *x, const char *key)
{
    char name[CACHE_KEY + 8];
    name_of(name, key, ".sizes");
    return cache_file_save(name, &(CachePart){ x->row, (size_t)x->n * sizeof *x->row }, 1);
}

/* ---- steps ---- */

static void add_source(XXH3_state_t *x, const DataSource *s)
{
    add(x, &s->conf->weight, sizeof s->conf->weight);
    add_number(x, s->first), add_number(x, s->all), add_number(x, s->held), add_number(x, s->n);
    add_number(x, s->drawn);
}

static void steps_name(char name[CACHE_KEY + 8], const StepsAsk *a)
{
    char           key[CACHE_KEY];
    const Dataset *d = a->data;
    XXH3_state_t  *x = XXH3_createState();
    REQUIRE(x, "out of host memory");
    XXH3_128bits_reset(x);
    add_text(x, a->key);
    add(x, &a->epochs, sizeof a->epochs);
    add_number(x, a->measured), add_number(x, a->ranks), add_number(x, a->micro);
    add_number(x, (int64_t)d->conf.seed);
    add_number(x, d->conf.once), add_number(x, d->conf.held_out), add_number(x, d->pass);
    for (int i = 0; i < d->sources; i++) add_source(x, &d->source[i]);
    cache_key_text(key, x);
    name_of(name, key, ".steps");
}

bool index_cache_load_steps(LoaderSteps *steps, const StepsAsk *ask)
{
    char   name[CACHE_KEY + 8], *bytes;
    size_t len;
    steps_name(name, ask);
    if (!cache_file_load(&bytes, &len, name, sizeof *steps)) return false;
    bool good = len == sizeof *steps;
    if (good) memcpy(steps, bytes, sizeof *steps);
    return free(bytes), good && steps->steps > 0;
}

Status index_cache_save_steps(const LoaderSteps *steps, const StepsAsk *ask)
{
    char        name[CACHE_KEY + 8];
    LoaderSteps whole;
    memset(&whole, 0, sizeof whole); /* padding, too */
    whole.steps = steps->steps, whole.estimated = steps->estimated, whole.within = steps->within;
    steps_name(name, ask);
    return cache_file_save(name, &(CachePart){ &whole, sizeof whole }, 1);
}
