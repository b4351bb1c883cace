/* model/init.c -- random weights, as training from nothing starts.
 *
 * A value is a function of seed, name and index in the whole parameter, so any rank of any layout draws its
 * part and all of them together are the model that one rank would have drawn. */
#include "model/model.h"

#include "base/rng.h"

#include <math.h>

/* The table of positions is added to patches, which are sums over patch_dim pixels of about a half. Drawn
 * like a weight it would be a few percent of them, and a tower that starts from nothing would be blind to
 * where things are for hundreds of steps. */
static float spread(const Model *m, const Param *p)
{
    float std = (float)m->shape.text.init_std;
    return p->init == INIT_POSITION ? 0.5f * sqrtf((float)m->vision.patch_dim) * std : std;
}

static void draw(const Model *m, Backend *be, const Param *p, Held h, uint64_t seed)
{
    Comb c[HELD_COMBS];
    uint64_t stream = rng_stream(p->piece[0].name);
    int n = held_combs(c, p, h);
    if (p->real < p->local[0]) op_fill(be, h.t, 0.0f);
    for (int i = 0; i < n; i++) {
        Tensor rows = held_rows(h, &c[i]);
        if (p->init == INIT_ZERO || p->init == INIT_ONE) op_fill(be, rows, p->init == INIT_ONE ? 1.0f : 0.0f);
        else op_normal(be, rows, seed, stream, (uint64_t)c[i].at, c[i].stride, spread(m, p));
    }
}

Status model_init(Model *m, Backend *be, uint64_t seed)
{
    for (int i = 0; i < m->params.n; i++) {
        const Param *p = m->params.p[i];
        Held w = param_weights(p), own = param_entry(p);
        if (t_has(own.t)) draw(m, be, p, own, seed);
        if (t_has(own.t) && t_has(w.t) && own.at == w.at && own.n == w.n) op_copy(be, w.t, own.t);
        else if (t_has(w.t)) draw(m, be, p, w, seed);
    }
    return OK;
}
