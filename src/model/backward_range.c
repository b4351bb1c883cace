/* model/backward_range.c -- which layers and chunks have a backward, by what trains and what a batch
 * holds. */
#include "model/step_private.h"

static bool vision_trains(const Model *m)
{
    return m->shape.vision.depth && (!m->frozen[G_VIT] || !m->frozen[G_ALIGNER]);
}

/* The lowest layer that ever has a backward, with the values of backward_stop_layer. */
static int64_t first_trainable_layer(const Model *m) { return vision_trains(m) ? -1 : m->first_trainable; }

bool visual_grads_wanted(const Pass *c, const Model *m) { return c->batch->pictures && vision_trains(m); }

int64_t backward_stop_layer(const Pass *c, const Model *m)
{
    if (c->mode == EVAL) return m->shape.text.L + 1;
    return visual_grads_wanted(c, m) ? -1 : m->first_trainable;
}

int64_t first_saved_layer(const Pass *c, const Model *m)
{
    return c->mode == EVAL ? m->shape.text.L + 1 : first_trainable_layer(m);
}

bool model_has_backward(const Pass *c, const Model *m) { return backward_stop_layer(c,
                                                                                    m) <= m->shape.text.L; }

bool model_chunk_has_backward(const Model *m, int chunk)
{
    const Chunk *k = &m->chunk[chunk];
    return first_trainable_layer(m) < k->to + k->heads;
}

bool model_chunk_sends_grad(const Model *m, int chunk)
{
    return first_trainable_layer(m) < m->chunk[chunk].from;
}
