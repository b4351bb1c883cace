/* data/dataset.c -- see dataset.h. Owns the open files; knows nothing of what is in a sample. */
#include "data/dataset.h"

#include "base/rng.h"
#include "base/thread.h"
#include "data/order.h"
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static Status file_add(Dataset *d, const char *path, int source)
{
    if (d->files == d->file_cap) {
        int64_t   cap = d->file_cap ? 2 * d->file_cap : 16;
        DataFile *more = realloc(d->file, (size_t)cap * sizeof *more);
        if (!more) return fail(E_FIT, "no memory for a list of %lld files", (long long)cap);
        d->file = more, d->file_cap = cap;
    }
    DataFile *f = &d->file[d->files++];
    *f = (DataFile){ .source = source };
    f->file.path = keep_text(&d->keep, path, strlen(path));
    return OK;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static Status glob_add(Dataset *d, const char *pattern, bool only_known, int source)
{
    glob_t  found = { 0 };
    int64_t before = d->files;
    int     rc = glob(pattern, GLOB_BRACE, NULL, &found);
    Status  st = OK;
    for (size_t i = 0; rc == 0 && !st && i < found.gl_pathc; i++)
        if (!only_known || format_knows(found.gl_pathv[i])) st = file_add(d, found.gl_pathv[i], source);
    globfree(&found);
    if (!st && d->files == before)
        st = fail(E_IO, "%s[%d].path: %s: no such file%s", d->conf.key, source, pattern,
                  only_known ? " of a known kind in that folder"
                             : "; a relative path begins where treb was started");
    return st;
}

/* A path that exists is meant as it stands, whatever characters are in it; a folder means the files in it. */
static Status source_files(Dataset *d, int i)
{
    const char *path = d->source[i].conf->path;
    struct stat info;
    char        inside[4096];
    if (!*path) return fail(E_CONFIG, "%s[%d].path: not set", d->conf.key, i);
    if (!is_folder(path)) return stat(path, &info) == 0 ? file_add(d, path, i) : glob_add(d, path, false, i);
    if (snprintf(inside, sizeof inside, "%s/*", path) >= (int)sizeof inside)
        return fail(E_CONFIG, "%s[%d].path: too long", d->conf.key, i);
    return glob_add(d, inside, true, i);
}

/* Files are opened side by side; what became of each is judged afterwards, in order. */
static Status file_open(void *arg, int64_t i)
{
    Dataset    *d = arg;
    DataFile   *f = &d->file[i];
    const char *path = f->file.path;
    f->status = format_open(&f->file, path, &d->conf.format);
    if (!f->status && d->conf.settings && f->file.format->suits)
        f->status = f->file.format->suits(&f->file, d->conf.settings);
    if (f->status) snprintf(f->text, sizeof f->text, "%s", status_text());
    return OK;
}

static Status files_open(Dataset *d)
{
    Pool    pool = { 0 };
    int64_t most = d->files < cpu_count() ? d->files : cpu_count();
    TRY(pool_open(&pool, most > 1 ? (int)most - 1 : 0));
    Status st = pool_run(&pool, d->files, file_open, d);
    pool_close(&pool);
    return st;
}

/* A file that cannot be made sense of at all counts as damaged, with no sound part; one that is not there,
 * or was made for another run, is the recipe's mistake and ends it. */
static Status file_judge(Dataset *d, DataFile *f)
{
    FormatFile *file = &f->file;
    const char *path = file->path;
    if (f->status && (f->status != E_DATA || !d->conf.tolerant)) return fail(f->status, "%s", f->text);
    if (f->status) {
        log_warn(d->conf.log, "%s; the file is left out", f->text);
        format_close(file);
        file->path = path;
        snprintf(file->damage, sizeof file->damage, "%s", f->text);
        return d->damaged++, OK;
    }
    if (!file->damage[0]) return OK;
    if (!d->conf.tolerant)
        return fail(E_DATA, "%s: %s; data.bad_sample: skip would use the %lld samples before that", path,
                    file->damage, (long long)file->samples);
    log_warn(d->conf.log, "%s: %s; its %lld sound samples are used", path, file->damage,
             (long long)file->samples);
    return d->damaged++, OK;
}

static Status source_judge(Dataset *d, int i)
{
    DataSource *s = &d->source[i];
    s->first = d->samples;
    if (s->conf->weight <= 0) return OK;
    for (int64_t k = 0; k < d->files; k++) {
        DataFile *f = &d->file[k];
        if (f->source != i) continue;
        TRY(file_judge(d, f));
        f->first = d->samples;
        d->samples += f->file.samples;
    }
    s->all = d->samples - s->first;
    if (s->conf->max_samples > 0 && s->all > s->conf->max_samples) s->all = s->conf->max_samples;
    if (s->all == 0 && !d->conf.tolerant)
        return fail(E_DATA, "%s[%d].path: %s: no samples in it", d->conf.key, i, s->conf->path);
    return OK;
}

/* Of two or more samples at least one is held out and at least one is left. */
static int64_t held_out(double split, int64_t n)
{
    int64_t h = (int64_t)llround(split * (double)n);
    if (split <= 0 || n < 2) return 0;
    return h < 1 ? 1 : h > n - 1 ? n - 1 : h;
}

static void source_shares(Dataset *d, DataSource *s)
{
    s->held  = held_out(d->conf.split, s->all);
    s->n     = d->conf.held_out ? s->held : s->all - s->held;
    s->drawn = s->n;
    if (!d->conf.once) s->drawn = (int64_t)llround(s->conf->weight * (double)s->n);
    if (s->n > 0 && s->drawn < 1) s->drawn = 1;
    d->pass += s->drawn;
}

static Status open_all(Dataset *d)
{
    int n = d->conf.sources->n;
    if (n == 0) return fail(E_CONFIG, "%s: not set; name a file, a glob or a folder", d->conf.key);
    d->source = calloc((size_t)n, sizeof *d->source);
    if (!d->source) return fail(E_FIT, "no memory for %d sources", n);
    for (; d->sources < n; d->sources++) {
        DataSource *s = &d->source[d->sources];
        s->conf = &d->conf.sources->item[d->sources];
        if (s->conf->weight > 0) TRY(source_files(d, d->sources));
    }
    TRY(files_open(d));
    for (int i = 0; i < n; i++) {
        TRY(source_judge(d, i));
        source_shares(d, &d->source[i]);
    }
    return d->pass > 0 ? OK : fail(E_DATA, "%s: not a single sample in it", d->conf.key);
}

Status dataset_open(Dataset *d, const DatasetConf *conf)
{
    *d = (Dataset){ .conf = *conf };
    Status st = open_all(d);
    if (st) dataset_close(d);
    return st;
}

void dataset_close(Dataset *d)
{
    for (int64_t i = 0; i < d->files; i++) format_close(&d->file[i].file);
    free(d->file), free(d->source);
    keep_close(&d->keep);
    *d = (Dataset){ 0 };
}

static uint64_t stream_of(const char *what, int source, int64_t pass)
{
    char name[64];
    snprintf(name, sizeof name, "data/%s/%d/%lld", what, source, (long long)pass);
    return rng_stream(name);
}

/* The k-th sample of the part of source i that is read. Without a split that is the k-th of the file. */
static int64_t part_id(const Dataset *d, int i, int64_t k)
{
    const DataSource *s = &d->source[i];
    if (s->held == 0) return s->first + k;
    return s->first +
           order_at(s->all, d->conf.seed, stream_of("split", i, 0), d->conf.held_out ? s->all - s->held + k : k);
}

/* The k-th draw of this pass from source i. Draws run on from pass to pass through one shuffled round of the
 * source after the other, so that no sample comes twice before all have come once. */
static int64_t draw_id(const Dataset *d, int i, int64_t epoch, int64_t k)
{
    const DataSource *s = &d->source[i];
    int64_t draw = epoch * s->drawn + k, round = draw / s->n, at = draw % s->n;
    return part_id(d, i, order_at(s->n, d->conf.seed, stream_of("source", i, round), at));
}

int64_t dataset_id(const Dataset *d, int64_t epoch, int64_t position)
{
    REQUIRE(position >= 0 && position < d->pass, "position %lld of %lld", (long long)position,
            (long long)d->pass);
    int64_t at =
        d->conf.once ? position : order_at(d->pass, d->conf.seed, stream_of("pass", 0, epoch), position);
    int     i  = 0;
    while (at >= d->source[i].drawn) at -= d->source[i++].drawn;
    return d->conf.once ? part_id(d, i, at) : draw_id(d, i, epoch, at);
}

/* The last file that begins at or before id; files without samples share their beginning with the next. */
const DataFile *dataset_file(const Dataset *d, int64_t id)
{
    int64_t lo = 0, hi = d->files - 1;
    REQUIRE(id >= 0 && id < d->samples, "sample %lld of %lld", (long long)id, (long long)d->samples);
    while (lo < hi) {
        int64_t mid = (lo + hi + 1) / 2;
        if (d->file[mid].first <= id) lo = mid;
        else hi = mid - 1;
    }
    return &d->file[lo];
}

const DataSource *dataset_source(const Dataset *d, int64_t id)
{
    return &d->source[dataset_file(d, id)->source];
}

Status dataset_read(const Dataset *d, int64_t id, Record *r)
{
    const DataFile *f = dataset_file(d, id);
    return format_read(&f->file, id - f->first, r);
}

/* A record says where it is even when it cannot be read. */
void dataset_where(const Dataset *d, int64_t id, char *out, size_t cap)
{
    Record r;
    Status st = dataset_read(d, id, &r);
    snprintf(out, cap, "%s", r.where);
    if (!st) record_close(&r);
}

bool dataset_size(const Dataset *d, int64_t id, DocSize *size)
{
    const DataFile *f = dataset_file(d, id);
    return f->file.format->size && f->file.format->size(&f->file, id - f->first, size);
}

const char *dataset_channel(const Dataset *d, int source)
{
    const Source *s = d->source[source].conf;
    return *s->channel ? s->channel : s->path;
}
