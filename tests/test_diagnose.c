/* treb diagnose: verdicts from constructed steps, after published ones (planner.md 12.3), from plans, and the
 * step after a change. */
#include "lab.h"
#include "diagnose/diagnose.h"

/* A recipe over a preset; overrides with blanks between them. */
static void open_recipe(Config *c, const char *set)
{
    char all[600], *save = NULL;
    config_default(c);
    snprintf(all, sizeof all, "%s", set);
    for (char *one = strtok_r(all, " ", &save); one; one = strtok_r(NULL, " ", &save))
        REQUIRE(!config_set(c, one), "%s", status_text());
}

static const char moe[] = "model.preset=Qwen3-30B-A3B data.max_length=4096 train.micro_tokens=4096 "
                          "train.global_tokens=524288 parallel.ep=16 moe.force_balance=true";
static const char vl[] = "model.preset=Qwen3-VL-30B-A3B data.max_length=4096 train.micro_tokens=4096 "
                         "train.global_tokens=262144 parallel.ep=8";

static const char full[] = "model.preset=Qwen3-30B-A3B data.max_length=4096 train.micro_tokens=4096 "
                           "train.global_tokens=262144 parallel.ep=8 memory.recompute=[full]";
static const char vl_frozen[] = "model.preset=Qwen3-VL-30B-A3B data.max_length=4096 train.micro_tokens=4096 "
                                "train.global_tokens=262144 parallel.ep=8 model.freeze_vit=true";

static Diagnosis *diagnose_recipe(Config *c, const char *set, int ranks, const char *hardware,
                                  const StepProfile *measured)
{
    Diagnosis  *d = NULL;
    DiagnoseAsk ask = { .recipe = c, .ranks = ranks, .per_node = ranks < 8 ? ranks : 8,
                        .measured = measured };
    open_recipe(c, set);
    EXPECT_OK(hardware_find(&ask.hw, hardware));
    EXPECT_OK(diagnose_open(&d, &ask));
    return d;
}

static void expect_wall(const char *name, const char *set, int ranks, const char *hardware,
                        const StepProfile *measured, WallId wall)
{
    Config     c;
    Diagnosis *d = diagnose_recipe(&c, set, ranks, hardware, measured);
    if (d) EXPECT(d->first == wall, "%s: %s, not %s", name, wall_name(d->first), wall_name(wall));
    if (d && getenv("VERBOSE")) printf("%s\n", name), diagnose_print(stdout, d);
    diagnose_close(d);
    config_close(&c);
}

/* A measured step of s seconds: shares of it that are exposed in token dispatch, starved, waiting for data,
 * recomputing, in the tower. */
static StepProfile step_of(double s, double exposed, double starved, double data, double recompute,
                           double tower)
{
    StepProfile p;
    step_profile_clear(&p);
    p.step = s, p.exposed = p.blocking = exposed * s, p.comm = 1.2 * p.exposed, p.hidden = 0.2 * p.exposed;
    p.group[GR_ep_inter_node].exposed = p.exposed, p.group[GR_ep_inter_node].length = p.comm;
    p.launch_starved = p.idle = (starved + data) * s, p.data_wait = data * s, p.copies = 0;
    p.compute = s * (1 - exposed - starved - data), p.recompute = recompute * s;
    for (int i = 0; i < PART_N; i++) p.part[i] = 0;
    p.part[PART_VISION] = tower * s, p.part[PART_DECODER] = p.compute - p.part[PART_VISION];
    return p;
}

/* A1: token dispatch over two nodes; A4: launches without graphs; A11: a loader, a tower; a healthy one. */
static void measured_steps(void)
{
    struct { const char *name, *set; double s[6]; WallId wall; } rows[] = {
        { "A1", moe, { 24.7, 0.36, 0.02, 0, 0, 0 }, WALL_communication },
        { "A4", moe, { 0.62, 0.08, 0.22, 0, 0, 0 }, WALL_host },
        { "A11 loader", vl, { 60, 0.05, 0, 0.7, 0, 0.1 }, WALL_data },
        { "A11 tower", vl, { 6, 0.05, 0, 0.01, 0, 0.5 }, WALL_vision },
        { "full recompute", moe, { 30, 0.1, 0, 0, 0.24, 0 }, WALL_memory },
        { "healthy", moe, { 20, 0.1, 0.01, 0.001, 0.02, 0 }, WALL_none },
        { "healthy tower", vl_frozen, { 5, 0.1, 0.01, 0.001, 0.02, 0.2 }, WALL_none },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double *v = rows[i].s;
        StepProfile   p = step_of(v[0], v[1], v[2], v[3], v[4], v[5]);
        expect_wall(rows[i].name, rows[i].set, 16, "h200", &p, rows[i].wall);
    }
}

static void planned_steps(void)
{
    expect_wall("ep over nodes", "model.preset=Qwen3-30B-A3B data.max_length=4096 train.micro_tokens=4096 "
                "train.global_tokens=2097152 parallel.ep=32 moe.dispatcher=alltoall", 32, "h100", NULL,
                WALL_communication);
    expect_wall("full recompute", full, 8, "h200", NULL, WALL_memory);
    expect_wall("too large", "model.preset=Qwen3-30B-A3B data.max_length=4096 train.micro_tokens=4096 "
                "train.global_tokens=16384 parallel.ep=4", 4, "h100", NULL, WALL_memory);
    expect_wall("few micro-batches", "model.preset=Qwen3-30B-A3B data.max_length=4096 "
                "train.micro_tokens=4096 train.global_tokens=8192 parallel.pp=8", 8, "h200", NULL,
                WALL_bubble);
}

