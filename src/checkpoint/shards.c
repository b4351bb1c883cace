/* checkpoint/shards.c -- reading state/ of a checkpoint: descriptions, and elements from wherever they are; see
 * shards.h. */
#include "checkpoint/shards.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAMAGED "the checkpoint is damaged, go on from another"

static Status no_memory(void) { return fail(E_FIT, "no memory for the list of a checkpoint's tensors"); }

static Status stored_add(Shards *s, const StoredShard *x)
{
    if (s->n == s->room) {
        int room = s->room ? 2 * s->room : 256;
        StoredShard *grown = realloc(s->item, (size_t)room * sizeof *grown);
        if (!grown) return no_memory();
        s->item = grown, s->room = room;
    }
    s->item[s->n++] = *x;
    return OK;
}

/* ---- descriptions ---- */

static Status read_shape(StoredShard *x, const Json *v, int64_t *all)
{
    *all = 1;
    if (!json_is_array(v) || json_array_size(v) < 1 || json_array_size(v) > PIECE_DIM)
        return fail(E_DATA, "its shape is not a list of 1 to %d numbers; " DAMAGED, PIECE_DIM);
    x->rank = (int)json_array_size(v);
    for (int i = 0; i < x->rank; i++) {
        const Json *n = json_array_get(v, (size_t)i);
        x->shape[i] = json_integer_value(n);
        if (!json_is_integer(n) || x->shape[i] < 1 || __builtin_mul_overflow(*all, x->shape[i], all))
            return fail(E_DATA, "dimension %d is not one of a tensor; " DAMAGED, i);
    }
    return OK;
}

/* Stretches must lie inside the whole and not over each other. */
static bool run_fits(const StridedRange *c, int64_t all)
{
    int64_t last;
    if (c->at < 0 || c->len < 1 || c->count < 1 || c->stride < 1 || (c->count > 1 && c->stride < c->len))
        return false;
    return !__builtin_mul_overflow(c->count - 1, c->stride, &last) &&
           !__builtin_add_overflow(last, c->at, &last) && !__builtin_add_overflow(last, c->len, &last) &&
           last <= all;
}

static Status read_runs(StoredShard *x, const Json *v, int64_t all)
{
    int64_t at = 0;
    if (!json_is_array(v) || json_array_size(v) < 1 || json_array_size(v) > SHARD_RUNS)
        return fail(E_DATA, "its runs are not a list of 1 to %d; " DAMAGED, SHARD_RUNS);
    x->runs = (int)json_array_size(v);
    for (int i = 0; i < x->runs; i++) {
        const Json *r = json_array_get(v, (size_t)i);
        StridedRange *c = &x->run[i];
        int64_t *field[4] = { &c->at, &c->len, &c->stride, &c->count };
        for (size_t k = 0; k < 4; k++) {
            const Json *n = json_array_get(r, k);
            if (json_array_size(r) != 4 || !json_is_integer(n))
                return fail(E_DATA, "run %d is not four numbers; " DAMAGED, i);
            *field[k] = json_integer_value(n);
        }
        c->local = at;
        if (!run_fits(c, all) || __builtin_add_overflow(at, c->len * c->count, &at))
            return fail(E_DATA, "run %d is not inside the tensor; " DAMAGED, i);
    }
    int64_t stored = x->t->rank == 1 ? x->t->shape[0] : -1;
    return at == stored ? OK : fail(E_DATA, "its runs have %lld elements, its file %lld; " DAMAGED,
                                    (long long)at, (long long)stored);
}

static Status read_stored(StoredShard *x, const SafeTensors *st, const char *name, const Json *v)
{
    int64_t all;
    *x = (StoredShard){ .t = st_find(st, name) };
    if (!x->t) return fail(E_DATA, "described, but not in the file; " DAMAGED);
    x->name = x->t->name;
    TRY(read_shape(x, json_object_get(v, "shape"), &all));
    return read_runs(x, json_object_get(v, "runs"), all);
}

