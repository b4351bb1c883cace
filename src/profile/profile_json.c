/* profile/profile_json.c -- profile.json: written and read by the same tables. */
#include "base/file_version.h"
#include "base/folder.h"
#include "plan/view.h"
#include "profile/profile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of numbers under names; what is not finite is left out ---- */

typedef const char *NameOf(int i);

static const char *name_of_category(int i) { return category_names[i]; }
static const char *name_of_part(int i)     { return part_words[i]; }
static const char *name_of_layer(int i)    { return layer_names[i]; }
static const char *name_of_arena(int i)    { return engine_arena_label((ArenaId)i); }

static void put_number(Json *o, const char *name, double x)
{
    if (isfinite(x)) json_object_set_new(o, name, json_real(x));
}

static Json *list_json(const double *x, int n, NameOf *name)
{
    Json *o = json_object();
    for (int i = 0; i < n; i++) put_number(o, name(i), x[i]);
    return o;
}

static Status list_read(double *x, int n, NameOf *name, const Json *o, const char *key)
{
    const Json *from = json_object_get(o, key);
    for (int i = 0; i < n; i++) TRY_CTX(json_num(from, name(i), NAN, &x[i]), "%s", key);
    return OK;
}

/* ---- groups ---- */

static const struct { const char *name; size_t at; } group_fields[] = {
#define G(field) { #field, offsetof(GroupProfile, field) },
    G(calls) G(length) G(exposed) G(blocking) G(transfer) G(jitter) G(intra_node) G(inter_node)
#undef G
};
enum { GROUP_FIELDS = sizeof group_fields / sizeof *group_fields };

static double *group_value(GroupProfile *g, int i) { return (double *)((char *)g + group_fields[i].at); }

static Json *groups_json(const StepProfile *s)
{
    Json *o = json_object();
    for (int g = 0; g < GR_N; g++) {
        GroupProfile x = s->group[g];
        Json        *row = json_object();
        for (int i = 0; i < GROUP_FIELDS; i++) put_number(row, group_fields[i].name, *group_value(&x, i));
        if (x.calls > 0 || x.exposed > 0) json_object_set(o, group_name((GroupId)g), row);
        json_decref(row);
    }
    return o;
}

static Status groups_read(StepProfile *s, const Json *o)
{
    const Json *from = json_object_get(o, "groups");
    for (int g = 0; g < GR_N; g++) {
        const Json *row = json_object_get(from, group_name((GroupId)g));
        for (int i = 0; row && i < GROUP_FIELDS; i++)
            TRY_CTX(json_num(row, group_fields[i].name, NAN, group_value(&s->group[g], i)), "groups");
    }
    return OK;
}

/* ---- a step ---- */

static Json *step_json(const StepProfile *s)
{
    Json *o = json_object();
    for (int i = 0; i < profile_fields_n; i++)
        put_number(o, profile_fields[i].name, profile_value(s, &profile_fields[i]));
    json_object_set_new(o, "categories", list_json(s->category, CAT_N, name_of_category));
    json_object_set_new(o, "parts", list_json(s->part, PART_N, name_of_part));
    json_object_set_new(o, "layers", list_json(s->layer, LAYER_N, name_of_layer));
    json_object_set_new(o, "arenas", list_json(s->arena, ARENA_N, name_of_arena));
    json_object_set_new(o, "groups", groups_json(s));
    return o;
}

static Status step_read(StepProfile *s, const Json *o)
{
    step_profile_clear(s);
    for (int i = 0; i < profile_fields_n; i++)
        TRY(json_num(o, profile_fields[i].name, NAN, (double *)((char *)s + profile_fields[i].at)));
    TRY(list_read(s->category, CAT_N, name_of_category, o, "categories"));
    TRY(list_read(s->part, PART_N, name_of_part, o, "parts"));
    TRY(list_read(s->layer, LAYER_N, name_of_layer, o, "layers"));
    TRY(list_read(s->arena, ARENA_N, name_of_arena, o, "arenas"));
    return groups_read(s, o);
}

/* ---- the file ---- */

static const struct { const char *name; size_t at, bytes; } texts[] = {
#define T(field) { #field, offsetof(Profile, field), sizeof(((Profile *)0)->field) },
    T(recipe) T(model) T(dtype) T(backend) T(device) T(build) T(hardware) T(source)
#undef T
};
static const struct { const char *name; size_t at; } counts[] = {
#define C(field) { #field, offsetof(Profile, field) },
    C(ranks) C(per_node) C(stages) C(warmup) C(steps) C(slowest)
#undef C
};
static const struct { const char *name; size_t at; } numbers[] = {
#define N(field) { #field, offsetof(Profile, field) },
    N(plain) N(profiled) N(overhead) N(predicted_error) N(spread)
#undef N
};
enum { TEXTS = sizeof texts / sizeof *texts, COUNTS = sizeof counts / sizeof *counts,
       NUMBERS = sizeof numbers / sizeof *numbers };

