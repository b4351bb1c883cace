/* cli/cmd_parity.c -- `treb parity`: this build against recorded reference tensors.
 *
 * Runs a case's checkpoint, or adapter, on its inputs, forward, backward and a few AdamW steps, compares
 * every tensor with the recorded one by max|a-b| / max|b|, prints the worst of each kind and fails past the
 * tolerance, which --tolerance sets for a machine whose sums run in another order than the reference's. */
#include "cli/commands.h"
#include "cli/parity_case.h"
#include "model/weights.h"
#include "engine/engine.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_VALUES = 8192 };

typedef struct Value {
    char    name[140];
    int     rank;
    int64_t shape[PIECE_DIM];
    float  *data;
    int64_t count;
} Value;

typedef enum {
    K_LOSS,
    K_AUX,
    K_POSITIONS,
    K_VISION,
    K_DEEPSTACK,
    K_ROUTER,
    K_DECODER,
    K_LOGITS,
    K_GRAD,
    K_ABSENT,
    K_STEP_LOSS,
    K_STEP_NORM,
    KIND_N
} Kind;

/* An f32 build is held to what f32 can do; bf16 to its loss, the rest is shown for the reader. */
static const struct { const char *name; double f32, bf16; } kinds[KIND_N] = {
    [K_LOSS]      = { "loss",             1e-6, 2e-2 },
    [K_AUX]       = { "aux loss",         1e-6, 5e-2 },
    [K_POSITIONS] = { "position ids",     0,    0    },
    [K_VISION]    = { "vision output",    1e-5, INFINITY },
    [K_DEEPSTACK] = { "deepstack",        1e-5, INFINITY },
    [K_ROUTER]    = { "router logits",    1e-5, INFINITY },
    [K_DECODER]   = { "decoder layers",   1e-5, INFINITY },
    [K_LOGITS]    = { "logits",           1e-5, INFINITY },
    [K_GRAD]      = { "gradients",        5e-5, INFINITY },
    [K_ABSENT]    = { "absent gradients", 0,    0    },
    [K_STEP_LOSS] = { "AdamW losses",     1e-4, 5e-2 },
    [K_STEP_NORM] = { "AdamW grad norms", 1e-4, INFINITY },
};

typedef struct Row { int64_t compared; double worst; char where[140]; } Row;

typedef struct Parity {
    const char *dtype_name, *tolerance;  /* as the options give them */
    ParityCase  c;
    Engine      e;
    DType       dtype;
    const char *backend, *recompute, *offload, *out;
    int64_t     steps;
    bool        json;
    Value      *value;
    int         values;
    Row         row[KIND_N];
    double      limit[KIND_N];
    Status      trouble;                 /* of a tap, which cannot return one */
} Parity;

/* --- values ------------------------------------------------------------------------------------------ */

static Status value_add(Parity *p, Value **out, const char *name, int rank, const int64_t *shape)
{
    if (p->values == MAX_VALUES) return fail(E_OTHER, "more than %d tensors in a case", MAX_VALUES);
    Value *v = &p->value[p->values];
    *v = (Value){ .rank = rank, .count = 1 };
    snprintf(v->name, sizeof v->name, "%s", name);
    for (int i = 0; i < rank; i++) v->count *= v->shape[i] = shape[i];
    v->data = calloc((size_t)v->count + 1, sizeof *v->data);
    if (!v->data) return fail(E_FIT, "no memory to keep %s", name);
    p->values++;
    return *out = v, OK;
}

/* A dense device tensor as floats. */
static Status fetch_floats(Parity *p, float *out, Tensor t)
{
    void *raw = t.dtype == F32 ? out : malloc((size_t)t_bytes(t) + 1);
    if (!raw) return fail(E_FIT, "no memory to fetch a tensor");
    backend_fetch(&p->e.be, raw, t);
    Status st = backend_sync(&p->e.be);
    if (raw != out) dtype_convert(out, F32, raw, (DType)t.dtype, t_count(t)), free(raw);
    return st;
}

/* Rows of the stream to their places in the padded batch; padded places stay 0. */
static Status add_by_row(Parity *p, const char *name, int rank, Tensor t)
{
    int64_t width = t.n[1], flat[2] = { p->c.B * p->c.S, width }, deep[3] = { p->c.B, p->c.S, width };
    Value *v = NULL;
    float *rows = malloc((size_t)t_count(t) * sizeof *rows + 1);
    Status st = rows ? fetch_floats(p, rows, t) : fail(E_FIT, "no memory for %s", name);
    if (!st) st = value_add(p, &v, name, rank, rank == 2 ? flat : deep);
    for (int64_t i = 0; !st && i < t.n[0]; i++)
        memcpy(v->data + p->c.at[i] * width, rows + i * width, (size_t)width * sizeof *rows);
    free(rows);
    return st;
}

