/* train/accumulate.c -- see accumulate.h. */
#include "train/accumulate.h"

static void count_step(StepSums *sum, const Engine *e, Stream *const *micro, int n)
{
    *sum = (StepSums){ 0 };
    for (int i = 0; i < n; i++) {
        const Stream *s = micro[i];
        Load  load = load_of(s);
        Flops f = flops_train(&e->model.shape, e->model.frozen, &load);
        flops_add(&sum->model, &f);
        sum->tokens += s->tokens, sum->room += s->budget.tokens, sum->supervised += s->supervised;
        sum->patches += s->patches, sum->visual += s->visual, sum->docs += s->docs;
    }
}

static double share(int64_t part, int64_t whole) { return whole > 0 ? (double)part / (double)whole : 0; }

/* Expert counts of the step so far, scaled to this micro-batch's tokens: with n of them after `before`, of
 * which the last to count had `last`, the sum C grows to C + count, and n / (before + n) of it is what is
 * kept. */
static Micro share_of(const Stream *s, const StepSums *sum, bool by_document, int64_t before, int64_t last)
{
    double tokens = share(s->tokens, sum->tokens);
    Micro m = { .z = (float)tokens, .aux = (float)(by_document ? share(s->docs, sum->docs) : tokens) };
    if (sum->supervised) m.ce = (float)(1.0 / (double)sum->supervised);
    else                 m.aux = m.z = 0;                    /* a step that learns nothing balances nothing */
    double now = share(s->tokens, before + s->tokens);
    m.keep = last ? (float)(now * (double)before / (double)last) : 0;
    m.add  = (float)now;
    if (!s->tokens) m.keep = 1, m.add = 0;
    return m;
}

static Status micro_step(Engine *e, const Stream *s, Micro m, StepSums *sum, const Watch *w, int at,
                         const Stream *next)
{
    Losses l;
    engine_upload(e, s);
    engine_forward_micro(e, &m);
    engine_backward(e);
    engine_prefetch(e, next);
    TRY(engine_losses(e, &l));
    watch_micro(w, e, s, at);
    sum->ce += l.ce, sum->aux += (double)m.aux * l.aux, sum->z += (double)m.z * l.z;
    return OK;
}

Status engine_accumulate(Engine *e, Stream *const *micro, int n, StepSums *out, const Watch *w,
                         const Stream *after)
{
    int64_t before = 0, last = 0;
    count_step(out, e, micro, n);
    model_zero_grad(&e->model, &e->be);
    for (int i = 0; i < n; i++) {
        Micro m = share_of(micro[i], out, e->conf.aux == AUX_DOCUMENT, before, last);
        TRY(micro_step(e, micro[i], m, out, w, i, i + 1 < n ? micro[i + 1] : after));
        before += micro[i]->tokens;
        if (micro[i]->tokens) last = micro[i]->tokens;
    }
    out->total = out->ce + (double)e->conf.aux_coeff * out->aux + (double)e->conf.z_coeff * out->z;
    return OK;
}
