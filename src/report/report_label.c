/* report/report_label.c -- what the numbers of a run, or of two, may be taken for, and whether one of two
 * can be called better. */
#include "report/report_parts.h"

#include <string.h>

enum { SHOWN = 6 };

static void compare(Report *r, const ReportAsk *ask)
{
    ContractDifference d[SHOWN];
    char   text[700];
    int    n = contract_compare(d, SHOWN, &r->contract[0], &r->contract[1], ask->declared, ask->keys);
    size_t size = sizeof r->pair.text;
    r->pair.comparable = !n;
    contract_text(text, sizeof text, d, SHOWN, n);
    if (!n) snprintf(r->pair.text, size, "comparable: the contracts are the same but for declared keys");
    else    snprintf(r->pair.text, size,
                     "neither run is called better: their contracts differ by %s. --key KEY declares a key "
                     "that is compared", text);
}

Status contracts_open(Report *r, const ReportAsk *ask)
{
    for (int i = 0; i < r->n; i++) TRY(contract_of_run(&r->contract[i], r->run[i]));
    if (two(r)) compare(r, ask);
    return OK;
}

void contracts_close(Report *r)
{
    for (int i = 0; i < r->n; i++) contract_close(&r->contract[i]);
}

/* Lines of metrics say what was known before the first step. */
const char *run_label(const Report *r, int run)
{
    const char *said = r->run[run]->metrics.label, *found = label_word(&r->contract[run].facts);
    return *said && !strcmp(found, "benchmark-only") ? found : said;
}

static void add_reasons(Report *r, Json *title, const char *const *reason, int n)
{
    Json *b = block_open("notes"), *items = block_list(b, "items");
    json_object_set_new(b, "title", title);
    for (int i = 0; i < n; i++) page_add(&r->page, items, page_string(reason[i]));
    page_add(&r->page, NULL, b);
}

static void add_comparison(Report *r)
{
    const char *list[COMPARISON_REASONS];
    int n = contract_reasons(list, &r->contract[0], &r->contract[1]);
    if (!r->pair.comparable)
        add_reasons(r, page_rich("b", "Not comparable"), (const char *const[]){ r->pair.text }, 1);
    if (n) add_reasons(r, page_rich("b", "A comparison that is benchmark-only"), list, n);
}

void part_label(Report *r)
{
    const char *list[LABEL_REASONS];
    if (two(r)) {
        add_comparison(r);
        return;
    }
    int n = label_reasons(list, &r->contract[0].facts);
    if (n) add_reasons(r, page_rich("b", "Benchmark-only"), list, n);
}
