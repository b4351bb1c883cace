/* plan/engines.c -- engines.def as a table. */
#include "plan/engines.h"

#include <stddef.h>
#include <string.h>

#define ENGINE(id, text, eager, partial, full, wait, gemm, grouped, attention, memory, fp8, one, two, ...)   \
    { #id,          text,       { eager, partial, full }, wait, gemm, grouped, attention, memory, fp8,       \
      { one, two }, __VA_ARGS__ },
static const EngineRow rows[] = {
#include "plan/engines.def"
};
#undef ENGINE
enum { ROWS = sizeof rows / sizeof *rows };

const char engine_choices[] =
#define ENGINE(id, ...) "|" #id
#include "plan/engines.def"
#undef ENGINE
    ;

const EngineRow *engine_row(const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    return NULL;
}

const EngineRow *engine_row_at(int i) { return i >= 0 && i < ROWS ? &rows[i] : NULL; }

/* Links of CPU ranks hold no multiprocessors, so they slow no compute and reductions hide behind all of it:
 * measured over simulated links (tests/test_walls.c). */
static const EngineOverlap cpu_overlap = { .hides = 0.8, .dp_hides = 1, .held = 0 };

EngineOverlap engine_overlap(const char *backend)
{
    const EngineRow *e = &rows[0];
    return !strcmp(backend, "cpu") ? cpu_overlap : (EngineOverlap){ e->hides, e->dp_hides, e->held };
}
