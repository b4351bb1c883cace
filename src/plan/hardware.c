/* plan/hardware.c -- rows of hardware.def by name, and times of calls; `this` is read in hardware_file.c. */
#include "plan/hardware.h"

#include "ops/ops.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

typedef struct Shares {
    double gemm, grouped, attention, attention_back, vision, vision_back, memory, fp8, fp4;
} Shares;

enum {
#define SHARES(name, ...) CLASS_##name,
#define ROW(...)
#define SLOW(...)
#include "plan/hardware.def"
#undef SHARES
    CLASS_N
};

static const Shares shares[CLASS_N] = {
#define SHARES(name, ...) { __VA_ARGS__ },
#include "plan/hardware.def"
#undef SHARES
#undef ROW
};

typedef struct HardwareRow {
    const char *id, *alias;
    int    class;
    double bf16, fp8, fp4;
    int    sms;
    double capacity, memory, intra;
    int    domain;
    double intra_share, host, host_share, network, error;
} HardwareRow;

static const HardwareRow rows[] = {
#define SHARES(...)
#define ROW(id, alias, class, ...) { id, alias, CLASS_##class, __VA_ARGS__ },
#include "plan/hardware.def"
#undef ROW
#undef SLOW
};
enum { ROWS = sizeof rows / sizeof *rows };

static void put_slow(Hardware *h)
{
    for (int i = 0; i < LEDGER_OPS; i++) h->slow[i] = 1;
#define ROW(...)
#define SLOW(op, factor) h->slow[OP_##op] = factor;
#include "plan/hardware.def"
#undef SHARES
#undef ROW
#undef SLOW
}

/* SMs idle at the beginning and end of a call: `idle` seconds on top of the time at the flat share. */
static Curve curve_of(double flat, double rate, double idle)
{
    Curve c = { .flat = flat };
    for (double t = 1e-6; t < 0.2; t *= 4, c.n++)
        c.work[c.n] = t * rate, c.share[c.n] = t / (t / flat + idle);
    return c;
}

/* The rows of an expert are processed in tiles; the last tile is partly empty. */
static Curve curve_of_rows(double flat)
{
    enum { HALF = 128 };
    Curve c = { .flat = flat };
    for (double rows_each = 16; rows_each <= 8192; rows_each *= 2, c.n++)
        c.work[c.n] = rows_each, c.share[c.n] = flat * rows_each / (rows_each + HALF) * (1 + HALF / 8192.0);
    return c;
}

static void put_curves(Hardware *h, const Shares *s)
{
    const double idle = 4e-6;
    const double flat[WORK_N] = { s->gemm, s->grouped, s->attention, s->attention_back, s->vision,
                                  s->vision_back, s->memory };
    for (int k = 0; k < WORK_N; k++)
        h->work[k] = k == WORK_GROUPED ? curve_of_rows(flat[k])
                                       : curve_of(flat[k], k == WORK_MEMORY ? h->memory_bw : h->bf16, idle);
    h->fp8_share = s->fp8, h->fp4_share = s->fp4;
}

static void fill(Hardware *h, const HardwareRow *r)
{
    *h = (Hardware){ .dtype       = "bf16",
                     .bf16        = r->bf16 * 1e12,
                     .fp8         = r->fp8 * 1e12,
                     .fp4         = r->fp4 * 1e12,
                     .sms         = r->sms,
                     .capacity    = r->capacity * 1e9,
                     .memory_bw   = r->memory * 1e9,
                     .intra_bw    = r->intra * 1e9,
                     .inter_bw    = r->network / 8 * 1e9,
                     .host_bw     = r->host * 1e9,
                     .domain      = r->domain,
                     .intra_share = r->intra_share,
                     .inter_share = 0.90,
                     .host_share  = r->host_share,
                     .intra_delay = 4e-6,
                     .inter_delay = 12e-6,
                     .launch      = 6e-6,
                     .fixed       = 2.0e9,
                     .error       = r->error,
                     .together    = 1 };
    snprintf(h->id, sizeof h->id, "%s", r->id);
    snprintf(h->backend, sizeof h->backend, r->class == CLASS_server ? "cpu" : "cuda");
    put_curves(h, &shares[r->class]);
    put_slow(h);
}

const char *hardware_at(int i) { return i >= 0 && i < ROWS ? rows[i].id : NULL; }

/* Whether a word of the device's name begins with the n letters of `word`, or is it where `whole`. */
static bool names_word(const char *device, const char *word, size_t n, bool whole)
{
    for (const char *at = device; *at; at++) {
        bool begins = at == device || !isalnum((unsigned char)at[-1]);
        if (begins && !strncasecmp(at, word, n) && !(whole && isalnum((unsigned char)at[n]))) return true;
    }
    return false;
}

