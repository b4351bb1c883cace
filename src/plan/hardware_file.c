/* plan/hardware_file.c -- `this`: the measurements of `treb bench calibrate`, as a JSON file. A file is
 * accepted as a whole or not at all; the error names the field. */
#include "plan/hardware.h"

#include "base/file_version.h"
#include "base/folder.h"
#include "base/json.h"
#include "ops/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers by JSON key, which is the field's name: offset in Hardware, and bounds. */
typedef struct HardwareField { const char *name; size_t at; double lo, hi; } HardwareField;

#define HW_NUMBER(field, lo, hi) { #field, offsetof(Hardware, field), lo, hi }
static const HardwareField fields[] = {
    HW_NUMBER(bf16, 1e6, 1e18),
    HW_NUMBER(fp8, 0, 1e18),
    HW_NUMBER(fp4, 0, 1e18),
    HW_NUMBER(fp8_share, 0, 1),
    HW_NUMBER(fp4_share, 0, 1),
    HW_NUMBER(capacity, 1e6, 1e15),
    HW_NUMBER(memory_bw, 1e6, 1e15),
    HW_NUMBER(intra_bw, 1e3, 1e15),
    HW_NUMBER(inter_bw, 1e3, 1e15),
    HW_NUMBER(host_bw, 1e3, 1e15),
    HW_NUMBER(intra_share, 1e-3, 1),
    HW_NUMBER(inter_share, 1e-3, 1),
    HW_NUMBER(host_share, 1e-3, 1),
    HW_NUMBER(intra_delay, 0, 1),
    HW_NUMBER(inter_delay, 0, 1),
    HW_NUMBER(launch, 0, 1),
    HW_NUMBER(fixed, 0, 1e15),
    HW_NUMBER(error, 0, 1),
    HW_NUMBER(together, 0.1, 10),
};
static const HardwareField whole[] = { HW_NUMBER(sms, 1, 1e6), HW_NUMBER(domain, 1, 1e6) };
#undef HW_NUMBER
enum { FIELDS = sizeof fields / sizeof *fields, WHOLE = sizeof whole / sizeof *whole };

/* Keys in files of format 1. */
static const struct { const char *name, *before; } renamed[] = {
    { "capacity", "room" }, { "intra_bw", "near_bw" }, { "inter_bw", "far_bw" },
    { "intra_share", "near_share" }, { "inter_share", "far_share" }, { "intra_delay", "near_delay" },
    { "inter_delay", "far_delay" },
};

static const double SHARE_MOST = 16;             /* above 1: the peak was measured on a busy machine */

Status hardware_file(char *path, size_t n)
{
    Path folder, full;
    TRY_CTX(folder_cache(folder), "hardware this");
    TRY(path_join(full, folder, "hardware.json"));
    int k = snprintf(path, n, "%s", full);
    return k > 0 && (size_t)k < n ? OK : fail(E_IO, "%.200s: the path is too long", full);
}

/* ---- reading ---- */

static Status bad(const char *field, const char *why)
{
    return fail(E_DATA, "%s: %s; measure again with `treb bench calibrate`", field, why);
}

static Status number(const Json *o, const char *key, const char *field, double lo, double hi, double *out)
{
    const Json *v = json_object_get(o, key);
    char        why[96];
    if (!v) return bad(field, "is missing");
    if (!json_is_number(v)) return bad(field, "expected a number");
    *out = json_number_value(v);
    if (isfinite(*out) && *out >= lo && *out <= hi) return OK;
    snprintf(why, sizeof why, "%g is not within %g and %g", *out, lo, hi);
    return bad(field, why);
}

static const char *key_of(const char *name, int format)
{
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed && format == 1; i++)
        if (!strcmp(name, renamed[i].name)) return renamed[i].before;
    return name;
}

static Status whole_number(const Json *o, const char *key, double lo, double hi, int *out)
{
    double v;
    TRY(number(o, key, key, lo, hi, &v));
    if (v != floor(v)) return bad(key, "expected a whole number");
    *out = (int)v;
    return OK;
}

static Status read_fields(Hardware *h, const Json *o, int format)
{
    for (int i = 0; i < FIELDS; i++) {
        const char *key = key_of(fields[i].name, format);
        TRY(number(o, key, key, fields[i].lo, fields[i].hi, (double *)((char *)h + fields[i].at)));
    }
    for (int i = 0; i < WHOLE; i++)
        TRY(whole_number(o, whole[i].name, whole[i].lo, whole[i].hi, (int *)((char *)h + whole[i].at)));
    const char *d = json_string_value(json_object_get(o, "dtype"));
    const char *b = json_string_value(json_object_get(o, "backend"));
    if (!d || (strcmp(d, "bf16") && strcmp(d, "f32"))) return bad("dtype", "expected bf16 or f32");
    if (!b || (strcmp(b, "cuda") && strcmp(b, "cpu"))) return bad("backend", "expected cuda or cpu");
    snprintf(h->dtype, sizeof h->dtype, "%s", d);
    snprintf(h->backend, sizeof h->backend, "%s", b);
    return OK;
}

static Status read_curve(Curve *c, const Json *o, const char *name)
{
    char field[64];
    const Json *points = json_object_get(o, "points");
    snprintf(field, sizeof field, "work.%s", name);
    if (!json_is_object(o)) return bad(field, "is missing or no object");
    TRY(number(o, "flat", field, 1e-6, SHARE_MOST, &c->flat));
    if (!json_is_array(points) || json_array_size(points) > CURVE_POINTS)
        return bad(field, "points: expected a list of at most 12 pairs");
    for (size_t i = 0; i < json_array_size(points); i++) {
        const Json *p = json_array_get(points, i), *x = json_array_get(p, 0), *y = json_array_get(p, 1);
        if (json_array_size(p) != 2 || !json_is_number(x) || !json_is_number(y))
            return bad(field, "a point is a pair of numbers, work and share");
        double work = json_number_value(x), share = json_number_value(y);
        if (!(work > (i ? c->work[i - 1] : 0) && work < 1e30))
            return bad(field, "the work of points must ascend");
        if (!(share >= 1e-6 && share <= SHARE_MOST)) return bad(field, "a share is out of bounds");
        c->work[i] = work, c->share[i] = share;
    }
    c->n = (int)json_array_size(points);
    return OK;
}

