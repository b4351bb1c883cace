/* report/report_html.h -- the page as it is written: markup of ours, texts of others, numbers for people.
 *
 * html_put and html_fmt take markup and must never be given text from a run; html_text escapes anything. Lack
 * of memory sticks and is handed out by html_status. */
#ifndef REPORT_REPORT_HTML_H
#define REPORT_REPORT_HTML_H

#include "data/ids.h"
#include "report/report.h"
#include "report/report_run.h"

typedef struct Html {
    Text         t;
    Status       status;
    ReportCounts counts;
    size_t       picture_bytes;       /* embedded so far */
} Html;

void        html_put(Html *h, const char *markup);
void        html_fmt(Html *h, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void        html_text(Html *h, const char *text);                 /* fit for elements and for 'attributes' */
void        html_around(Html *h, const char *before, const char *text, const char *after); /* text escaped */
void        html_letter(Html *h, int run); /* the A or B that stands for one of two runs */
void        html_base64(Html *h, const void *bytes, size_t n);
MUST Status html_status(const Html *h);
void        html_close(Html *h);

/* Numbers for people, in a buffer of the caller's own: html_put(h, NUM(v)). What is not finite is a dash. */
enum { NUM_ROOM = 48 };
#define NUM(v)     num_text((char[NUM_ROOM]){ 0 }, v)              /* 0.4123  12.35  1,204  31.2k  1.3e-05 */
#define WHOLE(v)   whole_text((char[NUM_ROOM]){ 0 }, v)            /* 1,204,000 */
#define PERCENT(v) percent_text((char[NUM_ROOM]){ 0 }, v)          /* 0.481 -> 48.1 % */
#define BYTES(v)   bytes_text((char[NUM_ROOM]){ 0 }, v)            /* 1.5 GiB */
#define SPAN(v)    span_text((char[NUM_ROOM]){ 0 }, v)             /* seconds -> 2 h 14 min */
const char *exponent_text(char buf[NUM_ROOM], double v);           /* 2e-5 where it is that small, or large */
const char *num_text(char buf[NUM_ROOM], double v);
const char *whole_text(char buf[NUM_ROOM], double v);
const char *percent_text(char buf[NUM_ROOM], double v);
const char *bytes_text(char buf[NUM_ROOM], double v);
const char *span_text(char buf[NUM_ROOM], double seconds);

/* --- sections of the page, each in a file of its own -------------------------------------------------- */

extern const char report_style[], report_script[];

typedef struct Runs { Run *at[REPORT_RUNS]; int n; } Runs;

static inline bool two(const Runs *r) { return r->n == 2; }

void part_summary(Html *h, const Runs *r);        /* report_summary.c: the numbers at the top */
void figures_table(Html *h, const Runs *r);       /* the same and more, of two runs */
void part_learning(Html *h, const Runs *r);       /* report_curves.c: which curves there are */
void part_speed(Html *h, const Runs *r);
void part_balance(Html *h, const Runs *r);        /* curves of the experts section */
void part_rest(Html *h, const Runs *r);           /* metrics nobody has drawn */
void part_memory(Html *h, const Runs *r);         /* report_memory.c */
void part_experts(Html *h, const Runs *r);        /* report_experts.c */
void part_answers(Html *h, const Runs *r);        /* report_answers.c */
void part_recipe(Html *h, const Runs *r);         /* report_tables.c */
void part_differences(Html *h, const Runs *r);
void part_machine(Html *h, const Runs *r);

/* An <img> with the picture inside, or a line that says why there is none. */
void picture_put(Html *h, const char *folder, const char *path, const char *alt);

#endif
