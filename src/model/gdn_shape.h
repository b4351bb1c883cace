/* model/gdn_shape.h -- what qwen3_next and qwen3_5_moe share: gated delta nets in all but every n-th layer,
 * gated attention in those, zero-centred norms, a gated shared expert. */
#ifndef MODEL_GDN_SHAPE_H
#define MODEL_GDN_SHAPE_H

#include "model/qwen3_shape.h"

extern const ModelNames names_gdn;

/* After qwen3_text. */
MUST Status shape_gdn(TextShape *t, const Json *o);

#endif
