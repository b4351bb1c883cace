/* report/report_metrics.c -- metrics.jsonl into series. A long run has tens of millions of values, so the
 * plain lines that base/log.c writes are scanned in place, about ten times faster than by jansson; a line
 * that the scanner does not accept is parsed by jansson. */
#include "report/report_run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LAYER_PREFIX "moe/max_over_mean/"

enum { LINE_FIELDS = 1024 };

#define VALUE_MAX 1e100               /* larger values count as infinite: axes need a margin */

typedef struct MetricsField { const char *key; size_t len; double value; } MetricsField;      /* NAN: null */

typedef struct MetricsLine {
    MetricsField field[LINE_FIELDS];
    int         n;
    double      step, time;           /* NAN: not there */
    const char *label;
    size_t      label_len;
} MetricsLine;

/* --- scanning a line ---------------------------------------------------------------------------------- */

static const char *skip_blank(const char *s)
{
    while (*s == ' ' || *s == '\t' || *s == '\r') s++;
    return s;
}

/* A text without escapes, in ASCII; NULL otherwise. */
static const char *scan_text(const char *s, const char **text, size_t *len)
{
    if (*s != '"') return NULL;
    const char *from = ++s;
    while ((unsigned char)*s >= ' ' && (unsigned char)*s < 127 && *s != '"' && *s != '\\') s++;
    if (*s != '"') return NULL;
    *text = from, *len = (size_t)(s - from);
    return s + 1;
}

static const char *scan_digits(const char *s, uint64_t *m, int *digits)
{
    for (; *s >= '0' && *s <= '9'; s++)
        if ((*digits += *m || *s != '0') <= 18) *m = *m * 10 + (uint64_t)(*s - '0');
    return s;
}

/* Fifteen digits and a power of ten up to 22 are exact in a double, so their quotient is rounded once, which
 * is correct; strtod reads all other numbers. The buffer's NUL ends every number. */
static const char *scan_number(const char *s, double *out)
{
    static const double ten[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };
    const char *from = s, *first, *point;
    uint64_t m = 0;
    int digits = 0, e = 0;
    if (*s == '-') s++;
    s = scan_digits(first = s, &m, &digits);
    if (s == first || (*first == '0' && s > first + 1)) return NULL;
    if (*s == '.') {
        s = scan_digits(point = s + 1, &m, &digits);
        if (s == point) return NULL;
        e = -(int)(s - point);
    }
    if ((*s | 32) == 'e' || digits > 15 || e < -22) {
        char *end;
        *out = strtod(from, &end);
        return isfinite(*out) ? end : NULL;
    }
    *out = (double)m / ten[-e];
    if (*from == '-') *out = -*out;
    return s;
}

static void line_put(MetricsLine *l, const char *key, size_t len, double v)
{
    if (len == 4 && !memcmp(key, "step", 4))      l->step = v;
    else if (len == 4 && !memcmp(key, "time", 4)) l->time = v;
    else if (l->n < LINE_FIELDS)                  l->field[l->n++] = (MetricsField){ key, len, v };
}

static void line_label(MetricsLine *l, const char *key, size_t len, const char *text, size_t text_len)
{
    if (len == 5 && !memcmp(key, "label", 5)) l->label = text, l->label_len = text_len;
}

/* NULL where the value is not a plain number, text or null. */
static const char *scan_value(MetricsLine *l, const char *s, const char *key, size_t len)
{
    const char *text;
    size_t text_len;
    double v;
    if (*s == '"') {
        s = scan_text(s, &text, &text_len);
        if (s) line_label(l, key, len, text, text_len);
        return s;
    }
    if (!strncmp(s, "null", 4)) return line_put(l, key, len, NAN), s + 4;
    s = scan_number(s, &v);
    if (s) line_put(l, key, len, v);
    return s;
}

static bool line_scan(MetricsLine *l, const char *s)
{
    const char *key;
    size_t len;
    if (*(s = skip_blank(s)) != '{') return false;
    do {
        s = scan_text(skip_blank(s + 1), &key, &len);
        if (!s || *(s = skip_blank(s)) != ':') return false;
        s = scan_value(l, skip_blank(s + 1), key, len);
        if (!s || l->n == LINE_FIELDS) return false;
        s = skip_blank(s);
    } while (*s == ',');
    return *s == '}' && !*skip_blank(s + 1);
}

static bool line_parse(MetricsLine *l, Json *o)
{
    const char *key;
    Json *v;
    json_object_foreach(o, key, v) {
        if (json_is_number(v))      line_put(l, key, strlen(key), json_number_value(v));
        else if (json_is_null(v))   line_put(l, key, strlen(key), NAN);
        else if (json_is_string(v))
            line_label(l, key, strlen(key), json_string_value(v), json_string_length(v));
    }
    return json_is_object(o);
}

/* --- filling series ------------------------------------------------------------------------------------ */

static Series *series_at(MetricsFile *m, MemPool *keep, const char *key, size_t len)
{
    for (int i = 0; i < m->n; i++) {
        Series *s = &m->series[m->hint = (m->hint + 1) % m->n];
        if (!strncmp(s->key, key, len) && !s->key[len]) return s;
    }
    if (m->n == SERIES_MAX) return m->crowded++, NULL;
    Series *s = &m->series[m->hint = m->n++];
    s->key = mem_pool_copy(keep, key, len);
    return s;
}

