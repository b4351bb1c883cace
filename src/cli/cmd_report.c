/* cli/cmd_report.c -- `treb report`: the page of a run, or a comparison of two. */
#include "cli/commands.h"
#include "report/report.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* RUN/report.html; for two runs A/report-vs-B.html, so that the page of one run is not overwritten. */
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

static void print_counts(const char *out, const ReportCounts *c)
{
    double kb = (double)c->bytes / 1e3;
    if (kb < 1000) printf("%s: %.0f kB", out, kb);
    else           printf("%s: %.1f MB", out, kb / 1e3);
    printf(", %d charts, %d questions with answers, %d pictures", c->charts, c->questions, c->pictures);
    if (c->notes)
        printf("; %d note%s about missing or damaged files on the page", c->notes, c->notes == 1 ? "" : "s");
    putchar('\n');
}

typedef struct ReportArgs { const char *out; OptionList keys; } ReportArgs;

static const Option options[] = {
    OPTION_LIST(ReportArgs, keys, "--key", "KEY",
                "a key that two runs may differ in, since it is compared: parallel.ep, or memory. for all of "
                "a section"),
    OPTION_TEXT(ReportArgs, out, "--out", "FILE",
                "the page (default: RUN/report.html, or RUN/report-vs-RUN2.html)"),
    OPTION_END
};

static Status cmd_report(int argc, char **argv)
{
    ReportArgs   a = { 0 };
    PlainArgs    dir = { .least = 1, .most = REPORT_RUNS, .what = "run folders" };
    char         path[PATH_MAX];
    ReportCounts c;
    TRY(options_parse(argc, argv, options, &a, &dir));
    Status st = a.out ? OK : default_out(path, dir.value, dir.n);
    ReportAsk ask = { .dir = { dir.value[0], dir.n > 1 ? dir.value[1] : NULL }, .runs = dir.n,
                      .out = a.out ? a.out : path, .declared = a.keys.value, .keys = a.keys.n };
    if (!st) st = report_write(&ask, &c);
    if (!st) print_counts(ask.out, &c);
    if (!st && dir.n == 2) puts(c.pair.text);
    plain_args_close(&dir);
    return st;
}

static const Usage usage = {
    .args    = "RUN [RUN2]",
    .options = options,
    .notes   = "RUN is a run's folder (checkpoint.output_dir). Of two runs one is called better only where "
               "all that their numbers depend on is the same, but for keys named by --key.",
};

const Command command_report = {
    .name     = "report",
    .help     = "write the page of a run, or of two runs side by side: one HTML file, no network",
    .run      = cmd_report,
    .usage    = USAGE(&usage),
};