/* Optional: how the links were measured. */
static Status read_links(Hardware *h, const Json *o)
{
    double      ranks, nodes;
    const char *over = json_string_value(json_object_get(o, "transport"));
    if (!o) return OK;
    if (!over) return bad("links.transport", "expected a name");
    TRY(number(o, "intra_ranks", "links.intra_ranks", 0, 1e6, &ranks));
    TRY(number(o, "inter_nodes", "links.inter_nodes", 0, 1e6, &nodes));
    h->intra_ranks = (int)ranks, h->inter_nodes = (int)nodes;
    snprintf(h->transport, sizeof h->transport, "%s", over);
    return OK;
}

/* Factors by op name; unknown names are ignored, missing ones are 1. */
static Status read_slow(Hardware *h, const Json *o)
{
    for (int i = 0; i < LEDGER_OPS; i++) h->slow[i] = 1;
    if (o && !json_is_object(o)) return bad("slow", "expected an object");
    for (int i = 0; i < OP_N; i++) {
        char field[64];
        snprintf(field, sizeof field, "slow.%s", op_name(i));
        if (json_object_get(o, op_name(i))) TRY(number(o, op_name(i), field, 1e-3, 1e4, &h->slow[i]));
    }
    return OK;
}

static Status read_all(Hardware *h, const Json *o)
{
    int format = 0;
    if (!json_is_object(o)) return bad("file", "expected a JSON object");
    TRY(whole_number(o, "format", 1, HARDWARE_VERSION, &format));
    snprintf(h->id, sizeof h->id, "this");
    TRY(read_fields(h, o, format));
    const Json *work = json_object_get(o, "work");
    if (!json_is_object(work)) return bad("work", "is missing or no object");
    for (int k = 0; k < WORK_N; k++)
        TRY(read_curve(&h->work[k], json_object_get(work, work_name((Work)k)), work_name((Work)k)));
    TRY(read_links(h, json_object_get(o, "links")));
    return read_slow(h, json_object_get(o, "slow"));
}

Status hardware_load(Hardware *h, const char *path)
{
    Json *o;
    *h = (Hardware){ 0 };
    if (!file_is(path))
        return fail(E_IO, "%s: not found; make it with `treb bench calibrate`, or name one of %s", path,
                    hardware_names());
    Status st = json_load(&o, path);
    if (st) return fail(st, "%s; measure again with `treb bench calibrate`", status_text());
    st = read_all(h, o);
    json_decref(o);
    if (st) *h = (Hardware){ 0 };
    return st ? wrap(st, "%s", path) : OK;
}

/* ---- writing ---- */

static Json *curve_json(const Curve *c)
{
    Json *points = json_array();
    for (int i = 0; i < c->n; i++)
        json_array_append_new(points, json_pack("[f, f]", c->work[i], c->share[i]));
    return json_pack("{s:f, s:o}", "flat", c->flat, "points", points);
}

static Json *to_json(const Hardware *h)
{
    Json *o = json_pack("{s:i, s:s, s:s}", "format", HARDWARE_VERSION, "backend", h->backend, "dtype",
                        h->dtype);
    Json *work = json_object(), *slow = json_object();
    for (int i = 0; i < FIELDS; i++)
        json_object_set_new(o, fields[i].name, json_real(*(const double *)((const char *)h + fields[i].at)));
    for (int i = 0; i < WHOLE; i++)
        json_object_set_new(o, whole[i].name, json_integer(*(const int *)((const char *)h + whole[i].at)));
    for (int k = 0; k < WORK_N; k++) json_object_set_new(work, work_name((Work)k), curve_json(&h->work[k]));
    for (int i = 0; i < OP_N; i++)
        if (h->slow[i] != 1) json_object_set_new(slow, op_name(i), json_real(h->slow[i]));
    if (h->intra_ranks || h->inter_nodes)
        json_object_set_new(o, "links", json_pack("{s:s, s:i, s:i}", "transport", h->transport, "intra_ranks",
                                                  h->intra_ranks, "inter_nodes", h->inter_nodes));
    json_object_set_new(o, "work", work);
    json_object_set_new(o, "slow", slow);
    return o;
}

/* Written beside and renamed: a reader never sees a partial file. */
Status hardware_save(const Hardware *h, const char *path)
{
    Path  folder, fresh;
    Json *o = to_json(h);
    char *text = o ? json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9)) : NULL;
    json_decref(o);
    if (!text) return fail(E_OTHER, "%s: a number of the calibration is not finite", path);
    int n = snprintf(folder, sizeof folder, "%s", path), m = snprintf(fresh, sizeof fresh, "%s.new", path);
    char  *cut = strrchr(folder, '/');
    Status st = n <= 0 || m >= (int)sizeof fresh ? fail(E_IO, "%.200s: the path is too long", path) : OK;
    if (cut) *cut = 0;
    if (!st && cut && cut != folder) st = folder_make(folder);
    if (!st) st = file_write(fresh, text, strlen(text));
    if (!st && rename(fresh, path)) remove(fresh), st = fail(E_IO, "%s: cannot be replaced", path);
    free(text);
    return st;
}