/* The reference runs videos after images and in a call of their own: where there are both, the recorded
 * visual rows are the videos'. */
static Status add_visual(Parity *p, const char *name, Tensor t)
{
    int64_t width = t.n[1], n = p->c.videos ? p->c.videos : p->c.stream.visual, shape[2] = { n, width };
    Value *v = NULL;
    float *rows = malloc((size_t)t_count(t) * sizeof *rows + 1);
    Status st = rows ? fetch_floats(p, rows, t) : fail(E_FIT, "no memory for %s", name);
    if (!st) st = value_add(p, &v, name, 2, shape);
    for (int64_t i = 0, k = 0; !st && i < p->c.stream.visual; i++)
        if (!p->c.videos || p->c.is_video[i])
            memcpy(v->data + k++ * width, rows + i * width, (size_t)width * sizeof *rows);
    free(rows);
    return st;
}

static void watch(void *self, const char *what, int index, Tensor t)
{
    Parity *p = self;
    char name[140];
    Status st = OK;
    if (p->trouble) return;
    if (!strcmp(what, "decoder.out")) {
        snprintf(name, sizeof name, "decoder.%d.out", index);
        st = add_by_row(p, name, 3, t);
    } else if (!strcmp(what, "router.logits")) {
        snprintf(name, sizeof name, "router.%d.logits", index);
        st = add_by_row(p, name, 2, t);
    } else {
        if (index < 0) snprintf(name, sizeof name, "%s", what);
        else           snprintf(name, sizeof name, "%s.%d", what, index);
        st = add_visual(p, name, t);
    }
    p->trouble = st;
}

static Status add_scalar(Parity *p, const char *name, double x)
{
    int64_t one = 1;
    Value *v = NULL;
    TRY(value_add(p, &v, name, 1, &one));
    return v->data[0] = (float)x, OK;
}

static Status add_logits(Parity *p)
{
    int64_t T = engine_batch(&p->e)->T, V = p->c.shape.text.V, shape[3] = { p->c.B, p->c.S, V },
            step = p->e.model.head.chunk;
    Value *v = NULL;
    TRY(value_add(p, &v, "logits", 3, shape));
    float *rows = malloc((size_t)(step < T ? step : T) * (size_t)V * sizeof *rows + 1);
    if (!rows) return fail(E_FIT, "no memory for logits");
    for (int64_t i = 0; i < T; i += step) {
        int64_t k[2] = { T - i < step ? T - i : step, V };
        engine_compute_logits(&p->e, t_wrap(rows, F32, 2, k), i);
        for (int64_t r = 0; r < k[0]; r++)
            memcpy(v->data + p->c.at[i + r] * V, rows + r * V, (size_t)V * sizeof *rows);
    }
    free(rows);
    return backend_sync(&p->e.be);
}

/* The B of experts is (E, out, r) here and (out, r E) in a file, rank-major. */
static Status turn_lora_b(const Param *q, float *x)
{
    int64_t E = q->shape[0], out = q->shape[1], r = q->shape[2], n = E * out * r;
    float *from = malloc((size_t)n * sizeof *from + 1);
    if (!from) return fail(E_FIT, "no memory for %s", q->piece[0].name);
    memcpy(from, x, (size_t)n * sizeof *from);
    for (int64_t e = 0; e < E; e++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t j = 0; j < r; j++) x[(o * r + j) * E + e] = from[(e * out + o) * r + j];
    free(from);
    return OK;
}

/* Under the names of a file: those of modules that are trained whole beside adapters are longer there. */
static Status add_gradient(Parity *p, const Param *q, int k)
{
    static const char peft[] = "base_model.model.";
    const Piece *c = &q->piece[k];
    bool longer = p->c.adapter.conf.rank && strncmp(c->name, peft, sizeof peft - 1);
    char name[140];
    Value *v = NULL;
    snprintf(name, sizeof name, "grad.%s%s", longer ? peft : "", c->name);
    TRY(value_add(p, &v, name, c->rank, c->shape));
    TRY(fetch_floats(p, v->data, weights_piece_view(q, q->shard.g, k)));
    return q->form == FORM_LORA_B ? turn_lora_b(q, v->data) : OK;
}

