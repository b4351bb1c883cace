/* checkpoint/run_folder.c -- see run_folder.h. */
#include "checkpoint/run_folder.h"

#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether dir is the parent folder of path. */
static bool is_inside(const char *path, const char *dir)
{
    Path up;
    if (path_join(up, path, "..")) return false;
    char *a = realpath(up, NULL), *b = realpath(dir, NULL);
    bool same = a && b && !strcmp(a, b);
    free(a), free(b);
    return same;
}

/* ---- folders of runs that never began ---- */

/* What a run writes before its first step. plan.json comes after that step. */
static bool is_start_file(const char *name)
{
    static const char *const names[] = {
        "recipe.yaml",   "train.log",          "env.json", "metrics.jsonl", "hang", ".recipe.yaml.tmp",
        ".env.json.tmp", ".metrics.jsonl.tmp", NULL
    };
    static const char *const begins[] = { "quarantine.jsonl", "quarantine-", "events.out.tfevents.", NULL };
    for (int i = 0; names[i]; i++)
        if (!strcmp(name, names[i])) return true;
    for (int i = 0; begins[i]; i++)
        if (!strncmp(name, begins[i], strlen(begins[i]))) return true;
    return false;
}

/* Calls on_entry for every entry of a folder until it returns false, and returns what it returned last. */
static bool each_entry(const char *dir, bool (*on_entry)(const char *dir, const char *name))
{
    DIR *d  = opendir(dir);
    bool on = true;
    for (struct dirent *e; d && on && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) on = on_entry(dir, e->d_name);
    if (d) closedir(d);
    return on;
}

static bool is_start_entry(const char *dir, const char *name) { return is_start_file(name); }

static bool remove_entry(const char *dir, const char *name)
{
    Path path;
    if (is_start_file(name) && !path_join(path, dir, name)) folder_remove(path);
    return true;
}

/* A run that ended before its first step leaves a folder that counts as empty. */
static bool never_began(const char *dir)
{
    return folder_has(dir, "recipe.yaml") && folder_has(dir, "train.log") && each_entry(dir, is_start_entry);
}

static Status refuse_nonempty(const char *dir, const char *resume)
{
    bool empty;
    TRY(folder_is_empty(dir, &empty));
    if (empty || never_began(dir) || !strcmp(resume, "auto") ||
        (strcmp(resume, "none") && is_inside(resume, dir)))
        return OK;
    return fail(E_CONFIG,
                "%s: the folder is not empty; set checkpoint.resume_from_checkpoint=auto to resume the run "
                "in it, or set another checkpoint.output_dir", dir);
}

