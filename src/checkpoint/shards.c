/* checkpoint/shards.c -- reads state/ of a checkpoint: descriptions of shards, then
 * elements; see shards.h. */
#include "checkpoint/shards.h"

#include "base/file_version.h"
#include "base/grow.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAMAGED "the checkpoint is damaged, resume from another"

static Status no_memory(void) { return fail(E_FIT, "no memory for the list of a checkpoint's tensors"); }

static Status add_shard(Shards *s, const StoredShard *x)
{
    if (!GROW(s->item, s->capacity, s->n + 1)) return no_memory();
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
            return fail(E_DATA, "dimension %d of its shape is out of range; " DAMAGED, i);
    }
    return OK;
}

/* The ranges of a run must lie inside the whole tensor and not overlap. */
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
        return fail(E_DATA, "its runs are not a list of 1 to %d runs; " DAMAGED, SHARD_RUNS);
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
    return at == stored ? OK : fail(E_DATA, "its runs have %lld elements, the file has %lld; " DAMAGED,
                                    (long long)at, (long long)stored);
}

static Status read_shard(StoredShard *x, const SafeTensors *st, const char *name, const Json *v)
{
    int64_t all;
    *x = (StoredShard){ .t = st_find(st, name) };
    if (!x->t) return fail(E_DATA, "it is described, but not in the file; " DAMAGED);
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
    if (format != SHARDS_VERSION || !json_is_object(tensors))
        return fail(E_DATA, "not a description of shards that this build reads (format %lld)",
                    (long long)format);
    if ((int)json_object_size(tensors) != st->count)
        return fail(E_DATA, "it describes %zu tensors, the file has %d; " DAMAGED, json_object_size(tensors),
                    st->count);
    json_object_foreach(tensors, name, v) {
        StoredShard x;
        TRY_CTX(read_shard(&x, st, name, v), "%.150s", name);
        TRY(add_shard(s, &x));
    }
    return OK;
}

/* ---- opening ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const StoredShard *)a)->name, ((const StoredShard *)b)->name);
}

void shards_sort(Shards *s)
{
    if (s->n) qsort(s->item, (size_t)s->n, sizeof *s->item, by_name);
    s->names = 0;
    for (int i = 0; i < s->n; i++) s->names += !i || strcmp(s->item[i - 1].name, s->item[i].name);
}

/* The file of a single rank: every tensor is whole. */
static Status add_whole_tensors(Shards *s, const SafeTensors *st)
{
    for (int i = 0; i < st->count; i++) {
        const StTensor *t = &st->tensor[i];
        StoredShard x = { .name = t->name, .rank = t->rank, .t = t, .runs = 1 };
        int64_t n = (int64_t)(t->bytes / dtype_size(t->dtype));
        if (t->rank < 1 || t->rank > PIECE_DIM || !n)
            return fail(E_DATA, "%s has %d dimensions and %lld elements; " DAMAGED, t->name, t->rank,
                        (long long)n);
        memcpy(x.shape, t->shape, sizeof x.shape);
        x.run[0] = (StridedRange){ .len = n, .stride = n, .count = 1 };
        TRY(add_shard(s, &x));
    }
    return OK;
}

static Status open_rank(Shards *s, const char *folder, const char *name, int ranks)
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
        r = fail(E_DATA, "%lld ranks wrote the checkpoint, the files of %d are there; " DAMAGED, (long long)n,
                 ranks);
    if (!r) r = shards_add_description(s, st, o);
    json_decref(o);
    return r ? wrap(r, "%s", file) : OK;
}

static int is_rank_folder(const struct dirent *e) { return !strncmp(e->d_name, "rank-", 5); }

static Status open_ranks(Shards *s, const char *folder)
{
    struct dirent **entry;
    int n = scandir(folder, &entry, is_rank_folder, alphasort);
    if (n < 0) return fail(E_IO, "%s: %s", folder, strerror(errno));
    Status st = (s->file = calloc((size_t)n + 1, sizeof *s->file)) ? OK : no_memory();
    if (!st && !n) st = fail(E_DATA, "%s has neither model.safetensors nor folders rank-*; " DAMAGED, folder);
    for (int i = 0; i < n; i++) {
        if (!st) st = open_rank(s, folder, entry[i]->d_name, n);
        free(entry[i]);
    }
    free(entry);
    return st;
}

