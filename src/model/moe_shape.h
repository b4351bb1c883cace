/* model/moe_shape.h -- config readers that families with a sigmoid router and shared experts share. */
#ifndef MODEL_MOE_SHAPE_H
#define MODEL_MOE_SHAPE_H

#include "model/qwen3_shape.h"

typedef struct RouterDefaults { int64_t dense_first, groups, top_groups; double scale; } RouterDefaults;

/* After qwen3_text: n_routed_experts, n_shared_experts, first_k_dense_replace, n_group, topk_group,
 * routed_scaling_factor, num_nextn_predict_layers. */
MUST Status shape_sigmoid_router(TextShape *t, const Json *o, const RouterDefaults *d);

#endif
