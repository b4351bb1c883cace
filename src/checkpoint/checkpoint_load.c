/* checkpoint/checkpoint_load.c -- loads weights and moments from the state of a checkpoint of any layout; see
 * shards.h. A rank reads only the elements it holds, but checks the names and shapes of the whole model. */
#include "checkpoint/checkpoint_private.h"

#include "model/code_stage.h"
#include "model/fp8_stage.h"
#include "model/peft.h"
#include "checkpoint/base_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void stored_name(char out[160], const char *prefix, const Piece *q)
{
    snprintf(out, 160, "%s.%s", prefix, q->name);
}

static Status report_absent(const Shards *s, const char *prefix, const Piece *q)
{
    char other[160];
    const StoredShard *x;
    bool frozen = prefix[0] == 'w';
    stored_name(other, frozen ? "master" : "w", q);
    if (shards_find(s, other, &x))
        return fail(
            E_CONFIG,
            "%s was %s when this checkpoint was saved, and is %s now; set model.freeze_* to the former "
            "values, or start a new run from it with model.path",
            q->name, frozen ? "trained" : "frozen", frozen ? "frozen" : "trained");
    return fail(E_DATA, "%s.%s is not in the checkpoint, which is of another model; check model.path and "
                "model.preset", prefix, q->name);
}

static Status check_one(const Shards *s, const char *prefix, const Piece *q)
{
    char name[160];
    const StoredShard *x;
    stored_name(name, prefix, q);
    int n = shards_find(s, name, &x);
    if (!n) return report_absent(s, prefix, q);
    for (int i = 0; i < n; i++) {
        bool same = x[i].rank == q->rank;
        for (int d = 0; same && d < q->rank; d++) same = x[i].shape[d] == q->shape[d];
        if (!same)
            return fail(E_DATA, "%s: its shape in the checkpoint is not the model's; check model.path and "
                        "model.preset", name);
        DType d = x[i].t->dtype;
        bool  moment = !strcmp(prefix, "m") || !strcmp(prefix, "v");
        if (prefix[0] != 'w' && d != F32 && !(moment && d == BF16))
            return fail(E_DATA, "%s is stored as %s instead of f32%s; the checkpoint is damaged, use another",
                        name, dtype_name(d), moment ? " or bf16" : "");
    }
    return OK;
}

static const char *const prefixes[] = { "w", "master", "m", "v" };

/* The checkpoint has every tensor of the whole model, and no others. */
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
    if (s->names == names) return OK;
    return fail(E_DATA, "it has %d tensors more than the model; check model.path and model.preset",
                s->names - names);
}

static Status check_whole_model(const Shards *s, const Model *part)
{
    Model whole;
    TRY(model_open_whole_of(&whole, part));
    Status st = check_names(s, &whole);
    model_close(&whole);
    return st;
}

/* Reads the part of the parameter that h describes. */
static Status read_view(const Shards *s, Backend *be, const Param *p, const char *prefix, ShardView h)
{
    Sink out;
    Status st = OK;
    if (!h.n) return OK;
    TRY(sink_open_view(&out, be, h));
    for (int i = 0; i < p->pieces && !st; i++) {
        StridedRange c[SHARD_VIEW_RANGES];
        char name[160];
        int  n;
        const StridedRange *of = piece_ranges(p, i, &n);
        n = ranges_clip(c, of, n, h.at, h.n);
        for (int k = 0; k < n; k++) c[k].at -= piece_at(p, i);
        stored_name(name, prefix, &p->piece[i]);
        st = shards_read(s, name, c, n, &out);
    }
    if (!st) sink_zero_padding(&out, p, h);
    Status done = sink_close(&out);
    return st ? st : done;
}

/* Frozen weights are stored in their type in memory: in another type the run would not
 * continue bit for bit. */
static Status read_frozen(const Shards *s, Backend *be, const Param *p)
{
    const StoredShard *x;
    char name[160];
    ShardView w = param_weight_view(p);
    for (int i = 0; i < p->pieces; i++) {
        stored_name(name, "w", &p->piece[i]);
        int n = shards_find(s, name, &x);
        for (int k = 0; k < n; k++)
            if (x[k].t->dtype != (DType)p->shard.w.dtype)
                return fail(E_CONFIG, "%s was saved as %s and model.dtype is now %s; set the former value",
                            name, dtype_name(x[k].t->dtype), dtype_name((DType)p->shard.w.dtype));
    }
    return read_view(s, be, p, "w", w);
}