static Status add_gradients(Parity *p)
{
    for (int i = 0; i < p->e.model.params.n; i++) {
        const Param *q = p->e.model.params.p[i];
        for (int k = 0; q->step.has_grad && k < q->pieces; k++) TRY(add_gradient(p, q, k));
    }
    return OK;
}

/* --- comparison -------------------------------------------------------------------------------------- */

static Kind kind_of(const char *name)
{
    if (!strcmp(name, "loss"))                return K_LOSS;
    if (!strcmp(name, "aux_loss"))            return K_AUX;
    if (!strcmp(name, "logits"))              return K_LOGITS;
    if (!strncmp(name, "grad.", 5))           return K_GRAD;
    if (!strncmp(name, "decoder.", 8))        return K_DECODER;
    if (!strncmp(name, "router.", 7))         return K_ROUTER;
    if (!strcmp(name, "vision.hidden"))       return K_VISION;
    if (!strncmp(name, "vision.deepstack", 16)) return K_DEEPSTACK;
    return KIND_N;
}

static void note(Parity *p, Kind k, double error, const char *where)
{
    Row *r = &p->row[k];
    if (!r->compared++ || !(error <= r->worst)) {
        r->worst = error;
        snprintf(r->where, sizeof r->where, "%s", where);
    }
}

static const Value *value_find(const Parity *p, const char *prefix, const char *name)
{
    char full[200];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    for (int i = 0; i < p->values; i++)
        if (!strcmp(p->value[i].name, full)) return &p->value[i];
    return NULL;
}

/* A recorded tensor as floats; the caller frees it. */
static Status widen(float **out, const StTensor *t)
{
    int64_t n = (int64_t)(t->bytes / dtype_size(t->dtype));
    *out = malloc((size_t)n * sizeof **out + 1);
    if (!*out) return fail(E_FIT, "no memory to compare %s", t->name);
    return dtype_convert(*out, F32, t->data, t->dtype, n), OK;
}

/* Large cases record a sample of each gradient (gradidx.X, gradval.X) and its norm (gradnorm.X). The sample's
 * error is relative to the largest element of ours, which the norm holds to the reference's size. */
static Status compare_sampled(Parity *p, const StTensor *val)
{
    const char *name = val->name + strlen("gradval.");
    char other[200];
    const Value *v = value_find(p, "grad.", name);
    snprintf(other, sizeof other, "gradidx.%s", name);
    const StTensor *idx = st_find(&p->c.expected, other);
    snprintf(other, sizeof other, "gradnorm.%s", name);
    const StTensor *norm = st_find(&p->c.expected, other);
    int64_t n = (int64_t)(val->bytes / dtype_size(val->dtype));
    if (!v || !idx || idx->dtype != I64 || (int64_t)(idx->bytes / 8) != n)
        return note(p, K_GRAD, INFINITY, val->name), OK;
    float *want, whole = 0;
    double diff = 0, big = 0, sum = 0;
    TRY(widen(&want, val));
    for (int64_t i = 0; i < v->count; i++)
        big = fmax(big, fabs(v->data[i])), sum += (double)v->data[i] * v->data[i];
    for (int64_t i = 0; i < n; i++) {
        int64_t at;
        memcpy(&at, (const char *)idx->data + i * 8, 8);
        double d = at >= 0 && at < v->count ? fabs((double)v->data[at] - want[i]) : INFINITY;
        diff = d <= diff ? diff : d;
    }
    free(want);
    note(p, K_GRAD, big > 0 ? diff / big : diff, val->name);
    if (norm) dtype_convert(&whole, F32, norm->data, norm->dtype, 1);
    if (whole > 0) note(p, K_GRAD, fabs(sqrt(sum) - whole) / whole, norm->name);
    return OK;
}

/* Which elements mean something: those of real tokens, where a row of the value is a place in the batch. */
static bool meant(const Parity *p, Kind k, const uint8_t *real, int64_t row)
{
    return (k != K_LOGITS && k != K_DECODER && k != K_ROUTER) || real[row];
}

