/* report/profile_page.h -- a profile as one HTML page: the step by cause, the timeline of a step on every
 * rank, measured beside predicted, groups, ranks. */
#ifndef REPORT_PROFILE_PAGE_H
#define REPORT_PROFILE_PAGE_H

#include "profile/profile.h"

MUST Status profile_page_write(const Profile *p, const char *path);

#endif
