/* report/report_run.c -- opens the folder of a run and reads recipe, environment and plan; metrics, answers
 * and expert loads are read by report_metrics.c, report_answer_files.c and report_load.c. */
#include "report/report_run.h"

#include "base/yaml.h"
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

const char *const part_names[PARTS] = { "vision", "merger", "decoder", "head" };

enum { JSON_MAX_BYTES = 64 << 20, KEYS_MAX = 5000, ENV_DEPTH = 8 };

void run_note(ReportRun *r, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (r->notes == sizeof r->note / sizeof *r->note) return;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    r->note[r->notes++] = mem_pool_copy(&r->keep, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

/* --- keys -------------------------------------------------------------------------------------------- */

Status keys_push(KeyValues *p, MemPool *keep, const char *key, const char *value)
{
    if (p->n == KEYS_MAX) return OK;
    if (p->n == p->capacity) {
        int capacity = p->capacity ? 2 * p->capacity : 64;
        KeyValue *at = realloc(p->at, (size_t)capacity * sizeof *at);
        if (!at) return fail(E_FIT, "no memory for %d keys", capacity);
        p->at = at, p->capacity = capacity;
    }
    p->at[p->n++] = (KeyValue){ mem_pool_copy(keep, key, strlen(key)),
                                 mem_pool_copy(keep, value, strlen(value)) };
    return OK;
}

const char *keys_find(const KeyValues *p, const char *key)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->at[i].key, key)) return p->at[i].value;
    return NULL;
}

void keys_close(KeyValues *p)
{
    free(p->at);
    *p = (KeyValues){ 0 };
}

static bool plain_list(const YamlNode *n)
{
    for (const YamlNode *e = n->first; e; e = e->next)
        if (e->kind != Y_SCALAR) return false;
    return n->kind == Y_LIST;
}

static Status push_list(KeyValues *p, MemPool *keep, const char *key, const YamlNode *n)
{
    Text t = { 0 };
    Status st = OK;
    for (const YamlNode *e = n->first; e && !st; e = e->next)
        st = text_printf(&t, "%s%s", e == n->first ? "" : ", ", e->text);
    if (!st) st = text_push(&t, "", 1);
    if (!st) st = keys_push(p, keep, key, t.v);
    text_close(&t);
    return st;
}

/* A list of scalars is one value; the items of a list of mappings are numbered: data.train[0].path. */
static Status walk_recipe(KeyValues *p, MemPool *keep, const char *key, const YamlNode *n)
{
    if (n->kind == Y_SCALAR) return keys_push(p, keep, key, n->text);
    if (plain_list(n)) return push_list(p, keep, key, n);
    int i = 0;
    for (const YamlNode *e = n->first; e; e = e->next, i++) {
        char name[512];
        if (n->kind == Y_LIST) snprintf(name, sizeof name, "%s[%d]", key, i);
        else                   snprintf(name, sizeof name, "%s%s%s", key, *key ? "." : "", e->key);
        TRY(walk_recipe(p, keep, name, e));
    }
    return OK;
}

Status keys_from_recipe(KeyValues *p, MemPool *keep, const char *text, size_t len, const char *name)
{
    Yaml y;
    TRY(yaml_parse(&y, text, len, name));
    Status st = y.root ? walk_recipe(p, keep, "", y.root) : OK;
    yaml_close(&y);
    return st;
}

