/* tests/simt/cases.h -- cases of the self-tests: each in a process of its own, which ends well, or stops with
 * a message that has the given words. */
#ifndef TESTS_SIMT_CASES_H
#define TESTS_SIMT_CASES_H

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

struct Case { const char *name; bool (*run)(); const char *words; };    /* words: NULL where it ends well */

static bool passes(const Case &c, void (*open)())
{
    char   said[16384] = "";
    int    pipe_of[2], status = 0;
    size_t n = 0;
    fflush(stdout);
    if (pipe(pipe_of)) return false;
    pid_t child = fork();
    if (!child) {
        dup2(pipe_of[1], STDERR_FILENO);
        open();
        _exit(c.run() ? 0 : 1);
    }
    close(pipe_of[1]);
    for (ssize_t got; n < sizeof said - 1 && (got = read(pipe_of[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    close(pipe_of[0]);
    waitpid(child, &status, 0);
    bool ok = c.words ? WIFSIGNALED(status) && strstr(said, c.words) : status == 0;
    if (!ok) printf("  FAIL %s: status %#x\n%s\n", c.name, (unsigned)status, said);
    return ok;
}

template <int N> static int run_cases(const Case (&cases)[N], void (*open)())
{
    int passed = 0;
    for (const Case &c : cases) passed += passes(c, open);
    printf("lab: %d passed, %d failed, 0 skipped\n", passed, N - passed);
    return passed != N;
}

#endif
