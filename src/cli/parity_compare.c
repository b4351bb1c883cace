/* cli/parity_compare.c -- the values of this build against the recorded ones. */
#include "cli/parity.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static ParityKind kind_of_value(const char *name)
{
    if (!strcmp(name, "loss") || !strcmp(name, "main_loss") || !strcmp(name, "mtp_loss")) return PARITY_LOSS;
    if (!strcmp(name, "aux_loss"))            return PARITY_AUX;
    if (!strcmp(name, "logits"))              return PARITY_LOGITS;
    if (!strncmp(name, "grad.", 5))           return PARITY_GRAD;
    if (!strncmp(name, "decoder.", 8))        return PARITY_DECODER;
    if (!strncmp(name, "router.", 7))         return PARITY_ROUTER;
    if (!strcmp(name, "vision.hidden"))       return PARITY_VISION;
    if (!strncmp(name, "vision.deepstack", 16)) return PARITY_DEEPSTACK;
    return PARITY_KINDS;
}

void parity_record(Parity *p, ParityKind k, double error, const char *where)
{
    ParityRow *r = &p->row[k];
    if (!r->compared++ || !(error <= r->worst)) {
        r->worst = error;
        snprintf(r->where, sizeof r->where, "%s", where);
    }
}

static const ParityValue *value_find(const Parity *p, const char *prefix, const char *name)
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
    const ParityValue *v = value_find(p, "grad.", name);
    snprintf(other, sizeof other, "gradidx.%s", name);
    const StTensor *idx = st_find(&p->c.expected, other);
    snprintf(other, sizeof other, "gradnorm.%s", name);
    const StTensor *norm = st_find(&p->c.expected, other);
    int64_t n = (int64_t)(val->bytes / dtype_size(val->dtype));
    if (!v || !idx || idx->dtype != I64 || (int64_t)(idx->bytes / 8) != n)
        return parity_record(p, PARITY_GRAD, INFINITY, val->name), OK;
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
    parity_record(p, PARITY_GRAD, big > 0 ? diff / big : diff, val->name);
    if (norm) dtype_convert(&whole, F32, norm->data, norm->dtype, 1);
    if (whole > 0) parity_record(p, PARITY_GRAD, fabs(sqrt(sum) - whole) / whole, norm->name);
    return OK;
}

/* Which elements mean something: those of real tokens, where a row of the value is a place in the batch. */
static bool is_real_token(const Parity *p, ParityKind k, const uint8_t *real, int64_t row)
{
    return (k != PARITY_LOGITS && k != PARITY_DECODER && k != PARITY_ROUTER) || real[row];
}

/* A gradient that is 0 but for rounding has digits of noise in both: that of a router whose one expert for a
 * token always has the weight 1. It is compared beside the largest gradient. */
static const double zero_gradient = 1e-7;

static double scale_of(const Parity *p, ParityKind k, double big)
{
    return k == PARITY_GRAD && big <= zero_gradient * p->top_gradient ? p->top_gradient : big;
}

static void find_top_gradient(Parity *p)
{
    for (int i = 0; i < p->values; i++)
        for (int64_t j = 0; !strncmp(p->value[i].name, "grad.", 5) && j < p->value[i].count; j++)
            p->top_gradient = fmax(p->top_gradient, fabs((double)p->value[i].data[j]));
}

static Status compare(Parity *p, const StTensor *want, const uint8_t *real)
{
    ParityKind k = kind_of_value(want->name);
    if (!strncmp(want->name, "gradval.", 8)) return compare_sampled(p, want);
    if (k == PARITY_KINDS) return OK;
    const ParityValue *v = value_find(p, "", want->name);
    int64_t n = (int64_t)(want->bytes / dtype_size(want->dtype));
    float *b;
    if (!v || v->count != n)
        return parity_record(p, k, INFINITY, want->name), OK; /* not computed, or another shape */
    TRY(widen(&b, want));
    int64_t width = want->rank ? want->shape[want->rank - 1] : 1;
    double diff = 0, big = 0;
    for (int64_t i = 0; i < n; i++) {
        if (!is_real_token(p, k, real, width ? i / width : 0)) continue;
        double d = fabs((double)v->data[i] - b[i]);
        diff = d <= diff ? diff : d;                                         /* NaN gets through */
        big  = fmax(big, fabs(b[i]));
    }
    double scale = scale_of(p, k, big);
    parity_record(p, k, scale > 0 ? diff / scale : diff, want->name);
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
    for (int k = 0; k < p->e.model.params.n; k++) {
        const Param *q = p->e.model.params.p[k];
        if (!q->step.has_grad && !q->buffer) absent += q->pieces;
    }
    parity_record(p, PARITY_ABSENT, (double)llabs(absent - (int64_t)json_array_size(list)), "count");
    json_array_foreach(list, i, e) {
        char name[140];
        snprintf(name, sizeof name, "grad.%s", json_string_value(e) ? json_string_value(e) : "?");
        for (int k = 0; k < p->values; k++)
            if (!strcmp(p->value[k].name, name)) parity_record(p, PARITY_ABSENT, 1, name);
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
    parity_record(p, PARITY_ABSENT, more, where);
}

Status parity_compare(Parity *p)
{
    uint8_t *real = calloc((size_t)(p->c.B * p->c.S) + 1, 1);
    if (!real) return fail(E_FIT, "no memory");
    for (int64_t t = 0; t < p->c.stream.tokens; t++) real[p->c.at[t]] = 1;
    find_top_gradient(p);
    Status st = OK;
    for (int i = 0; !st && i < p->c.expected.count; i++) st = compare(p, &p->c.expected.tensor[i], real);
    free(real);
    if (p->c.stream.patches && st_find(&p->c.inputs, "position_ids"))
        parity_record(p, PARITY_POSITIONS, (double)p->c.wrong_positions, "position_ids");
    compare_absent(p);
    compare_trained(p);
    return st;
}
