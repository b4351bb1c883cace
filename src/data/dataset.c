/* data/dataset.c -- see dataset.h. Owns the open files; does not parse samples. */
#include "data/dataset.h"

#include "base/folder.h"
#include "base/grow.h"
#include "base/rng.h"
#include "base/thread_pool.h"
#include "data/order.h"
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static Status file_add(Dataset *d, const char *path, int source)
{
    if (!GROW(d->file, d->file_cap, d->files + 1))
        return fail(E_FIT, "no memory for a list of %lld files", (long long)d->files);
    DataFile *f = &d->file[d->files++];
    *f = (DataFile){ .source = source };
    f->file.path = mem_pool_copy(&d->keep, path, strlen(path));
    return OK;
}

/* Files that describe a dataset and are none of it. */
static bool is_documentation(const char *path)
{
    static const char *const names[] = { "readme",     "license",  "licence",           "notice",
                                         "changelog",  "citation", "dataset_info.json", "dataset_infos.json",
                                         "state.json", NULL };
    const char              *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (int i = 0; names[i]; i++)
        if (!strncasecmp(name, names[i], strlen(names[i]))) return true;
    return false;
}

static Status note_unread(Dataset *d, const char *path)
{
    if (d->unread.n > 1000) return OK;
    if (d->unread.n) d->unread.n--; /* the NUL */
    TRY(text_printf(&d->unread, "%s%s", d->unread.n ? ", " : "", path));
    return text_push(&d->unread, "", 1);
}

/* One file of a folder: a dataset file is added, another is noted. */
static Status folder_file(Dataset *d, const char *path, int source)
{
    if (folder_is(path)) return OK;
    if (format_has_suffix(path) && !is_documentation(path)) return file_add(d, path, source);
    return note_unread(d, path);
}

static Status glob_add(Dataset *d, const char *pattern, bool only_known, bool below, int source)
{
    glob_t  found = { 0 };
    int64_t before = d->files;
    int     rc = glob(pattern, GLOB_BRACE, NULL, &found);
    Status  st = OK;
    for (size_t i = 0; rc == 0 && !st && i < found.gl_pathc; i++)
        st = only_known ? folder_file(d, found.gl_pathv[i], source) : file_add(d, found.gl_pathv[i], source);
    globfree(&found);
    if (!st && d->files == before && !(only_known && below))
        st = fail(E_IO, "%s[%d].path: %s: no such file%s", d->conf.key, source, pattern,
                  only_known ? " of a dataset format in that folder"
                             : "; a relative path starts at the current directory");
    return st;
}

/* A path that exists is taken literally, even with glob characters in it. A folder stands for the dataset
 * files in it or, where it has none, in its folders, as data/ of a dataset of the Hugging Face hub. */
static Status add_source_files(Dataset *d, int i)
{
    const char *path = d->source[i].conf->path;
    char        inside[4096];
    if (!*path) return fail(E_CONFIG, "%s[%d].path: not set", d->conf.key, i);
    if (!folder_is(path)) return file_is(path) ? file_add(d, path, i) : glob_add(d, path, false, false, i);
    if (snprintf(inside, sizeof inside, "%s/*", path) >= (int)sizeof inside)
        return fail(E_CONFIG, "%s[%d].path: too long", d->conf.key, i);
    int64_t before = d->files;
    TRY(glob_add(d, inside, true, true, i));
    if (d->files > before) return OK;
    if (snprintf(inside, sizeof inside, "%s/*/*", path) >= (int)sizeof inside)
        return fail(E_CONFIG, "%s[%d].path: too long", d->conf.key, i);
    return glob_add(d, inside, true, false, i);
}

/* Files are opened in parallel; check_source then reports errors in the order of the files. */
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
    ThreadPool    pool = { 0 };
    int64_t most = d->files < cpu_count() ? d->files : cpu_count();
    TRY(thread_pool_open(&pool, most > 1 ? (int)most - 1 : 0));
    Status st = thread_pool_run(&pool, d->files, file_open, d);
    thread_pool_close(&pool);
    return st;
}

/* With `tolerant`, a file that cannot be indexed is left out and the intact part of a damaged file is
 * used. A missing file, or a packed file made for other settings, is an error of the recipe and always
 * ends the run. */
static Status check_file(Dataset *d, DataFile *f)
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
        return fail(E_DATA, "%s: %s; set data.bad_sample: skip to use the %lld samples before that", path,
                    file->damage, (long long)file->samples);
    log_warn(d->conf.log, "%s: %s; its %lld intact samples are used", path, file->damage,
             (long long)file->samples);
    return d->damaged++, OK;
}

static Status check_source(Dataset *d, int i)
{
    DataSource *s = &d->source[i];
    s->first = d->samples;
    if (s->conf->weight <= 0) return OK;
    for (int64_t k = 0; k < d->files; k++) {
        DataFile *f = &d->file[k];
        if (f->source != i) continue;
        TRY(check_file(d, f));
        f->first = d->samples;
        d->samples += f->file.samples;
    }
    s->all = d->samples - s->first;
    if (s->conf->max_samples > 0 && s->all > s->conf->max_samples) s->all = s->conf->max_samples;
    if (s->all == 0 && !d->conf.tolerant)
        return fail(E_DATA, "%s[%d].path: %s: the files have no samples", d->conf.key, i, s->conf->path);
    return OK;
}

/* Of two or more samples at least one is held out and at least one is not. */
static int64_t count_held_out(double split, int64_t n)
{
    int64_t h = (int64_t)llround(split * (double)n);
    if (split <= 0 || n < 2) return 0;
    return h < 1 ? 1 : h > n - 1 ? n - 1 : h;
}

static void count_draws(Dataset *d, DataSource *s)
{
    s->held  = count_held_out(d->conf.split, s->all);
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
        if (s->conf->weight > 0) TRY(add_source_files(d, d->sources));
    }
    if (d->unread.n) log_info(d->conf.log, "%s: files that are not read: %s", d->conf.key, d->unread.v);
    TRY(files_open(d));
    for (int i = 0; i < n; i++) {
        TRY(check_source(d, i));
        count_draws(d, &d->source[i]);
    }
    return d->pass > 0 ? OK : fail(E_DATA, "%s: its files have no samples", d->conf.key);
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
    text_close(&d->unread);
    mem_pool_close(&d->keep);
    *d = (Dataset){ 0 };
}

static uint64_t stream_of(const char *what, int source, int64_t pass)
{
    char name[64];
    snprintf(name, sizeof name, "data/%s/%d/%lld", what, source, (long long)pass);
    return rng_stream(name);
}

/* The k-th sample of the part of source i that is read. Without a split that is the k-th sample of the
 * source. */
static int64_t part_id(const Dataset *d, int i, int64_t k)
{
    const DataSource *s = &d->source[i];
    if (s->held == 0) return s->first + k;
    return s->first +
           order_at(s->all, d->conf.seed, stream_of("split", i, 0),
                    d->conf.held_out ? s->all - s->held + k : k);
}

/* The k-th draw of this pass from source i. Draws continue from pass to pass through shuffled rounds of
 * the source, so that no sample is drawn twice before all are drawn once. */
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

/* The last file whose first id is at most `id`; a file without samples has the first id of the next. */
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

/* dataset_read sets r.where also when it fails. */
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
