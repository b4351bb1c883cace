/* checkpoint/checkpoint_save.c -- the steps of a save; see checkpoint.h and checkpoint_private.h. */
#include "checkpoint/checkpoint_private.h"

#include "base/activity.h"
#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#define DEFAULT_PATIENCE 600.0           /* seconds */

static char *dump_json(const Json *o)
{
    return json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
}

static Status copy_export(SaveJob *j, const HfExport *x)
{
    if (!x) return OK;
    j->min_pixels = x->min_pixels, j->max_pixels = x->max_pixels;
    j->hf_config = json_deep_copy(x->config);
    j->companions = strdup(x->companions);
    return j->hf_config && j->companions ? OK : fail(E_FIT, "no memory for the files of a checkpoint");
}

static Status copy_lora(SaveJob *j, const Snapshot *s)
{
    const char *base = json_string_value(json_object_get(s->base, "path"));
    TRY(checkpoint_lora_dump(&j->adapter, s->model, s->base));
    if (!(j->base = strdup(base ? base : ""))) return fail(E_FIT, "no memory for the files of a checkpoint");
    return copy_export(j, s->hf ? s->hf : s->files);
}

static Status fill_job(SaveJob *j, const Snapshot *s)
{
    const Model *m = s->model;
    j->step = s->step, j->keep = s->keep, j->best = s->best;
    j->hf = s->hf, j->files = s->files, j->only_model = s->only_model && s->hf;
    j->rank = s->mesh ? s->mesh->rank : 0, j->ranks = s->mesh ? s->mesh->world : 1;
    j->world = s->mesh && j->ranks > 1 ? s->mesh->comm[GR_world] : NULL;
    j->patience = s->patience > 0 ? s->patience : DEFAULT_PATIENCE;
    j->shape = m->shape, j->dtype = params_dtype(&m->params);
    j->lora = m->lora;
    memcpy(j->frozen, m->frozen, sizeof j->frozen);
    if (snprintf(j->dir, sizeof j->dir, "%s", s->dir) >= (int)sizeof j->dir)
        return fail(E_IO, "%.200s: the path is too long", s->dir);
    TRY(shards_list_local(&j->list, m, j->only_model));
    if (j->rank) return OK;
    if (!(j->state = dump_json(s->state)) || (s->config && !(j->config = dump_json(s->config))))
        return fail(E_FIT, "no memory for trainer_state.json");
    return m->lora ? copy_lora(j, s) : copy_export(j, s->hf ? s->hf : s->files);
}

Status checkpoint_save_open(SaveJob *j, const Snapshot *s)
{
    *j = (SaveJob){ 0 };
    Status st = fill_job(j, s);
    if (st) checkpoint_save_close(j);
    return st;
}

void checkpoint_save_close(SaveJob *j)
{
    shards_free_local(&j->list);
    free(j->state), free(j->config), free(j->companions), free(j->adapter), free(j->base);
    json_decref(j->hf_config);
    *j = (SaveJob){ 0 };
}

/* Rank 0 removes what an earlier attempt left before any rank writes. */
Status checkpoint_save_prepare(const SaveJob *j)
{
    Path tmp, state;
    Status st = checkpoint_tmp_path(tmp, j->dir, j->step);
    if (!st && !j->rank) folder_remove(tmp);
    if (!st && !j->rank) st = path_join(state, tmp, "state");
    if (!st && !j->rank) st = folder_make(state);
    if (st) st = checkpoint_save_failed(j, st);
    return j->world ? comm_agree(j->world, st) : st;
}

/* The manifest, written last, marks a rank's folder as complete. */
Status checkpoint_save_write(const SaveJob *j, Backend *be, const void *copy)
{
    Path tmp, path;
    TRY(checkpoint_tmp_path(tmp, j->dir, j->step));
    TRY(shards_write(tmp, &j->list, j->rank, j->ranks, be, copy, j->stop));
    if (j->ranks == 1) return OK;
    TRY(shards_path(path, tmp, j->rank, ""));
    return checkpoint_manifest_write(path, j->step);
}

/* ---- rank 0 ---- */

/* Bytes of all files of a folder, unfinished ones included: while they grow, the rank that writes them is
 * alive. */
static int64_t folder_bytes(const char *folder)
{
    struct dirent *e;
    struct stat info;
    int64_t sum = 0;
    Path path;
    DIR *d = opendir(folder);
    while (d && (e = readdir(d)))
        if (!path_join(path, folder, e->d_name) && !stat(path, &info) && S_ISREG(info.st_mode))
            sum += 1 + info.st_size;
    if (d) closedir(d);
    return sum;
}

