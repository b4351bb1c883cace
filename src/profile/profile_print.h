/* profile/profile_print.h -- a profile as text. */
#ifndef PROFILE_PROFILE_PRINT_H
#define PROFILE_PROFILE_PRINT_H

#include "profile/profile.h"

#include <stdio.h>

void        profile_print(FILE *out, const Profile *p);
const char *profile_number(char out[32], double x, char unit);   /* unit of ProfileField */

#endif
