/* report/report_load.c -- expert_load.json: tokens by layer and expert, for image and for text tokens. */
#include "report/report_run.h"

static const char *const kinds[LOAD_KINDS] = { [LOAD_IMAGE] = "image", [LOAD_TEXT] = "text" };

/* The number of experts in the first layer that has any; the other layers must have the same. */
static size_t count_experts(const Json *layers)
{
    for (size_t l = 0; l < json_array_size(layers); l++)
        for (int k = 0; k < LOAD_KINDS; k++) {
            size_t n = json_array_size(json_object_get(json_array_get(layers, l), kinds[k]));
            if (n) return n;
        }
    return 0;
}

static bool good_row(const Json *a, size_t experts)
{
    if (json_array_size(a) != experts) return false;
    for (size_t e = 0; e < experts; e++) {
        const Json *v = json_array_get(a, e);
        double x = json_number_value(v);
        if (!json_is_number(v) || !(x >= 0 && x < 1e30)) return false;
    }
    return true;
}

static void take_row(ReportRun *r, LoadKind k, const Json *a)
{
    ExpertLoad *x = &r->load;
    if (!x->count[k]) x->count[k] = mem_pool_alloc(&r->keep, LOAD_CELLS * sizeof(float));
    for (int e = 0; e < x->experts; e++)
        x->count[k][x->layers * x->experts + e] = (float)json_number_value(json_array_get(a, (size_t)e));
}

/* A layer is used if each kind of counts it has is complete. */
static bool take_layer(ReportRun *r, const Json *o)
{
    ExpertLoad *x = &r->load;
    const Json *row[LOAD_KINDS], *number = json_object_get(o, "layer");
    bool any = false;
    for (int k = 0; k < LOAD_KINDS; k++) {
        row[k] = json_object_get(o, kinds[k]);
        if (!row[k] || json_is_null(row[k])) { row[k] = NULL; continue; }
        if (!good_row(row[k], (size_t)x->experts)) return false;
        any = true;
    }
    if (!any) return false;
    for (int k = 0; k < LOAD_KINDS; k++)
        if (row[k]) take_row(r, k, row[k]);
    json_int_t n = json_is_integer(number) ? json_integer_value(number) : -1;
    x->layer[x->layers] = n >= 0 && n < 1000000 ? (int)n : x->layers;
    x->layers++;
    return true;
}

static Status take_layers(ReportRun *r, const Json *o)
{
    const Json *layers = json_object_get(o, "layers"), *step = json_object_get(o, "step");
    size_t n = json_array_size(layers), experts = count_experts(layers), bad = 0;
    if (!n || !experts) return fail(E_DATA, "expert_load.json: no layers in it");
    if (n > LOAD_LAYERS || experts > LOAD_EXPERTS || n * experts > LOAD_CELLS)
        return fail(E_DATA, "expert_load.json: %zu layers of %zu experts are too many to draw", n, experts);
    if (json_is_integer(step) && json_integer_value(step) >= 0) r->load.step = json_integer_value(step);
    r->load.experts = (int)experts;
    for (size_t l = 0; l < n; l++) bad += !take_layer(r, json_array_get(layers, l));
    if (bad)
        run_note(r, "expert_load.json: %zu of %zu layers could not be read (each needs %zu counts)", bad, n,
                 experts);
    return OK;
}

Status load_read(ReportRun *r, const char *path)
{
    Json *o = NULL;
    TRY(json_load(&o, path));
    Status st = take_layers(r, o);
    json_decref(o);
    return st;
}
