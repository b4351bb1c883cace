/* tests/simt/fiber.cc -- see fiber.h. */
#include "simt/fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef TREB_SANITIZE
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* Saves the callee's registers on the stack and its pointer in *from, then takes those of `to`. */
extern "C" void simt_switch(void **from, void *to);
extern "C" void simt_begin();                           /* calls run(fiber), which simt_switch has restored */

#if defined __x86_64__
asm(R"(
    .text
    .globl simt_switch, simt_begin
simt_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq  %rsp, (%rdi)
    movq  %rsi, %rsp
    popq  %r15
    popq  %r14
    popq  %r13
    popq  %r12
    popq  %rbx
    popq  %rbp
    ret
simt_begin:
    movq  %r12, %rdi
    call  *%rbx
    ud2
)");
enum { SAVED = 9, RUN = 4, ARGUMENT = 3, RETURN = 6 };  /* words on the stack, and their places */
#elif defined __aarch64__
asm(R"(
    .text
    .globl simt_switch, simt_begin
simt_switch:
    sub  sp, sp, #160
    stp  x19, x20, [sp]
    stp  x21, x22, [sp, #16]
    stp  x23, x24, [sp, #32]
    stp  x25, x26, [sp, #48]
    stp  x27, x28, [sp, #64]
    stp  x29, x30, [sp, #80]
    stp  d8,  d9,  [sp, #96]
    stp  d10, d11, [sp, #112]
    stp  d12, d13, [sp, #128]
    stp  d14, d15, [sp, #144]
    mov  x9, sp
    str  x9, [x0]
    mov  sp, x1
    ldp  x19, x20, [sp]
    ldp  x21, x22, [sp, #16]
    ldp  x23, x24, [sp, #32]
    ldp  x25, x26, [sp, #48]
    ldp  x27, x28, [sp, #64]
    ldp  x29, x30, [sp, #80]
    ldp  d8,  d9,  [sp, #96]
    ldp  d10, d11, [sp, #112]
    ldp  d12, d13, [sp, #128]
    ldp  d14, d15, [sp, #144]
    add  sp, sp, #160
    ret
simt_begin:
    mov  x0, x20
    blr  x19
    brk  #1
)");
enum { SAVED = 20, RUN = 0, ARGUMENT = 1, RETURN = 11 };
#else
#error "simt_switch is written for x86-64 and arm64"
#endif

namespace simt {

enum { STACK = 256 << 10, GUARD = 64 << 10 };           /* one page or more, whatever its size */

static void begin(void *fiber)
{
#ifdef TREB_SANITIZE
    __sanitizer_finish_switch_fiber(NULL, NULL, NULL);
#endif
    (*(void (**)(void *))((char *)fiber + sizeof(Fiber)))(fiber);
}

Fiber *fiber_open(void (*run)(void *))
{
    struct Opened { Fiber fiber; void (*run)(void *); };
    Opened *f = (Opened *)calloc(1, sizeof *f);
    char   *at = (char *)mmap(NULL, GUARD + STACK, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (!f || at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE)) perror("simt: a stack"), abort();
    void **top = (void **)(at + GUARD + STACK) - SAVED;
    top[RUN] = (void *)begin, top[ARGUMENT] = f, top[RETURN] = (void *)simt_begin;
    f->run = run, f->fiber.sp = top, f->fiber.stack = at + GUARD, f->fiber.size = STACK;
    return &f->fiber;
}

void fiber_switch(Fiber *from, Fiber *to)
{
#ifdef TREB_SANITIZE
    __sanitizer_start_switch_fiber(&from->fake_stack, to->stack, to->size);
    simt_switch(&from->sp, to->sp);
    const void *left;
    size_t      size;
    __sanitizer_finish_switch_fiber(from->fake_stack, &left, &size);
#else
    simt_switch(&from->sp, to->sp);
#endif
}

#ifdef TREB_SANITIZE
void fiber_here(Fiber *f)
{
    pthread_attr_t attr;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, (void **)&f->stack, &f->size);
    pthread_attr_destroy(&attr);
}
void fiber_poison(void *p, size_t bytes)   { ASAN_POISON_MEMORY_REGION(p, bytes); }
void fiber_unpoison(void *p, size_t bytes) { ASAN_UNPOISON_MEMORY_REGION(p, bytes); }
#endif

}
