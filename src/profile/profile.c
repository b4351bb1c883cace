/* profile/profile.c -- the fields of a profile, and what is derived from those of all ranks. */
#include "profile/profile.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#define UNIT_S 's'
#define UNIT_B 'B'
#define UNIT_N '1'
#define UNIT_R '%'
const ProfileField profile_fields[] = {
#define FIELD(name, unit, help) { #name, UNIT_##unit, help, offsetof(StepProfile, name) },
#include "profile/step_profile.def"
#undef FIELD
};
const int profile_fields_n = sizeof profile_fields / sizeof *profile_fields;

const char *const category_names[CAT_N] = { "gemm",    "grouped_gemm", "attention", "elementwise", "permute",
                                            "optimizer", "comm",       "copy_h2d",  "copy_d2h",    "memset" };
const char *const layer_names[LAYER_N] = { "attention", "mlp", "moe", "vision", "other" };

void step_profile_clear(StepProfile *s)
{
    double *x = (double *)s;
    for (size_t i = 0; i < sizeof *s / sizeof *x; i++) x[i] = NAN;
    memset(s->group, 0, sizeof s->group);
}

Status profile_ranks(Profile *p, int ranks)
{
    p->rank  = mem_pool_alloc(&p->keep, (size_t)ranks * sizeof *p->rank);
    p->stage = mem_pool_alloc(&p->keep, (size_t)ranks * sizeof *p->stage);
    p->ranks = ranks;
    return p->rank && p->stage ? OK : fail(E_FIT, "no host memory for the profiles of %d ranks", ranks);
}

/* The time of a rank that is its own: what it waits for others is left out. */
static double own_time(const StepProfile *s) { return s->step - (isnan(s->exposed) ? 0 : s->exposed); }

static double spread_of_stage(const Profile *p, int stage)
{
    double most = -INFINITY, least = INFINITY;
    for (int r = 0; r < p->ranks; r++) {
        if (p->stage[r] != stage) continue;
        most = fmax(most, own_time(&p->rank[r])), least = fmin(least, own_time(&p->rank[r]));
    }
    return most > 0 ? (most - least) / most : 0;
}

void profile_summarize(Profile *p)
{
    p->slowest = 0, p->spread = 0;
    for (int r = 1; r < p->ranks; r++)
        if (own_time(&p->rank[r]) > own_time(&p->rank[p->slowest])) p->slowest = r;
    for (int s = 0; s < p->stages; s++) p->spread = fmax(p->spread, spread_of_stage(p, s));
    p->measured = p->rank[p->slowest];
    p->overhead = p->plain > 0 ? p->profiled / p->plain - 1 : NAN;
}

void profile_close(Profile *p)
{
    mem_pool_close(&p->keep);
    *p = (Profile){ 0 };
}
