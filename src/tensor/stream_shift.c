/* tensor/stream_shift.c -- a stream shifted by one token inside its documents; see stream.h. */
#include "tensor/stream.h"

/* Whether the token before supervised row i is of the same document; *doc: that of the row before, in
 * order. */
static bool follows(const Stream *s, int64_t i, int64_t *doc)
{
    while (s->start[*doc + 1] <= s->sup_row[i]) ++*doc;
    return s->sup_row[i] > s->start[*doc];
}

void stream_shift(const Stream *s, int32_t *ids, int32_t *row, int32_t *label)
{
    int64_t doc = 0;
    for (int64_t t = 0; t < s->budget.tokens; t++) ids[t] = t + 1 < s->tokens ? s->ids[t + 1] : 0;
    for (int64_t d = 0; d < s->docs; d++) ids[s->start[d + 1] - 1] = 0;
    for (int64_t i = 0; i < s->budget.supervised; i++) {
        bool there = i < s->supervised && follows(s, i, &doc);
        row[i] = there ? s->sup_row[i] - 1 : -1, label[i] = there ? s->sup_label[i] : -1;
    }
}

int64_t stream_shifted_targets(const Stream *s)
{
    int64_t n = 0, doc = 0;
    if (!s->sup_row) return s->supervised;
    for (int64_t i = 0; i < s->supervised; i++) n += follows(s, i, &doc);
    return n;
}
