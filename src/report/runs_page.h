/* report/runs_page.h -- the page of several runs: a tile of each, which leads to its own page, and their
 * curves side by side. */
#ifndef REPORT_RUNS_PAGE_H
#define REPORT_RUNS_PAGE_H

#include "report/page.h"

/* Run i of n is in dir[i] and its own page at /run/i. A run that cannot be read has a tile that says why. */
void runs_page(Page *p, const char *const *dir, int n);

#endif
