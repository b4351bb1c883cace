/* data/format_bin.c -- reads packed shards; see format_bin.h. Data is used only after its hash was
 * compared, and every offset is checked against the length of the file. */
#include "data/format_bin.h"

#include "base/activity.h"

#include <stdalign.h>
#include <string.h>
#include <xxhash.h>

typedef struct Bin {
    BinHead       head;
    const BinRow *row;
    Json         *settings;
    bool          pictures;              /* some sample of the shard has pictures */
} Bin;

static uint64_t align8(uint64_t n) { return (n + 7) & ~(uint64_t)7; }

static bool inside(uint64_t at, uint64_t bytes, uint64_t end)
{
    return at % 8 == 0 && at <= end && bytes <= end - at;
}

static Status head_check(const FormatFile *f, const BinHead *h)
{
    if (memcmp(h->magic, BIN_MAGIC, sizeof h->magic))
        return fail(E_DATA, "%s: not a packed shard; `treb data pack` makes them", f->path);
    if (h->version != BIN_VERSION || h->bytes != sizeof *h)
        return fail(E_DATA,
                    "%s: version %u of the shard format, this treb reads version %d; pack the data again",
                    f->path, h->version, BIN_VERSION);
    if (h->hash != XXH3_64bits(h, sizeof *h - sizeof h->hash))
        return fail(E_DATA, "%s: the header is damaged", f->path);
    if (h->file_bytes != f->len)
        return fail(E_DATA, "%s: %zu bytes instead of %llu: the file was truncated or extended", f->path,
                    f->len, (unsigned long long)h->file_bytes);
    if (h->samples > f->len / sizeof(BinRow) || !inside(h->rows_at, h->samples * sizeof(BinRow), f->len) ||
        !inside(h->settings_at, h->settings_bytes, f->len))
        return fail(E_DATA, "%s: its tables lie outside the file", f->path);
    if (h->rows_hash != XXH3_64bits(f->bytes + h->rows_at, h->samples * sizeof(BinRow)))
        return fail(E_DATA, "%s: its table of samples is damaged", f->path);
    return OK;
}

static uint64_t row_least(const BinRow *r)
{
    return align8((uint64_t)r->tokens * 8) + (uint64_t)r->slices * sizeof(RecordSlice) +
           (uint64_t)r->files * 8 + r->where_bytes;
}

static Status bin_index(FormatFile *f, const FormatConf *conf)
{
    Bin *b = mem_pool_alloc(&f->keep, sizeof *b);
    f->self = b;
    if (f->len < sizeof b->head) return fail(E_DATA, "%s: too short for a packed shard", f->path);
    memcpy(&b->head, f->bytes, sizeof b->head);
    TRY(head_check(f, &b->head));
    TRY(json_parse(&b->settings, f->bytes + b->head.settings_at, b->head.settings_bytes, f->path));
    b->row = (const BinRow *)(f->bytes + b->head.rows_at);
    for (uint64_t i = 0; i < b->head.samples; i++) {
        const BinRow *r = &b->row[i];
        activity_mark();
        if (!inside(r->at, r->bytes, f->len) || row_least(r) > r->bytes || r->tokens > INT32_MAX ||
            r->patches > INT32_MAX)
            return fail(E_DATA, "%s: sample %llu lies outside the file", f->path, (unsigned long long)i);
        b->pictures |= r->slices > 0;
    }
    f->samples = (int64_t)b->head.samples;
    return OK;
}

static void bin_close_file(FormatFile *f)
{
    Bin *b = f->self;
    if (b) json_decref(b->settings);
}

static bool bin_size(const FormatFile *f, int64_t i, DocSize *size)
{
    const BinRow *r = &((const Bin *)f->self)->row[i];
    *size = (DocSize){ r->tokens, r->patches, r->supervised };
    return true;
}

