/* base/status.h -- three kinds of failure, each with its own spelling.
 *
 *   the input is wrong   return fail(E_..., "what, and the way out"); callers return it with TRY, adding
 *                        a name with TRY_CTX where one helps; only cli/program.c prints it
 *   the code is wrong    REQUIRE(condition, "shapes"): prints file and line, aborts
 *   the device failed    recorded in the backend; see ops/backend.h
 *
 * The text of the latest failure is kept per thread: the one piece of hidden state in the tree. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { OK, E_CONFIG, E_FIT, E_IO, E_DATA, E_DEVICE, E_COMM, E_CHECK, E_OTHER } Status;

#define MUST __attribute__((warn_unused_result))

MUST Status fail(Status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
MUST Status wrap(Status s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *status_text(void);           /* of this thread's latest fail or wrap */
int         status_exit_code(Status s);  /* the table of exit codes users script against */

void bug(const char *file, int line, const char *cond, const char *fmt, ...)
    __attribute__((noreturn, format(printf, 4, 5)));

#define TRY(e)          do { Status s_ = (e); if (s_) return s_; } while (0)
#define TRY_CTX(e, ...) do { Status s_ = (e); if (s_) return wrap(s_, __VA_ARGS__); } while (0)
#define REQUIRE(c, ...) do { if (!(c)) bug(__FILE__, __LINE__, #c, __VA_ARGS__); } while (0)

#ifdef __cplusplus
}
#endif
#endif