static Status put_all(Backend *be, Tensor t, const void *x)
{
    Sink out;
    TRY(sink_open(&out, be, t));
    sink_put(&out, x, (DType)t.dtype, t_count(t));
    return sink_close(&out);
}

/* Codes the elements x of a moment, which begin a block. */
static Status put_codes(Backend *be, Tensor t, Tensor scale, Moment which, const float *x)
{
    int64_t  n = t_count(t);
    uint8_t *code = malloc((size_t)n + 1);
    float   *of = malloc((size_t)t_bytes(scale) + 1);
    Status   st = code && of ? OK : fail(E_FIT, "no host memory to code %lld moments", (long long)n);
    if (!st) {
        moments_encode(code, of, which, x, n);
        st = put_all(be, t, code);
    }
    if (!st) st = put_all(be, scale, of);
    free(code), free(of);
    return st;
}

/* A moment in f32, bf16, or coded from f32. */
static Status read_moment(const Shards *s, Backend *be, const Param *p, Moment which, Tensor t, Tensor scale)
{
    const char *prefix = which == MOMENT_FIRST ? "m" : "v";
    ShardView   h = param_state_view(p, t);
    if (!t_has(scale) || !h.n) return read_view(s, be, p, prefix, h);
    float *x = calloc((size_t)h.n, sizeof *x);
    if (!x) return fail(E_FIT, "no host memory for %lld moments", (long long)h.n);
    ShardView wide = { .t = t_wrap(x, F32, 1, &h.n), .at = h.at, .n = h.n };
    Status    st = read_view(s, NULL, p, prefix, wide);
    if (!st) st = put_codes(be, t, scale, which, x);
    free(x);
    return st;
}

static Status read_param(const Shards *s, Backend *be, const Param *p, bool frozen)
{
    ShardView w = param_weight_view(p), own = param_load_view(p);
    if (frozen) return read_frozen(s, be, p);
    bool same = own.n && own.at == w.at && own.n == w.n;
    if (!same) TRY(read_view(s, be, p, "master", w));
    TRY(read_view(s, be, p, "master", own));
    if (same && !loads_weight(own, w)) op_copy(be, w.t, own.t);
    TRY(read_moment(s, be, p, MOMENT_FIRST, p->shard.m, p->shard.m_scale));
    return read_moment(s, be, p, MOMENT_SECOND, p->shard.v, p->shard.v_scale);
}

Status checkpoint_check_kind(const char *path, bool adapters)
{
    if (adapters == checkpoint_has_lora(path)) return OK;
    if (adapters)
        return fail(E_CONFIG,
                    "%s is a checkpoint of a run without adapters, and lora.* asks for adapters; set "
                    "lora.rank=0 and no lora.path to resume it, or convert it (treb convert) and train "
                    "adapters on it with model.path", path);
    return fail(E_CONFIG, "%s is a checkpoint of a run with adapters, and lora.rank is 0; set lora.* to the "
                "former values to resume it, or merge it (treb convert --merge) and start from that with "
                "model.path",
                path);
}

static Status check_state(const char *path, const Model *whole)
{
    Shards s;
    TRY(shards_open(&s, path));
    Status st = check_names(&s, whole);
    shards_close(&s);
    return st;
}

Status checkpoint_check_resume(const char *path, const ModelShape *s, const bool *frozen,
                               const LoraConf *lora, const Json *base)
{
    CheckpointLora was = { 0 };
    Model m = { 0 };
    TRY(checkpoint_check_kind(path, lora->rank));
    Status st = model_open_whole(&m, s, frozen, lora);
    if (!st && m.lora) st = checkpoint_lora_open(&was, path);
    if (!st && m.lora) st = base_model_check(was.base, base);
    if (!st && m.lora) st = checkpoint_lora_check(&was, &m);
    if (!st) st = check_state(path, &m);
    checkpoint_lora_close(&was);
    model_close(&m);
    return st ? wrap(st, "%s", path) : OK;
}

