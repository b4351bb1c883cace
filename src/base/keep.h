/* base/keep.h -- many small pieces of host memory with one owner, freed together.
 *
 * For what is read once and kept: texts of a recipe, nodes of a file. Tensors and step memory come from
 * arenas. A zeroed Keep is empty and ready; keep_close takes it back to that and may be called twice. */
#ifndef BASE_KEEP_H
#define BASE_KEEP_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Keep { struct KeepPiece *newest; } Keep;

void *keep_take(Keep *k, size_t bytes);                     /* zeroed, aligned for any type */
char *keep_text(Keep *k, const char *text, size_t len);     /* a copy, closed with a NUL */
void  keep_close(Keep *k);

#ifdef __cplusplus
}
#endif
#endif
