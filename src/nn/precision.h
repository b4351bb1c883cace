/* nn/precision.h -- in which format the products of a linear layer run: the table of nn/precision.def. */
#ifndef NN_PRECISION_H
#define NN_PRECISION_H

#include "nn/param.h"

typedef enum { PRODUCT_Y, PRODUCT_DX, PRODUCT_DW, PRODUCT_KINDS } ProductKind;

typedef enum {
#define SITE(id, word, linear, group, y, dx, dw) SITE_##id,
#include "nn/precision.def"
#undef SITE
    SITES
} Site;

/* Which products a run computes in 8 bits; all false: none. */
typedef struct ProductPrecision { bool fp8[SITES][PRODUCT_KINDS]; } ProductPrecision;

/* The sites that the words name compute in 8 bits what the table says. An unknown word is refused. */
MUST Status precision_fp8(ProductPrecision *p, const char *const *words, int n);
bool        precision_any(const ProductPrecision *p);
/* Every product that reads w runs in 8 bits: nothing reads w itself. */
bool        precision_only_fp8(const ProductPrecision *p, const Param *w);
/* Of a weight; SITES: it has no row. */
Site        precision_site(const Param *w);
const char *precision_words(void);                        /* of train.fp8_products, for messages */
const char *precision_site_word(Site s);                  /* the one of a site */

#endif
