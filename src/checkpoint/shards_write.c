/* checkpoint/shards_write.c -- lists the elements that a rank writes and writes its files; see shards.h.
 *
 * Each element is written once: of all ranks that step the same elements one is the writer, and copies of
 * another rank's elements (a shared key/value head, a tied table) are left out. */
#include "checkpoint/shards.h"

#include "base/file_version.h"
#include "base/grow.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES  ((int64_t)4 << 30)   /* size at which a new safetensors file begins */
#define WRITE_BYTES ((size_t)64 << 20)   /* written between two checks of `stop` */

static DType  stored_type(const LocalShard *k)
{
    return t_has(k->rest) || t_has(k->scale) ? F32 : (DType)k->t.dtype;
}
static size_t stored_bytes(const LocalShard *k) { return (size_t)t_count(k->t) * dtype_size(stored_type(k)); }

static Status add_shard(LocalShards *l, const LocalShard *k)
{
    if (!GROW(l->item, l->capacity, l->n + 1))
        return fail(E_FIT, "no memory for the list of tensors to save");
    size_t bytes = stored_bytes(k);
    l->item[l->n] = *k;
    l->item[l->n++].at = l->bytes;
    l->bytes += (bytes + 63) / 64 * 64;
    if (bytes > l->largest) l->largest = bytes;
    return OK;
}

/* What the elements of a view are in memory, beside its tensor. */
typedef struct Parts { ShardView rest; Tensor scale; Moment which; } Parts;

/* Elements [at, at + n) of the view and their parts. */
static void set_tensors(LocalShard *k, ShardView h, const Parts *x, int64_t at, int64_t n)
{
    int64_t first = at - h.at;
    k->t = t_rows(h.t, first, n);
    if (x->rest.n) k->rest = t_rows(x->rest.t, at - x->rest.at, n);
    if (!t_has(x->scale)) return;
    k->which = x->which, k->lead = first % MOMENT_BLOCK;
    k->scale = t_rows(x->scale, first / MOMENT_BLOCK, moment_blocks(k->lead + n));
}

/* Adds elements [from, to) of the rank's part of p, all of which are in h and in the parts that are there. */
static Status add_range(LocalShards *l, const Param *p, const char *prefix, ShardView h, Parts parts,
                        int64_t from, int64_t to)
{
    for (int i = 0; i < p->pieces; i++) {
        const Piece *q = &p->piece[i];
        LocalShard k = { .rank = q->rank };
        const StridedRange *of = piece_ranges(p, i, &k.runs);
        k.runs = ranges_clip(k.run, of, k.runs, from, to - from);
        if (!k.runs) continue;
        int64_t first = k.run[0].local, n = 0;
        for (int r = 0; r < k.runs; r++) n += k.run[r].len * k.run[r].count, k.run[r].at -= piece_at(p, i);
        snprintf(k.name, sizeof k.name, "%s.%s", prefix, q->name);
        memcpy(k.shape, q->shape, sizeof k.shape);
        set_tensors(&k, h, &parts, from + first, n);
        TRY(add_shard(l, &k));
    }
    return OK;
}

static Status add_param(LocalShards *l, const Param *p, bool frozen, bool only_weights)
{
    int64_t from = p->shard.offset, end = from + p->shard.len;
    int64_t to = end < p->shard.unique ? end : p->shard.unique;
    ShardView w = param_weight_view(p), master = param_state_view(p, p->shard.master);
    Parts none = { 0 }, rest = { .rest = master };
    bool split = master.n && master.t.dtype == I16;
    if (!p->shard.is_writer || from >= to) return OK;
    if (frozen) return add_range(l, p, "w", w, none, from, to);
    TRY(add_range(l, p, "master", master.n && !split ? master : w, split ? rest : none, from, to));
    if (only_weights) return OK;
    TRY(add_range(l, p, "m", param_state_view(p, p->shard.m),
                  (Parts){ .scale = p->shard.m_scale, .which = MOMENT_FIRST }, from, to));
    return add_range(l, p, "v", param_state_view(p, p->shard.v),
                     (Parts){ .scale = p->shard.v_scale, .which = MOMENT_SECOND }, from, to);
}

Status shards_list_local(LocalShards *l, const Model *m, bool only_weights)
{
    Status st = OK;
    *l = (LocalShards){ 0 };
    for (int i = 0; i < m->params.n && !st; i++)
        if (!shards_excludes(m, m->params.p[i]))
            st = add_param(l, m->params.p[i], m->params.p[i]->frozen, only_weights);
    if (st) shards_free_local(l);
    return st;
}

void shards_free_local(LocalShards *l)
{
    free(l->item);
    *l = (LocalShards){ 0 };
}

/* Joins upper and lower halves to f32 in `out`. The lower halves are fetched into the second half of `out`,
 * which is overwritten from the front only as far as it has been read; the upper halves are fetched in
 * blocks. */
static void fetch_joined(Backend *be, const LocalShard *k, char *out)
{
    enum { BLOCK = 1 << 15 };
    int64_t  all = t_count(k->t);
    uint16_t w[BLOCK], rest;
    backend_fetch(be, out + 2 * all, k->rest);
    for (int64_t i = 0; i < all; i++) {
        int64_t left = all - i;
        if (i % BLOCK == 0) backend_fetch(be, w, t_rows(k->t, i, left < BLOCK ? left : BLOCK));
        memcpy(&rest, out + 2 * (all + i), 2);
        uint32_t u = bits_join(w[i % BLOCK], rest);
        memcpy(out + 4 * i, &u, 4);
    }
}