static Json *rank_list(const Profile *p)
{
    Json *list = json_array();
    for (int r = 0; r < p->ranks; r++) {
        Json *row = step_json(&p->rank[r]);
        json_object_set_new(row, "rank", json_integer(r));
        json_object_set_new(row, "stage", json_integer(p->stage[r]));
        json_array_append_new(list, row);
    }
    return list;
}

Status profile_json(Json **out, const Profile *p)
{
    Json *o = *out = json_object();
    json_object_set_new(o, "format", json_integer(PROFILE_VERSION));
    for (int i = 0; i < TEXTS; i++)
        if (json_object_set_new(o, texts[i].name, json_string((const char *)p + texts[i].at)))
            return json_decref(o), *out = NULL, fail(E_OTHER, "a profile's %s is not UTF-8", texts[i].name);
    for (int i = 0; i < COUNTS; i++)
        json_object_set_new(o, counts[i].name, json_integer(*(const int *)((const char *)p + counts[i].at)));
    for (int i = 0; i < NUMBERS; i++)
        put_number(o, numbers[i].name, *(const double *)((const char *)p + numbers[i].at));
    if (p->has_measured)  json_object_set_new(o, "measured", step_json(&p->measured));
    if (p->has_predicted) json_object_set_new(o, "predicted", step_json(&p->predicted));
    if (p->rank)          json_object_set_new(o, "rank", rank_list(p));
    if (p->recipe_yaml)   json_object_set_new(o, "recipe_yaml", json_string(p->recipe_yaml));
    return OK;
}

static Status read_ranks(Profile *p, const Json *list)
{
    int64_t stage;
    if (!list) return OK;
    if ((int)json_array_size(list) != p->ranks || p->ranks < 1)
        return fail(E_DATA, "rank: %d entries for %d ranks", (int)json_array_size(list), p->ranks);
    TRY(profile_ranks(p, p->ranks));
    for (int r = 0; r < p->ranks; r++) {
        TRY_CTX(step_read(&p->rank[r], json_array_get(list, (size_t)r)), "rank %d", r);
        TRY(json_int(json_array_get(list, (size_t)r), "stage", 0, &stage));
        p->stage[r] = (int)stage;
    }
    return OK;
}

static Status read_steps(Profile *p, const Json *o)
{
    const Json *measured = json_object_get(o, "measured"), *predicted = json_object_get(o, "predicted");
    p->has_measured = measured != NULL, p->has_predicted = predicted != NULL;
    TRY_CTX(step_read(&p->measured, measured), "measured");
    TRY_CTX(step_read(&p->predicted, predicted), "predicted");
    if (!p->has_measured && !p->has_predicted)
        return fail(E_DATA, "there is neither a measured nor a predicted step");
    return read_ranks(p, json_object_get(o, "rank"));
}

static Status read_head(Profile *p, const Json *o)
{
    const char *text;
    int64_t     n;
    for (int i = 0; i < TEXTS; i++) {
        TRY(json_str(o, texts[i].name, "", &text));
        snprintf((char *)p + texts[i].at, texts[i].bytes, "%s", text);
    }
    for (int i = 0; i < COUNTS; i++) {
        TRY(json_int(o, counts[i].name, 0, &n));
        if (n < 0 || n > 1 << 24) return fail(E_DATA, "%s: %lld", counts[i].name, (long long)n);
        *(int *)((char *)p + counts[i].at) = (int)n;
    }
    for (int i = 0; i < NUMBERS; i++)
        TRY(json_num(o, numbers[i].name, NAN, (double *)((char *)p + numbers[i].at)));
    TRY(json_str(o, "recipe_yaml", "", &text));
    p->recipe_yaml = mem_pool_copy(&p->keep, text, strlen(text));
    return p->recipe_yaml ? OK : fail(E_FIT, "no host memory for a profile");
}

static Status read_all(Profile *p, const Json *o)
{
    int64_t format;
    TRY(json_int(o, "format", 0, &format));
    if (format != PROFILE_VERSION)
        return fail(E_DATA, "format %lld; this build reads format %d: profile the recipe again",
                    (long long)format, PROFILE_VERSION);
    TRY(read_head(p, o));
    return read_steps(p, o);
}

Status profile_parse(Profile *p, const Json *o, const char *name)
{
    *p = (Profile){ 0 };
    Status st = read_all(p, o);
    if (!st) return OK;
    st = wrap(st, "%s", name);
    profile_close(p);
    return st;
}

Status profile_load(Profile *p, const char *path)
{
    Json *o = NULL;
    *p = (Profile){ 0 };
    TRY(json_load(&o, path));
    Status st = profile_parse(p, o, path);
    json_decref(o);
    return st;
}

Status profile_save(const Profile *p, const char *path)
{
    Json *o = NULL;
    TRY(profile_json(&o, p));
    char *text = json_dumps(o, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    json_decref(o);
    if (!text) return fail(E_FIT, "no host memory for %s", path);
    Status st = file_replace(path, text, strlen(text));
    free(text);
    return st;
}