static Status open_single(Shards *s, const char *folder)
{
    if (!(s->file = calloc(1, sizeof *s->file))) return no_memory();
    TRY(st_open(s->file, folder));
    s->files = 1;
    return add_whole_tensors(s, s->file);
}

Status shards_open(Shards *s, const char *folder)
{
    Path state;
    *s = (Shards){ 0 };
    TRY(path_join(state, folder, "state"));
    Status st = weights_exist(state) ? open_single(s, state) : open_ranks(s, state);
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

/* n elements of t at offset `from` go to offset `to` of the output. */
typedef struct CopyRange { int64_t to, from, n; const StTensor *t; } CopyRange;
typedef struct CopyList { CopyRange *item; int64_t n, capacity; } CopyList;

static Status add_copy(CopyList *h, CopyRange x)
{
    if (!GROW(h->item, h->capacity, h->n + 1)) return no_memory();
    h->item[h->n++] = x;
    return OK;
}

/* Adds what the stored run c has of elements [from, from + n) of the whole tensor,
 * which go to offset `to`. */
static Status intersect_range(CopyList *h, const StTensor *t, const StridedRange *c, int64_t from, int64_t n,
                              int64_t to)
{
    int64_t end = from + n, i = from < c->at + c->len ? 0 : (from - c->at - c->len) / c->stride + 1;
    for (; i < c->count; i++) {
        int64_t at = c->at + i * c->stride, a = from > at ? from : at;
        int64_t b = end < at + c->len ? end : at + c->len;
        if (at >= end) break;
        if (a < b) TRY(add_copy(h, (CopyRange){ to + a - from, c->local + i * c->len + a - at, b - a, t }));
    }
    return OK;
}

static int64_t run_end(const StridedRange *c) { return c->at + (c->count - 1) * c->stride + c->len; }

static Status intersect_runs(CopyList *h, const StTensor *t, const StridedRange *have,
                             const StridedRange *need)
{
    if (run_end(have) <= need->at || run_end(need) <= have->at) return OK;
    for (int64_t i = 0; i < need->count; i++)
        TRY(intersect_range(h, t, have, need->at + i * need->stride, need->len,
                            need->local + i * need->len));
    return OK;
}

static int by_target(const void *a, const void *b)
{
    const CopyRange *x = a, *y = b;
    return (x->to > y->to) - (x->to < y->to);
}

/* h is sorted by target and must cover [at, end) exactly once. */
static Status copy_ranges(const CopyList *h, const char *name, int64_t at, int64_t end, Sink *out)
{
    sink_seek(out, at);
    for (int64_t i = 0; i <= h->n; i++) {
        int64_t to = i < h->n ? h->item[i].to : end;
        if (to > at)
            return fail(E_DATA, "%s: no file has %lld of its elements; " DAMAGED, name, (long long)(to - at));
        if (to < at) return fail(E_DATA, "%s: some of its elements are stored twice; " DAMAGED, name);
        if (i == h->n) break;
        const CopyRange *x = &h->item[i];
        size_t skip = (size_t)x->from * dtype_size(x->t->dtype);
        sink_put(out, (const char *)x->t->data + skip, x->t->dtype, x->n);
        at += x->n;
    }
    return OK;
}

Status shards_read(const Shards *s, const char *name, const StridedRange *need, int n, Sink *out)
{
    const StoredShard *x;
    CopyList copies = { 0 };
    Status st = OK;
    int files = shards_find(s, name, &x);
    if (!n) return OK;
    for (int f = 0; f < files; f++)
        for (int r = 0; r < x[f].runs; r++)
            for (int k = 0; k < n && !st; k++) st = intersect_runs(&copies, x[f].t, &x[f].run[r], &need[k]);
    if (copies.n) qsort(copies.item, (size_t)copies.n, sizeof *copies.item, by_target);
    const StridedRange *last = &need[n - 1];
    if (!st) st = copy_ranges(&copies, name, need[0].local, last->local + last->len * last->count, out);
    free(copies.item);
    return st;
}