static Status walk_env(KeyValues *p, MemPool *keep, const char *key, const Json *v, int depth)
{
    char name[512], number[40];
    if (depth > ENV_DEPTH) return OK;
    if (json_is_object(v)) {
        const char *k;
        Json *e;
        json_object_foreach((Json *)v, k, e) {
            snprintf(name, sizeof name, "%s%s%s", key, *key ? "." : "", k);
            TRY(walk_env(p, keep, name, e, depth + 1));
        }
        return OK;
    }
    if (json_is_array(v)) {
        for (size_t i = 0; i < json_array_size(v) && i < KEYS_MAX; i++) {
            snprintf(name, sizeof name, "%s[%zu]", key, i);
            TRY(walk_env(p, keep, name, json_array_get(v, i), depth + 1));
        }
        return OK;
    }
    if (json_is_string(v)) return keys_push(p, keep, key, json_string_value(v));
    if (json_is_boolean(v)) return keys_push(p, keep, key, json_is_true(v) ? "true" : "false");
    if (json_is_null(v)) return keys_push(p, keep, key, "");
    if (json_is_integer(v)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    else                    snprintf(number, sizeof number, "%.6g", json_real_value(v));
    return keys_push(p, keep, key, number);
}

/* --- files of the folder ------------------------------------------------------------------------------ */

static void path_in(char path[PATH_MAX], const ReportRun *r, const char *name)
{
    snprintf(path, PATH_MAX, "%s/%s", r->dir, name);
}

/* True if the file can be read; otherwise adds a note with the reason and what the page lacks without it. */
static bool present(ReportRun *r, char path[PATH_MAX], const char *name, const char *lacks)
{
    struct stat info;
    path_in(path, r, name);
    if (stat(path, &info)) {
        if (errno == ENOENT) run_note(r, "no %s: %s", name, lacks);
        else                 run_note(r, "%s: %s; %s", name, strerror(errno), lacks);
        return false;
    }
    if (!S_ISREG(info.st_mode)) return run_note(r, "%s is not a file; %s", name, lacks), false;
    if (info.st_size > JSON_MAX_BYTES && strcmp(name, "metrics.jsonl"))
        return run_note(r, "%s is too large to be read; %s", name, lacks), false;
    return true;
}

/* The text of the latest failure without the folder in front: the page names the run. */
static const char *reason(const ReportRun *r)
{
    const char *text = status_text();
    size_t n = strlen(r->dir);
    return !strncmp(text, r->dir, n) && text[n] == '/' ? text + n + 1 : text;
}

/* A file that cannot be read becomes a note; only lack of memory is returned. */
static Status note_failure(ReportRun *r, Status st, const char *lacks)
{
    if (!st || st == E_FIT) return st;
    run_note(r, "%s; %s", reason(r), lacks);
    return OK;
}

static Status read_recipe(ReportRun *r)
{
    static const char lacks[] = "the recipe is not shown";
    char path[PATH_MAX];
    Yaml y = { 0 };
    if (!present(r, path, "recipe.yaml", lacks)) return OK;
    Status st = yaml_load(&y, path);
    if (!st && y.root) st = walk_recipe(&r->recipe, &r->keep, "", y.root);
    yaml_close(&y);
    return note_failure(r, st, lacks);
}

static Status read_env(ReportRun *r)
{
    static const char lacks[] = "the machine is not shown";
    char path[PATH_MAX];
    Json *o = NULL;
    if (!present(r, path, "env.json", lacks)) return OK;
    Status st = json_load(&o, path);
    if (!st) st = walk_env(&r->env, &r->keep, "", o, 0);
    json_decref(o);
    return note_failure(r, st, lacks);
}

static double read_amount(const Json *o, const char *key) /* 0 for anything that is no sensible number */
{
    double v = json_number_value(json_object_get(o, key));
    return v > 0 && v < 1e30 ? v : 0;
}

static const char *read_name(ReportRun *r, const Json *o)
{
    const char *s = json_string_value(json_object_get(o, "name"));
    return s ? mem_pool_copy(&r->keep, s, strlen(s)) : "unnamed";
}

static void read_arena(ReportRun *r, const Json *o)
{
    MemArena *a = &r->plan.arena[r->plan.arenas++];
    const Json *labels = json_object_get(o, "labels");
    *a = (MemArena){ .name = read_name(r, o), .bytes = read_amount(o, "bytes") };
    a->label = mem_pool_alloc(&r->keep, MEM_LABELS * sizeof *a->label);
    for (size_t i = 0; i < json_array_size(labels) && a->labels < MEM_LABELS; i++) {
        const Json *l = json_array_get(labels, i);
        a->label[a->labels++] = (MemLabel){ read_name(r, l), read_amount(l, "bytes") };
    }
}

static Status read_plan(ReportRun *r)
{
    static const char lacks[] = "memory and FLOPs by part are not shown";
    char path[PATH_MAX];
    Json *o = NULL;
    if (!present(r, path, "plan.json", lacks)) return OK;
    Status st = json_load(&o, path);
    if (!st && !json_is_object(o)) st = fail(E_DATA, "plan.json: not an object");
    const Json *arenas = json_object_get(o, "arenas");
    for (size_t i = 0; i < json_array_size(arenas) && i < MEM_ARENAS; i++)
        read_arena(r, json_array_get(arenas, i));
    for (int i = 0; i < PARTS; i++)
        r->plan.flops[i] = read_amount(json_object_get(o, "flops"), part_names[i]);
    const Json *trains = json_object_get(o, "trains");
    r->plan.model = read_amount(trains, "model"), r->plan.adapters = read_amount(trains, "adapters");
    r->plan.trained = read_amount(trains, "trained");
    r->has_plan = !st;
    json_decref(o);
    return note_failure(r, st, lacks);
}

static const char *were(int64_t n) { return n == 1 ? " was" : "s were"; }

static void note_metrics(ReportRun *r, const MetricsFile *m)
{
    if (m->damaged)
        run_note(r, "metrics.jsonl: %" PRId64 " damaged line%s left out", m->damaged, were(m->damaged));
    if (m->open_end)
        run_note(r, "metrics.jsonl: its last line is not finished; the run is still going on or was killed");
    if (m->crowded)
        run_note(r, "metrics.jsonl: more than %d names; %" PRId64 " value%s left out", SERIES_MAX, m->crowded,
                 were(m->crowded));
    if (!m->lines) run_note(r, "metrics.jsonl: no usable line");
    for (int i = 0; i < m->n; i++) {
        const Series *s = &m->series[i];
        if (s->bad)
            run_note(r, "%s: %" PRId64 " value%s not finite, first at step %.0f", s->key, s->bad,
                     were(s->bad), s->bad_step);
    }
}

static Status read_metrics(ReportRun *r)
{
    static const char lacks[] = "there are no curves";
    char path[PATH_MAX];
    if (!present(r, path, "metrics.jsonl", lacks)) return OK;
    r->has_metrics = true;
    TRY(note_failure(r, metrics_read(&r->metrics, &r->keep, path), "the curves may be cut short"));
    note_metrics(r, &r->metrics);
    return OK;
}

static Status read_load(ReportRun *r)
{
    static const char lacks[] = "the load of experts is not shown";
    char path[PATH_MAX];
    if (!present(r, path, "expert_load.json", lacks)) return OK;
    return note_failure(r, load_read(r, path), lacks);
}

static Status count_line(void *arg, char *line, size_t len, LineKind kind)
{
    ++*(int64_t *)arg;
    return OK;
}

static Status read_quarantine(ReportRun *r)
{
    char path[PATH_MAX];
    struct stat info;
    path_in(path, r, "quarantine.jsonl");
    if (stat(path, &info)) return OK;                                /* no file: no sample was quarantined */
    TRY(note_failure(r, lines_read(path, count_line, &r->quarantined),
                     "quarantined samples are not counted"));
    if (r->quarantined)
        run_note(r, "%" PRId64 " sample%s of the data could not be used; quarantine.jsonl says which and why",
                 r->quarantined, r->quarantined == 1 ? "" : "s");
    return OK;
}

/* What ended the run, if that is the last line of the log: "TIME [rank] error: ...". A message of several
 * lines continues in lines that are indented. */
static const char *find_failure(char *text)
{
    static const char mark[] = "error: ";
    size_t n = strlen(text);
    while (n && text[n - 1] == '\n') text[--n] = 0;
    for (char *at; (at = strrchr(text, '\n')) && !strncmp(at + 1, "  ", 2);) *at = 0;
    char *last = strrchr(text, '\n'), *word = strchr(last ? last : text, ' ');
    if (word && word[1] == '[') word = strchr(word + 1, ' ');
    return word && !strncmp(word + 1, mark, strlen(mark)) ? word + 1 + strlen(mark) : NULL;
}

static Status read_failure(ReportRun *r)
{
    char path[PATH_MAX], tail[8192];
    struct stat info;
    path_in(path, r, "train.log");
    FILE *f = stat(path, &info) || !S_ISREG(info.st_mode) ? NULL : fopen(path, "rb");
    if (!f) return OK;
    if (info.st_size >= (off_t)sizeof tail) fseeko(f, info.st_size - (off_t)sizeof tail + 1, SEEK_SET);
    tail[fread(tail, 1, sizeof tail - 1, f)] = 0;
    fclose(f);
    const char *failure = find_failure(tail);
    if (failure) run_note(r, "the run ended with an error: %s", failure);
    return OK;
}

/* --- the folder --------------------------------------------------------------------------------------- */

static const char *base_name(ReportRun *r, const char *dir)
{
    char whole[PATH_MAX];
    const char *from = realpath(dir, whole) ? whole : dir, *slash = strrchr(from, '/');
    const char *name = slash && slash[1] ? slash + 1 : from;
    return mem_pool_copy(&r->keep, name, strlen(name));
}

static Status check_folder(const char *dir)
{
    static const char *const files[] = { "metrics.jsonl", "recipe.yaml",      "env.json",
                                         "plan.json",     "expert_load.json", "samples" };
    struct stat info;
    char path[PATH_MAX];
    if (stat(dir, &info)) return fail(E_IO, "%s: %s", dir, strerror(errno));
    if (!S_ISDIR(info.st_mode)) return fail(E_DATA, "%s: not a folder; name the folder of a run", dir);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int n = snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        if (n < (int)sizeof path && !stat(path, &info)) return OK;
    }
    return fail(E_DATA,
                "%s: no file of a run in it (no metrics.jsonl, recipe.yaml, ...); name the folder that "
                "was checkpoint.output_dir",
                dir);
}

Status run_open(ReportRun *r, const char *dir)
{
    *r = (ReportRun){ .load.step = -1 };
    TRY(check_folder(dir));
    r->dir = mem_pool_copy(&r->keep, dir, strlen(dir));
    r->name = base_name(r, dir);
    Status (*const parts[])(ReportRun *) = { read_metrics, read_recipe,  read_env,       read_plan,
                                       read_load,    answers_read, read_quarantine, read_failure,
                                       hang_read };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        Status st = parts[i](r);
        if (st) return run_close(r), st;
    }
    return OK;
}

void run_close(ReportRun *r)
{
    metrics_file_close(&r->metrics);
    keys_close(&r->recipe);
    keys_close(&r->env);
    json_decref(r->hang);
    mem_pool_close(&r->keep);
    *r = (ReportRun){ 0 };
}
