/* checkpoint/checkpoint_consolidate.c -- a checkpoint of any layout as the one that a single rank would have written:
 * tensor by tensor, with nothing of a model in memory. */
#include "checkpoint/checkpoint_private.h"

#include <stdlib.h>

#define SHARD ((int64_t)4 << 30)

typedef struct Rewriter { const Shards *from; StWriter out; Backend be; void *room; int64_t most; } Rewriter;

static int64_t elements(const StoredShard *x)
{
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++) n *= x->shape[i];
    return n;
}

/* Parts of one tensor must be of one tensor. */
static Status check_alike(const StoredShard *a, const StoredShard *b)
{
    bool same = a->rank == b->rank && a->t->dtype == b->t->dtype;
    for (int i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
    return same ? OK : fail(E_DATA, "%s: parts of it are of different shapes or types", a->name);
}

/* The n parts of one tensor. A shape is believed when the files have as many elements. */
static Status declare_one(Rewriter *r, const StoredShard *x, int n)
{
    int64_t bytes = 0, size = (int64_t)dtype_size(x->t->dtype);
    for (int i = 0; i < n; i++) {
        TRY(check_alike(x, &x[i]));
        bytes += (int64_t)x[i].t->bytes;
    }
    if (bytes / size != elements(x))
        return fail(E_DATA, "%s: %lld elements, its files have %lld", x->name, (long long)elements(x),
                    (long long)(bytes / size));
    if (bytes > r->most) r->most = bytes;
    return st_writer_declare(&r->out, x->name, x->t->dtype, x->rank, x->shape);
}

static Status declare(Rewriter *r)
{
    const StoredShard *x;
    for (int i = 0, n; i < r->from->n; i += n) {
        n = shards_find(r->from, r->from->item[i].name, &x);
        TRY(declare_one(r, x, n));
    }
    return OK;
}

static Status copy_one(Rewriter *r, const StoredShard *x)
{
    int64_t n = elements(x);
    StridedRange all = { .len = n, .stride = n, .count = 1 };
    Sink sink;
    TRY(sink_open(&sink, &r->be, t_wrap(r->room, x->t->dtype, 1, &n)));
    Status st = shards_read(r->from, x->name, &all, 1, &sink);
    Status done = sink_close(&sink);
    if (!st) st = done;
    return st ? st : st_writer_write(&r->out, r->room, (size_t)n * dtype_size(x->t->dtype));
}

static Status copy_all(Rewriter *r)
{
    const Shards *s = r->from;
    r->room = malloc((size_t)r->most + 1);
    if (!r->room) return fail(E_FIT, "no host memory for a tensor of %lld bytes", (long long)r->most);
    for (int i = 0, n; i < s->n; i += n) {
        const StoredShard *x;
        n = shards_find(s, s->item[i].name, &x);
        TRY(copy_one(r, x));
    }
    return OK;
}

static Status rewrite_state(const Shards *s, const char *to)
{
    Rewriter r = { .from = s };
    Path state;
    TRY(path_join(state, to, "state"));
    TRY(folder_make(state));
    TRY(backend_open(&r.be, "cpu"));
    Status st = st_writer_open(&r.out, state, SHARD);
    if (!st) st = declare(&r);
    if (!st) st = st_writer_begin(&r.out);
    if (!st) st = copy_all(&r);
    if (!st) st = st_writer_finish(&r.out);
    st_writer_close(&r.out);
    backend_close(&r.be);
    free(r.room);
    return st;
}

static Status copy_beside(const char *from, const char *to, const char *name)
{
    Path a, b;
    TRY(path_join(a, from, name));
    TRY(path_join(b, to, name));
    return file_is(a) ? file_copy(a, b) : OK;
}

Status checkpoint_consolidate(const char *from, const char *to)
{
    Shards s;
    Json *state = NULL;
    int64_t step = 0;
    Status st = shards_open(&s, from);
    if (!st) st = rewrite_state(&s, to);
    shards_close(&s);
    if (!st) st = copy_beside(from, to, "state/config.json");
    if (!st) st = copy_beside(from, to, "state/adapter.json");
    if (!st) st = copy_beside(from, to, "trainer_state.json");
    if (!st) st = checkpoint_read_state(from, &state);
    if (!st) st = json_int(state, "global_step", 0, &step);
    json_decref(state);
    return st ? wrap(st, "%s", from) : checkpoint_manifest_write(to, step);
}
