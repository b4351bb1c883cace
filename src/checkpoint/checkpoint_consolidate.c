/* checkpoint/checkpoint_consolidate.c -- writes a checkpoint of any layout in the form of a single rank, one
 * tensor at a time, without opening a model. */
#include "checkpoint/checkpoint_private.h"

#include "model/weights.h"

#include <stdlib.h>

#define FILE_BYTES ((int64_t)4 << 30)    /* size at which a new safetensors file begins */

typedef struct Consolidator {
    const Shards *from;
    StWriter      out;
    Backend       be;
    void         *buffer;
    int64_t       largest;               /* bytes of the largest tensor, the size of buffer */
} Consolidator;

static int64_t count_elements(const StoredShard *x)
{
    int64_t n = 1;
    for (int i = 0; i < x->rank; i++) n *= x->shape[i];
    return n;
}

static Status check_same_tensor(const StoredShard *a, const StoredShard *b)
{
    bool same = a->rank == b->rank && a->t->dtype == b->t->dtype;
    for (int i = 0; same && i < a->rank; i++) same = a->shape[i] == b->shape[i];
    if (same) return OK;
    return fail(E_DATA, "%s: its shards differ in shape or type; the checkpoint is damaged", a->name);
}

/* x: the n shards of one tensor. Together they must have as many elements as its shape. */
static Status declare_one(Consolidator *r, const StoredShard *x, int n)
{
    int64_t bytes = 0, size = (int64_t)dtype_size(x->t->dtype);
    for (int i = 0; i < n; i++) {
        TRY(check_same_tensor(x, &x[i]));
        bytes += (int64_t)x[i].t->bytes;
    }
    if (bytes / size != count_elements(x))
        return fail(E_DATA, "%s: its shape has %lld elements, the files have %lld; the checkpoint is damaged",
                    x->name, (long long)count_elements(x), (long long)(bytes / size));
    if (bytes > r->largest) r->largest = bytes;
    return st_writer_declare(&r->out, x->name, x->t->dtype, x->rank, x->shape);
}

static Status declare_all(Consolidator *r)
{
    const StoredShard *x;
    for (int i = 0, n; i < r->from->n; i += n) {
        n = shards_find(r->from, r->from->item[i].name, &x);
        TRY(declare_one(r, x, n));
    }
    return OK;
}

static Status copy_one(Consolidator *r, const StoredShard *x)
{
    int64_t n = count_elements(x);
    StridedRange all = { .len = n, .stride = n, .count = 1 };
    Sink sink;
    TRY(sink_open(&sink, &r->be, t_wrap(r->buffer, x->t->dtype, 1, &n)));
    Status st = shards_read(r->from, x->name, &all, 1, &sink);
    Status done = sink_close(&sink);
    if (!st) st = done;
    return st ? st : st_writer_write(&r->out, r->buffer, (size_t)n * dtype_size(x->t->dtype));
}

static Status copy_all(Consolidator *r)
{
    const Shards *s = r->from;
    r->buffer = malloc((size_t)r->largest + 1);
    if (!r->buffer) return fail(E_FIT, "no host memory for a tensor of %lld bytes", (long long)r->largest);
    for (int i = 0, n; i < s->n; i += n) {
        const StoredShard *x;
        n = shards_find(s, s->item[i].name, &x);
        TRY(copy_one(r, x));
    }
    return OK;
}

static Status consolidate_state(const Shards *s, const char *to)
{
    Consolidator r = { .from = s };
    Path state;
    TRY(path_join(state, to, "state"));
    TRY(folder_make(state));
    TRY(backend_open(&r.be, "cpu"));
    Status st = st_writer_open(&r.out, state, FILE_BYTES);
    if (!st) st = declare_all(&r);
    if (!st) st = st_writer_begin(&r.out);
    if (!st) st = copy_all(&r);
    if (!st) st = st_writer_finish(&r.out);
    st_writer_close(&r.out);
    backend_close(&r.be);
    free(r.buffer);
    return st;
}

static Status copy_if_present(const char *from, const char *to, const char *name)
{
    Path a, b;
    TRY(path_join(a, from, name));
    TRY(path_join(b, to, name));
    return file_is(a) ? file_copy(a, b) : OK;
}

static Status copy_companions(const char *from, const char *to)
{
    Path a, b;
    TRY(path_join(a, from, "state"));
    TRY(path_join(b, to, "state"));
    return weights_copy_companions(a, b);
}

Status checkpoint_consolidate(const char *from, const char *to)
{
    Shards s;
    Json *state = NULL;
    int64_t step = 0;
    Status st = shards_open(&s, from);
    if (!st) st = consolidate_state(&s, to);
    shards_close(&s);
    if (!st) st = copy_if_present(from, to, "state/config.json");
    if (!st) st = copy_if_present(from, to, "state/adapter.json");
    if (!st) st = copy_companions(from, to);
    if (!st) st = copy_if_present(from, to, "trainer_state.json");
    if (!st) st = checkpoint_read_state(from, &state);
    if (!st) st = json_int(state, "global_step", 0, &step);
    json_decref(state);
    return st ? wrap(st, "%s", from) : checkpoint_manifest_write(to, step);
}
