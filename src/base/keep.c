/* base/keep.c -- see keep.h. */
#include "base/keep.h"

#include "base/status.h"
#include <stdlib.h>
#include <string.h>

typedef struct KeepPiece {
    struct KeepPiece *next;
    _Alignas(max_align_t) char bytes[];
} KeepPiece;

void *keep_take(Keep *k, size_t bytes)
{
    KeepPiece *piece = calloc(1, sizeof *piece + bytes);
    REQUIRE(piece, "out of host memory for %zu bytes", bytes);
    piece->next = k->newest;
    k->newest = piece;
    return piece->bytes;
}

char *keep_text(Keep *k, const char *text, size_t len)
{
    char *copy = keep_take(k, len + 1);
    memcpy(copy, text, len);
    return copy;
}

void keep_close(Keep *k)
{
    while (k->newest) {
        KeepPiece *piece = k->newest;
        k->newest = piece->next;
        free(piece);
    }
}
