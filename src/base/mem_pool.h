/* base/mem_pool.h -- many small pieces of host memory with one owner, freed together.
 *
 * A pool holds what is read once and stays: texts of a recipe, nodes of a file. Tensors and step memory come
 * from arenas. A zeroed MemPool is empty and ready; mem_pool_close empties it and may be called twice. */
#ifndef BASE_MEM_POOL_H
#define BASE_MEM_POOL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MemPool { struct MemPoolBlock *newest; } MemPool;

void *mem_pool_alloc(MemPool *k, size_t bytes);                     /* zeroed, aligned for any type */
char *mem_pool_copy(MemPool *k, const char *text, size_t len);     /* a copy, closed with a NUL */
void  mem_pool_close(MemPool *k);

#ifdef __cplusplus
}
#endif
#endif
