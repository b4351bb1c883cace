/* nn/precision.c -- see precision.h. */
#include "nn/precision.h"

#include <string.h>

enum { WIDE, CODED };

typedef struct SiteRow { const char *word; Linear linear; Group group; bool coded[PRODUCT_KINDS]; } SiteRow;

static const SiteRow rows[SITES] = {
#define SITE(id, word, linear, group, y, dx, dw) [SITE_##id] = { word, linear, group, { y, dx, dw } },
#define SITE_DW(id, word)
#include "nn/precision.def"
#undef SITE_DW
#undef SITE
};

/* Words of weight gradients, by site; NULL: it has none. */
static const char *const dw_words[SITES] = {
#define SITE(id, word, linear, group, y, dx, dw)
#define SITE_DW(id, word) [SITE_##id] = word,
#include "nn/precision.def"
#undef SITE_DW
#undef SITE
};

const char *precision_words(void) { return "experts, experts_dw, attention, mlp, tower, mergers, head"; }

const char *precision_site_word(Site s) { return rows[s].word; }

static Status add_word(ProductPrecision *p, const char *word)
{
    bool known = false;
    for (int i = 0; i < SITES; i++) {
        bool dw = dw_words[i] && !strcmp(dw_words[i], word), all = !strcmp(rows[i].word, word);
        for (int k = 0; k < PRODUCT_KINDS; k++) p->coded[i][k] |= all && rows[i].coded[k];
        p->coded[i][PRODUCT_DW] |= dw;
        known |= dw || all;
    }
    if (known) return OK;
    return fail(E_CONFIG, "train.fp8_products: %s is none of %s", word, precision_words());
}

/* Weight gradients are computed in codes beside the other products of a site, and in 8 bits alone. */
static Status check_dw(ProductPrecision *p, Site s)
{
    bool coded = dw_words[s] && p->coded[s][PRODUCT_DW];
    if (p->format != PREC_FP8) p->coded[s][PRODUCT_DW] = false;
    if (!coded || (p->coded[s][PRODUCT_Y] && p->coded[s][PRODUCT_DX])) return OK;
    return fail(E_CONFIG, "train.fp8_products: %s needs %s beside it; add that word", dw_words[s],
                rows[s].word);
}

Status precision_set(ProductPrecision *p, Precision format, const char *const *words, int n)
{
    *p = (ProductPrecision){ .format = format };
    for (int i = 0; i < n; i++) TRY(add_word(p, words[i]));
    for (int i = 0; i < SITES; i++) TRY(check_dw(p, (Site)i));
    if (!n) return fail(E_CONFIG, "train.fp8_products is empty: no product would run in %s; list some of "
                        "%s, or set train.precision=bf16", precision_word(format), precision_words());
    return OK;
}

bool precision_any(const ProductPrecision *p)
{
    for (int i = 0; i < SITES; i++)
        for (int k = 0; k < PRODUCT_KINDS; k++)
            if (p->coded[i][k]) return true;
    return false;
}

bool precision_is_fp8(const ProductPrecision *p) { return p->format == PREC_FP8 && precision_any(p); }

Site precision_site(const Param *w)
{
    int i = 0;
    while (i < SITES && (rows[i].linear != w->linear || rows[i].group != w->group)) i++;
    return (Site)i;
}

bool precision_only_coded(const ProductPrecision *p, const Param *w)
{
    Site site = precision_site(w);
    return site < SITES && p->coded[site][PRODUCT_Y] && p->coded[site][PRODUCT_DX];
}