static Status lock_folder(RunFolder *r)
{
    int fd = open(r->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return fail(E_IO, "%s: %s", r->dir, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(fd);
        return fail(E_CONFIG, "%s: another run is using this folder; set another checkpoint.output_dir",
                    r->dir);
    }
    r->lock = fd;
    return OK;
}

/* Refuses a checkpoint of the other kind before its files, which may be large, are hashed. */
static Status refuse_kind(const char *path, bool adapters)
{
    return checkpoint_is(path) ? checkpoint_check_kind(path, adapters) : OK;
}

/* A checkpoint of checkpoint.save_only_model has no moments to resume with. */
static Status refuse_only_model(const char *path)
{
    if (!*path || checkpoint_is(path)) return OK;
    return fail(E_CONFIG,
                "%s has the model alone (checkpoint.save_only_model), and a run cannot resume from it; "
                "start a new run with model.path=%s and another checkpoint.output_dir",
                path, path);
}

/* A run whose checkpoints are all damaged must not start over in silence and write over what is left. */
static Status refuse_damaged(const RunFolder *r)
{
    int n = *r->resume ? 0 : checkpoint_count(r->dir);
    if (!n) return OK;
    return fail(E_DATA,
                "%s: none of its %d checkpoints is whole (the warnings above name what is wrong), so the run "
                "cannot resume; restore a checkpoint, or start again with another checkpoint.output_dir",
                r->dir, n);
}

static Status find_newest(RunFolder *r, bool adapters)
{
    const Log log = { .world = 1, .least = LOG_WARN };
    Path link, last;
    TRY(path_join(link, r->dir, "last"));
    if (realpath(link, last)) TRY(refuse_kind(last, adapters));
    TRY(checkpoint_find(r->resume, r->dir, &log));
    TRY(refuse_damaged(r));
    TRY(refuse_only_model(r->resume));
    return *r->resume ? refuse_kind(r->resume, adapters) : OK;
}

static Status find_resume(RunFolder *r, const char *resume, bool adapters)
{
    if (!strcmp(resume, "none")) return OK;
    if (!strcmp(resume, "auto")) return find_newest(r, adapters);
    if (!realpath(resume, r->resume))
        return fail(E_IO, "checkpoint.resume_from_checkpoint = %s: %s", resume, strerror(errno));
    TRY(refuse_kind(r->resume, adapters));
    TRY(checkpoint_verify(r->resume));
    return refuse_only_model(r->resume);
}

static Status open_all(RunFolder *r, const struct cfg_checkpoint *c, bool adapters)
{
    const char *resume = c->resume_from_checkpoint;
    TRY(refuse_nonempty(c->output_dir, resume));
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

/* A folder created now is empty, unless another run created it at the same time. */
static Status make_folder(RunFolder *r)
{
    bool empty;
    TRY(folder_make(r->dir));
    TRY(lock_folder(r));
    TRY(folder_is_empty(r->dir, &empty));
    return empty ? OK : fail(E_CONFIG, "%s: another run has started in this folder; set another "
                             "checkpoint.output_dir", r->dir);
}

Status run_folder_make(RunFolder *r)
{
    if (r->lock <= 0) TRY(make_folder(r));
    else if (never_began(r->dir)) each_entry(r->dir, remove_entry);
    checkpoint_remove_tmp(r->dir);
    return OK;
}

bool run_folder_is_lost(const RunFolder *r)
{
    struct stat was, now;
    if (r->lock <= 0 || fstat(r->lock, &was)) return false;
    return stat(r->dir, &now) || was.st_dev != now.st_dev || was.st_ino != now.st_ino;
}

Status run_folder_make_again(RunFolder *r)
{
    run_folder_close(r);
    TRY(folder_make(r->dir));
    return lock_folder(r);
}

void run_folder_close(RunFolder *r)
{
    if (r->lock > 0) close(r->lock);
    r->lock = 0;
}

Status run_folder_write_recipe(const RunFolder *r, const Config *c, const char *const *notes, int n_notes)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    for (int i = 0; f && i < n_notes && notes[i]; i++) fprintf(f, "# %s\n", notes[i]);
    if (f) config_dump(f, c);
    Status st = f && !fclose(f) ? OK : fail(E_FIT, "no memory for recipe.yaml");
    if (!st) st = file_write_atomic(r->dir, "recipe.yaml", text, n);
    free(text);
    return st;
}

Status run_folder_write_json(const RunFolder *r, const char *name, const Json *o)
{
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_COMPACT) : NULL;
    Status st = text ? file_write_atomic(r->dir, name, text, strlen(text))
                     : fail(E_FIT, "no memory for %s", name);
    free(text);
    return st;
}

/* Whether the line is of a step up to `step`. An incomplete last line, left by a kill, is not. */
static bool is_kept(const char *line, ssize_t n, int64_t step)
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
    size_t size = 0, bytes = 0;
    FILE *in = fopen(r->metrics, "re"), *out = NULL;
    if (!in) return errno == ENOENT ? OK : fail(E_IO, "%s: %s", r->metrics, strerror(errno));
    Status st =
        (out = open_memstream(&kept, &bytes)) ? OK : fail(E_FIT, "%s: no memory to read it", r->metrics);
    for (ssize_t n; !st && (n = getline(&line, &size, in)) > 0;)
        if (is_kept(line, n, step)) fwrite(line, 1, (size_t)n, out);
    if (out && fclose(out) && !st) st = fail(E_FIT, "%s: no memory to read it", r->metrics);
    fclose(in);
    if (!st) st = file_write_atomic(r->dir, "metrics.jsonl", kept, bytes);
    free(line), free(kept);
    return st;
}
