/* parallel/coroutine.c -- see coroutine.h. */
#include "parallel/coroutine.h"

#include "base/activity.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef TREB_SANITIZE
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK = 8 << 20 };                /* as a thread has; untouched pages take no memory */

enum { CALLER, CALLEE };

static size_t guard_bytes(void) { return (size_t)sysconf(_SC_PAGESIZE); }

Status coroutine_open(Coroutine *c)
{
    *c = (Coroutine){ 0 };
    char *at = mmap(NULL, guard_bytes() + STACK, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (at == MAP_FAILED) return fail(E_FIT, "no host memory for a second stack of %d MiB", STACK >> 20);
    c->stack = at + guard_bytes();
    if (!mprotect(at, guard_bytes(), PROT_NONE)) return OK;
    coroutine_close(c);
    return fail(E_FIT, "the guard page of the second stack cannot be protected");
}

void coroutine_close(Coroutine *c)
{
    if (c->stack) munmap(c->stack - guard_bytes(), guard_bytes() + STACK);
    *c = (Coroutine){ 0 };
}

/* ---- switching stacks; the address sanitizer must know before and after ---- */

static void before_switch(Coroutine *c, int from, bool returned)
{
#ifdef TREB_SANITIZE
    __sanitizer_start_switch_fiber(returned ? NULL : &c->fake_stack[from],
                                   from == CALLER ? c->stack : c->caller_bottom,
                                   from == CALLER ? STACK : c->caller_size);
#else
    (void)c, (void)from, (void)returned;
#endif
}

static void after_switch(Coroutine *c, int at)
{
#ifdef TREB_SANITIZE
    bool callee = at == CALLEE;
    __sanitizer_finish_switch_fiber(c->fake_stack[at], callee ? &c->caller_bottom : NULL,
                                    callee ? &c->caller_size : NULL);
#else
    (void)c, (void)at;
#endif
}

/* Each function keeps its own place in the run. */
static void switch_stack(Coroutine *c, int from)
{
    ActivityPlace place = activity_self()->place;
    c->in_callee = from == CALLER;
    before_switch(c, from, false);
    if (from == CALLER) swapcontext(&c->caller, &c->callee);
    else              swapcontext(&c->callee, &c->caller);
    after_switch(c, from);
    activity_self()->place = place;
}

/* makecontext passes ints alone, so the pointer comes in two halves. */
static void run_callee(unsigned high, unsigned low)
{
    Coroutine *c = (Coroutine *)((uintptr_t)high << 32 | low);
    after_switch(c, CALLEE);
    c->fn(c->arg);
    c->both = c->in_callee = false;
    before_switch(c, CALLEE, true);
    setcontext(&c->caller);
}

void coroutine_run(Coroutine *c, void (*first)(void *), void *a, void (*second)(void *), void *b)
{
    uintptr_t self = (uintptr_t)c;
    REQUIRE(c->stack && !c->both && !c->in_callee, "coroutine_run inside a coroutine, or on a closed one");
    c->fn = first, c->arg = a, c->both = true, c->fake_stack[CALLEE] = NULL;
    getcontext(&c->callee);
    c->callee.uc_stack.ss_sp = c->stack, c->callee.uc_stack.ss_size = STACK, c->callee.uc_link = NULL;
    makecontext(&c->callee, (void (*)(void))run_callee, 2, (unsigned)(self >> 32), (unsigned)self);
    switch_stack(c, CALLER);
    second(b);
    if (!c->both) return;
    c->both = false;                               /* the callee runs to its end: its yields return at once */
    switch_stack(c, CALLER);
}

void coroutine_yield(void *coroutine)
{
    Coroutine *c = coroutine;
    if (c->both) switch_stack(c, c->in_callee ? CALLEE : CALLER);
}
