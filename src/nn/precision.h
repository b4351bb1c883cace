/* nn/precision.h -- in which format the products of a linear layer run: that of train.precision for those of
 * the table of nn/precision.def. */
#ifndef NN_PRECISION_H
#define NN_PRECISION_H

#include "nn/param.h"

typedef enum { PRODUCT_Y, PRODUCT_DX, PRODUCT_DW, PRODUCT_KINDS } ProductKind;

typedef enum {
#define SITE(id, word, linear, group, y, dx, dw) SITE_##id,
#define SITE_DW(id, word)
#include "nn/precision.def"
#undef SITE_DW
#undef SITE
    SITES
} Site;

/* Which products a run computes in codes of `format`; all false: none. */
typedef struct ProductPrecision { Precision format; bool coded[SITES][PRODUCT_KINDS]; } ProductPrecision;

/* The sites that the words name compute in codes what the table says. An unknown word is refused, and one of
 * weight gradients without that of the other products; in formats that have none it adds nothing. */
MUST Status precision_set(ProductPrecision *p, Precision format, const char *const *words, int n);
bool        precision_any(const ProductPrecision *p);
/* Products in the 8 bits of ops/quant.h, whose weights may be kept in codes. */
bool        precision_is_fp8(const ProductPrecision *p);
/* Every product that reads w runs in codes: nothing reads w itself. */
bool        precision_only_coded(const ProductPrecision *p, const Param *w);
/* Of a weight; SITES: it has no row. */
Site        precision_site(const Param *w);
const char *precision_words(void);                        /* of train.fp8_products, for messages */
const char *precision_site_word(Site s);                  /* the one of a site */

#endif
