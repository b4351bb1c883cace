/* parallel/coroutine.h -- two functions that take turns on one thread: while one waits for communication, the
 * other computes.
 *
 * A function calls coroutine_yield where it has started something that it will wait for; the other continues
 * from where it had yielded. The order depends on the calls alone, so ranks that make the same calls stay in
 * step. The two functions must share nothing that one of them holds over a yield.
 *
 * The first function runs on a stack of its own, mapped at open with an inaccessible page below it; the
 * second runs on the caller's stack. */
#ifndef PARALLEL_COROUTINE_H
#define PARALLEL_COROUTINE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <ucontext.h>

typedef struct Coroutine {
    ucontext_t  caller, callee;          /* of the function on the caller's stack; of the one on its own */
    char       *stack;                   /* NULL: closed */
    void      (*fn)(void *arg);          /* runs on `stack` */
    void       *arg;
    bool        both, in_callee;         /* neither function has returned; the one on `stack` is running */
    void       *fake_stack[2];         /* address sanitizer: its data of each stack, and the caller's stack */
    const void *caller_bottom;
    size_t      caller_size;
} Coroutine;

MUST Status coroutine_open(Coroutine *c);
void        coroutine_close(Coroutine *c);               /* of a zeroed one too, and twice */

/* Runs first(a) up to its first yield, then second(b) up to its first yield, and so on in turn; when one has
 * returned, the other runs to its end. Not to be called from inside either function. */
void        coroutine_run(Coroutine *c, void (*first)(void *), void *a, void (*second)(void *), void *b);
/* Switches to the other function; returns at once if there is none. */
void        coroutine_yield(void *coroutine);

#endif
