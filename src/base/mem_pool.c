/* base/mem_pool.c -- see mem_pool.h. */
#include "base/mem_pool.h"

#include "base/status.h"
#include <stdlib.h>
#include <string.h>

typedef struct MemPoolBlock {
    struct MemPoolBlock *next;
    _Alignas(max_align_t) char bytes[];
} MemPoolBlock;

void *mem_pool_alloc(MemPool *k, size_t bytes)
{
    MemPoolBlock *piece = calloc(1, sizeof *piece + bytes);
    REQUIRE(piece, "out of host memory for %zu bytes", bytes);
    piece->next = k->newest;
    k->newest = piece;
    return piece->bytes;
}

char *mem_pool_copy(MemPool *k, const char *text, size_t len)
{
    char *copy = mem_pool_alloc(k, len + 1);
    memcpy(copy, text, len);
    return copy;
}

void mem_pool_close(MemPool *k)
{
    while (k->newest) {
        MemPoolBlock *piece = k->newest;
        k->newest = piece->next;
        free(piece);
    }
}
