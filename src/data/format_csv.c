/* data/format_csv.c -- CSV and TSV with named columns: a row is a record of texts. Fields may be quoted; a
 * quoted field may hold separators and line breaks. A field of messages, conversations, images, videos, tools
 * or history that is the text of a JSON list or object is that list or object. */
#define _GNU_SOURCE /* strcasestr */
#include "data/format.h"

#include "base/str.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { COLUMNS = 1024 };

typedef struct Csv {
    char    separator;
    char  **name;
    int     columns;
    Offsets from, to; /* bytes of each row, the header aside */
} Csv;

/* The end of the row at `at`: the line break that no quotes hold, or the end of the file. */
static size_t row_end(const FormatFile *f, size_t at)
{
    bool quoted = false;
    for (; at < f->len; at++) {
        if (f->bytes[at] == '"') quoted = !quoted;
        else if (f->bytes[at] == '\n' && !quoted) break;
    }
    return at;
}

/* The next field of a row, without its quotes; false at the end. *at moves behind its separator. */
static Status field_next(const char *s, size_t n, char separator, size_t *at, Text *out, bool *found)
{
    bool quoted = *at < n && s[*at] == '"';
    out->n      = 0;
    *found      = *at <= n;
    if (!*found) return OK;
    size_t i = *at + quoted;
    for (; i < n && (quoted || s[i] != separator); i++) {
        if (quoted && s[i] == '"') {
            if (i + 1 >= n || s[i + 1] != '"') {
                quoted = false;
                continue;
            }
            i++;
        }
        TRY(text_push(out, s + i, 1));
    }
    return *at = i + 1, OK;
}

static size_t trim_row(const char *s, size_t n) { return n && s[n - 1] == '\r' ? n - 1 : n; }

static Status read_header(FormatFile *f, Csv *c, size_t from, size_t to)
{
    Text   field = { 0 };
    size_t at = 0, n = trim_row(f->bytes + from, to - from);
    bool   found = true;
    Status st    = OK;
    c->name      = mem_pool_alloc(&f->keep, COLUMNS * sizeof *c->name);
    while (!st && found) {
        st = field_next(f->bytes + from, n, c->separator, &at, &field, &found);
        if (st || !found) break;
        if (c->columns == COLUMNS) st = fail(E_DATA, "%s: more than %d columns", f->path, COLUMNS);
        else c->name[c->columns++] = mem_pool_copy(&f->keep, field.n ? field.v : "", field.n);
    }
    text_close(&field);
    return st;
}

static Status csv_index(FormatFile *f, const FormatConf *conf)
{
    Csv   *c = f->self = mem_pool_alloc(&f->keep, sizeof *c);
    size_t n = strlen(f->path), at = f->len >= 3 && !memcmp(f->bytes, "\xef\xbb\xbf", 3) ? 3 : 0;
    c->separator = strcasestr(n > 8 ? f->path + n - 8 : f->path, ".tsv") ? '\t' : ',';
    for (bool header = true; at < f->len; header = false) {
        size_t end = row_end(f, at);
        if (header) TRY(read_header(f, c, at, end));
        else if (trim_row(f->bytes + at, end - at)) {
            TRY(offsets_push(&c->from, at));
            TRY(offsets_push(&c->to, end));
        }
        at = end + 1;
    }
    f->samples = c->from.n;
    return OK;
}

static Status put_string(Text *out, const char *s, size_t n)
{
    TRY(text_push(out, "\"", 1));
    for (size_t i = 0; i < n; i++) {
        unsigned char b = (unsigned char)s[i];
        if (b >= 32 && b != '"' && b != '\\') TRY(text_push(out, s + i, 1));
        else TRY(text_printf(out, b == '"' || b == '\\' ? "\\%c" : "\\u%04x", b));
    }
    return text_push(out, "\"", 1);
}

static bool is_json(const char *name, const Text *v)
{
    Json *parsed = NULL;
    if (!v->n || (v->v[0] != '[' && v->v[0] != '{')) return false;
    if (!str_lists("messages,conversations,images,videos,tools,history", ',', name)) return false;
    bool yes = !json_parse_data(&parsed, v->v, v->n, "field");
    json_decref(parsed);
    return yes;
}

static Status row_json(const Csv *c, const char *s, size_t n, Text *out, Text *field)
{
    size_t at    = 0;
    bool   found = true;
    int    k     = 0;
    TRY(text_push(out, "{", 1));
    for (; k < c->columns; k++) {
        TRY(field_next(s, n, c->separator, &at, field, &found));
        if (!found) break;
        if (k) TRY(text_push(out, ",", 1));
        TRY(put_string(out, c->name[k], strlen(c->name[k])));
        TRY(text_push(out, ":", 1));
        TRY(is_json(c->name[k], field) ? text_push(out, field->v, field->n)
                                       : put_string(out, field->v, field->n));
    }
    if (k < c->columns || at <= n)
        return fail(E_DATA, "the row has %s fields than the header has columns (%d)",
                    k < c->columns ? "fewer" : "more", c->columns);
    return text_push(out, "}", 1);
}

static Status csv_read(const FormatFile *f, int64_t i, Record *r)
{
    const Csv  *c   = f->self;
    const char *s   = f->bytes + c->from.v[i];
    Text        out = { 0 }, field = { 0 };
    snprintf(r->where, sizeof r->where, "%s: row %lld", f->path, (long long)i + 1);
    Status st = row_json(c, s, trim_row(s, (size_t)(c->to.v[i] - c->from.v[i])), &out, &field);
    if (!st) r->kind = RECORD_JSON, r->text = mem_pool_copy(&r->keep, out.v, out.n), r->len = out.n;
    text_close(&out), text_close(&field);
    return st;
}

static void csv_close(FormatFile *f)
{
    Csv *c = f->self;
    if (c) offsets_close(&c->from), offsets_close(&c->to);
}

const Format format_csv = {
    .name     = "csv",
    .suffixes = ".csv,.tsv",
    .index    = csv_index,
    .read     = csv_read,
    .close    = csv_close,
};
