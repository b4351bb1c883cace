/* data/bin_writer.c -- writes packed shards; see format_bin.h. */
#include "data/format_bin.h"

#include "base/grow.h"
#include "data/image_encode.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static Status put(BinWriter *w, const void *bytes, size_t n)
{
    if (n && fwrite(bytes, 1, n, w->file) != n)
        return w->broken = true, fail(E_IO, "%s: %s", w->temp, strerror(errno));
    if (n) XXH3_64bits_update(w->hash, bytes, n);
    w->at += n;
    return OK;
}

static Status pad(BinWriter *w)
{
    static const char zeros[8];
    return put(w, zeros, (size_t)(-w->at & 7));
}

Status bin_writer_open(BinWriter *w, const char *path)
{
    BinHead head = { .magic = "unready" };
    *w = (BinWriter){ .hash = XXH3_createState() };
    if (snprintf(w->path, sizeof w->path, "%s", path) >= (int)sizeof w->path)
        return bin_writer_abandon(w), fail(E_IO, "%.80s…: the path is too long", path);
    snprintf(w->temp, sizeof w->temp, "%s.tmp", w->path);
    w->file = fopen(w->temp, "wbe");
    Status st = !w->hash   ? fail(E_FIT, "no memory for a hash")
                : !w->file ? fail(E_IO, "%s: %s", w->temp, strerror(errno))
                           : OK;
    if (!st) XXH3_64bits_reset(w->hash), st = put(w, &head, sizeof head);
    if (st) bin_writer_abandon(w);
    return st;
}

static Status row_push(BinWriter *w, BinRow r)
{
    if (!GROW(w->row, w->cap, w->rows + 1))
        return fail(E_FIT, "no memory for a table of %lld samples", (long long)w->rows);
    w->row[w->rows++] = r;
    return OK;
}

/* A frame that is stored, and a slice that shows it. */
typedef struct StoredFrame { int frame; int64_t slice; } StoredFrame;

/* The bytes of a file as it is, or with w->decoded of the picture in the size that the model reads. */
static Status file_put(BinWriter *w, Text *out, const Sample *s, SampleScratch *t, const SampleConf *c,
                       const StoredFrame *f)
{
    const void *bytes;
    size_t      n;
    if (w->decoded) {
        TRY(sample_frame(s, t, c, f->slice, f->frame, 0));
        return image_encode_bmp(out, t->resized[0].rgb, t->resized[0].h, t->resized[0].w);
    }
    TRY(sample_bytes(&bytes, &n, s, t, c, f->frame));
    return text_push(out, bytes, n);
}

/* The lengths of all files come before the files, so all files are read before the first is written. */
static Status files_put(BinWriter *w, const Sample *s, SampleScratch *t, const SampleConf *c, int files,
                        const StoredFrame *stored)
{
    uint64_t *len = calloc((size_t)files + 1, sizeof *len);
    Text      all = { 0 };
    Status    st = len ? OK : fail(E_FIT, "no memory for %d lengths", files);
    for (int i = 0; !st && i < files; i++) {
        size_t before = all.n;
        st = file_put(w, &all, s, t, c, &stored[i]);
        len[i] = all.n - before;
    }
    if (!st) st = put(w, len, (size_t)files * sizeof *len);
    if (!st) st = put(w, all.v, all.n);
    free(len), text_close(&all);
    return st;
}

/* Stores only frames that a slice shows, and renumbers slices accordingly. */
static Status slices_put(BinWriter *w, const Sample *s, StoredFrame *stored, int *files)
{
    for (int64_t i = 0; i < s->slices; i++) {
        RecordSlice v = s->slice[i];
        int32_t    *end[2] = { &v.a, &v.b };
        for (int k = 0; k < 2; k++) {
            int at = 0;
            if (*end[k] < 0) continue;
            while (at < *files && stored[at].frame != *end[k]) at++;
            if (at == *files) stored[(*files)++] = (StoredFrame){ *end[k], i };
            *end[k] = at;
        }
        TRY(put(w, &v, sizeof v));
    }
    return OK;
}

