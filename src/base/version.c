/* base/version.c -- see version.h. The Makefile writes build_info.h and compiles this file again when it
 * changes. */
#include "base/version.h"

#include <string.h>

#if __has_include("build_info.h")
#include "build_info.h"
#else
#define BUILD_COMMIT    "unknown"
#define BUILD_FLAGS     ""
#define BUILD_LIBRARIES ""               /* "jansson 2.14,libpng 1.6.39" */
#endif

#ifdef __clang__
#define COMPILER __VERSION__             /* "Clang 15.0.6" */
#else
#define COMPILER "gcc " __VERSION__
#endif

const char *version_text(void)
{
    return TREB_VERSION " (commit " BUILD_COMMIT ", " COMPILER ")";
}

static Json *libraries(void)
{
    Json *o = json_object();
    char  list[] = BUILD_LIBRARIES, *next = NULL;
    for (char *name = strtok_r(list, ",", &next); name; name = strtok_r(NULL, ",", &next)) {
        char *version = strchr(name, ' ');
        if (version) *version++ = 0;
        json_object_set_new(o, name, json_string(version ? version : ""));
    }
    return o;
}

Json *version_json(void)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "version", TREB_VERSION, "commit", BUILD_COMMIT, "compiler",
                     COMPILER, "flags", BUILD_FLAGS, "libraries", libraries());
}
