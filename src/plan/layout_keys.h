/* plan/layout_keys.h -- a layout of the search as overrides of a recipe, and the hardware of this machine. */
#ifndef PLAN_LAYOUT_KEYS_H
#define PLAN_LAYOUT_KEYS_H

#include "base/config.h"
#include "plan/search.h"

enum { LAYOUT_KEYS = 32, LAYOUT_KEY_TEXT = 192 };

typedef struct LayoutKeys { int n; char at[LAYOUT_KEYS][LAYOUT_KEY_TEXT]; } LayoutKeys;

__attribute__((format(printf, 2, 3))) void layout_key(LayoutKeys *k, const char *fmt, ...);
/* Adds key=want unless the recipe has that value. */
void        layout_key_number(LayoutKeys *k, const char *key, int64_t is, int64_t want);
/* Adds the keys of section parallel in which c differs from the layout; layers: of the decoder. The stage of
 * ZeRO stays the recipe's where the layout does not shard weights. */
void        layout_keys_set(LayoutKeys *k, const Config *c, const Candidate *layout, int layers);
bool        layout_is_new(const Search *s, int at);           /* no earlier candidate has its layout */
MUST Status layout_keys_apply(Config *c, const LayoutKeys *k);

/* `this` if it was measured on the backend that is asked for (cpu, cuda, auto), else the row of the GPU by
 * its name; for CPU ranks with each one's share of the memory. */
MUST Status hardware_here(Hardware *h, const char *backend, int per_node);

#endif