static Status compare(Parity *p, const StTensor *want, const uint8_t *real)
{
    Kind k = kind_of(want->name);
    if (!strncmp(want->name, "gradval.", 8)) return compare_sampled(p, want);
    if (k == KIND_N) return OK;
    const Value *v = value_find(p, "", want->name);
    int64_t n = (int64_t)(want->bytes / dtype_size(want->dtype));
    float *b;
    if (!v || v->count != n) return note(p, k, INFINITY, want->name), OK; /* not computed, or another shape */
    TRY(widen(&b, want));
    int64_t width = want->rank ? want->shape[want->rank - 1] : 1;
    double diff = 0, big = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!meant(p, k, real, width ? i / width : 0)) continue;
        double d = fabs((double)v->data[i] - b[i]);
        diff = d <= diff ? diff : d;                                         /* NaN gets through */
        big  = fmax(big, fabs(b[i]));
    }
    note(p, k, big > 0 ? diff / big : diff, want->name);
    free(b);
    return OK;
}

/* Parameters that the reference left without a gradient must have none here, and the other way round. */
static void compare_absent(Parity *p)
{
    const Json *list = json_object_get(p->c.info, "no_grad_params"), *e;
    size_t i;
    if (!json_is_array(list)) return;
    int64_t absent = 0;
    for (int k = 0; k < p->e.model.params.n; k++)
        if (!p->e.model.params.p[k]->step.has_grad) absent += p->e.model.params.p[k]->pieces;
    note(p, K_ABSENT, (double)llabs(absent - (int64_t)json_array_size(list)), "count");
    json_array_foreach(list, i, e) {
        char name[140];
        snprintf(name, sizeof name, "grad.%s", json_string_value(e) ? json_string_value(e) : "?");
        for (int k = 0; k < p->values; k++)
            if (!strcmp(p->value[k].name, name)) note(p, K_ABSENT, 1, name);
    }
}

/* Beside an adapter nothing else is trained. */
static void compare_trained(Parity *p)
{
    const char *where = "count";
    double more = 0;
    if (!p->c.adapter.conf.rank || !p->c.has_expected) return;
    for (int i = 0; i < p->values; i++) {
        const char *name = p->value[i].name;
        if (!strncmp(name, "grad.", 5) && !st_find(&p->c.expected, name)) more++, where = name;
    }
    note(p, K_ABSENT, more, where);
}

static Status compare_all(Parity *p)
{
    uint8_t *real = calloc((size_t)(p->c.B * p->c.S) + 1, 1);
    if (!real) return fail(E_FIT, "no memory");
    for (int64_t t = 0; t < p->c.stream.tokens; t++) real[p->c.at[t]] = 1;
    Status st = OK;
    for (int i = 0; !st && i < p->c.expected.count; i++) st = compare(p, &p->c.expected.tensor[i], real);
    free(real);
    if (p->c.stream.patches && st_find(&p->c.inputs, "position_ids"))
        note(p, K_POSITIONS, (double)p->c.wrong_positions, "position_ids");
    compare_absent(p);
    compare_trained(p);
    return st;
}

/* --- the run ----------------------------------------------------------------------------------------- */

static float loss_scale(const Parity *p)
{
    return p->c.stream.supervised ? 1.0f / (float)p->c.stream.supervised : 0.0f;
}

static Status first_pass(Parity *p)
{
    Losses l;
    ValueTap see = { watch, p };
    p->e.env.tap = &see;
    engine_begin_step(&p->e, 1);
    engine_forward(&p->e, loss_scale(p));
    p->e.env.tap = NULL;
    TRY(p->trouble);
    TRY(engine_read_losses(&p->e, &l));
    TRY(add_scalar(p, "loss", l.total));
    if (p->c.shape.text.E && shape_sparse_layers(&p->c.shape.text)) TRY(add_scalar(p, "aux_loss", l.aux));
    TRY(add_logits(p));
    engine_backward(&p->e);
    return add_gradients(p);
}

static void note_step(Parity *p, Kind k, const char *key, int64_t i, double got)
{
    const Json *a = json_object_get(json_object_get(p->c.info, "train"), key),
               *e = json_array_get(a, (size_t)i);
    char where[32];
    if (!json_is_number(e)) return;
    double want = json_number_value(e);
    snprintf(where, sizeof where, "step %lld", (long long)(i + 1));
    note(p, k, fabs(got - want) / fabs(want), where);
}

/* The recorded short training: the same batch again and again; losses and norms are taken before each step.
 */
