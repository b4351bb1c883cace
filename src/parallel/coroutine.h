/* parallel/coroutine.h -- two runs taking turns on one thread: while the rows of one travel, the other
 * computes.
 *
 * Each calls coroutine_yield where it has started something it will wait for; the other goes on from where it
 * had stopped. Who is where depends on nothing but the calls, so ranks that make the same calls stay in step.
 * The two must share nothing that one of them holds over a yield.
 *
 * The run that begins has a stack of its own, mapped at open with a page below it that may not be touched;
 * the other is on the caller's. */
#ifndef PARALLEL_COROUTINE_H
#define PARALLEL_COROUTINE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <ucontext.h>

typedef struct Coroutine {
    ucontext_t  here, there;             /* the caller's run; the one on the stack */
    char       *stack;                   /* NULL: closed */
    void      (*fn)(void *arg);          /* runs there */
    void       *arg;
    bool        both, inside;            /* neither has ended; `there` is running */
    void       *shade[2];                /* what a sanitizer keeps of each stack, and where `here` is */
    const void *bottom;
    size_t      room;
} Coroutine;

MUST Status coroutine_open(Coroutine *w);
void        coroutine_close(Coroutine *w);                       /* zeroed or twice is fine */

/* Runs first(a) up to its first yield, then second(b) up to its own, and so on in turns; whichever is left
 * when the other has ended goes on alone. Not from inside a run. */
void        coroutine_run(Coroutine *w, void (*first)(void *), void *a, void (*second)(void *), void *b);
/* The other's turn. Where there is no other it returns at once. */
void        coroutine_yield(void *weave);

#endif
