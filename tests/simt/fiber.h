/* tests/simt/fiber.h -- stacks that a host thread switches between, for x86-64 and arm64; the address
 * sanitizer is told of each switch. */
#ifndef TESTS_SIMT_FIBER_H
#define TESTS_SIMT_FIBER_H

#include <stddef.h>

namespace simt {

struct Fiber {
    void       *sp;                                     /* where it left off */
    const void *stack;                                  /* its lowest address */
    size_t      size;
    void       *fake_stack;                             /* the address sanitizer's */
};

/* A fiber that will call run(fiber), which never returns. */
Fiber *fiber_open(void (*run)(void *fiber));
void   fiber_switch(Fiber *from, Fiber *to);

/* For the address sanitizer: the stack that this thread is on; no access to memory; access. */
#ifdef TREB_SANITIZE
enum { SANITIZED = 1 };
void fiber_here(Fiber *f);
void fiber_poison(void *p, size_t bytes);
void fiber_unpoison(void *p, size_t bytes);
#else
enum { SANITIZED = 0 };
inline void fiber_here(Fiber *) { }
inline void fiber_poison(void *, size_t) { }
inline void fiber_unpoison(void *, size_t) { }
#endif

}

#endif
