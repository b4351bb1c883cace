/* base/graph_scopes.c -- see graph_scopes.h. */
#include "base/graph_scopes.h"

#include <string.h>

static const struct { const char *word; unsigned bits; } words[] = {
    { "none", 0 },
    { "full", GRAPH_FULL },
#define SCOPE(word, id, includes, help) { word, GRAPH_BIT(id) | (includes) },
    GRAPH_SCOPE_ROWS(SCOPE)
#undef SCOPE
};

/* Words of other trainers, and what to write here. */
static const struct { const char *word, *answer; } answers[] = {
    { "full_iteration", "write full" },
    { "true", "write full, or a list of scopes" },
    { "false", "write none" },
    { "local", "write the scopes, such as [attn, moe_router, moe_preprocess]" },
    { "transformer_engine", "write the scopes, such as [attn, moe_router, moe_preprocess]" },
    { "attention", "write attn" },
    { "self_attention", "write attn" },
    { "router", "write moe_router" },
    { "vit", "write vision" },
    { "vision_encoder", "write vision" },
    { "mamba", "there are no Mamba layers; gated delta nets belong to attn" },
};

static Status refuse_word(const char *word)
{
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
        if (!strcmp(answers[i].word, word))
            return fail(E_CONFIG, "train.cuda_graph: %s: %s", word, answers[i].answer);
    return fail(E_CONFIG, "train.cuda_graph: %s is not a scope; there are none, full"
#define SCOPE(word, id, includes, help) ", " word
                GRAPH_SCOPE_ROWS(SCOPE)
#undef SCOPE
                , word);
}

static Status read_word(unsigned *bits, const char *word)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (!strcmp(words[i].word, word)) {
            *bits = words[i].bits;
            return OK;
        }
    return refuse_word(word);
}

Status graph_scopes_read(unsigned *bits, const char *const *word, int n)
{
    *bits = 0;
    for (int i = 0; i < n; i++) {
        unsigned one = 0;
        TRY(read_word(&one, word[i]));
        if (n > 1 && (!one || one == GRAPH_FULL))
            return fail(E_CONFIG, "train.cuda_graph: %s stands alone; write %s, or a list of scopes", word[i],
                        word[i]);
        *bits |= one;
    }
    return OK;
}
