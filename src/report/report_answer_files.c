/* report/report_answer_files.c -- reads samples/step-N.jsonl: questions and the answers of the model at step
 * N. */
#include "report/report_run.h"

#include "base/str.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 100000, TEXT_MAX = 6000, PATH_TEXT_MAX = 1 << 20 };

/* A copy of a text; a long text is cut between two characters. */
static const char *copy_start(MemPool *keep, const char *s, size_t most)
{
    size_t n = strlen(s);
    if (n <= most) return mem_pool_copy(keep, s, n);
    for (n = most; n > 0 && ((unsigned char)s[n] & 0xc0) == 0x80;) n--;
    char *copy = mem_pool_alloc(keep, n + 4);
    snprintf(copy, n + 4, "%.*s\xe2\x80\xa6", (int)n, s);                   /* an ellipsis */
    return copy;
}

static const char *text_of(ReportRun *r, const Json *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? copy_start(&r->keep, s, TEXT_MAX) : NULL;
}

static void take_images(ReportRun *r, Answer *s, const Json *v)
{
    size_t n = json_array_size(v);
    if (n > ANSWER_IMAGES) n = ANSWER_IMAGES;
    s->image = mem_pool_alloc(&r->keep, ANSWER_IMAGES * sizeof *s->image);
    for (size_t i = 0; i < n; i++) {
        const char *path = json_string_value(json_array_get(v, i));
        if (!path || !*path || strlen(path) >= PATH_TEXT_MAX) continue;
        s->image[s->images++] = mem_pool_copy(&r->keep, path, strlen(path));
    }
}

static bool read_answer(ReportRun *r, Answer *s, const Json *o, const char *folder)
{
    const Json *c = json_object_get(o, "correct");
    *s = (Answer){ .question = text_of(r, o, "question"), .answer = text_of(r, o, "answer"),
                   .expected = text_of(r, o, "expected"), .channel = text_of(r, o, "channel"),
                   .correct = -1, .folder = folder };
    if (json_is_boolean(c)) s->correct = json_is_true(c);
    if (!s->question || !s->answer) return false;
    take_images(r, s, json_object_get(o, "images"));
    return true;
}

typedef struct AnswerReader {
    ReportRun  *r;
    AnswerFile *f;
    const char *folder;
    int64_t     damaged;
} AnswerReader;

static Status on_line(void *arg, char *line, size_t len, LineKind kind)
{
    AnswerReader *t = arg;
    Answer s;
    Json *o = kind == LINE_LONG ? NULL : json_loadb(line, len, 0, NULL);
    bool good = o && read_answer(t->r, &s, o, t->folder);
    json_decref(o);
    if (!good) return t->damaged++, OK;
    if (t->f->n < ANSWER_LINES) t->f->at[t->f->n++] = s;
    t->f->scored += s.correct >= 0;
    t->f->right += s.correct == 1;
    return OK;
}

static Status read_file(ReportRun *r, const char *folder, int64_t step)
{
    AnswerFile *f = &r->answers[r->answer_files];
    AnswerReader t = { r, f, folder, 0 };
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/step-%" PRId64 ".jsonl", folder, step);
    *f = (AnswerFile){ .step = step, .at = mem_pool_alloc(&r->keep, ANSWER_LINES * sizeof(Answer)) };
    Status st = lines_read(path, on_line, &t);
    if (st == E_FIT) return st;
    if (st) return run_note(r, "samples/step-%" PRId64 ".jsonl could not be read", step), OK;
    if (t.damaged)
        run_note(r, "samples/step-%" PRId64 ".jsonl: %" PRId64 " damaged line%s left out", step, t.damaged,
                 t.damaged == 1 ? " was" : "s were");
    if (f->n) r->answer_files++;
    return OK;
}

static int by_step(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* The steps that have a file, in order. */
static int list_steps(int64_t *step, const char *folder)
{
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && n < STEPS_MAX && (e = readdir(d));) {
        char digits[20], name[64];
        if (sscanf(e->d_name, "step-%18[0-9].jsonl", digits) != 1) continue;
        int64_t at = strtoll(digits, NULL, 10);
        snprintf(name, sizeof name, "step-%" PRId64 ".jsonl", at);
        if (!strcmp(e->d_name, name)) step[n++] = at;
    }
    if (d) closedir(d);
    qsort(step, (size_t)n, sizeof *step, by_step);
    return n;
}

Status answers_read(ReportRun *r)
{
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s/samples", r->dir);
    int64_t *step = malloc(STEPS_MAX * sizeof *step);
    if (!step) return fail(E_FIT, "no memory to list %s", folder);
    int n = list_steps(step, folder), files = n < ANSWER_FILES ? n : ANSWER_FILES;
    const char *kept = mem_pool_copy(&r->keep, folder, strlen(folder));
    Status st = OK;
    if (!n) run_note(r, "no samples/step-N.jsonl: there are no answers to show");
    for (int i = 0; i < files && !st; i++) {
        int64_t pick = files > 1 ? (int64_t)i * (n - 1) / (files - 1) : 0;
        st = read_file(r, kept, step[pick]);
    }
    free(step);
    return st;
}
