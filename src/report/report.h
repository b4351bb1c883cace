/* report/report.h -- a run as one page of HTML: curves, speed, memory, experts, answers, recipe, machine.
 *
 * The page needs no network, no fonts and no other file: see page.h.
 *
 * These files are read from the folder of a run. Any of them may be absent or damaged: the page then says so.
 * Only a folder that has none of them is refused.
 *
 *   metrics.jsonl         one flat object a line: "step" (whole, >= 0), "time" (seconds since 1970), "label",
 *                         and any "name": number | null (null: was not finite). perf/mfu*, perf/hfu,
 *                         perf/data_wait, perf/exposed_comm, perf/useful_tokens, eval/accuracy and
 *                         data/visual_token_share are shares 0 ... 1; perf/step_time is in seconds. Where
 *                         steps go back (a resume) the later line counts. A damaged line is counted and left
 *                         out. Unknown names are drawn too, at the end, unless they are zero throughout.
 *                         Medians leave out the first steps of the run as warm-up and say how many.
 *   recipe.yaml           as config_dump writes it; any YAML mapping is shown
 *   env.json              an object, nested or not: machine, version, commit, libraries, data fingerprint
 *   plan.json             {"arenas": [{"name": "param", "bytes": 123,
 *                                      "labels": [{"name": "experts", "bytes": 12}, ...]}, ...],
 *                          "flops": {"vision": 1e12, "merger": ..., "decoder": ..., "head": ...},
 *                          "trains": {"model": 31e9, "adapters": 65e7, "trained": 65e7, ...}}
 *                         bytes of an arena: its peak; labels: what was live at that peak; flops: of one
 *                         step; trains: numbers of parameters, "model" without adapters; may be absent
 *   expert_load.json      {"step": 2000, "layers": [{"layer": 0, "image": [...], "text": [...]}, ...]}
 *                         tokens per expert, one count each; "step" may be absent, and so may either kind
 *   samples/step-N.jsonl  {"question": "...", "answer": "...", "expected": "...", "correct": true,
 *                          "images": ["relative to this file, or absolute, or a data: URI", ...],
 *                          "channel": "..."}
 *                         all but question and answer may be absent. Answers to the same question (question,
 *                         expected and images) at several steps, or of two runs, are shown together.
 *   quarantine.jsonl      its lines are counted
 *   hang/rank-NNNNN.json  comm/hang_file.h: the last calls of each rank when the watchdog ended the run
 *
 * Pictures are JPEG, PNG or WebP by content; large ones are reduced, and a page holds 12 MiB of them. */
#ifndef REPORT_REPORT_H
#define REPORT_REPORT_H

#include "data/ids.h"
#include <stdbool.h>
#include <stdint.h>

enum { REPORT_RUNS = 2 };

typedef struct ReportAsk {
    const char        *dir[REPORT_RUNS];
    int                runs;
    const char        *out;           /* the page */
    const char *const *declared;      /* keys that two runs may differ in, see contract.h */
    int                keys;
} ReportAsk;

/* Whether one of two runs can be called better, and what their comparison is worth. */
typedef struct ReportPair { bool comparable; char text[900]; } ReportPair;

typedef struct ReportCounts {
    int64_t bytes;                    /* of the page */
    int     charts, questions, pictures;  /* on the page */
    int     notes;                    /* missing or damaged files, as listed on the page */
    ReportPair pair;                  /* of two runs */
} ReportCounts;

/* One run, or a comparison of two, which calls one of them better only where their contracts differ in
 * declared keys alone. The page is written beside `out` and renamed. counts may be NULL. */
MUST Status report_write(const ReportAsk *ask, ReportCounts *counts);
/* The same page as text, for a server: with live, the address of its document (page.h); without, the
 * document. Nothing is written; ask->out is not read. */
MUST Status report_text(const ReportAsk *ask, const char *live, Text *out);

#endif