/* Patches are counted again, because the budget of a micro-batch must hold the real number. */
static Status slices_check(const Record *r, const BinRow *row)
{
    uint64_t patches = 0;
    for (int64_t i = 0; i < r->slices; i++) {
        const RecordSlice *s = &r->slice[i];
        if (s->h < 1 || s->w < 1 || s->h > 1 << 15 || s->w > 1 << 15 || s->a < 0 || s->a >= r->files ||
            s->b < -1 || s->b >= r->files)
            return fail(E_DATA, "slice %lld has an impossible size or file", (long long)i);
        patches += (uint64_t)s->h * (uint64_t)s->w;
    }
    return patches == row->patches ? OK
                                   : fail(E_DATA, "%llu patches instead of the %u in its row",
                                          (unsigned long long)patches, row->patches);
}

static Status files_find(Record *r, const BinRow *row, const char *lengths, const char *at, const char *end)
{
    RecordFile *file = mem_pool_alloc(&r->keep, ((size_t)row->files + 1) * sizeof *file);
    for (uint32_t i = 0; i < row->files; i++) {
        uint64_t n;
        memcpy(&n, lengths + 8 * (size_t)i, 8);
        if (n > (uint64_t)(end - at)) return fail(E_DATA, "picture %u lies outside the sample", i);
        file[i] = (RecordFile){ "", 0, at, (size_t)n };
        at += n;
    }
    r->file = file, r->files = (int)row->files;
    return OK;
}

static Status bin_read(const FormatFile *f, int64_t i, Record *r)
{
    const BinRow *row = &((const Bin *)f->self)->row[i];
    const char   *at = f->bytes + row->at, *end = at + row->bytes - row->where_bytes;
    snprintf(r->where, sizeof r->where, "%s[%lld]", f->path, (long long)i);
    if (row->hash != XXH3_64bits(at, row->bytes)) return fail(E_DATA, "damaged");
    if (row->files > INT32_MAX) return fail(E_DATA, "%u pictures", row->files);
    snprintf(r->where, sizeof r->where, "%s[%lld] (%.*s)", f->path, (long long)i,
             row->where_bytes < 200 ? (int)row->where_bytes : 200, end);
    r->kind = RECORD_TOKENS;
    r->tokens = row->tokens, r->slices = row->slices;
    r->ids = (const int32_t *)at, r->targets = r->ids + row->tokens;
    at += align8((uint64_t)row->tokens * 8);
    r->slice = (const RecordSlice *)at;
    at += (uint64_t)row->slices * sizeof(RecordSlice);
    TRY(files_find(r, row, at, at + 8 * (size_t)row->files, end));
    return slices_check(r, row);
}

static const char *const picture_settings[] = { "patch", "frames", "min_pixels", "max_pixels" };

/* Files that were packed by a chat template do not suit a run that renders ChatML, which has no such
 * setting. */
static Status template_suits(const FormatFile *f, const Json *have, const Json *want)
{
    if (!json_has(have, "template") || json_has(want, "template")) return OK;
    return fail(E_CONFIG,
                "%s: packed with template = %lld, this run renders ChatML; pack the data again with "
                "this recipe",
                f->path, (long long)json_integer_value(json_object_get(have, "template")));
}

static Status bin_suits(const FormatFile *f, const Json *want)
{
    const Bin  *b = f->self;
    const char *key;
    Json       *value;
    TRY(template_suits(f, b->settings, want));
    json_object_foreach((Json *)want, key, value) {
        const Json *have = json_object_get(b->settings, key);
        bool        of_pictures = false;
        for (int i = 0; i < 4; i++) of_pictures |= !strcmp(key, picture_settings[i]);
        if (json_equal(have, value) || (of_pictures && !b->pictures)) continue;
        return fail(E_CONFIG,
                    "%s: packed with %s = %lld, this run has %lld; pack the data again with this recipe",
                    f->path, key, (long long)json_integer_value(have), (long long)json_integer_value(value));
    }
    return OK;
}

_Static_assert(sizeof(BinHead) == 72 && sizeof(BinRow) == 48 && sizeof(RecordSlice) == 16,
               "as they are on disk");
_Static_assert(alignof(BinRow) == 8, "rows are read in place");

const Format format_bin = {
    .name     = "bin",
    .suffixes = ".treb",
    .index    = bin_index,
    .read     = bin_read,
    .size     = bin_size,
    .suits    = bin_suits,
    .close    = bin_close_file,
};