static Status sample_put(BinWriter *w, const Sample *s, SampleScratch *t, const SampleConf *c, BinRow *r)
{
    StoredFrame *stored = calloc((size_t)s->frames + 1, sizeof *stored);
    int    files = 0;
    Status st = stored ? OK : fail(E_FIT, "no memory for %d frames", s->frames);
    if (!st) st = put(w, s->ids.v, (size_t)s->ids.n * 4);
    if (!st) st = put(w, s->targets.v, (size_t)s->targets.n * 4);
    if (!st) st = pad(w);
    if (!st) st = slices_put(w, s, stored, &files);
    if (!st) st = files_put(w, s, t, c, files, stored);
    if (!st) st = put(w, s->record.where, strlen(s->record.where));
    free(stored);
    r->files = (uint32_t)files, r->where_bytes = (uint32_t)strlen(s->record.where);
    return st;
}

Status bin_writer_add(BinWriter *w, const Sample *s, SampleScratch *t, const SampleConf *c)
{
    BinRow r = { .tokens = (uint32_t)s->size.tokens, .supervised = (uint32_t)s->size.supervised,
                 .patches = (uint32_t)s->size.patches, .slices = (uint32_t)s->slices };
    uint64_t before;
    TRY(pad(w));
    before = r.at = w->at;
    XXH3_64bits_reset(w->hash);
    Status st = sample_put(w, s, t, c, &r);
    if (st) {                                               /* the file is as before the call */
        w->at = before;
        w->broken |= fseeko(w->file, (off_t)before, SEEK_SET) != 0;
        return st;
    }
    r.bytes = w->at - r.at, r.hash = XXH3_64bits_digest(w->hash);
    return row_push(w, r);
}

static Status tables_put(BinWriter *w, BinHead *h, const char *settings)
{
    TRY(pad(w));
    h->settings_at = w->at, h->settings_bytes = strlen(settings);
    TRY(put(w, settings, strlen(settings)));
    TRY(pad(w));
    h->rows_at = w->at, h->samples = (uint64_t)w->rows;
    h->rows_hash = XXH3_64bits(w->row, (size_t)w->rows * sizeof *w->row);
    TRY(put(w, w->row, (size_t)w->rows * sizeof *w->row));
    h->file_bytes = w->at;
    h->hash = XXH3_64bits(h, sizeof *h - sizeof h->hash);
    if (fseeko(w->file, 0, SEEK_SET) || fwrite(h, sizeof *h, 1, w->file) != 1 || fflush(w->file) ||
        fsync(fileno(w->file)))
        return fail(E_IO, "%s: %s", w->temp, strerror(errno));
    return OK;
}

Status bin_writer_finish(BinWriter *w, const Json *settings)
{
    BinHead h = { .magic = BIN_MAGIC, .version = BIN_VERSION, .bytes = sizeof h };
    char   *text = json_dumps(settings, JSON_COMPACT | JSON_SORT_KEYS);
    Status  st = text ? tables_put(w, &h, text) : fail(E_FIT, "no memory for a few settings");
    free(text);
    if (!st && ftruncate(fileno(w->file), (off_t)w->at)) st = fail(E_IO, "%s: %s", w->temp, strerror(errno));
    if (w->file && fclose(w->file) && !st) st = fail(E_IO, "%s: %s", w->temp, strerror(errno));
    w->file = NULL;
    if (!st && rename(w->temp, w->path)) st = fail(E_IO, "%s: %s", w->path, strerror(errno));
    if (st) unlink(w->temp);
    bin_writer_abandon(w);
    return st;
}

void bin_writer_abandon(BinWriter *w)
{
    if (w->file) fclose(w->file), unlink(w->temp);
    XXH3_freeState(w->hash);
    free(w->row);
    *w = (BinWriter){ 0 };
}
