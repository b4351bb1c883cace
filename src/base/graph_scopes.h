/* base/graph_scopes.h -- the values of train.cuda_graph: parts of a layer that run as CUDA graphs.
 *
 *   SCOPE(word, ID, includes, help)          includes: bits of scopes inside it
 *
 * A scope is a range of a layer's forward and of its backward, which begins where the layer's code says so
 * (pass_scope of nn/module.h) and ends where the next one begins. */
#ifndef BASE_GRAPH_SCOPES_H
#define BASE_GRAPH_SCOPES_H

#include "base/status.h"

#define GRAPH_SCOPE_ROWS(SCOPE)                                                                    \
    SCOPE("attn", ATTN, 0, "attention with its projections and the norms around it")               \
    SCOPE("mlp", MLP, 0, "dense feed-forward")                                                     \
    SCOPE("moe_router", MOE_ROUTER, 0, "router")                                                   \
    SCOPE("moe_preprocess", MOE_PREPROCESS, 0, "sorting of rows for the dispatch")                 \
    SCOPE("moe", MOE, GRAPH_BIT(MOE_ROUTER) | GRAPH_BIT(MOE_PREPROCESS),                           \
          "these two, dispatch, experts, combine")                                                 \
    SCOPE("vision", VISION, 0, "vision tower")

#define GRAPH_BIT(id) (1u << GRAPH_##id)

/* GRAPH_EAGER: outside of all scopes. */
typedef enum {
    GRAPH_EAGER,
#define SCOPE(word, id, includes, help) GRAPH_##id,
    GRAPH_SCOPE_ROWS(SCOPE)
#undef SCOPE
    GRAPH_SCOPES
} GraphScope;

enum {
    GRAPH_FULL = 1 << 16,                        /* whole phases of a step */
    GRAPH_ALL_SCOPES = (1 << GRAPH_SCOPES) - 2
};

#define GRAPH_SCOPE_HELP_(word, id, includes, help) "; " word ": " help
#define GRAPH_SCOPE_HELP                                                                           \
    "what runs as CUDA graphs. full: forward, backward and update; or a list of scopes"            \
    GRAPH_SCOPE_ROWS(GRAPH_SCOPE_HELP_)

/* The bits of n words: none, full, or scopes. Words of other trainers are answered. */
MUST Status graph_scopes_read(unsigned *bits, const char *const *word, int n);

#endif
