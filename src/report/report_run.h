/* report/report_run.h -- a run's folder, read for the page: see report.h for the files.
 *
 * run_open fails only where there is nothing of a run, or no memory; all other errors become a note, which
 * the page shows. Numbers from files are checked here, so that the parts of the page need not. */
#ifndef REPORT_REPORT_RUN_H
#define REPORT_REPORT_RUN_H

#include "base/json.h"
#include "base/mem_pool.h"
#include "base/status.h"
#include "data/ids.h"
#include <stdbool.h>
#include <stdint.h>

/* --- lines of a file ----------------------------------------------------------------------------------- */

typedef enum {
    LINE_WHOLE,
    LINE_OPEN,                        /* the last of the file, without its end: perhaps still being written */
    LINE_LONG                         /* longer than LINE_BYTES; its text is not passed on */
} LineKind;

enum { LINE_BYTES = 8 << 20 };

/* Calls fn for each line that is not blank; `line` ends with a NUL. Only a plain
 * file is read. */
typedef Status LineFn(void *arg, char *line, size_t len, LineKind kind);
MUST Status lines_read(const char *path, LineFn *fn, void *arg);

/* --- metrics ------------------------------------------------------------------------------------------ */

typedef struct Point { double step, value; } Point;

typedef struct Series {
    const char *key;                  /* "train/loss" */
    Point      *at;                   /* steps rise strictly */
    int64_t     n, capacity;
    int64_t     bad;                  /* values that were not finite */
    double      bad_step;             /* of the first of them */
    bool        drawn;                /* on the page already; the rest is drawn at its end */
} Series;

enum {
    SERIES_MAX   = 512,               /* names of a run; further ones are left out, with a note */
    SERIES_POINTS  = 1 << 17,           /* points of a series; a longer one is thinned, keeping extremes */
    LABEL_BYTES   = 64
};

/* Peak memory of a rank; mem/peak_gib of older runs is the planned one and is read as KEY_PLANNED. */
#define KEY_PLANNED  "mem/planned_gib"
#define KEY_MEASURED "mem/measured_gib"
/* Over the layers of a line: the worst moe/max_over_mean/layer_NN and their mean. */
#define KEY_WORST "moe/max_over_mean worst layer"
#define KEY_MEAN  "moe/max_over_mean mean of layers"

typedef struct MetricsFile {
    Series  series[SERIES_MAX];
    int     n;
    int64_t lines, damaged, resumes;
    int64_t crowded;                  /* values left out because there were too many names */
    int     hint;                     /* where the next name was on the line before */
    double  last_step, first_time, last_time;     /* times 0: not known */
    char    label[LABEL_BYTES];        /* "benchmark-only" if any line is */
    bool    open_end;                 /* the last line was being written */
} MetricsFile;

MUST Status metrics_read(MetricsFile *m, MemPool *keep, const char *path);
void        metrics_file_close(MetricsFile *m);
Series     *series_find(const MetricsFile *m, const char *key);            /* NULL: none, or no points */
double      series_last(const Series *s);                                  /* NAN for NULL */
double      series_tail(const Series *s);                                  /* mean of the last 5 % */
int64_t     series_warm_up(const Series *s); /* first steps that a median omits */
double      series_median(const Series *s);                                /* without warm-up */
Point       series_extreme(const Series *s, bool largest);
/* Both functions write to[] and return the number of points: a smooth curve of at most `most` points (to has
 * that capacity); and the first, least, greatest and last point of each bucket of steps from lo to hi (4 *
 * (buckets + 1)). */
int64_t     points_smooth(Point *to, const Point *from, int64_t n, int64_t most);
int64_t     points_thin(Point *to, const Point *from, int64_t n, double lo, double hi, int64_t buckets);

/* --- the other files ---------------------------------------------------------------------------------- */

typedef struct KeyValue { const char *key, *value; } KeyValue;           /* "optim.learning_rate", "1.0e-5" */
typedef struct KeyValues { KeyValue *at; int n, capacity; } KeyValues;

typedef struct MemLabel { const char *name; double bytes; } MemLabel;
typedef struct MemArena { const char *name; double bytes; MemLabel *label; int labels; } MemArena;

enum { PARTS = 4, MEM_ARENAS = 32, MEM_LABELS = 64 };
extern const char *const part_names[PARTS];                                 /* vision merger decoder head */

typedef struct MemPlan {
    MemArena arena[MEM_ARENAS];
    int      arenas;
    double   flops[PARTS];
    double   model, adapters, trained;   /* parameters; trained 0: not known */
} MemPlan;

enum { LOAD_LAYERS = 512, LOAD_EXPERTS = 4096, LOAD_CELLS = 1 << 16 };
typedef enum { LOAD_IMAGE, LOAD_TEXT, LOAD_KINDS } LoadKind;

typedef struct ExpertLoad {
    int64_t step;                     /* -1: not known */
    int     layers, experts;          /* 0: none */
    int     layer[LOAD_LAYERS];       /* its number in the model */
    float  *count[LOAD_KINDS];        /* (layers, experts), or NULL */
} ExpertLoad;

typedef struct Answer {
    const char *question, *answer, *expected, *channel;      /* the latter two NULL: not given */
    int         correct;                          /* 1, 0, or -1: not scored */
    const char *folder;                           /* of relative paths of pictures */
    const char **image;
    int         images;
} Answer;

enum { ANSWER_FILES = 16, ANSWER_LINES = 500, ANSWER_IMAGES = 8 };

typedef struct AnswerFile { int64_t step; Answer *at; int n; int64_t right, scored; } AnswerFile;

typedef struct ReportRun {
    const char *dir, *name;
    MetricsFile metrics;
    bool        has_metrics, has_plan;
    KeyValues   recipe, env;
    MemPlan     plan;
    ExpertLoad  load;
    AnswerFile  answers[ANSWER_FILES];          /* by step; of many files, a selection with first and last */
    int         answer_files;
    int64_t     quarantined;
    Json       *hang;                 /* the records of a hang, by rank; NULL: none */
    const char *note[64];                         /* what is missing or damaged */
    int         notes;
    MemPool        keep;
} ReportRun;

MUST Status run_open(ReportRun *r, const char *dir);
void        run_close(ReportRun *r);                                              /* twice is fine */
void        run_note(ReportRun *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Parts of run_open with files of their own. */
MUST Status answers_read(ReportRun *r);
MUST Status load_read(ReportRun *r, const char *path);
MUST Status hang_read(ReportRun *r);                    /* report_hang.c */

MUST Status keys_push(KeyValues *p, MemPool *keep, const char *key, const char *value);
MUST Status keys_from_recipe(KeyValues *p, MemPool *keep, const char *text, size_t len, const char *name);
const char *keys_find(const KeyValues *p, const char *key);                    /* NULL: no such key */
void        keys_close(KeyValues *p);

#endif