/* Decodes a moment to f32 in `out`. The codes are fetched into the last quarter of `out`, which is
 * overwritten from the front only as far as it has been read; scales are fetched some at a time. */
static void fetch_decoded(Backend *be, const LocalShard *k, char *out)
{
    enum { SCALES = 1 << 13 };
    int64_t      all = t_count(k->t), blocks = t_count(k->scale);
    float        scale[SCALES];
    const float *value = moment_map(k->which)->value;
    backend_fetch(be, out + 3 * all, k->t);
    for (int64_t i = 0, had = 0; i < all; i++) {
        int64_t block = (k->lead + i) / MOMENT_BLOCK, left = blocks - had;
        if (block == had) {
            backend_fetch(be, scale, t_rows(k->scale, had, left < SCALES ? left : SCALES));
            had += SCALES;
        }
        float x = value[(uint8_t)out[3 * all + i]] * scale[block % SCALES];
        memcpy(out + 4 * i, &x, 4);
    }
}

static void fetch_shard(Backend *be, const LocalShard *k, void *out)
{
    if (t_has(k->rest)) fetch_joined(be, k, out);
    else if (t_has(k->scale)) fetch_decoded(be, k, out);
    else                backend_fetch(be, out, k->t);
}

Status shards_copy_local(const LocalShards *l, Backend *be, void *host)
{
    backend_copy_sync(be);                             /* waits for state in transfer to the host */
    for (int i = 0; i < l->n; i++) fetch_shard(be, &l->item[i], (char *)host + l->item[i].at);
    return backend_sync(be);
}

/* A whole tensor has its shape in the file; a shard is flat. */
static Status declare_shards(StWriter *w, const LocalShards *l, bool whole)
{
    for (int i = 0; i < l->n; i++) {
        const LocalShard *k = &l->item[i];
        int64_t n = t_count(k->t);
        TRY(st_writer_declare(w, k->name, stored_type(k), whole ? k->rank : 1, whole ? k->shape : &n));
    }
    return OK;
}

/* Checks `stop` between blocks, since a large tensor takes long to write. */
static Status write_bytes(StWriter *w, const char *bytes, size_t n, const int *stop)
{
    for (size_t at = 0, k; at < n; at += k) {
        k = n - at < WRITE_BYTES ? n - at : WRITE_BYTES;
        if (stop && __atomic_load_n(stop, __ATOMIC_ACQUIRE)) return fail(E_COMM, "the run has ended");
        TRY(st_writer_write(w, bytes + at, k));
    }
    return OK;
}

static Status write_tensors(StWriter *w, const LocalShards *l, Backend *be, const void *copy, const int *stop)
{
    void *stage = copy ? NULL : malloc(l->largest + 1);
    Status st = copy || stage ? OK : fail(E_FIT, "no host memory for a tensor of %zu bytes", l->largest);
    if (!copy) backend_copy_sync(be);
    for (int i = 0; i < l->n && !st; i++) {
        const LocalShard *k = &l->item[i];
        if (!copy) {
            fetch_shard(be, k, stage);
            st = backend_sync(be);
        }
        const char *bytes = copy ? (const char *)copy + k->at : stage;
        if (!st) st = write_bytes(w, bytes, stored_bytes(k), stop);
    }
    free(stage);
    return st;
}

static Json *describe(const LocalShards *l, int rank, int ranks)
{
    Json *tensors = json_object();
    for (int i = 0; i < l->n; i++) {
        const LocalShard *k = &l->item[i];
        Json *shape = json_array(), *runs = json_array();
        for (int d = 0; d < k->rank; d++) json_array_append_new(shape, json_integer(k->shape[d]));
        for (int r = 0; r < k->runs; r++)
            json_array_append_new(runs, json_pack("[I, I, I, I]", (json_int_t)k->run[r].at,
                                                  (json_int_t)k->run[r].len, (json_int_t)k->run[r].stride,
                                                  (json_int_t)k->run[r].count));
        json_object_set_new(tensors, k->name, json_pack("{s:o, s:o}", "shape", shape, "runs", runs));
    }
    return json_pack("{s:i, s:i, s:i, s:o}", "format", SHARDS_VERSION, "rank", rank, "ranks", ranks,
                     "tensors", tensors);
}

Status shards_path(Path out, const char *folder, int rank, const char *name)
{
    char below[300];
    snprintf(below, sizeof below, "state/rank-%05d%s%s", rank, *name ? "/" : "", name);
    return path_join(out, folder, below);
}

static Status write_description(const char *folder, const LocalShards *l, int rank, int ranks)
{
    Path path;
    Json *o = describe(l, rank, ranks);
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    Status st = text ? shards_path(path, folder, rank, "runs.json") : fail(E_FIT, "no memory for runs.json");
    if (!st) st = file_write(path, text, strlen(text));
    free(text);
    json_decref(o);
    return st;
}

Status shards_write(const char *folder, const LocalShards *l, int rank, int ranks, Backend *be,
                    const void *copy, const int *stop)
{
    StWriter w;
    Path path;
    if (ranks > 1) TRY(shards_path(path, folder, rank, ""));
    else TRY(path_join(path, folder, "state"));
    TRY(folder_make(path));
    TRY(st_writer_open(&w, path, FILE_BYTES));
    Status st = declare_shards(&w, l, ranks == 1);
    if (!st) st = st_writer_begin(&w);
    if (!st) st = write_tensors(&w, l, be, copy, stop);
    if (!st) st = st_writer_finish(&w);
    st_writer_close(&w);
    return st || ranks == 1 ? st : write_description(folder, l, rank, ranks);
}
