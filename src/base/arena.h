/* base/arena.h -- bump allocation with a high-water mark; device memory is allocated here alone.
 *
 * An arena is mapped once, before the first step, with the capacity the dry run found; push moves a
 * pointer, reset moves it back to a mark. Every push carries a label; when the arena is at its highest the
 * labels live at that moment are recorded, so that reports can say by name what takes the memory.
 *
 * A push past the capacity records the failure in *sticky (the backend's) and returns the arena's base, so
 * that pointer arithmetic stays inside; the next sync returns the error. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ARENA_ALIGN  256              /* bytes; enough for TMA and AVX-512 */
#define ARENA_LABELS 64

typedef struct ArenaLabel { const char *name; size_t used, at_peak, top; } ArenaLabel;
typedef struct ArenaPush  { uint32_t label; size_t bytes; } ArenaPush;

typedef struct Arena {
    const char *name;                 /* "param" "grad" "optim" "act" "scratch" "comm" "batch" */
    char       *base;
    size_t      cap, used, peak;
    Status     *sticky;               /* where an overflow is recorded */
    ArenaLabel  label[ARENA_LABELS];  /* label[0] collects pushes beyond the last row */
    int         labels;
    ArenaPush  *stack;                /* one entry per live push, so that reset can subtract by label */
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