Status checkpoint_load(const char *path, Model *m, Backend *be)
{
    Shards s = { 0 };
    TRY(checkpoint_check_kind(path, m->lora));
    Status st = shards_open(&s, path);
    if (!st) st = check_whole_model(&s, m);
    for (int i = 0; i < m->params.n && !st; i++) {
        const Param *p = m->params.p[i];
        if (!shards_excludes(m, p)) st = read_param(&s, be, p, p->frozen);
    }
    if (!st) st = backend_sync(be);                       /* uploads finish before the files are unmapped */
    shards_close(&s);
    return st ? wrap(st, "%s", path) : OK;
}

/* Where a weight's values are: "master", or "w" if the run had it frozen. */
static const char *weight_prefix(const Shards *s, const Piece *q)
{
    const StoredShard *x;
    char name[160];
    stored_name(name, "w", q);
    return shards_find(s, name, &x) ? "w" : "master";
}

static Status check_weight_shapes(const Shards *s, const Param *p)
{
    const char *prefix = weight_prefix(s, &p->piece[0]);
    for (int i = 0; i < p->pieces; i++) TRY(check_one(s, prefix, &p->piece[i]));
    return OK;
}

static Status read_weights(const Shards *s, Backend *be, const Param *p)
{
    const char *prefix = weight_prefix(s, &p->piece[0]);
    TRY(check_weight_shapes(s, p));
    ShardView w = param_weight_view(p), own = param_load_view(p);
    if (!loads_weight(own, w)) TRY(read_view(s, be, p, prefix, w));
    return read_view(s, be, p, prefix, own);
}

/* Adapters are not in the checkpoint. */
Status checkpoint_load_weights(const char *path, Model *m, Backend *be)
{
    Shards s  = { 0 };
    Status st = shards_open(&s, path);
    for (int i = 0; i < m->params.n && !st; i++) {
        if (fp8_stage_takes(m->params.p[i]) || code_stage_takes(m->params.p[i]))
            st = fail(E_CONFIG,
                      "a model kept in fewer bits is read in HF form; convert it first: treb convert "
                      "%s FOLDER",
                      path);
        else if (!m->params.p[i]->adapter_of) st = read_weights(&s, be, m->params.p[i]);
    }
    if (!st) st = backend_sync(be);
    shards_close(&s);
    return st ? wrap(st, "%s", path) : OK;
}

static bool is_adapter(const Model *m, const Param *p) { return p->adapter_of || lora_trains_in_full(m, p); }

Status checkpoint_lora_check_shapes(const char *path, const Model *m)
{
    Shards s = { 0 };
    Status st = shards_open(&s, path);
    for (int i = 0; i < m->params.n && !st; i++)
        if (is_adapter(m, m->params.p[i])) st = check_weight_shapes(&s, m->params.p[i]);
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

/* Rounds as the optimizer does. The result is a bf16 value, which the conversion on
 * writing leaves unchanged. */
static void round_masters(Tensor w)
{
    uint32_t *u = w.data;
    for (int64_t i = 0; i < t_count(w); i++) u[i] = (uint32_t)bits_near(bits_quiet(u[i])) << 16;
}

Status checkpoint_weights_fill(void *self, Model *m, Backend *be, int i)
{
    const CheckpointWeights *a = self;
    const Param *p = m->params.p[i];
    const char *prefix = weight_prefix(&a->s, &p->piece[0]);
    REQUIRE(be->device->host_memory, "a model is assembled in host memory");
    TRY(read_view(&a->s, be, p, prefix, param_weight_view(p)));
    if (*prefix == 'm' && a->dtype == BF16) round_masters(p->shard.w);
    return OK;
}

/* Accepts frozen and trained parameters alike. */
static Status check_weights(const Shards *s, const Model *m)
{
    for (int i = 0; i < m->params.n; i++)
        for (int q = 0; q < m->params.p[i]->pieces; q++) {
            const Piece *piece = &m->params.p[i]->piece[q];
            TRY(check_one(s, weight_prefix(s, piece), piece));
        }
    return OK;
}

Status checkpoint_assemble(const char *path, Model *m, Backend *be, const char *dir, DType dtype,
                           int64_t max_shard, Meter *meter)
{
    CheckpointWeights a = { .dtype = dtype };
    ParamSource       from = { checkpoint_weights_fill, &a, meter };
    Status st = shards_open(&a.s, path);
    if (!st) st = check_weights(&a.s, m);
    if (!st) st = weights_assemble(m, be, from, dir, dtype, max_shard);
    shards_close(&a.s);
    return st ? wrap(st, "%s", path) : OK;
}
