/* tune/trial.c -- see trial.h. */
#define _GNU_SOURCE                      /* O_CLOEXEC */
#include "tune/trial.h"

#include "base/clock.h"
#include "launch/process.h"
#include "report/report_run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const words[] = { "ran", "does not fit", "failed", "took too long" };

const char *trial_word(TrialEnd e) { return words[e]; }

Status trial_write(const char *file, const Config *recipe, const char *comment)
{
    FILE *f = fopen(file, "w");
    if (!f) return fail(E_IO, "%s: %s", file, strerror(errno));
    if (comment) fputs(comment, f);
    config_dump(f, recipe);
    return fclose(f) ? fail(E_IO, "%s: %s", file, strerror(errno)) : OK;
}

/* ---- the process ---- */

static Status make_command(Words *w, int ranks, const char *file)
{
    Path    path;
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n < 0) return fail(E_IO, "/proc/self/exe: %s", strerror(errno));
    TRY(words_add(w, "%.*s", (int)n, path));
    if (ranks > 1) {
        TRY(words_add(w, "launch"));
        TRY(words_add(w, "-n"));
        TRY(words_add(w, "%d", ranks));
    }
    TRY(words_add(w, "train"));
    return words_add(w, "%s", file);
}

/* The status of waitpid; -1: the time is over. The run gets SIGTERM first, so that its ranks end together. */
static int wait_for(pid_t pid, double limit)
{
    int    status = 0, asked = 0;
    double from = clock_now();
    while (waitpid(pid, &status, WNOHANG) == 0) {
        double over = limit > 0 ? clock_now() - from - limit : -1;
        if (over > 0 && !asked++) kill(-pid, SIGTERM);
        if (over > 20) kill(-pid, SIGKILL);
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    return asked ? -1 : status;
}

Status trial_train(int *code, int ranks, const char *file, const char *log, double limit)
{
    Words  command = { 0 };
    pid_t  pid;
    int    fd = open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return fail(E_IO, "%s: %s", log, strerror(errno));
    Status st = make_command(&command, ranks, file);
    if (!st) st = process_start(&pid, &command, NULL, fd, fd);
    close(fd);
    words_close(&command);
    if (st) return st;
    int status = wait_for(pid, limit);
    *code = status < 0 ? -1 : process_code(status);
    return OK;
}

/* ---- results ---- */

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of the steps after `from`; 0: the series has none. range: see Trial; or NULL. */
static double median_after(const MetricsFile *m, const char *key, double from, double *range)
{
    const Series *s = series_find(m, key);
    double v[TRIAL_STEPS];
    int    n = 0;
    for (int64_t i = 0; s && i < s->n && n < TRIAL_STEPS; i++)
        if (s->at[i].step > from) v[n++] = s->at[i].value;
    if (!n) return 0;
    qsort(v, (size_t)n, sizeof *v, ascending);
    double median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
    if (range && median > 0) *range = (v[n - 1] - v[0]) / median;
    return median;
}

static double last_of(const MetricsFile *m, const char *key)
{
    const Series *s = series_find(m, key);
    return s && s->n ? s->at[s->n - 1].value : 0;
}

static Status read_metrics(Trial *t, const TrialConf *conf)
{
    MetricsFile *m = calloc(1, sizeof *m);
    MemPool      keep = { 0 };
    Path         path;
    Status st = m ? path_join(path, t->run, "metrics.jsonl") : fail(E_FIT, "no memory");
    if (!st) st = metrics_read(m, &keep, path);
    if (!st) {
        t->step = median_after(m, "perf/step_time", conf->warmup, NULL);
        t->rate = median_after(m, "perf/tokens_per_second_per_gpu", conf->warmup, &t->range);
        t->loss = last_of(m, "train/loss");
        t->peak = last_of(m, KEY_MEASURED), t->planned = last_of(m, KEY_PLANNED);
        metrics_file_close(m);
    }
    mem_pool_close(&keep);
    free(m);
    return st;
}

static Status keep_line(void *self, char *line, size_t n, LineKind kind)
{
    Trial *t = self;
    if (kind != LINE_LONG && strncmp(line, "mpirun", 6) && line[0] != '-')
        snprintf(t->why, sizeof t->why, "%.*s", (int)(n < sizeof t->why ? n : sizeof t->why - 1), line);
    return OK;
}

/* Exit code 5 is the device's: memory that no plan has seen. */
static TrialEnd end_of(int code)
{
    return code < 0 ? TRIAL_TOO_LONG : code == 3 ? TRIAL_DOES_NOT_FIT : code ? TRIAL_FAILED : TRIAL_OK;
}

static Status trial_recipe(Config *c, const Trial *t, const TrialConf *conf)
{
    char set[256];
    c->checkpoint.output_dir = t->run;
    snprintf(set, sizeof set, "train.max_steps=%d checkpoint.save_steps=0 checkpoint.save_at_end=false "
             "checkpoint.hf=none checkpoint.resume_from_checkpoint=none eval.eval_steps=0 "
             "eval.eval_on_start=false log.logging_steps=1 log.report_to=[jsonl]",
             conf->warmup + conf->window);
    return config_set_all(c, set);
}

Status trial_run(Trial *t, const TrialConf *conf, const Config *recipe, const char *name)
{
    Path   file, log;
    Config c = *recipe;
    double from = clock_now();
    c.keep = (MemPool){ 0 };                             /* only texts of the overrides are freed below */
    *t = (Trial){ .code = -1 };
    Status st = path_join(t->run, conf->folder, name);
    if (!st) st = trial_recipe(&c, t, conf);
    if (!st) st = folder_make(conf->folder);
    snprintf(file, sizeof file, "%.4000s.yaml", t->run), snprintf(log, sizeof log, "%.4000s.log", t->run);
    if (!st) st = trial_write(file, &c, NULL);
    if (!st) st = trial_train(&t->code, conf->ranks, file, log, conf->limit);
    mem_pool_close(&c.keep);
    TRY(st);
    t->seconds = clock_now() - from, t->end = end_of(t->code);
    if (t->end) return lines_read(log, keep_line, t);
    return read_metrics(t, conf);
}
