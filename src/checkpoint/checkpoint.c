/* checkpoint/checkpoint.c -- folders and links of a run's checkpoints: commit, rotation, search; see
 * checkpoint.h. */
#define _GNU_SOURCE
#include "checkpoint/checkpoint_private.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void folder_name(char out[64], int64_t step, const char *tail)
{
    snprintf(out, 64, "checkpoint-%" PRId64 "%s", step, tail);
}

/* The step in a folder's name; -1: not the name of a checkpoint. */
static int64_t step_of(const char *name)
{
    char *end;
    if (strncmp(name, "checkpoint-", 11) || name[11] < '0' || name[11] > '9') return -1;
    int64_t n = strtoll(name + 11, &end, 10);
    return *end ? -1 : n;
}

/* Renames atomically, also over an older checkpoint of the same step, which is then deleted. */
static Status rename_over(const char *from, const char *to)
{
    if (!renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE)) return OK;
    if (errno == EEXIST && !renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE)) {
        folder_remove(from);
        return OK;
    }
    if (errno == EINVAL || errno == ENOSYS) {                /* a file system without renameat2 flags */
        folder_remove(to);
        if (!rename(from, to)) return OK;
    }
    return fail(E_IO, "%s: cannot rename %s to it: %s", to, from, strerror(errno));
}

static Status set_link(const char *dir, const char *link, const char *target)
{
    Path path, tmp;
    char tmp_name[64];
    snprintf(tmp_name, sizeof tmp_name, "%s.tmp", link);
    TRY(path_join(path, dir, link));
    TRY(path_join(tmp, dir, tmp_name));
    unlink(tmp);
    if (symlink(target, tmp) || rename(tmp, path)) return fail(E_IO, "%s: %s", path, strerror(errno));
    return OK;
}

/* The step of a link's target; -1: no such link. */
static int64_t link_step(const char *dir, const char *link)
{
    Path path, target;
    if (path_join(path, dir, link)) return -1;
    ssize_t n = readlink(path, target, sizeof target - 1);
    if (n < 0) return -1;
    target[n] = 0;
    return step_of(target);
}

void checkpoint_rewind_best(const char *dir, int64_t step, int64_t best)
{
    Path path, link;
    char name[64];
    folder_name(name, best, "");
    if (link_step(dir, "best") <= step || path_join(path, dir, name) || path_join(link, dir, "best")) return;
    if (best < 0 || !file_is(path) || set_link(dir, "best", name)) unlink(link);
}

static int is_checkpoint(const struct dirent *e) { return step_of(e->d_name) >= 0; }

static int newest_first(const struct dirent **a, const struct dirent **b)
{
    int64_t x = step_of((*a)->d_name), y = step_of((*b)->d_name);
    return (x < y) - (x > y);
}

/* Renames the folder to .tmp before its first file is removed: an interrupted removal
 * leaves no checkpoint. */
static void remove_checkpoint(const char *dir, const char *name)
{
    Path from, to;
    char tmp[300];
    snprintf(tmp, sizeof tmp, "%s.tmp", name);
    if (path_join(from, dir, name) || path_join(to, dir, tmp)) return;
    if (!rename(from, to)) folder_remove(to);
}

/* Checkpoints beyond `step` belong to a run that was rewound: they are not counted, and are overwritten when
 * the run reaches their step. */
static void remove_old(const char *dir, int64_t step, int64_t keep)
{
    struct dirent **entry;
    int64_t best = link_step(dir, "best"), seen = 0;
    int n = keep > 0 ? scandir(dir, &entry, is_checkpoint, newest_first) : -1;
    for (int i = 0; i < n; i++) {
        int64_t at = step_of(entry[i]->d_name);
        if (at <= step && ++seen > keep && at != best) remove_checkpoint(dir, entry[i]->d_name);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

Status checkpoint_tmp_path(Path out, const char *dir, int64_t step)
{
    char name[64];
    folder_name(name, step, ".tmp");
    return path_join(out, dir, name);
}

Status checkpoint_commit(const char *dir, int64_t step, bool best, int64_t keep)
{
    Path tmp, path;
    char name[64];
    folder_name(name, step, "");
    TRY(checkpoint_tmp_path(tmp, dir, step));
    TRY(path_join(path, dir, name));
    TRY(rename_over(tmp, path));
    folder_sync(dir);
    TRY(set_link(dir, "last", name));
    if (best) TRY(set_link(dir, "best", name));
    folder_sync(dir);
    remove_old(dir, step, keep);
    return OK;
}

static int is_leftover(const struct dirent *e)
{
    size_t n = strlen(e->d_name);
    return (!strncmp(e->d_name, "checkpoint-", 11) || !strcmp(e->d_name, "last.tmp") ||
            !strcmp(e->d_name, "best.tmp")) &&
           n > 4 && !strcmp(e->d_name + n - 4, ".tmp");
}

void checkpoint_remove_tmp(const char *dir)
{
    struct dirent **entry;
    Path path;
    int n = scandir(dir, &entry, is_leftover, NULL);
    for (int i = 0; i < n; i++) {
        if (!path_join(path, dir, entry[i]->d_name)) folder_remove(path);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
}

static bool is_complete(Path path, const char *dir, const char *name, const Log *log)
{
    if (!path_join(path, dir, name) && !checkpoint_verify(path)) return true;
    log_warn(log, "%s; this checkpoint is skipped", status_text());
    return false;
}

Status checkpoint_find(Path path, const char *dir, const Log *log)
{
    char name[64];
    struct dirent **entry;
    int64_t last = link_step(dir, "last");
    bool found = false;
    folder_name(name, last, "");
    if (last >= 0 && is_complete(path, dir, name, log)) return OK;
    int n = scandir(dir, &entry, is_checkpoint, newest_first);
    if (n < 0 && errno != ENOENT) return fail(E_IO, "%s: %s", dir, strerror(errno));
    for (int i = 0; i < n; i++) {
        if (!found && step_of(entry[i]->d_name) != last)
            found = is_complete(path, dir, entry[i]->d_name, log);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    if (!found) path[0] = 0;
    return OK;
}

int checkpoint_count(const char *dir)
{
    struct dirent **entry;
    int n = scandir(dir, &entry, is_checkpoint, NULL);
    for (int i = 0; i < n; i++) free(entry[i]);
    if (n >= 0) free(entry);
    return n > 0 ? n : 0;
}

bool checkpoint_is(const char *path) { return folder_has(path, "state"); }

Status checkpoint_refuse_run_folder(const char *path)
{
    Path last;
    if (path_join(last, path, "last") || !checkpoint_is(last)) return OK;
    return fail(E_CONFIG, "%s is a run folder; name one of its checkpoints, such as %s", path, last);
}

Status checkpoint_read_state(const char *path, Json **state)
{
    Path file;
    TRY(path_join(file, path, "trainer_state.json"));
    return json_load(state, file);
}
