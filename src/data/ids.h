/* data/ids.h -- growing lists of token ids and of bytes. */
#ifndef DATA_IDS_H
#define DATA_IDS_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

typedef struct Ids { int32_t *v; int64_t n, cap; } Ids;      /* zeroed: empty */
typedef struct Text { char *v; size_t n, cap; } Text;        /* bytes, without a NUL at the end */

MUST Status ids_push(Ids *s, int32_t id);
MUST Status ids_push_many(Ids *s, const int32_t *v, int64_t n);
MUST Status ids_repeat(Ids *s, int32_t id, int64_t n);
void        ids_close(Ids *s);                                /* twice is fine */

MUST Status text_push(Text *s, const char *v, size_t n);
MUST Status text_printf(Text *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void        text_close(Text *s);

#endif