/* The fix of a full recompute that fits: selective, and its time and bytes are those of its own plan. */
static void fixes_are_plans(void)
{
    Config     c, changed;
    DryRun     dry;
    Hardware   hw;
    Diagnosis *d = diagnose_recipe(&c, full, 8, "h200", NULL);
    if (!d || !d->fixes) return;
    EXPECT(!strncmp(d->fix[0].set, "memory.recompute=[", 18), "%s", d->fix[0].set);
    EXPECT_OK(hardware_find(&hw, "h200"));
    changed = c, changed.keep = (MemPool){ 0 };
    EXPECT_OK(config_set(&changed, d->fix[0].set));
    EXPECT_OK(dryrun_open(&dry, &changed, 8, 8, &hw));
    EXPECT(fabs(dry.step.step / d->fix[0].step - 1) < 0.01, "%g and %g s", dry.step.step, d->fix[0].step);
    EXPECT((double)dryrun_peak(&dry, NULL) == d->fix[0].bytes && d->fix[0].fits, "%g bytes", d->fix[0].bytes);
    EXPECT(d->fix[0].gain > 0.05 && d->fix[0].gain <= d->ceiling + 0.01, "%g of %g", d->fix[0].gain,
           d->ceiling);
    for (int i = 0; i < d->fixes; i++)       /* it has no dense layers */
        EXPECT(!strstr(d->fix[i].set, "[mlp]"), "fix %d: %s", i, d->fix[i].set);
    dryrun_close(&dry);
    mem_pool_close(&changed.keep);
    diagnose_close(d);
    config_close(&c);
}

/* A measured step of a pipeline waits for other stages in calls between them: that is its bubble, once. No
 * change changes nothing, and with one stage the step is shorter by the bubble. */
static void bubbles_count_once(void)
{
    Config      c;
    StepProfile p = step_of(0.5, 0, 0, 0, 0, 0), same;
    p.bubble = p.exposed = p.comm = 0.16, p.compute = p.part[PART_DECODER] = 0.34;
    p.group[GR_pp].exposed = p.group[GR_pp].length = 0.1;
    p.group[GR_pp_back].exposed = p.group[GR_pp_back].length = 0.06;
    Diagnosis *d = diagnose_recipe(&c, "model.preset=Qwen3-VL-2B data.max_length=4096 parallel.pp=2 "
                                   "train.micro_tokens=4096 train.global_tokens=8192", 2, "h200", &p);
    bool one_stage = false;
    if (!d) return;
    same = step_after(&d->e.at, &d->plan, &d->plan);
    EXPECT(fabs(same.step - 0.5) < 1e-9, "no change: %g s", same.step);
    EXPECT(d->first == WALL_bubble, "%s", wall_name(d->first));
    for (int i = 0; i < d->fixes; i++) {
        if (strcmp(d->fix[i].set, "parallel.pp=1")) continue;
        EXPECT(fabs(d->fix[i].step - 0.34) < 0.05, "one stage: %g s", d->fix[i].step);
        one_stage = true;
    }
    EXPECT(one_stage, "one stage is no fix");
    if (getenv("VERBOSE")) diagnose_print(stdout, d);
    diagnose_close(d);
    config_close(&c);
}

static bool warns(const Diagnosis *d, const char *word)
{
    for (int i = 0; i < d->traps; i++)
        if (strstr(d->trap[i], word)) return true;
    return false;
}

static void traps(void)
{
    struct { const char *set, *hardware, *word[3]; } rows[] = {
        { "memory.recompute=[full] parallel.etp=4 parallel.tp=4", "h200",
          { "full recompute is on", "ETP only where EP", "parallel folding" } },
        { "data.max_length=131072 train.micro_tokens=131072 memory.recompute=[core_attn]", "h200",
          { "recomputing attention", "no baseline", "no baseline" } },
        { "train.precision=fp8_block parallel.ep=8 moe.dispatcher=alltoall", "gb200",
          { "train.precision = fp8_block: MFU", "the host is usually the first wall",
            "hybridep is the starting" } },
        { "train.precision=nvfp4", "gb200",
          { "train.precision = nvfp4: MFU", "compare tokens a second", "the host is usually" } },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char       set[500];
        Config     c;
        snprintf(set, sizeof set, "model.preset=Qwen3-30B-A3B %s", rows[i].set);
        Diagnosis *d = diagnose_recipe(&c, set, 8, rows[i].hardware, NULL);
        for (int k = 0; k < 3; k++)
            EXPECT(d && warns(d, rows[i].word[k]), "%s: no note with \"%s\"", rows[i].set, rows[i].word[k]);
        diagnose_close(d);
        config_close(&c);
    }
}

static void as_json(void)
{
    Config     c;
    Json      *o = NULL;
    Diagnosis *d = diagnose_recipe(&c, vl, 8, "h200", NULL);
    EXPECT_OK(diagnose_json(&o, d));
    EXPECT(json_array_size(json_object_get(o, "walls")) == WALL_N - 1, "%zu walls",
           json_array_size(json_object_get(o, "walls")));
    EXPECT(!strcmp(json_string_value(json_object_get(o, "source")), "predicted"), "the source is named");
    json_decref(o);
    diagnose_close(d);
    config_close(&c);
}

int main(void)
{
    RUN(measured_steps);
    RUN(planned_steps);
    RUN(fixes_are_plans);
    RUN(bubbles_count_once);
    RUN(traps);
    RUN(as_json);
    return lab_report();
}
