/* cli/cmd_report.c -- `treb report`: a run's page, or two runs on one. */
#include "cli/options.h"
#include "report/report.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* RUN/report.html; for two runs A/report-vs-B.html, so that neither page of one run is lost. */
static Status default_out(char out[PATH_MAX], const char *const *dir, int runs)
{
    const char *b = runs == 2 ? dir[1] : "";
    size_t len = strlen(b);
    while (len > 1 && b[len - 1] == '/') len--;
    size_t from = len;
    while (from > 0 && b[from - 1] != '/') from--;
    int n = runs == 1
                ? snprintf(out, PATH_MAX, "%s/report.html", dir[0])
                : snprintf(out, PATH_MAX, "%s/report-vs-%.*s.html", dir[0], (int)(len - from), &b[from]);
    return n < PATH_MAX ? OK : fail(E_IO, "%.200s...: the path is too long", dir[0]);
}

static void say(const char *out, const ReportCounts *c)
{
    double kb = (double)c->bytes / 1e3;
    if (kb < 1000) printf("%s: %.0f kB", out, kb);
    else           printf("%s: %.1f MB", out, kb / 1e3);
    printf(", %d charts, %d questions with answers, %d pictures", c->charts, c->cards, c->pictures);
    if (c->notes) printf("; %d thing%s worth knowing, as the page says", c->notes, c->notes == 1 ? "" : "s");
    putchar('\n');
}

Status cmd_report(int argc, char **argv)
{
    const char *out = NULL;
    const Option options[] = { { "--out", &out, NULL }, { 0 } };
    char path[PATH_MAX];
    ReportCounts c;
    int runs;
    const char **dir = calloc((size_t)argc, sizeof *dir);
    if (!dir) return fail(E_FIT, "no memory");
    Status st = options_parse_many(argc, argv, options, dir, &runs);
    if (!st && runs > REPORT_RUNS)
        st = fail(E_CONFIG, "report: %s is one run too many; a page holds two", dir[REPORT_RUNS]);
    if (!st && !out) st = default_out(path, dir, runs), out = path;
    if (!st) st = report_write(dir, runs, out, &c);
    if (!st) say(out, &c);
    free(dir);
    return st;
}