/* Letters of the row's words that the name has; the first word must be in it. */
static size_t names_row(const char *device, const char *id)
{
    size_t sum = 0, n = strcspn(id, "-");
    if (!names_word(device, id, n, true)) return 0;
    for (const char *at = id; *at; at += n, at += *at == '-') {
        n = strcspn(at, "-");
        if (names_word(device, at, n, false)) sum += n;
    }
    return sum;
}

const char *hardware_of_device(const char *device)
{
    const char *best = NULL;
    size_t      most = 0;
    for (int i = 0; i < ROWS; i++) {
        size_t n = names_row(device, rows[i].id);
        if (n > most) most = n, best = rows[i].id;
    }
    return best;
}

const char *hardware_names(void)
{
#define SHARES(...)
#define ROW(id, ...) id ", "
#define SLOW(...)
    return
#include "plan/hardware.def"
        "or this";
#undef SHARES
#undef ROW
#undef SLOW
}

Status hardware_find(Hardware *h, const char *id)
{
    char path[4096];
    *h = (Hardware){ 0 };
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(id, rows[i].id) || (*id && !strcmp(id, rows[i].alias))) return fill(h, &rows[i]), OK;
    if (strcmp(id, "this"))
        return fail(E_CONFIG, "hardware %.40s: unknown; known are %s", id, hardware_names());
    TRY(hardware_file(path, sizeof path));
    return hardware_load(h, path);
}

void hardware_limit(Hardware *h, double gib)
{
    if (gib > 0) h->capacity = fmin(h->capacity, gib * 0x1p30);
}

/* Hardware with products in 4 bits has those of 8 bits with scales of 32, older hardware has neither. */
double hardware_peak(const Hardware *h, Precision p)
{
    switch (p) {
    case PREC_FP8:   return h->fp8;
    case PREC_MXFP8: return h->fp4 > 0 ? h->fp8 : 0;
    case PREC_NVFP4: return h->fp4;
    default:         return h->bf16;
    }
}

double hardware_rate(const Hardware *h, Precision p)
{
    double share = p == PREC_NVFP4 ? h->fp4_share : p == PREC_BF16 ? h->work[WORK_GEMM].flat : h->fp8_share;
    return hardware_peak(h, p) * share;
}

int hardware_node(const Hardware *h, int64_t ranks)
{
    int per = 1;
    if (ranks <= h->domain) return (int)ranks;
    while (2 * per <= h->domain) per *= 2;
    if (ranks % per == 0) return per;
    for (per = h->domain; ranks % per; per--);
    return per;
}

/* Each doubling of the nodes of a ring costs 3 %, as published all-gathers on up to 64 nodes show. */
double ring_share(double nodes) { return nodes > 1 ? fmax(0.6, 1 - 0.03 * log2(nodes)) : 1; }

/* ---- time ---- */

const char *work_name(Work k)
{
    static const char *const names[WORK_N] = { "gemm", "grouped", "attention", "attention_back", "vision",
                                               "vision_back", "memory" };
    return names[k];
}

double work_share(const Hardware *h, Work k, double work)
{
    const Curve *c = &h->work[k];
    int i = 1;
    if (!c->n) return c->flat;
    if (work <= 0) return c->share[0];
    if (work <= c->work[0]) return c->share[0] * work / c->work[0];
    while (i < c->n && work > c->work[i]) i++;
    if (i == c->n) return c->share[c->n - 1];
    double t = log(work / c->work[i - 1]) / log(c->work[i] / c->work[i - 1]);
    return c->share[i - 1] + t * (c->share[i] - c->share[i - 1]);
}

static double bytes_seconds(const Hardware *h, double bytes)
{
    return bytes > 0 ? bytes / (h->memory_bw * work_share(h, WORK_MEMORY, bytes)) : 0;
}

double work_seconds(const Hardware *h, Work k, double flops, double bytes)
{
    double share = k == WORK_GROUPED ? h->work[k].flat : work_share(h, k, flops);
    double sum = k != WORK_MEMORY && flops > 0 ? flops / (h->bf16 * share) : 0;
    return h->together * fmax(sum, bytes_seconds(h, bytes));
}

double grouped_seconds(const Hardware *h, double flops, double bytes, double rows_each)
{
    double share = work_share(h, WORK_GROUPED, rows_each);
    return h->together * fmax(flops > 0 ? flops / (h->bf16 * share) : 0, bytes_seconds(h, bytes));
}
