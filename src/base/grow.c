/* base/grow.c -- see grow.h. */
#include "base/grow.h"

#include <stdlib.h>

enum { FIRST_ITEMS = 16 };

bool grow_array(void **v, int64_t *cap, int64_t need, int64_t most, size_t size)
{
    if (need <= *cap) return true;
    int64_t limit = (int64_t)((uint64_t)PTRDIFF_MAX / size);
    if (limit > most) limit = most;
    if (need > limit) return false;
    int64_t next = *cap > limit / 2 ? limit : 2 * *cap;
    if (next < FIRST_ITEMS && FIRST_ITEMS <= limit) next = FIRST_ITEMS;
    if (next < need) next = need;
    void *p = realloc(*v, (size_t)next * size);
    if (!p) return false;
    *v = p, *cap = next;
    return true;
}
