/* base/arena.h -- bump allocation with a high-water mark; nobody else asks a machine for memory.
 *
 * An arena is mapped once, before the first step, with the capacity the dry run found; push moves a
 * pointer, reset moves it back to a mark. Every push carries a label; when the arena is at its highest the
 * labels that were live then are remembered, so "what takes the room" has an answer by name.
 *
 * Past the capacity nothing is returned to check: the failure sticks to *sticky (the backend's), the
 * caller gets the arena's base so that pointer arithmetic stays inside, and sync hands the error out. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ARENA_ALIGN  256              /* bytes; what TMA and AVX-512 both like */
#define ARENA_LABELS 64

typedef struct ArenaLabel { const char *name; size_t used, at_peak, top; } ArenaLabel;
typedef struct ArenaPush  { uint32_t label; size_t bytes; } ArenaPush;

typedef struct Arena {
    const char *name;                 /* "param" "grad" "optim" "act" "scratch" "comm" "batch" */
    char       *base;
    size_t      cap, used, peak;
    Status     *sticky;               /* where an overflow is recorded */
    ArenaLabel  label[ARENA_LABELS];  /* label[0] collects what found no row */
    int         labels;
    ArenaPush  *stack;                /* one entry per live push, so that reset can give back by label */
    size_t      depth, max_depth;
    int64_t     fail_at;              /* tests: the push with this number (from 1) fails; 0 = never */
    int64_t     pushes;
} Arena;

/* base and cap come from the machine's map(); see ops/backend.h for the call that does both. */
MUST Status arena_open(Arena *a, const char *name, void *base, size_t cap, Status *sticky);
void        arena_close(Arena *a);                    /* frees the bookkeeping, not base; twice is fine */

void       *arena_push(Arena *a, const char *label, size_t bytes);
typedef struct ArenaMark { size_t used, depth; } ArenaMark;
ArenaMark   arena_mark(const Arena *a);
void        arena_reset(Arena *a, ArenaMark m);
void        arena_clear(Arena *a);                    /* back to empty; the peak stays */

#ifdef __cplusplus
}
#endif
#endif
