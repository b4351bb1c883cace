/* nn/layer_kind.c -- descriptions: writing them, counting by them, walking a built module along them; which
 * kinds a layer has. */
#include "nn/layer_kind.h"

#include "nn/lora.h"

/* ---- writing ---- */

void describe_begin(Description *d) { d->steps = d->values = d->module = 0, d->input = 0; }

int describe_step(Description *d, LayerStep s)
{
    REQUIRE(d->steps < MAX_STEPS, "a layer has more than %d steps", MAX_STEPS);
    s.index = d->steps, s.module = d->module;
    if (!s.count) s.count = 1;
    if (s.reads == READS_INPUT) s.reads = d->input;
    else if (!s.reads && d->steps) s.reads = 1u << (d->steps - 1);
    if (s.type == STEP_CORE) s.param = NO_PARAM, s.makes = L_CORE;
    d->step[d->steps] = s;
    return d->steps++;
}

int describe_vector(Description *d, int param, double n)
{
    return describe_step(d, (LayerStep){ .type = STEP_VECTOR, .param = param, .in = 1, .out = n });
}

void describe_value(Description *d, KeptValue v)
{
    REQUIRE(d->values < MAX_KEPT, "a layer keeps more than %d values", MAX_KEPT);
    d->value[d->values++] = v;
}

/* ---- counting ---- */

double step_params(const LayerStep *s)
{
    return s->type == STEP_CORE ? 0 : s->count * s->in * (s->out + s->kv_out);
}

double step_macs(const LayerStep *s)
{
    if (s->type == STEP_VECTOR || s->type == STEP_DEPTHWISE) return 0;
    return s->type == STEP_CORE ? s->macs_pair : s->in * (s->out + s->kv_out);
}

/* Keys that a query sees on average: half of the sequence, or of a window all but those before its start. */
static double mean_keys(double seq, double window)
{
    return window > 0 && window < seq ? window - window * (window - 1) / (2 * seq) : seq / 2;
}

double core_macs(const LayerStep *s, double seq)
{
    return s->macs_token + s->macs_pair * mean_keys(seq, s->window);
}

/* ---- walking ---- */

static Param *param_of(const LayerStep *s, void *const modules[MAX_MODULES])
{
    return s->param == NO_PARAM ? NULL : *(Param **)((char *)modules[s->module] + s->param);
}

bool param_gets_grad(const Param *p) { return p && !p->frozen && !p->unused; }

static bool step_trains(const Param *p)
{
    return param_gets_grad(p) || (p && p->lora && param_gets_grad(p->lora->a));
}

bool describe_walk(const Description *d, void *const modules[MAX_MODULES], bool before, StepFn *fn,
                   void *self)
{
    bool trained[MAX_STEPS], all = before;           /* something up to the output of a step trains */
    for (int i = 0; i < d->steps; i++) {
        const LayerStep *s = &d->step[i];
        Param *p = param_of(s, modules);
        bool   at = before;
        for (int j = 0; j < i; j++) at |= (s->reads >> j & 1) && trained[j];
        if (fn && (p || s->type == STEP_CORE)) fn(self, s, p, at);
        trained[i] = at || step_trains(p);
        all |= trained[i];
    }
    return all;
}

static void cut_param(const ParamSet *set, Param *p, const LayerStep *s, int64_t head)
{
    if (s->kv_out > 0) {
        param_cut_heads(set, p, head);
        return;
    }
    if (s->rows == ROWS_EXPERTS) param_cut(set, p, AX_EP, 0);
    if (s->out_cut != CUT_NONE)
        param_cut(set, p, s->out_cut == CUT_ETP ? AX_ETP : AX_TP, p->ndim == 1 ? 0 : p->ndim - 2);
    if (s->in_cut != CUT_NONE)  param_cut(set, p, s->in_cut == CUT_ETP ? AX_ETP : AX_TP, p->ndim - 1);
}

void describe_params(const Description *d, void *const modules[MAX_MODULES], const ParamSet *set,
                     int64_t head)
{
    for (int i = 0; i < d->steps; i++) {
        Param *p = param_of(&d->step[i], modules);
        if (!p) continue;
        p->linear = d->step[i].linear;
        cut_param(set, p, &d->step[i], head);
    }
}

/* ---- kinds ---- */

const AttentionKind *const attention_kinds[] = {
#define ATTENTION(id, row) &row,
#define FFN(id, row)
#include "nn/layer_kinds.def"
#undef ATTENTION
#undef FFN
};

const FfnKind *const ffn_kinds[] = {
#define ATTENTION(id, row)
#define FFN(id, row)       &row,
#include "nn/layer_kinds.def"
#undef ATTENTION
#undef FFN
};

LayerKinds layer_kinds(const TextShape *t, int64_t l)
{
    int a = 0, f = 0;
    while (a < ATTENTION_KINDS - 1 &&
           attention_kinds[a]->layers_below(t, l + 1) == attention_kinds[a]->layers_below(t, l)) a++;
    while (f < FFN_KINDS - 1 && ffn_kinds[f]->layers_below(t, l + 1) == ffn_kinds[f]->layers_below(t, l)) f++;
    return (LayerKinds){ (AttentionId)a, (FfnId)f };
}

static Status refuse_kind(int64_t layer, const char *what, const char *name, bool runs, const char *lacks)
{
    if (!runs)
        return fail(E_CONFIG, "layer %lld: %s %s has no forward here: it can be planned (treb plan --gpus), "
                    "not trained", (long long)layer, what, name);
    if (lacks)
        return fail(E_CONFIG, "layer %lld: %s %s runs without %s here: this model can be planned (treb plan "
                    "--gpus), not trained", (long long)layer, what, name, lacks);
    return OK;
}

Status layer_kinds_train(const TextShape *t)
{
    for (int64_t l = 0; l < t->L; l++) {
        LayerKinds k = layer_kinds(t, l);
        const AttentionKind *a = attention_kinds[k.attention];
        const FfnKind *f = ffn_kinds[k.ffn];
        TRY(refuse_kind(l, "attention", a->name, a->fwd, a->lacks ? a->lacks(t) : NULL));
        TRY(refuse_kind(l, "feed-forward", f->name, f->fwd, f->lacks ? f->lacks(t) : NULL));
    }
    return OK;
}
