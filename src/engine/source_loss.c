/* engine/source_loss.c -- see source_loss.h. */
#include "engine/source_loss.h"

#include <stdlib.h>
#include <string.h>

Status source_loss_open(SourceLoss *b, const Loader *l, int sources)
{
    size_t n = (size_t)sources;
    *b = (SourceLoss){ .sources  = sources,
                       .name     = calloc(n, sizeof *b->name),
                       .row      = calloc(n, sizeof *b->row),
                       .loss     = calloc(n, sizeof *b->loss),
                       .tokens   = calloc(n, sizeof *b->tokens) };
    if (!b->name || !b->row || !b->loss || !b->tokens) {
        source_loss_close(b);
        return fail(E_FIT, "no host memory for the losses of %d sources", sources);
    }
    for (int i = 0; i < sources; i++) {
        const char *name = loader_channel(l, i);
        int k = 0;
        while (k < b->channels && strcmp(b->name[k], name)) k++;
        if (k == b->channels) b->name[b->channels++] = name;
        b->row[i] = k;
    }
    return OK;
}

void source_loss_close(SourceLoss *b)
{
    free(b->name), free(b->row), free(b->loss), free(b->tokens);
    *b = (SourceLoss){ 0 };
}

void source_loss_clear(SourceLoss *b)
{
    for (int i = 0; i < b->channels; i++) b->loss[i] = 0, b->tokens[i] = 0;
}

/* Supervised rows have the order of the stream, so those of a document are adjacent. A cp rank has the losses
 * of its own rows; all ranks of tp have the same ones. */
void source_loss_add(SourceLoss *b, const Engine *e, const Stream *s, const LoaderDoc *doc,
                     const float *row_loss)
{
    int64_t d = 0, n = 0;
    Spans rows = batch_rows(&e->mesh, s->budget.tokens, false);
    for (int64_t i = 0; i < s->supervised; i++) {
        while (s->sup_row[i] >= s->start[d + 1]) d++;
        if (spans_find(rows, s->sup_row[i]) < 0) continue;
        int row = b->row[doc[d].source];
        b->loss[row] += row_loss[n++], b->tokens[row]++;
    }
}

void source_loss_sum_ranks(SourceLoss *b, const Engine *e)
{
    Comm *world = e->mesh.comm[GR_world];
    if (!b->channels) return;
    comm_host_sum(world, b->loss, b->channels);
    comm_host_sum64(world, b->tokens, b->channels);
}
