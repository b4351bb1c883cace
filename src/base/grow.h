/* base/grow.h -- arrays that grow by doubling.
 *
 *   if (!GROW(list->item, list->cap, list->n + 1)) return fail(E_FIT, "no memory for ...");
 *   list->item[list->n++] = x;
 *
 * GROW(v, cap, need) enlarges array v, whose capacity is cap, to hold at least `need` items and updates v and
 * cap. It yields false and changes nothing when memory is short or the size overflows. Items keep their
 * values; new ones are undefined. v is NULL and cap 0 before the first call; cap is any signed or unsigned
 * integer. */
#ifndef BASE_GROW_H
#define BASE_GROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* GROW for an array of `size`-byte items whose capacity may not exceed `most`. */
bool grow_array(void **v, int64_t *cap, int64_t need, int64_t most, size_t size);

#define GROW(v, cap, need)                                                                         \
    (__extension__({                                                                               \
        void   *grow_v_ = (v);                                                                     \
        int64_t grow_cap_ = (int64_t)(cap);                                                        \
        bool    grow_ok_ = grow_array(&grow_v_, &grow_cap_, (int64_t)(need),                       \
                                      sizeof(cap) < 8 ? INT32_MAX : INT64_MAX, sizeof *(v));       \
        (v)   = (__typeof__(v))grow_v_;                                                            \
        (cap) = (__typeof__(cap))grow_cap_;                                                        \
        grow_ok_;                                                                                  \
    }))

#ifdef __cplusplus
}
#endif
#endif
