/* model/layer_types.c -- layer_types of a config.json: which layers attend to all tokens, where a model has
 * others. */
#include "model/layer_types.h"

#include <string.h>

static Status read_type(const Json *list, int64_t i, const char *other, bool *full)
{
    const char *type = json_string_value(json_array_get(list, (size_t)i));
    *full = type && !strcmp(type, "full_attention");
    if (*full || (type && !strcmp(type, other))) return OK;
    return fail(E_DATA, "layer_types[%lld] = %s: must be %s or full_attention", (long long)i,
                type ? type : "?", other);
}

Status layer_types_read(TextShape *t, const Json *o, const char *other)
{
    enum { MOST = sizeof t->full_layers / sizeof *t->full_layers };
    const Json *list = json_object_get(o, "layer_types");
    bool full;
    if (!json_is_array(list) || json_array_size(list) != (size_t)t->L)
        return fail(E_DATA, "layer_types: must be a list of num_hidden_layers = %lld names", (long long)t->L);
    t->full_count = 0;
    for (int64_t i = 0; i < t->L; i++) {
        TRY(read_type(list, i, other, &full));
        if (full && t->full_count == MOST)
            return fail(E_DATA, "layer_types: more than %d layers have full_attention", (int)MOST);
        if (full) t->full_layers[t->full_count++] = i;
    }
    return OK;
}

bool layer_types_are_every(const TextShape *t, int64_t n)
{
    if (t->full_count != t->L / n) return false;
    for (int i = 0; i < t->full_count; i++)
        if (t->full_layers[i] != (i + 1) * n - 1) return false;
    return true;
}

Status layer_types_refuse(const Json *o, const char *wanted)
{
    const Json *list = json_object_get(o, "layer_types");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *type = json_string_value(json_array_get(list, i));
        if (!type || strcmp(type, wanted))
            return fail(E_DATA, "layer_types[%zu] = %s: every layer of this model has %s", i,
                        type ? type : "?", wanted);
    }
    return OK;
}