Status shards_add_description(Shards *s, const SafeTensors *st, const Json *runs)
{
    const char *name;
    Json       *v, *tensors = json_object_get(runs, "tensors");
    int64_t     format;
    TRY(json_int(runs, "format", -1, &format));
    if (format != 1 || !json_is_object(tensors))
        return fail(E_DATA, "not a description that this build reads (format %lld)", (long long)format);
    if ((int)json_object_size(tensors) != st->count)
        return fail(E_DATA, "%zu tensors are described, the file has %d; " DAMAGED, json_object_size(tensors),
                    st->count);
    json_object_foreach(tensors, name, v) {
        StoredShard x;
        TRY_CTX(read_stored(&x, st, name, v), "%.150s", name);
        TRY(stored_add(s, &x));
    }
    return OK;
}

/* ---- opening ---- */

static int name_order(const void *a, const void *b)
{
    return strcmp(((const StoredShard *)a)->name, ((const StoredShard *)b)->name);
}

void shards_sort(Shards *s)
{
    if (s->n) qsort(s->item, (size_t)s->n, sizeof *s->item, name_order);
    s->names = 0;
    for (int i = 0; i < s->n; i++) s->names += !i || strcmp(s->item[i - 1].name, s->item[i].name);
}

/* One rank wrote it: every tensor is whole. */
static Status describe_whole(Shards *s, const SafeTensors *st)
{
    for (int i = 0; i < st->count; i++) {
        const StTensor *t = &st->tensor[i];
        StoredShard x = { .name = t->name, .rank = t->rank, .t = t, .runs = 1 };
        int64_t n = (int64_t)(t->bytes / dtype_size(t->dtype));
        if (t->rank < 1 || t->rank > PIECE_DIM || !n)
            return fail(E_DATA, "%s: %d dimensions, %lld elements; " DAMAGED, t->name, t->rank, (long long)n);
        memcpy(x.shape, t->shape, sizeof x.shape);
        x.run[0] = (StridedRange){ .len = n, .stride = n, .count = 1 };
        TRY(stored_add(s, &x));
    }
    return OK;
}

static Status open_part(Shards *s, const char *folder, const char *name, int ranks)
{
    Path path, file;
    Json *o;
    int64_t n;
    SafeTensors *st = &s->file[s->files];
    TRY(path_join(path, folder, name));
    TRY(path_join(file, path, "runs.json"));
    TRY(st_open(st, path));
    s->files++;
    TRY(json_load(&o, file));
    Status r = json_int(o, "ranks", -1, &n);
    if (!r && n != ranks)
        r = fail(E_DATA, "%lld ranks wrote it, the files of %d are there; " DAMAGED, (long long)n, ranks);
    if (!r) r = shards_add_description(s, st, o);
    json_decref(o);
    return r ? wrap(r, "%s", file) : OK;
}

static int is_part(const struct dirent *e) { return !strncmp(e->d_name, "rank-", 5); }

static Status open_parts(Shards *s, const char *folder)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, is_part, alphasort);
    if (n < 0) return fail(E_IO, "%s: %s", folder, strerror(errno));
    Status st = (s->file = calloc((size_t)n + 1, sizeof *s->file)) ? OK : no_memory();
    if (!st && !n) st = fail(E_DATA, "%s: neither model.safetensors nor files of ranks in it", folder);
    for (int i = 0; i < n; i++) {
        if (!st) st = open_part(s, folder, entry[i]->d_name, n);
        free(entry[i]);
    }
    free(entry);
    return st;
}

static bool has(const char *folder, const char *name)
{
    Path path;
    return !path_join(path, folder, name) && file_is(path);
}

static Status open_whole(Shards *s, const char *folder)
{
    if (!(s->file = calloc(1, sizeof *s->file))) return no_memory();
    TRY(st_open(s->file, folder));
    s->files = 1;
    return describe_whole(s, s->file);
}

Status shards_open(Shards *s, const char *folder)
{
    Path state;
    *s = (Shards){ 0 };
    TRY(path_join(state, folder, "state"));
    bool whole = has(state, "model.safetensors") || has(state, "model.safetensors.index.json");
    Status st = whole ? open_whole(s, state) : open_parts(s, state);
    if (st) shards_close(s);
    else shards_sort(s);
    return st;
}