static Status train_steps(Parity *p)
{
    OptimConf o = {
        .adam = { .lr = 1e-3f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .decay = 0.1f, .max_norm = 1.0f },
        .decay_all = true
    };
    for (int64_t i = 0; i < p->steps; i++) {
        Losses l;
        double norm;
        o.adam.step = i + 1;
        engine_begin_step(&p->e, 1);
        engine_forward(&p->e, loss_scale(p));
        engine_backward(&p->e);
        engine_update(&p->e, &o);
        TRY(engine_read_losses(&p->e, &l));
        TRY(engine_read_grad_norm(&p->e, &norm));
        note_step(p, K_STEP_LOSS, "losses", i, l.total);
        note_step(p, K_STEP_NORM, "grad_norms", i, norm);
        if (!p->json) fprintf(stderr, "step %lld  loss %.6f  grad %.6f\n", (long long)(i + 1), l.total, norm);
    }
    return OK;
}

static Status open_engine(Parity *p)
{
    EngineConf conf = { .backend   = p->backend,
                        .deterministic = true,
                        .dtype     = p->dtype,
                        .budget    = p->c.stream.budget,
                        .aux       = AUX_POOLED,
                        .aux_coeff = (float)p->c.aux_coef,
                        .lora      = p->c.adapter.conf,
                        .train     = true,
                        .logits    = true };
    policy_default(conf.policy);
    TRY(recompute_words(conf.policy, &conf.full, p->recompute));
    TRY(offload_words(conf.policy, p->offload));
    TRY(engine_open(&p->e, &p->c.shape, &conf, &p->c.stream));
    TRY(weights_load(&p->e.model, &p->e.be, &p->c.model, NULL));
    if (conf.lora.rank) TRY(peft_load(&p->c.adapter, &p->e.model, &p->e.be));
    engine_publish_weights(&p->e);
    engine_upload(&p->e, &p->c.stream);
    return OK;
}

static Status write_out(const Parity *p)
{
    StTensor *t = calloc((size_t)p->values + 1, sizeof *t);
    if (!t) return fail(E_FIT, "no memory to write %s", p->out);
    for (int i = 0; i < p->values; i++) {
        const Value *v = &p->value[i];
        t[i] = (StTensor){ .name = v->name, .dtype = F32, .rank = v->rank, .data = v->data,
                           .bytes = (size_t)v->count * sizeof(float) };
        for (int k = 0; k < v->rank; k++) t[i].shape[k] = v->shape[k];
    }
    Status st = st_save(p->out, t, p->values);
    free(t);
    return st;
}

/* --- the report -------------------------------------------------------------------------------------- */

static bool passes(const Parity *p, int k) { return !p->row[k].compared || p->row[k].worst <= p->limit[k]; }

static void print_table(const Parity *p)
{
    printf("%-18s %8s %12s %10s   %s\n", "kind", "tensors", "worst error", "tolerance", "worst at");
    for (int k = 0; k < KIND_N; k++) {
        const Row *r = &p->row[k];
        char tolerance[16] = "-";
        if (!r->compared) continue;
        if (isfinite(p->limit[k])) snprintf(tolerance, sizeof tolerance, "%.0e", p->limit[k]);
        printf("%-18s %8lld %12.2e %10s   %s%s\n", kinds[k].name, (long long)r->compared, r->worst, tolerance,
               r->where, passes(p, k) ? "" : "   <-- past the tolerance");
    }
}