static Status report_failed_rank(const char *path, int rank)
{
    char why[512] = "";
    FILE *f = fopen(path, "re");
    if (f) why[fread(why, 1, sizeof why - 1, f)] = 0, fclose(f);
    return fail(E_COMM, "rank %d could not write its files: %s", rank, why);
}

/* Advances *r to the next rank without a manifest. Fails if any of the ranks from *r on has failed. */
static Status find_missing_rank(const SaveJob *j, const char *tmp, int *r)
{
    Path path;
    for (int i = *r; i < j->ranks; i++) {
        TRY(shards_path(path, tmp, i, "failed"));
        if (file_is(path)) return report_failed_rank(path, i);
    }
    for (; *r < j->ranks; ++*r) {
        TRY(shards_path(path, tmp, *r, CHECKPOINT_MANIFEST));
        if (!file_is(path)) break;
    }
    return OK;
}

/* Waits for the manifests of the other ranks, as long as the files of the first missing rank grow. */
static Status wait_for_ranks(const SaveJob *j, const char *tmp)
{
    const struct timespec nap = { .tv_nsec = 20000000 };
    double grown = clock_now();
    int64_t bytes = -1;
    for (int r = 1, was = 1; r < j->ranks; nanosleep(&nap, NULL)) {
        Path path;
        TRY(find_missing_rank(j, tmp, &r));
        if (r == j->ranks) break;
        TRY(shards_path(path, tmp, r, ""));
        int64_t now = folder_bytes(path);
        if (now != bytes || r != was) grown = clock_now(), bytes = now, was = r, activity_mark();
        if (j->stop && __atomic_load_n(j->stop, __ATOMIC_ACQUIRE))
            return fail(E_COMM, "the run ended before rank %d had written its files", r);
        if (clock_now() - grown > j->patience)
            return fail(E_COMM, "the files of rank %d have not grown for %.0f s; check that rank, and that "
                        "all ranks see the same %s", r, j->patience, j->dir);
    }
    return OK;
}

static Status write_text(const char *folder, const char *name, const char *text)
{
    Path path;
    TRY(path_join(path, folder, name));
    return file_write(path, text, strlen(text));
}

/* The HF form was assembled from it. */
static Status remove_state(const char *tmp)
{
    Path state;
    TRY(path_join(state, tmp, "state"));
    return folder_remove(state) ? OK : fail(E_IO, "%s: cannot be removed", state);
}

Status checkpoint_save_finish(const SaveJob *j)
{
    Path tmp;
    if (j->rank) return OK;
    TRY(checkpoint_tmp_path(tmp, j->dir, j->step));
    activity_slow_begin();                                   /* j->patience bounds it */
    Status st = wait_for_ranks(j, tmp);
    activity_slow_end();
    TRY(st);
    if (j->config) TRY(write_text(tmp, "state/config.json", j->config));
    if (j->adapter) TRY(write_text(tmp, "state/adapter.json", j->adapter));
    if (j->hf) TRY(checkpoint_export(tmp, j));
    else if (j->files) TRY(checkpoint_add_files(tmp, j));
    if (j->only_model) TRY(remove_state(tmp));
    TRY(write_text(tmp, "trainer_state.json", j->state));
    TRY(checkpoint_manifest_write(tmp, j->step));
    return checkpoint_commit(j->dir, j->step, j->best, j->keep);
}

Status checkpoint_save_failed(const SaveJob *j, Status st)
{
    Path tmp, path;
    st = wrap(st, "saving %s/checkpoint-%" PRId64 " (earlier checkpoints are intact)", j->dir, j->step);
    if (checkpoint_tmp_path(tmp, j->dir, j->step)) return st;
    if (!j->rank) {
        folder_remove(tmp);
        return st;
    }
    char text[512];
    snprintf(text, sizeof text, "%s", status_text());
    bool written = file_is(tmp) && !shards_path(path, tmp, j->rank, "") && !folder_make(path) &&
                   !shards_path(path, tmp, j->rank, "failed") && !file_write(path, text, strlen(text));
    return written ? st : fail(st, "%s", text);              /* if not, rank 0 runs out of patience */
}

Status checkpoint_save(const Snapshot *s)
{
    SaveJob j;
    Comm *world = s->mesh && s->mesh->world > 1 ? s->mesh->comm[GR_world] : NULL;
    Status st = checkpoint_save_open(&j, s);
    if (world) st = comm_agree(world, st);
    if (!st) st = checkpoint_save_prepare(&j);
    if (!st) {
        st = checkpoint_save_write(&j, s->be, NULL);
        if (world) st = comm_agree(world, st);
        if (!st) st = checkpoint_save_finish(&j);
        if (st && !j.rank) st = checkpoint_save_failed(&j, st);
        if (world) st = comm_agree(world, st);
    }
    checkpoint_save_close(&j);
    return st;
}
