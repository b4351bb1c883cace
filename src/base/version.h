/* base/version.h -- which build this is: version, commit, compiler, flags and libraries, as the Makefile
 * knew them. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

#include "base/json.h"

#define TREB_VERSION "0.1.0"

const char *version_text(void);          /* "0.1.0 (commit 05a6e06, gcc 12.2.0)" */
Json       *version_json(void);          /* the same as an object, with flags and libraries */

#endif