void shards_close(Shards *s)
{
    for (int i = 0; i < s->files; i++) st_close(&s->file[i]);
    free(s->file);
    free(s->item);
    *s = (Shards){ 0 };
}

/* ---- elements ---- */

int shards_find(const Shards *s, const char *name, const StoredShard **first)
{
    int lo = 0, hi = s->n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (strcmp(s->item[mid].name, name) < 0) lo = mid + 1;
        else hi = mid;
    }
    *first = &s->item[lo];
    int n = 0;
    while (lo + n < s->n && !strcmp(s->item[lo + n].name, name)) n++;
    return n;
}

typedef struct Hit { int64_t to, from, n; const StTensor *t; } Hit;    /* n elements of t to place `to` */
typedef struct Hits { Hit *item; int64_t n, room; } Hits;

static Status hit_add(Hits *h, Hit x)
{
    if (h->n == h->room) {
        int64_t room = h->room ? 2 * h->room : 64;
        Hit *grown = realloc(h->item, (size_t)room * sizeof *grown);
        if (!grown) return no_memory();
        h->item = grown, h->room = room;
    }
    h->item[h->n++] = x;
    return OK;
}

/* What of [from, from + n) of the whole, wanted at `to`, a stored run list has. */
static Status meet(Hits *h, const StTensor *t, const StridedRange *c, int64_t from, int64_t n, int64_t to)
{
    int64_t end = from + n, i = from < c->at + c->len ? 0 : (from - c->at - c->len) / c->stride + 1;
    for (; i < c->count; i++) {
        int64_t at = c->at + i * c->stride, a = from > at ? from : at;
        int64_t b = end < at + c->len ? end : at + c->len;
        if (at >= end) break;
        if (a < b) TRY(hit_add(h, (Hit){ to + a - from, c->local + i * c->len + a - at, b - a, t }));
    }
    return OK;
}

static int64_t comb_end(const StridedRange *c) { return c->at + (c->count - 1) * c->stride + c->len; }

static Status meet_all(Hits *h, const StTensor *t, const StridedRange *have, const StridedRange *need)
{
    if (comb_end(have) <= need->at || comb_end(need) <= have->at) return OK;
    for (int64_t i = 0; i < need->count; i++)
        TRY(meet(h, t, have, need->at + i * need->stride, need->len, need->local + i * need->len));
    return OK;
}

static int hit_order(const void *a, const void *b)
{
    const Hit *x = a, *y = b;
    return (x->to > y->to) - (x->to < y->to);
}

/* Sorted by where they go, they must follow one another from `at` to `end`. */
static Status put_hits(const Hits *h, const char *name, int64_t at, int64_t end, Sink *out)
{
    sink_seek(out, at);
    for (int64_t i = 0; i <= h->n; i++) {
        int64_t to = i < h->n ? h->item[i].to : end;
        if (to > at)
            return fail(E_DATA, "%s: %lld elements are in no file; " DAMAGED, name, (long long)(to - at));
        if (to < at) return fail(E_DATA, "%s: elements of it are stored twice; " DAMAGED, name);
        if (i == h->n) break;
        const Hit *x = &h->item[i];
        size_t skip = (size_t)x->from * dtype_size(x->t->dtype);
        sink_put(out, (const char *)x->t->data + skip, x->t->dtype, x->n);
        at += x->n;
    }
    return OK;
}

Status shards_read(const Shards *s, const char *name, const StridedRange *need, int n, Sink *out)
{
    const StoredShard *x;
    Hits hits = { 0 };
    Status st = OK;
    int files = shards_find(s, name, &x);
    if (!n) return OK;
    for (int f = 0; f < files; f++)
        for (int r = 0; r < x[f].runs; r++)
            for (int k = 0; k < n && !st; k++) st = meet_all(&hits, x[f].t, &x[f].run[r], &need[k]);
    if (hits.n) qsort(hits.item, (size_t)hits.n, sizeof *hits.item, hit_order);
    const StridedRange *last = &need[n - 1];
    if (!st) st = put_hits(&hits, name, need[0].local, last->local + last->len * last->count, out);
    free(hits.item);
    return st;
}
