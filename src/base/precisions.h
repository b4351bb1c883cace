/* base/precisions.h -- the number formats of matrix products, one row each: the choices of train.precision
 * and of `treb plan --precision`.
 *
 *   PRECISION(id, word, plan, group, help)
 *
 *   word    of train.precision
 *   plan    of `treb plan --precision`
 *   group   elements along the sum that share a scale; 0: there are no scales */
#ifndef BASE_PRECISIONS_H
#define BASE_PRECISIONS_H

#define NARROW_PRECISIONS(PRECISION)                                                                       \
    PRECISION(FP8,   "fp8_block", "fp8",   128, "e4m3 in groups of 128")                                   \
    PRECISION(MXFP8, "mxfp8",     "mxfp8", 32,  "e4m3 in groups of 32, on CPUs")                           \
    PRECISION(NVFP4, "nvfp4",     "nvfp4", 16,  "e2m1 in groups of 16, on CPUs")
#define PRECISIONS(PRECISION)                                                                              \
    PRECISION(BF16,  "bf16",      "bf16",  0,   "the dtype of the weights") NARROW_PRECISIONS(PRECISION)

/* Values and help of both options. */
#define PRECISION_WORD(id, word, plan, group, help) "|" word
#define PRECISION_PLAN(id, word, plan, group, help) "|" plan
#define PRECISION_LINE(id, word, plan, group, help) "; " word ": " help
#define PRECISION_WORDS "bf16" NARROW_PRECISIONS(PRECISION_WORD)
#define PRECISION_PLANS "bf16" NARROW_PRECISIONS(PRECISION_PLAN)
#define PRECISION_HELP  "of matrix products" PRECISIONS(PRECISION_LINE)

typedef enum {
#define PRECISION(id, word, plan, group, help) PREC_##id,
    PRECISIONS(PRECISION)
#undef PRECISION
    PRECISION_N
} Precision;

#ifdef __cplusplus
extern "C" {
#endif

const char *precision_word(Precision p);                    /* of train.precision */
const char *precision_plan_word(Precision p);
int         precision_group(Precision p);
Precision   precision_find(const char *word);               /* of train.precision; PRECISION_N: none */
Precision   precision_find_plan(const char *word);

#ifdef __cplusplus
}
#endif
#endif
