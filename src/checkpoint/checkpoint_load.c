/* checkpoint/checkpoint_load.c -- weights and moments from the state of a checkpoint of any layout; see shards.h.
 *
 * A rank asks for the elements that it holds and reads no others. The names are those of the whole model,
 * whatever this rank has of it. */
#include "checkpoint/checkpoint_private.h"

#include "model/peft.h"
#include "checkpoint/base_model.h"

#include <stdio.h>
#include <string.h>

static void name_in(char out[160], const char *prefix, const Piece *q)
{
    snprintf(out, 160, "%s.%s", prefix, q->name);
}

static Status absent(const Shards *s, const char *prefix, const Piece *q)
{
    char other[160];
    const StoredShard *x;
    bool frozen = prefix[0] == 'w';
    name_in(other, frozen ? "master" : "w", q);
    if (shards_find(s, other, &x))
        return fail(
            E_CONFIG,
            "%s was %s when this was saved: set model.freeze_* as they were, or start from it as model.path",
            q->name, frozen ? "trained" : "frozen");
    return fail(E_DATA, "%s.%s: not in the checkpoint; is it of another model?", prefix, q->name);
}

static Status check_one(const Shards *s, const char *prefix, const Piece *q)
{
    char name[160];
    const StoredShard *x;
    name_in(name, prefix, q);
    int n = shards_find(s, name, &x);
    if (!n) return absent(s, prefix, q);
    for (int i = 0; i < n; i++) {
        bool same = x[i].rank == q->rank;
        for (int d = 0; same && d < q->rank; d++) same = x[i].shape[d] == q->shape[d];
        if (!same) return fail(E_DATA, "%s: its shape in the checkpoint is not the model's", name);
        DType d = x[i].t->dtype;
        bool  moment = !strcmp(prefix, "m") || !strcmp(prefix, "v");
        if (prefix[0] != 'w' && d != F32 && !(moment && d == BF16))
            return fail(E_DATA, "%s: stored as %s, not as f32%s", name, dtype_name(d),
                        moment ? " or bf16" : "");
    }
    return OK;
}

static const char *const prefixes[] = { "w", "master", "m", "v" };

/* Every tensor of the whole model is there, and no other. */
static Status check_names(const Shards *s, const Model *whole)
{
    int names = 0;
    for (int i = 0; i < whole->params.n; i++) {
        const Param *p = whole->params.p[i];
        bool frozen = p->frozen;
        if (shards_excludes(whole, p)) continue;
        for (int k = frozen ? 0 : 1; k < (frozen ? 1 : 4); k++)
            for (int q = 0; q < p->pieces; q++, names++) TRY(check_one(s, prefixes[k], &p->piece[q]));
    }
    return s->names == names ? OK : fail(E_DATA, "%d tensors that the model does not have; is it of another "
                                         "model?", s->names - names);
}

static Status check_whole(const Shards *s, const Model *part)
{
    Model whole;
    TRY(model_open_whole(&whole, part));
    Status st = check_names(s, &whole);
    model_close(&whole);
    return st;
}

static Status read_held(const Shards *s, Backend *be, const Param *p, const char *prefix, ShardView h)
{
    Sink out;
    Status st = OK;
    if (!h.n) return OK;
    TRY(sink_open(&out, be, h.t));
    for (int i = 0; i < p->pieces && !st; i++) {
        StridedRange c[3];
        char name[160];
        int n = ranges_clip(c, &p->shard.range[i], 1, h.at, h.n);
        for (int k = 0; k < n; k++) c[k].at -= piece_at(p, i);
        name_in(name, prefix, &p->piece[i]);
        st = shards_read(s, name, c, n, &out);
    }
    if (!st) sink_zero_padding(&out, p, h);
    Status done = sink_close(&out);
    return st ? st : done;
}

/* Frozen weights are taken as they were held; a run in another type would not go on as it was. */
static Status read_frozen(const Shards *s, Backend *be, const Param *p)
{
    const StoredShard *x;
    char name[160];
    ShardView w = param_weight_view(p);
    for (int i = 0; i < p->pieces; i++) {
        name_in(name, "w", &p->piece[i]);
        int n = shards_find(s, name, &x);
        for (int k = 0; k < n; k++)
            if (x[k].t->dtype != (DType)p->shard.w.dtype)
                return fail(E_CONFIG, "%s: saved as %s, wanted as %s; set model.dtype as it was", name,
                            dtype_name(x[k].t->dtype), dtype_name((DType)p->shard.w.dtype));
    }
    return read_held(s, be, p, "w", w);
}

static Status read_param(const Shards *s, Backend *be, const Param *p, bool frozen)
{
    ShardView w = param_weight_view(p), own = param_load_view(p);
    if (frozen) return read_frozen(s, be, p);
    TRY(read_held(s, be, p, "master", own));
    if (own.n && own.at == w.at && own.n == w.n) op_copy(be, w.t, own.t);
    else TRY(read_held(s, be, p, "master", w));
    TRY(read_held(s, be, p, "m", param_state_view(p, p->shard.m)));
    return read_held(s, be, p, "v", param_state_view(p, p->shard.v));
}

Status checkpoint_check_kind(const char *path, bool adapters)
{
    if (adapters == checkpoint_has_lora(path)) return OK;
    if (adapters)
        return fail(E_CONFIG,
                    "%s: it is of a run without adapters, and lora.* asks for some: set lora.rank=0 (and no "
                    "lora.path) to go on with it, or begin another run beside its model (treb convert, then "
                    "model.path)", path);
    return fail(E_CONFIG, "%s: it is of a run with adapters, and lora.rank is 0: set lora.* as they were to "
                "go on with it, or merge it (treb convert --merge) and start from that with model.path",
                path);
}

