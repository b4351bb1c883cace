/* data/media_ref.h -- how a line names a picture: a path, a file: URI, or a data: URI with the bytes
 * inside. */
#ifndef DATA_MEDIA_REF_H
#define DATA_MEDIA_REF_H

#include "data/chat.h"

/* v: a string, or an object with path or url. Bytes of a data: URI go to keep; a path points into v.
 * Addresses that would have to be downloaded are refused. where: the field, for errors. */
MUST Status media_ref_read(Frame *f, MemPool *keep, const Json *v, const char *where);

/* Bytes written to out, which must hold len / 4 * 3 + 3; -1 where the text is not base64. */
int64_t base64_decode(void *out, const char *text, size_t len);

#endif
