/* data/format_jsonl.c -- JSON Lines: one object a line; blank lines are skipped. Opening only searches for
 * line breaks and keeps an index of offsets.
 *
 * The index of a large file is kept for the next start (data/line_index.h).
 *
 * Also the format "json": one array of such objects, as some well-known sets are distributed. Its index
 * follows brackets and strings only; an element is parsed when it is read. */
#include "base/clock.h"
#include "data/line_index.h"

#include <stdlib.h>
#include <string.h>

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static size_t skip_space(const FormatFile *f, size_t at)
{
    while (at < f->len && is_space(f->bytes[at])) at++;
    return at;
}

static size_t skip_byte_order_mark(const FormatFile *f)
{
    return f->len >= 3 && !memcmp(f->bytes, "\xef\xbb\xbf", 3) ? 3 : 0;
}

static LineIndex *lines_new(FormatFile *f)
{
    LineIndex *l = mem_pool_alloc(&f->keep, sizeof *l);
    f->self = l;
    return l;
}

static void lines_close(FormatFile *f)
{
    if (f->self) line_index_close(f->self);
}

static Status find_lines(FormatFile *f, LineIndex *l)
{
    for (size_t at = skip_byte_order_mark(f); at < f->len;) {
        const char *end  = memchr(f->bytes + at, '\n', f->len - at);
        size_t      stop = end ? (size_t)(end - f->bytes) : f->len, text = at;
        while (text < stop && is_space(f->bytes[text])) text++;
        if (text == stop) {
            if (end) TRY(offsets_push(&l->blank, (uint64_t)l->from.n));
        } else {
            TRY(offsets_push(&l->from, at));
            TRY(offsets_push(&l->to, stop));
        }
        at = stop + 1;
    }
    return OK;
}

/* The index of a large file is kept between starts, where finding it took a while. */
static Status index_or_recall(FormatFile *f, Status (*find)(FormatFile *, LineIndex *))
{
    const double worth_keeping = 0.5; /* seconds */
    enum { LARGE = 64 << 20 };
    LineIndex *l    = lines_new(f);
    double     from = clock_now();
    if (f->len < LARGE || !line_index_load(l, f)) {
        TRY(find(f, l));
        if (f->len >= LARGE && !f->damage[0] && clock_now() - from > worth_keeping) line_index_save(l, f);
    }
    f->samples = l->from.n;
    return OK;
}

static Status jsonl_index(FormatFile *f, const FormatConf *conf) { return index_or_recall(f, find_lines); }

/* Line number of sample i: its index and the blank lines before it. */
static int64_t line_of(const LineIndex *l, int64_t i)
{
    int64_t lo = 0, hi = l->blank.n;
    while (lo < hi) {
        int64_t mid = (lo + hi) / 2;
        if (l->blank.v[mid] <= (uint64_t)i) lo = mid + 1;
        else hi = mid;
    }
    return i + 1 + lo;
}

static void lines_text(const FormatFile *f, int64_t i, Record *r)
{
    const LineIndex *l = f->self;
    r->kind = RECORD_JSON;
    r->text = f->bytes + l->from.v[i];
    r->len  = (size_t)(l->to.v[i] - l->from.v[i]);
}

static Status jsonl_read(const FormatFile *f, int64_t i, Record *r)
{
    snprintf(r->where, sizeof r->where, "%s:%lld", f->path, (long long)line_of(f->self, i));
    return lines_text(f, i, r), OK;
}

/* The end of the element that starts at `at`: the comma or bracket after it at depth 0; f->len when there
 * is none. */
static size_t element_end(const FormatFile *f, size_t at)
{
    int64_t depth = 0;
    bool    text  = false;
    for (; at < f->len; at++) {
        char c = f->bytes[at];
        if (text && c == '\\')              at++;
        else if (c == '"')                  text = !text;
        else if (text)                      continue;
        else if (c == '{' || c == '[')      depth++;
        else if (depth == 0 && (c == ',' || c == ']')) return at;
        else if (c == '}' || c == ']')      depth--;
    }
    return f->len;
}

static Status find_elements(FormatFile *f, LineIndex *l)
{
    size_t at = skip_space(f, skip_byte_order_mark(f));
    if (at == f->len || f->bytes[at] != '[')
        return fail(E_DATA, "%s: not an array of objects; a file with one object a line must be named .jsonl",
                    f->path);
    at = skip_space(f, at + 1);
    while (at < f->len && f->bytes[at] != ']') {
        size_t end = element_end(f, at);
        TRY(offsets_push(&l->from, at));
        TRY(offsets_push(&l->to, end));
        at = end < f->len && f->bytes[end] == ',' ? skip_space(f, end + 1) : end;
    }
    if (at >= f->len)
        snprintf(f->damage, sizeof f->damage, "the array is not closed: the file may be truncated");
    return OK;
}

static Status json_index(FormatFile *f, const FormatConf *conf) { return index_or_recall(f, find_elements); }

static Status json_read(const FormatFile *f, int64_t i, Record *r)
{
    snprintf(r->where, sizeof r->where, "%s[%lld]", f->path, (long long)i);
    return lines_text(f, i, r), OK;
}

const Format format_jsonl = {
    .name     = "jsonl",
    .suffixes = ".jsonl,.ndjson",
    .index    = jsonl_index,
    .read     = jsonl_read,
    .close    = lines_close,
};

const Format format_json = {
    .name = "json", .suffixes = ".json", .index = json_index, .read = json_read, .close = lines_close,
};
