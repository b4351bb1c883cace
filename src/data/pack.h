/* data/pack.h -- packs documents of any length into micro-batches of fixed budgets, and assigns
 * micro-batches to ranks.
 *
 * First fit over a bounded set of open bins: a document goes into the oldest open bin that holds all of
 * it; when there is none and PACK_OPEN bins are open, the fullest is closed. The result depends only on
 * the order of the documents, so it is the same on every rank and after a resume. */
#ifndef DATA_PACK_H
#define DATA_PACK_H

#include "tensor/stream.h"

/* What one document uses of a budget. */
typedef struct DocSize { int64_t tokens, patches, supervised; } DocSize;

typedef struct PackDoc { int64_t at; DocSize size; } PackDoc;         /* at: its position in the pass */

typedef struct PackBin {
    PackDoc *doc;
    int64_t  docs, cap;
    DocSize  used;
} PackBin;

enum { PACK_OPEN = 16 };             /* bins open at a time: more bins waste less and delay the first step */

typedef struct Packer {
    Budget  budget;
    PackBin open[PACK_OPEN];         /* oldest first */
    int     opens;
} Packer;

void        packer_open(Packer *p, const Budget *b);
void        packer_close(Packer *p);                                  /* twice is fine */

/* The budget that a document of this size exceeds in an empty bin, for a message; NULL: it fits. */
const char *pack_over_budget(const Budget *b, const DocSize *d);

/* Adds one document that fits an empty bin. *full: a bin was closed into *out, which the caller closes. */
MUST Status packer_add(Packer *p, const PackDoc *d, PackBin *out, bool *full);
/* Closes the oldest open bin into *out at the end of a pass; false when there is none. */
bool        packer_flush(Packer *p, PackBin *out);

MUST Status pack_bin_push(PackBin *b, const PackDoc *d);
void        pack_bin_close(PackBin *b);                                    /* twice is fine */

/* Spreads the documents of `from` over `n` empty bins, the most expensive first, each to the cheapest bin
 * that it fits, so that the short last step of a pass leaves no micro-batch empty while another has
 * several documents. *done is false when a document fits no bin; `to` is then empty again. */
MUST Status pack_bins_spread(PackBin *to, int n, const PackBin *from, int bins, const Budget *b, bool *done);

/* Work of a bin in units of one token: tokens, patches, and the quadratic part of both kinds of attention. */
double      pack_bin_cost(const PackBin *b);

/* Assigns ranks * micro bins: place[r * micro + k] is the bin of the k-th micro-batch of rank r. Bins of
 * similar cost get the same k, since ranks synchronise at every layer of a micro-batch; within a k the
 * rank with the least work so far gets the most expensive bin. */
MUST Status pack_bins_assign(int *place, const PackBin *bin, int ranks, int micro);

#endif