static void print_json(const Parity *p, const char *dir, bool ok)
{
    Json *o = json_object(), *rows = json_object();
    for (int k = 0; k < KIND_N; k++) {
        const Row *r = &p->row[k];
        if (!r->compared) continue;
        Json *x = json_pack("{s:I, s:s, s:b}", "tensors", (json_int_t)r->compared, "worst_at", r->where, "ok",
                            passes(p, k));
        json_object_set_new(x, "worst", isfinite(r->worst) ? json_real(r->worst) : json_null());
        json_object_set_new(x, "tolerance", isfinite(p->limit[k]) ? json_real(p->limit[k]) : json_null());
        json_object_set_new(rows, kinds[k].name, x);
    }
    json_object_set_new(o, "case", json_string(dir));
    json_object_set_new(o, "backend", json_string(p->backend));
    json_object_set_new(o, "dtype", json_string(dtype_name(p->dtype)));
    json_object_set_new(o, "kinds", rows);
    json_object_set_new(o, "ok", json_boolean(ok));
    json_dumpf(o, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(o);
}

static Status report(const Parity *p, const char *dir)
{
    bool ok = true;
    int compared = 0;
    for (int k = 0; k < KIND_N; k++) ok &= passes(p, k), compared += p->row[k].compared > 0;
    if (p->json) print_json(p, dir, ok);
    else         print_table(p);
    if (!compared && !p->out)
        return fail(E_DATA, "%s: nothing was recorded to compare with (expected.safetensors)", dir);
    return ok ? OK : fail(E_CHECK, "%s: past the tolerance", dir);
}

static Status run(Parity *p, const char *dir)
{
    TRY(parity_case_open(&p->c, dir));
    if (p->steps < 0)
        p->steps = (int64_t)json_array_size(json_object_get(json_object_get(p->c.info, "train"), "losses"));
    TRY(open_engine(p));
    TRY(first_pass(p));
    TRY(compare_all(p));
    TRY(train_steps(p));
    if (p->out) TRY(write_out(p));
    return report(p, dir);
}

static Status set_limit(Parity *p, const char *word)
{
    const char *is = strchr(word, '=');
    char known[256] = "";
    for (int k = 0; k < KIND_N; k++) {
        size_t at = strlen(known), n = strlen(kinds[k].name);
        if (is && (size_t)(is - word) == n && !strncmp(word, kinds[k].name, n))
            return option_real("--tolerance", is + 1, 0, 1e9, &p->limit[k]);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", kinds[k].name);
    }
    return fail(E_CONFIG, "--tolerance %.60s: KIND=ERROR is wanted; kinds are %s", word, known);
}

static Status set_limits(Parity *p, const char *list)
{
    char words[512], *save = NULL;
    for (int k = 0; k < KIND_N; k++) p->limit[k] = p->dtype == F32 ? kinds[k].f32 : kinds[k].bf16;
    snprintf(words, sizeof words, "%s", list ? list : "");
    for (char *w = strtok_r(words, ",", &save); w; w = strtok_r(NULL, ",", &save)) TRY(set_limit(p, w));
    return OK;
}

static const Option options[] = {
    OPTION_TEXT(Parity, backend, "--backend", "NAME", "cpu, cuda; cpu unless given"),
    OPTION_TEXT(Parity, dtype_name, "--dtype", "f32|bf16", "of weights and activations; f32"),
    OPTION_INT(Parity, steps, "--steps", "N", 0, 1000000, "AdamW steps to compare; as many as were recorded"),
    OPTION_TEXT(Parity, recompute, "--recompute", "WORDS", "as memory.recompute, by commas"),
    OPTION_TEXT(Parity, offload, "--offload", "WORDS", "as memory.activation_offload, by commas"),
    OPTION_TEXT(Parity, tolerance, "--tolerance", "KIND=ERROR,...",
                "allowed error by kind, as the table prints them: loss=1e-5,gradients=1e-4"),
    OPTION_TEXT(Parity, out, "--out", "FILE", "write this build's tensors as safetensors"),
    OPTION_FLAG(Parity, json, "--json", "print the table as JSON"),
    OPTION_END
};

static Status compare_case(Parity *p, const char *dir)
{
    TRY(dtype_parse(&p->dtype, p->dtype_name));
    if (p->dtype != F32 && p->dtype != BF16) return fail(E_CONFIG, "--dtype %s: f32 or bf16", p->dtype_name);
    TRY(set_limits(p, p->tolerance));
    p->value = calloc(MAX_VALUES, sizeof *p->value);
    if (!p->value) return fail(E_FIT, "no memory for the values of a case");
    Status st = run(p, dir);
    for (int i = 0; i < p->values; i++) free(p->value[i].data);
    free(p->value);
    engine_close(&p->e);
    parity_case_close(&p->c);
    return st;
}

static Status cmd_parity(int argc, char **argv)
{
    Parity    p = { .backend = "cpu", .dtype_name = "f32", .steps = -1 };
    PlainArgs dir = { .least = 1, .most = 1 };
    TRY(options_parse(argc, argv, options, &p, &dir));
    Status st = compare_case(&p, dir.value[0]);
    plain_args_close(&dir);
    return st;
}

static const Usage usage = {
    .args    = "CASE",
    .options = options,
    .notes   = "CASE is a folder of recorded tensors, of a model or of an adapter on one. The exit code is "
               "7 when a tensor differs by more than its tolerance.",
};

const Command command_parity = {
    .name     = "parity",
    .help     = "this build against recorded reference tensors",
    .run      = cmd_parity,
    .usage    = USAGE(&usage),
};
