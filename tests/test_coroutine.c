/* tests/test_coroutine.c -- two functions on one thread: the order of their turns, their stacks, how they
 * return. */
#include "lab.h"
#include "parallel/coroutine.h"

static struct { Coroutine w; char said[256]; int at; } now;

typedef struct Run { char name; int yields; } Run;

static void say(char c) { now.said[now.at++] = c; }

/* Writes "a0 a1 …": its letter and a number at each turn. */
static void talk(void *arg)
{
    const Run *r = arg;
    for (int i = 0; i <= r->yields; i++) {
        say(r->name), say((char)('0' + i));
        if (i < r->yields) coroutine_yield(&now.w);
    }
}

static void expect_turns(int first, int second, const char *want)
{
    Run a = { 'a', first }, b = { 'b', second };
    memset(now.said, 0, sizeof now.said), now.at = 0;
    coroutine_run(&now.w, talk, &a, talk, &b);
    EXPECT(!strcmp(now.said, want), "%d and %d yields: %s, want %s", first, second, now.said, want);
}

static void in_turns(void)
{
    EXPECT_OK(coroutine_open(&now.w));
    for (int twice = 0; twice < 2; twice++) {
        expect_turns(2, 2, "a0b0a1b1a2b2");
        expect_turns(0, 2, "a0b0b1b2");
        expect_turns(2, 0, "a0b0a1a2");
        expect_turns(1, 3, "a0b0a1b1b2b3");
        expect_turns(3, 1, "a0b0a1b1a2a3");
        expect_turns(0, 0, "a0b0");
    }
    coroutine_yield(&now.w);                                     /* there is no other function */
    coroutine_close(&now.w);
    coroutine_close(&now.w);
}

/* Locals of a function keep their values over every yield, at any depth of calls. */
static double dig(int depth, int yields, double x)
{
    volatile double mine[64];
    for (int i = 0; i < 64; i++) mine[i] = x + i;
    if (depth) x = dig(depth - 1, yields, x * 0.5 + 1);
    else for (int i = 0; i < yields; i++) coroutine_yield(&now.w);
    for (int i = 1; i < 64; i++) if (mine[i] != mine[0] + i) return -1;
    return x;
}

typedef struct Hole { int depth, yields; double from, got; } Hole;
static void fall(void *arg) { Hole *h = arg; h->got = dig(h->depth, h->yields, h->from); }

static void stacks_are_apart(void)
{
    EXPECT_OK(coroutine_open(&now.w));
    for (int depth = 10; depth <= 1000; depth *= 10) {
        Hole a = { depth, 50, 3, 0 }, b = { depth, 70, 5, 0 };
        coroutine_run(&now.w, fall, &a, fall, &b);
        EXPECT(a.got == dig(depth, 0, 3) && b.got == dig(depth, 0, 5), "depth %d: %g, %g", depth, a.got,
               b.got);
    }
    coroutine_close(&now.w);
}

static void closed_is_fine(void)
{
    Coroutine w = { 0 };
    coroutine_yield(&w);
    coroutine_close(&w);
}

int main(void)
{
    RUN(in_turns);
    RUN(stacks_are_apart);
    RUN(closed_is_fine);
    return lab_report();
}
