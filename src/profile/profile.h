/* profile/profile.h -- where the time and memory of a step go, measured and predicted, and profile.json.
 *
 * StepProfile is one step on one rank. `treb profile` measures one for every rank (profile/measure.h); the
 * planner's dry run of the same recipe and hardware fills another one (profile/predict.h), so that the two
 * can be compared field by field. A number that is not known is NAN.
 *
 *   Profile p;
 *   TRY(profile_load(&p, "run/profile.json"));           or profile_measure(), or profile_predict()
 *   ... p.measured.blocking / p.measured.step ...        of the slowest rank
 *   profile_close(&p); */
#ifndef PROFILE_PROFILE_H
#define PROFILE_PROFILE_H

#include "base/json.h"
#include "base/mem_pool.h"
#include "comm/mesh.h"
#include "engine/engine.h"

/* What an interval of a device is. Compute comes first. */
typedef enum {
    CAT_GEMM,
    CAT_GROUPED_GEMM,
    CAT_ATTENTION,
    CAT_ELEMENTWISE,
    CAT_PERMUTE,
    CAT_OPTIMIZER,
    CAT_COMM,
    CAT_COPY_H2D,
    CAT_COPY_D2H,
    CAT_MEMSET,
    CAT_N
} Category;

/* The kind of layer that an op belongs to, vision blocks and what is in no layer aside. */
typedef enum { LAYER_ATTENTION, LAYER_MLP, LAYER_MOE, LAYER_VISION, LAYER_OTHER, LAYER_N } LayerPart;

/* Calls of a group. length: union of its calls; transfer: its share that the fastest members of the calls
 * take; jitter: the rest, waiting for the last member. */
typedef struct GroupProfile {
    double calls, length, exposed, blocking, transfer, jitter;
    double intra_node, inter_node; /* bytes that the rank sends over each link */
} GroupProfile;

typedef struct StepProfile {
#define FIELD(name, unit, help) double name;
#include "profile/step_profile.def"
#undef FIELD
    double       category[CAT_N];              /* seconds: union of the intervals of each */
    double       part[PART_N], layer[LAYER_N]; /* seconds of compute */
    double       arena[ARENA_N];               /* bytes */
    GroupProfile group[GR_N];
} StepProfile;

/* How intervals were measured: "cupti", "events" (CUDA events at the borders of ops), "host" (the host's
 * clock, where ops are done when they return), "plan" (predicted alone). */
typedef struct Profile {
    char         recipe[160], model[160], dtype[16], backend[16], device[160], build[64];
    char         hardware[64]; /* row of plan/hardware.def that predicted; "": none */
    char         source[16];
    const char  *recipe_yaml; /* the recipe with all its keys; "": not known */
    int          ranks, per_node, stages;
    int          warmup, steps;   /* unmeasured steps; profiled steps */
    double       plain, profiled; /* median seconds of a step without and with the profiler */
    double       overhead;        /* profiled / plain - 1 */
    double       predicted_error; /* relative, of predicted.step */
    bool         has_measured, has_predicted;
    StepProfile  measured, predicted; /* of the slowest rank */
    StepProfile *rank;                /* (ranks) measured; NULL: predicted alone */
    int         *stage;               /* (ranks) pipeline stage of each; NULL likewise */
    int          slowest;             /* rank */
    double       spread;              /* of busy time among ranks of a stage: (most - least) / most */
    struct Lanes *lanes;              /* (ranks) for the page (lanes.h), in no file; NULL: none */
    MemPool      keep;                /* owns rank, stage, lanes and recipe_yaml */
} Profile;

/* Rows of step_profile.def, for tables and files. */
typedef struct ProfileField {
    const char *name;
    char        unit;
    const char *help;
    size_t      at;
} ProfileField;
extern const ProfileField profile_fields[];
extern const int          profile_fields_n;
static inline double      profile_value(const StepProfile *s, const ProfileField *f)
{
    return *(const double *)((const char *)s + f->at);
}

extern const char *const category_names[CAT_N], *const layer_names[LAYER_N];
static inline bool category_is_compute(Category c) { return c < CAT_COMM; }

void step_profile_clear(StepProfile *s); /* all NAN; groups 0 */
/* slowest, spread, measured: from rank[], with ranks, stage and has_measured set. */
void profile_summarize(Profile *p);

MUST Status profile_json(Json **out, const Profile *p);                 /* for json_decref */
MUST Status profile_parse(Profile *p, const Json *o, const char *name); /* name: for messages */
MUST Status profile_save(const Profile *p, const char *path);
MUST Status profile_load(Profile *p, const char *path);
MUST Status profile_ranks(Profile *p, int ranks); /* allocates rank and stage */
void        profile_close(Profile *p);            /* twice is fine */

#endif
