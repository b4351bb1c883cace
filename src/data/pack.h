/* data/pack.h -- documents of any length into micro-batches of fixed budgets, and micro-batches over
 * ranks.
 *
 * First fit over a buffer: a document goes into the oldest open bin that has room for all of it; when none
 * has and the buffer of open bins is full, the fullest is closed. What comes out depends on what went in
 * and on nothing else, so equal orders give equal bins on every rank and after a resume. */
#ifndef DATA_PACK_H
#define DATA_PACK_H

#include "tensor/stream.h"

/* What one document takes of a budget. */
typedef struct DocSize { int64_t tokens, patches, supervised; } DocSize;

typedef struct PackDoc { int64_t at; DocSize size; } PackDoc;         /* at: the caller's name for it */

typedef struct PackBin {
    PackDoc *doc;
    int64_t  docs, cap;
    DocSize  used;
} PackBin;

enum { PACK_OPEN = 16 };             /* bins open at a time: more waste less and delay the first step */

typedef struct Packer {
    Budget  budget;
    PackBin open[PACK_OPEN];         /* oldest first */
    int     opens;
} Packer;

void        packer_open(Packer *p, const Budget *b);
void        packer_close(Packer *p);                                  /* twice is fine */

/* What keeps a document of this size out of an empty bin, as words for a message; NULL: it fits. */
const char *pack_over_budget(const Budget *b, const DocSize *d);

/* Takes one document that fits. *full: whether a bin was closed; it then is the caller's, to pack_bin_close. */
MUST Status packer_add(Packer *p, const PackDoc *d, PackBin *out, bool *full);
/* The oldest open bin, closed; false when there is none. For the end of a pass. */
bool        packer_flush(Packer *p, PackBin *out);

MUST Status pack_bin_push(PackBin *b, const PackDoc *d);
void        pack_bin_close(PackBin *b);                                    /* twice is fine */

/* Spreads the documents of `from` over `n` empty bins, the costly first, each to the cheapest bin with
 * room: the short last step of a pass then leaves no micro-batch empty while another holds several. False
 * when the greedy choice finds no room; `to` is then empty again. */
MUST Status pack_bins_spread(PackBin *to, int n, const PackBin *from, int bins, const Budget *b, bool *done);

/* Work of a bin in units of one token's: tokens, patches, and the square part of both kinds of attention. */
double      pack_bin_cost(const PackBin *b);

/* Deals ranks * micro bins: place[r * micro + k] is the bin of rank r's k-th micro-batch. Bins of like
 * cost share a k, since ranks meet at every layer of a micro-batch; within a k the rank with least so far
 * gets the most. */
MUST Status pack_bins_assign(int *place, const PackBin *bin, int ranks, int micro);

#endif
