/* model/moe_shape.c -- see moe_shape.h. */
#include "model/moe_shape.h"

#include <string.h>

/* Hub files name the method; another one has other rules. */
static Status check_method(const Json *o)
{
    const char *score, *method;
    TRY(json_str(o, "scoring_func", "sigmoid", &score));
    TRY(json_str(o, "topk_method", "noaux_tc", &method));
    if (strcmp(score, "sigmoid")) return fail(E_DATA, "scoring_func = %s: only sigmoid is known", score);
    if (strcmp(method, "noaux_tc")) return fail(E_DATA, "topk_method = %s: only noaux_tc is known", method);
    return OK;
}

static Status groups(TextShape *t, const Json *o, const RouterDefaults *d)
{
    TRY(shape_dim(o, "n_group", d->groups, 4096, &t->groups));
    TRY(shape_dim(o, "topk_group", d->top_groups ? d->top_groups : d->groups, 4096, &t->top_groups));
    if (t->E % t->groups || t->top_groups > t->groups || t->E / t->groups * t->top_groups < t->K)
        return fail(E_DATA,
                    "n_group = %lld, topk_group = %lld: %lld experts do not form such groups with %lld "
                    "for a token", (long long)t->groups, (long long)t->top_groups, (long long)t->E,
                    (long long)t->K);
    if (t->groups == 1) t->groups = t->top_groups = 0;
    return OK;
}

/* Files of DeepSeek and GLM have one such layer; the second would read the first one's output. */
static Status further_layers(TextShape *t, const Json *o)
{
    TRY(json_int(o, "num_nextn_predict_layers", 0, &t->mtp));
    if (!t->mtp) TRY(json_int(o, "num_mtp_layers", 0, &t->mtp));
    if (t->mtp < 0 || t->mtp > 1)
        return fail(E_DATA, "num_nextn_predict_layers = %lld: at most one layer that predicts further tokens "
                    "is known", (long long)t->mtp);
    t->mtp_in_file = t->mtp;
    return OK;
}

Status shape_sigmoid_router(TextShape *t, const Json *o, const RouterDefaults *d)
{
    int64_t shared;
    TRY(check_method(o));
    TRY(further_layers(t, o));
    TRY(shape_dim(o, "n_routed_experts", t->E, 4096, &t->E));
    TRY(json_int(o, "n_shared_experts", json_object_get(o, "n_shared_experts") ? 0 : 1, &shared));
    TRY(json_int(o, "first_k_dense_replace", d->dense_first, &t->dense_first));
    TRY(json_num(o, "routed_scaling_factor", d->scale, &t->route_scale));
    TRY(json_num(o, "aux_loss_alpha", 0, &t->aux_coef));
    if (shared < 0 || shared > 64 || t->dense_first < 0 || !(t->route_scale > 0))
        return fail(E_DATA, "n_shared_experts, first_k_dense_replace or routed_scaling_factor is negative");
    if (t->K > t->E) return fail(E_DATA, "num_experts_per_tok = %lld is more than n_routed_experts = %lld",
                                 (long long)t->K, (long long)t->E);
    t->shared = shared * t->F, t->router = ROUTER_SIGMOID, t->score_bias = true;
    return groups(t, o, d);
}
