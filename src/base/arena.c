/* base/arena.c -- see arena.h. */
#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

enum { DEPTH = 1 << 15 };             /* live pushes an arena can name; later ones count as label[0] */

Status arena_open(Arena *a, const char *name, void *base, size_t cap, Status *sticky)
{
    *a = (Arena){ .name = name, .base = base, .cap = cap, .sticky = sticky, .labels = 1, .max_depth = DEPTH };
    a->label[0].name = "other";
    a->stack = malloc(DEPTH * sizeof *a->stack);
    return a->stack ? OK : fail(E_FIT, "arena %s: no memory for its bookkeeping", name);
}

void arena_close(Arena *a)
{
    free(a->stack);
    *a = (Arena){ 0 };
}

/* Labels are string literals, so the pointer usually decides; the text decides between two literals. */
static uint32_t label_find(Arena *a, const char *name)
{
    for (int i = 0; i < a->labels; i++)
        if (a->label[i].name == name || !strcmp(a->label[i].name, name)) return (uint32_t)i;
    if (a->labels == ARENA_LABELS) return 0;
    a->label[a->labels].name = name;
    return (uint32_t)a->labels++;
}

static void *overflow(Arena *a, const char *label, size_t bytes)
{
    if (a->sticky && !*a->sticky)
        *a->sticky = fail(
            E_FIT, "arena %s is full: %zu of %zu bytes used, %s needs %zu more bytes than were planned",
            a->name, a->used, a->cap, label, bytes);
    return a->base;
}

void *arena_push(Arena *a, const char *label, size_t bytes)
{
    size_t padded = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (++a->pushes == a->fail_at || padded < bytes || padded > a->cap - a->used)
        return overflow(a, label, bytes);
    void    *p = a->base + a->used;
    uint32_t l = a->depth < a->max_depth ? label_find(a, label) : 0;
    if (a->depth < a->max_depth) a->stack[a->depth++] = (ArenaPush){ l, padded };
    a->used += padded;
    a->label[l].used += padded;
    if (a->label[l].used > a->label[l].top) a->label[l].top = a->label[l].used;
    if (a->used > a->peak) {
        a->peak = a->used;
        for (int i = 0; i < a->labels; i++) a->label[i].at_peak = a->label[i].used;
    }
    return p;
}

ArenaMark arena_mark(const Arena *a) { return (ArenaMark){ a->used, a->depth }; }

void arena_reset(Arena *a, ArenaMark m)
{
    REQUIRE(m.used <= a->used && m.depth <= a->depth, "arena %s: reset to %zu above %zu", a->name, m.used,
            a->used);
    size_t back = a->used - m.used;
    while (a->depth > m.depth) {
        ArenaPush p = a->stack[--a->depth];
        a->label[p.label].used -= p.bytes;
        back -= p.bytes;
    }
    a->label[0].used -= back;         /* pushes that the full stack did not record */
    a->used = m.used;
}

void arena_clear(Arena *a) { arena_reset(a, (ArenaMark){ 0, 0 }); }
