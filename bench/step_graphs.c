/* bench/step_graphs.c -- --cuda-graph of a benchmark: several values, which the same engine runs one after
 * the other. */
#include "bench/step.h"

#include <stdio.h>
#include <string.h>

static Status read_words(unsigned *bits, char *text)
{
    const char *word[GRAPH_SCOPES + 1];
    char *rest = NULL;
    int   n = 0;
    for (char *w = strtok_r(text, ",", &rest); w && n <= GRAPH_SCOPES; w = strtok_r(NULL, ",", &rest))
        word[n++] = w;
    return graph_scopes_read(bits, word, n);
}

Status step_read_graphs(StepBench *b, const char *text)
{
    char copy[512], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    for (char *way = strtok_r(copy, "/", &rest); way; way = strtok_r(NULL, "/", &rest)) {
        if (b->ways == STEP_GRAPHS_MOST)
            return fail(E_CONFIG, "--cuda-graph %s: at most %d values", text, STEP_GRAPHS_MOST);
        StepGraphs *g = &b->way[b->ways++];
        snprintf(g->words, sizeof g->words, "%s", way);
        TRY(read_words(&g->bits, way));
    }
    return OK;
}

unsigned step_all_graphs(const StepBench *b)
{
    unsigned bits = 0;
    for (int i = 0; i < b->ways; i++) bits |= b->way[i].bits;
    return bits;
}

void step_print_graphs(const StepBench *b, const StepGraphs *g, const StepTimes *t, const StepTimes *first)
{
    double s = step_seconds(t);
    printf("cuda_graph %s: step %.1f ms (forward %.1f, backward %.1f, norm and AdamW %.1f), forward and "
           "backward %.2fx faster than with %s; first step %.2fx, second %.2fx\n", g->words, s * 1e3,
           t->fwd * 1e3, t->bwd * 1e3, t->opt * 1e3, (first->fwd + first->bwd) / (t->fwd + t->bwd),
           b->way[0].words, t->first / s, t->second / s);
    step_print_host(b, t);
}