/* Keeps the least and the greatest of every four points, in their order. */
static void series_halve(Series *s)
{
    int64_t to = 0;
    for (int64_t i = 0; i + 4 <= s->n; i += 4) {
        int64_t lo = i, hi = i;
        for (int64_t j = i + 1; j < i + 4; j++) {
            if (s->at[j].value < s->at[lo].value)  lo = j;
            if (s->at[j].value >= s->at[hi].value) hi = j;
        }
        Point a = s->at[lo < hi ? lo : hi], b = s->at[lo < hi ? hi : lo];
        s->at[to++] = a, s->at[to++] = b;
    }
    s->n = to;
}

/* A step that occurred before comes from a resumed run: values after that step are replaced. */
static Status series_push(Series *s, double step, double value)
{
    if (!(fabs(value) < VALUE_MAX)) {
        if (!s->bad++) s->bad_step = step;
        return OK;
    }
    while (s->n && s->at[s->n - 1].step >= step) s->n--;
    if (s->n == SERIES_POINTS) series_halve(s);
    if (s->n == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 256;
        Point *at = realloc(s->at, (size_t)capacity * sizeof *at);
        if (!at) return fail(E_FIT, "no memory for %lld values of %s", (long long)capacity, s->key);
        s->at = at, s->capacity = capacity;
    }
    s->at[s->n++] = (Point){ step, value };
    return OK;
}

static Status push_named(MetricsFile *m, MemPool *keep, const char *key, size_t len, double step,
                         double value)
{
    Series *s = series_at(m, keep, key, len);
    return s ? series_push(s, step, value) : OK;
}

static bool is_key(const MetricsField *f, const char *key)
{
    return f->len == strlen(key) && !memcmp(f->key, key, f->len);
}

/* mem/peak_gib is the planned peak in lines of older versions; newer lines have both under their own
 * names. */
static void rename_peak(MetricsLine *l)
{
    bool newer = false;
    int  peak = -1;
    for (int i = 0; i < l->n; i++) {
        newer |= is_key(&l->field[i], KEY_PLANNED);
        if (is_key(&l->field[i], "mem/peak_gib")) peak = i;
    }
    if (peak >= 0 && newer) l->field[peak] = l->field[--l->n];
    else if (peak >= 0)     l->field[peak].key = KEY_PLANNED, l->field[peak].len = sizeof KEY_PLANNED - 1;
}

static Status take_fields(MetricsFile *m, MemPool *keep, const MetricsLine *l)
{
    const size_t prefix = sizeof LAYER_PREFIX - 1;
    double worst = -INFINITY, sum = 0;
    int layers = 0;
    for (int i = 0; i < l->n; i++) {
        const MetricsField *f = &l->field[i];
        bool layer = f->len > prefix && !memcmp(f->key, LAYER_PREFIX, prefix);
        if (!layer) TRY(push_named(m, keep, f->key, f->len, l->step, f->value));
        else if (isfinite(f->value)) worst = fmax(worst, f->value), sum += f->value, layers++;
    }
    if (!layers) return OK;
    TRY(push_named(m, keep, KEY_WORST, sizeof KEY_WORST - 1, l->step, worst));
    return push_named(m, keep, KEY_MEAN, sizeof KEY_MEAN - 1, l->step, sum / layers);
}

static Status take_line(MetricsFile *m, MemPool *keep, const MetricsLine *l)
{
    if (m->lines++ && l->step < m->last_step) m->resumes++;
    m->last_step = l->step;
    if (l->time > 0) {
        if (!m->first_time) m->first_time = l->time;
        m->last_time = l->time;
    }
    bool benchmark = l->label && l->label_len == 14 && !memcmp(l->label, "benchmark-only", 14);
    if (l->label && (!*m->label || benchmark)) {
        size_t n = l->label_len < LABEL_BYTES - 1 ? l->label_len : LABEL_BYTES - 1;
        memcpy(m->label, l->label, n), m->label[n] = 0;
    }
    return take_fields(m, keep, l);
}

typedef struct MetricsReader { MetricsFile *m; MemPool *keep; MetricsLine line; } MetricsReader;

static Status on_line(void *arg, char *text, size_t len, LineKind kind)
{
    MetricsReader *t = arg;
    Json *o = NULL;
    t->line.n = 0, t->line.step = t->line.time = NAN, t->line.label = NULL;
    bool good = kind != LINE_LONG && strlen(text) == len && line_scan(&t->line, text);
    if (!good && kind != LINE_LONG) {
        t->line.n = 0, t->line.step = t->line.time = NAN, t->line.label = NULL;
        o = json_loadb(text, len, JSON_DECODE_INT_AS_REAL, NULL);
        good = line_parse(&t->line, o);
    }
    good = good && t->line.step >= 0 && t->line.step <= 1e15;
    Status st = OK;
    if (good)                   rename_peak(&t->line), st = take_line(t->m, t->keep, &t->line);
    else if (kind == LINE_OPEN) t->m->open_end = true;
    else                        t->m->damaged++;
    json_decref(o);
    return st;
}

Status metrics_read(MetricsFile *m, MemPool *keep, const char *path)
{
    MetricsReader *t = calloc(1, sizeof *t);
    if (!t) return fail(E_FIT, "no memory to read %s", path);
    t->m = m, t->keep = keep;
    Status st = lines_read(path, on_line, t);
    free(t);
    return st;
}

void metrics_file_close(MetricsFile *m)
{
    for (int i = 0; i < m->n; i++) free(m->series[i].at);
    memset(m, 0, sizeof *m);
}