/* Shards that are as the whole model m is, opened as the run will be. */
static Status look_through(const char *path, const Model *m)
{
    Shards s;
    TRY(shards_open(&s, path));
    Status st = check_names(&s, m);
    shards_close(&s);
    return st;
}

Status checkpoint_check_resume(const char *path, const ModelShape *s, const bool *frozen, const LoraConf *lora,
                        const Json *base)
{
    const Chunk all = { 0, s->text.L, true, true };
    CheckpointLora was = { 0 };
    Model m = { 0 };
    TRY(checkpoint_check_kind(path, lora->rank));
    Status st = model_open_part(&m, s, frozen, lora, NULL, &all, 1);
    if (!st && m.lora) st = checkpoint_lora_open(&was, path);
    if (!st && m.lora) st = base_model_check(was.base, base);
    if (!st && m.lora) st = checkpoint_lora_check(&was, &m);
    if (!st) st = look_through(path, &m);
    checkpoint_lora_close(&was);
    model_close(&m);
    return st ? wrap(st, "%s", path) : OK;
}

Status checkpoint_load(const char *path, Model *m, Backend *be)
{
    Shards s = { 0 };
    TRY(checkpoint_check_kind(path, m->lora));
    Status st = shards_open(&s, path);
    if (!st) st = check_whole(&s, m);
    for (int i = 0; i < m->params.n && !st; i++)
        if (!shards_excludes(m, m->params.p[i])) st = read_param(&s, be, m->params.p[i], m->params.p[i]->frozen);
    if (!st) st = backend_sync(be);                       /* uploads are done before the files are unmapped */
    shards_close(&s);
    return st ? wrap(st, "%s", path) : OK;
}

/* A weight is its master, or itself where the run had it frozen. */
static const char *prefix_of(const Shards *s, const Piece *q)
{
    const StoredShard *x;
    char name[160];
    name_in(name, "w", q);
    return shards_find(s, name, &x) ? "w" : "master";
}

/* Weights alone; the names of a model that was opened with these adapters are those of the state. */
static Status look_weights(const Shards *s, const Param *p)
{
    const char *prefix = prefix_of(s, &p->piece[0]);
    for (int i = 0; i < p->pieces; i++) TRY(check_one(s, prefix, &p->piece[i]));
    return OK;
}

static Status read_weights(const Shards *s, Backend *be, const Param *p)
{
    const char *prefix = prefix_of(s, &p->piece[0]);
    TRY(look_weights(s, p));
    TRY(read_held(s, be, p, prefix, param_load_view(p)));
    return read_held(s, be, p, prefix, param_weight_view(p));
}

static bool is_adapter(const Model *m, const Param *p) { return p->adapter_of || lora_trains_in_full(m, p); }

Status checkpoint_lora_check_shapes(const char *path, const Model *m)
{
    Shards s = { 0 };
    Status st = shards_open(&s, path);
    for (int i = 0; i < m->params.n && !st; i++)
        if (is_adapter(m, m->params.p[i])) st = look_weights(&s, m->params.p[i]);
    shards_close(&s);
    return st ? wrap(st, "%s", path) : OK;
}

Status checkpoint_lora_load(const char *path, Model *m, Backend *be)
{
    Shards s;
    Status st = shards_open(&s, path);
    for (int i = 0; i < m->params.n && !st; i++)
        if (is_adapter(m, m->params.p[i])) st = read_weights(&s, be, m->params.p[i]);
    if (!st) st = backend_sync(be);
    shards_close(&s);
    return st;
}

/* A weight is its master as the optimizer rounds it, which no other rounding then changes. */
static void round_masters(Tensor w)
{
    uint32_t *u = w.data;
    for (int64_t i = 0; i < t_count(w); i++) u[i] = (uint32_t)bits_near(bits_quiet(u[i])) << 16;
}

Status checkpoint_weights_fill(void *self, Model *m, Backend *be, int i)
{
    const CheckpointWeights *a = self;
    const Param *p = m->params.p[i];
    const char *prefix = prefix_of(&a->s, &p->piece[0]);
    REQUIRE(be->device->host_memory, "a model is assembled in host memory");
    TRY(read_held(&a->s, be, p, prefix, param_weight_view(p)));
    if (*prefix == 'm' && a->dtype == BF16) round_masters(p->shard.w);
    return OK;
}

/* What trained is not known here and does not matter. */
static Status check_weights(const Shards *s, const Model *m)
{
    for (int i = 0; i < m->params.n; i++)
        for (int q = 0; q < m->params.p[i]->pieces; q++) {
            const Piece *piece = &m->params.p[i]->piece[q];
            TRY(check_one(s, prefix_of(s, piece), piece));
        }
    return OK;
}

Status checkpoint_assemble(const char *path, Model *m, Backend *be, const char *dir, DType dtype,
                           int64_t max_shard)
{
    CheckpointWeights a = { .dtype = dtype };
    Status st = shards_open(&a.s, path);
    if (!st) st = check_weights(&a.s, m);
    if (!st) st = weights_assemble(m, be, (ParamSource){ checkpoint_weights_fill, &a }, dir, dtype, max_shard);
    shards_close(&a.s);
    return st ? wrap(st, "%s", path) : OK;
}
