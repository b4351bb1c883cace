/* parallel/coroutine.c -- see weave.h. */
#include "parallel/coroutine.h"

#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef TREB_SANITIZE
#include <sanitizer/common_interface_defs.h>
#endif

enum { STACK = 8 << 20 };                /* as a thread has; what is not touched takes no memory */

enum { HERE, THERE };

static size_t guard(void) { return (size_t)sysconf(_SC_PAGESIZE); }

Status coroutine_open(Coroutine *w)
{
    *w = (Coroutine){ 0 };
    char *at = mmap(NULL, guard() + STACK, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (at == MAP_FAILED) return fail(E_FIT, "no host memory for a second stack of %d MiB", STACK >> 20);
    w->stack = at + guard();
    if (!mprotect(at, guard(), PROT_NONE)) return OK;
    coroutine_close(w);
    return fail(E_FIT, "the second stack cannot be guarded");
}

void coroutine_close(Coroutine *w)
{
    if (w->stack) munmap(w->stack - guard(), guard() + STACK);
    *w = (Coroutine){ 0 };
}

/* ---- changing stacks; a sanitizer wants to be told before and after ---- */

static void leaves(Coroutine *w, int from, bool for_good)
{
#ifdef TREB_SANITIZE
    __sanitizer_start_switch_fiber(for_good ? NULL : &w->shade[from], from == HERE ? w->stack : w->bottom,
                                   from == HERE ? STACK : w->room);
#else
    (void)w, (void)from, (void)for_good;
#endif
}

static void arrives(Coroutine *w, int at)
{
#ifdef TREB_SANITIZE
    bool there = at == THERE;
    __sanitizer_finish_switch_fiber(w->shade[at], there ? &w->bottom : NULL, there ? &w->room : NULL);
#else
    (void)w, (void)at;
#endif
}

static void change(Coroutine *w, int from)
{
    w->inside = from == HERE;
    leaves(w, from, false);
    if (from == HERE) swapcontext(&w->here, &w->there);
    else              swapcontext(&w->there, &w->here);
    arrives(w, from);
}

/* makecontext hands over ints alone. */
static void begin(unsigned high, unsigned low)
{
    Coroutine *w = (Coroutine *)((uintptr_t)high << 32 | low);
    arrives(w, THERE);
    w->fn(w->arg);
    w->both = w->inside = false;
    leaves(w, THERE, true);
    setcontext(&w->here);
}

void coroutine_run(Coroutine *w, void (*first)(void *), void *a, void (*second)(void *), void *b)
{
    uintptr_t self = (uintptr_t)w;
    REQUIRE(w->stack && !w->both && !w->inside, "a weave in a weave, or in none");
    w->fn = first, w->arg = a, w->both = true, w->shade[THERE] = NULL;
    getcontext(&w->there);
    w->there.uc_stack.ss_sp = w->stack, w->there.uc_stack.ss_size = STACK, w->there.uc_link = NULL;
    makecontext(&w->there, (void (*)(void))begin, 2, (unsigned)(self >> 32), (unsigned)self);
    change(w, HERE);
    second(b);
    if (!w->both) return;
    w->both = false;                                     /* what is left there yields to nobody */
    change(w, HERE);
}

void coroutine_yield(void *weave)
{
    Coroutine *w = weave;
    if (w->both) change(w, w->inside ? THERE : HERE);
}
