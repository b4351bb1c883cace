/* report/plan_page.h -- a dry run as one HTML page: memory of every stage, rank placement, timeline,
 * messages. */
#ifndef REPORT_PLAN_PAGE_H
#define REPORT_PLAN_PAGE_H

#include "plan/view.h"

MUST Status plan_page_write(const PlanView *v, const char *path);

#endif
