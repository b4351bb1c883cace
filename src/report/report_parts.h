/* report/report_parts.h -- the sections of a run's page. Each part_* function adds its section to the page;
 * what a run does not have is left out, or a line says so. */
#ifndef REPORT_REPORT_PARTS_H
#define REPORT_REPORT_PARTS_H

#include "report/contract.h"
#include "report/page.h"
#include "report/report.h"
#include "report/report_run.h"

typedef struct Report {
    Page         page;
    ReportRun         *run[REPORT_RUNS];
    int          n;                   /* runs on the page */
    Contract     contract[REPORT_RUNS];
    ReportPair   pair;                /* of two runs */
    ReportCounts counts;
    size_t       picture_bytes;       /* embedded so far */
} Report;

static inline bool two(const Report *r) { return r->n == 2; }

/* The letter A or B of a run, where the page has two. */
static inline void say_letter(const Report *r, Json *rich, int run)
{
    if (two(r)) page_say(rich, run ? "run k2" : "run k1", "%c", 'A' + run), page_say(rich, NULL, " ");
}

void  part_label(Report *r);          /* report_label.c: what the numbers may be taken for, and why */
MUST Status contracts_open(Report *r, const ReportAsk *ask);
void  contracts_close(Report *r);
const char *run_label(const Report *r, int run);        /* "": not known */
void  part_summary(Report *r);        /* report_summary.c: the tiles at the top */
void  figures_table(Report *r);       /* the same and more, for two runs */
void  part_hang(Report *r);           /* report_hang.c: what ranks did when the watchdog ended the run */
void  part_learning(Report *r);       /* report_curves.c */
void  part_speed(Report *r);
void  balance_charts(Report *r);      /* charts of the experts section */
void  part_rest(Report *r);           /* metrics that no other section shows */
void  part_memory(Report *r);         /* report_memory.c */
void  part_experts(Report *r);        /* report_experts.c */
void  part_answers(Report *r);        /* report_answers.c */
void  part_differences(Report *r);    /* report_tables.c */
void  part_recipe(Report *r);
void  part_machine(Report *r);

/* {"src": a data: URI, "text": alt} or {"text": why there is no picture}. */
Json *picture_json(Report *r, const char *folder, const char *path, const char *alt);

#endif
