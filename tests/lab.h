/* tests/lab.h -- a small test harness: named tests, expectations that count, one report.
 *
 * A test is `static void name(void)`; main() lists them with RUN and returns lab_report(). A failed EXPECT
 * prints file, line and what was seen, marks the test failed and goes on, so one run shows all failures.
 * tests/run.sh adds up the "lab:" lines of all programs. Numeric tests add tests/numlab.h. */
#ifndef TESTS_LAB_H
#define TESTS_LAB_H

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct { int passed, failed, skipped; bool bad, skip; } lab_;

#define RUN(test) do {                                                                            \
        if (lab_wanted(#test)) {                                                                  \
            lab_.bad = lab_.skip = false;                                                         \
            test();                                                                               \
            lab_count(#test);                                                                     \
        }                                                                                         \
    } while (0)

#define EXPECT(cond, ...) do {                                                                    \
        if (!(cond)) { LAB_FAIL(#cond); printf("    " __VA_ARGS__); putchar('\n'); }              \
    } while (0)
#define EXPECT_OK(e) do {                                                                         \
        Status s_ = (e);                                                                          \
        if (s_) { LAB_FAIL(#e); printf("    %s\n", status_text()); }                              \
    } while (0)
#define EXPECT_FAIL(e, want, word) do {                                                           \
        Status s_ = (e);                                                                          \
        if (s_ != (want) || !strstr(status_text(), word)) {                                       \
            LAB_FAIL(#e); printf("    status %d (want %d), text: %s (want \"%s\" in it)\n",       \
                                 (int)s_, (int)(want), s_ ? status_text() : "-", word);           \
        }                                                                                         \
    } while (0)
#define SKIP(...) do {                                                                            \
        printf("  skip %s: ", __func__); printf(__VA_ARGS__); putchar('\n');                      \
        lab_.skip = true;                                                                         \
        return;                                                                                   \
    } while (0)
#define LAB_FAIL(what) (lab_.bad = true, printf("  %s:%d: %s: %s\n", __FILE__, __LINE__, __func__, what))

/* TREB_TEST=name runs the tests whose name contains it. */
static inline bool lab_wanted(const char *test)
{
    const char *only = getenv("TREB_TEST");
    return !only || strstr(test, only);
}

static inline void lab_count(const char *test)
{
    if (lab_.bad)       lab_.failed++, printf("  FAIL %s\n", test);
    else if (lab_.skip) lab_.skipped++;
    else                lab_.passed++;
    fflush(stdout);
}

static inline int lab_report(void)
{
    printf("lab: %d passed, %d failed, %d skipped\n", lab_.passed, lab_.failed, lab_.skipped);
    return lab_.failed != 0;
}

/* A fresh folder under TMPDIR for this process; the caller removes what it makes there. Threads may ask at
 * once. */
static inline const char *lab_tmp(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static char dir[256];
    pthread_mutex_lock(&lock);
    if (!dir[0]) {
        const char *t = getenv("TMPDIR");
        snprintf(dir, sizeof dir, "%s/treb-test-XXXXXX", t && *t ? t : "/tmp");
        if (!mkdtemp(dir)) perror(dir), exit(1);
    }
    pthread_mutex_unlock(&lock);
    return dir;
}

/* A path in that folder, from a small ring of buffers per thread: ranks may be threads. */
static inline const char *lab_path(const char *name)
{
    static _Thread_local char path[4][512];
    static _Thread_local int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", lab_tmp(), name);
    return path[at];
}

#endif
