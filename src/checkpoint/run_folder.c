/* checkpoint/run_folder.c -- see runfolder.h. */
#include "checkpoint/run_folder.h"

#include "checkpoint/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* Whether `path` is a folder right below dir. */
static bool inside(const char *path, const char *dir)
{
    Path up;
    if (path_join(up, path, "..")) return false;
    char *a = realpath(up, NULL), *b = realpath(dir, NULL);
    bool same = a && b && !strcmp(a, b);
    free(a), free(b);
    return same;
}

static Status refuse_used(const char *dir, const char *resume)
{
    bool empty;
    TRY(folder_is_empty(dir, &empty));
    if (empty || !strcmp(resume, "auto") || (strcmp(resume, "none") && inside(resume, dir))) return OK;
    return fail(E_CONFIG,
                "%s: the folder is not empty; set checkpoint.resume_from_checkpoint=auto to go on with the "
                "run in it, or name another checkpoint.output_dir", dir);
}

static Status lock_folder(RunFolder *r)
{
    int fd = open(r->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail(E_IO, "%s: %s", r->dir, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(fd);
        return fail(E_CONFIG, "%s: another run is using this folder; name another checkpoint.output_dir",
                    r->dir);
    }
    r->lock = fd;
    return OK;
}

/* One of the other kind is refused before its bytes, which may be many, are held to their hashes. */
static Status refuse_kind(const char *path, bool adapters)
{
    return checkpoint_is(path) ? checkpoint_check_kind(path, adapters) : OK;
}

static Status find_newest(RunFolder *r, bool adapters)
{
    const Log loud = { .world = 1, .least = LOG_WARN };
    Path link, last;
    TRY(path_join(link, r->dir, "last"));
    if (realpath(link, last)) TRY(refuse_kind(last, adapters));
    TRY(checkpoint_find(r->resume, r->dir, &loud));
    return *r->resume ? refuse_kind(r->resume, adapters) : OK;
}

static Status find_resume(RunFolder *r, const char *resume, bool adapters)
{
    if (!strcmp(resume, "none")) return OK;
    if (!strcmp(resume, "auto")) return find_newest(r, adapters);
    if (!realpath(resume, r->resume))
        return fail(E_IO, "checkpoint.resume_from_checkpoint = %s: %s", resume, strerror(errno));
    TRY(refuse_kind(r->resume, adapters));
    return checkpoint_verify(r->resume);
}

static Status open_all(RunFolder *r, const struct cfg_checkpoint *c, bool adapters)
{
    const char *resume = c->resume_from_checkpoint;
    TRY(refuse_used(c->output_dir, resume));
    if (snprintf(r->dir, sizeof r->dir, "%s", c->output_dir) >= (int)sizeof r->dir)
        return fail(E_CONFIG, "checkpoint.output_dir = %.200s: the path is too long", c->output_dir);
    if (file_is(r->dir)) TRY(lock_folder(r));
    TRY(find_resume(r, resume, adapters));
    TRY(path_join(r->log, r->dir, "train.log"));
    TRY(path_join(r->metrics, r->dir, "metrics.jsonl"));
    return path_join(r->quarantine, r->dir, "quarantine.jsonl");
}

Status run_folder_open(RunFolder *r, const struct cfg_checkpoint *c, bool adapters)
{
    *r = (RunFolder){ 0 };
    Status st = open_all(r, c, adapters);
    if (st) run_folder_close(r);
    return st;
}

/* One that is made only now is empty, unless another run was faster. */
static Status make_new(RunFolder *r)
{
    bool empty;
    TRY(folder_make(r->dir));
    TRY(lock_folder(r));
    TRY(folder_is_empty(r->dir, &empty));
    return empty ? OK : fail(E_CONFIG, "%s: another run has begun in this folder; name another "
                             "checkpoint.output_dir", r->dir);
}

Status run_folder_make(RunFolder *r)
{
    if (r->lock <= 0) TRY(make_new(r));
    checkpoint_remove_tmp(r->dir);
    return OK;
}

void run_folder_close(RunFolder *r)
{
    if (r->lock > 0) close(r->lock);
    r->lock = 0;
}

Status run_folder_write_recipe(const RunFolder *r, const Config *c)
{
    Path path;
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    if (f) config_dump(f, c);
    Status st = f && !fclose(f) ? OK : fail(E_FIT, "no memory for recipe.yaml");
    if (!st) st = path_join(path, r->dir, "recipe.yaml");
    if (!st) st = file_write(path, text, n);
    free(text);
    return st;
}

Status run_folder_write_json(const RunFolder *r, const char *name, const Json *o)
{
    Path path, tmp;
    char fresh[64], *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_COMPACT) : NULL;
    snprintf(fresh, sizeof fresh, "%s.tmp", name);
    Status st = text ? path_join(path, r->dir, name) : fail(E_FIT, "no memory for %s", name);
    if (!st) st = path_join(tmp, r->dir, fresh);
    if (!st) st = file_write(tmp, text, strlen(text));
    if (!st && rename(tmp, path)) st = fail(E_IO, "%s: %s", path, strerror(errno));
    free(text);
    return st;
}

/* A last line without its end was cut short by a kill: it goes too. */
static bool keeps(const char *line, ssize_t n, int64_t step)
{
    Json *o = n > 0 && line[n - 1] == '\n' ? json_loadb(line, (size_t)n, 0, NULL) : NULL;
    Json *at = json_object_get(o, "step");
    bool  keep = json_is_integer(at) && json_integer_value(at) <= step;
    json_decref(o);
    return keep;
}

Status run_folder_rewind_metrics(const RunFolder *r, int64_t step)
{
    char *line = NULL, *kept = NULL;
    size_t room = 0, bytes = 0;
    Path tmp;
    FILE *in = fopen(r->metrics, "re"), *out = NULL;
    if (!in) return errno == ENOENT ? OK : fail(E_IO, "%s: %s", r->metrics, strerror(errno));
    Status st =
        (out = open_memstream(&kept, &bytes)) ? OK : fail(E_FIT, "%s: no memory to read it", r->metrics);
    for (ssize_t n; !st && (n = getline(&line, &room, in)) > 0;)
        if (keeps(line, n, step)) fwrite(line, 1, (size_t)n, out);
    if (out && fclose(out) && !st) st = fail(E_FIT, "%s: no memory to read it", r->metrics);
    fclose(in);
    if (!st) st = path_join(tmp, r->dir, "metrics.jsonl.tmp");
    if (!st) st = file_write(tmp, kept, bytes);
    if (!st && rename(tmp, r->metrics)) st = fail(E_IO, "%s: %s", r->metrics, strerror(errno));
    free(line), free(kept);
    return st;
}
