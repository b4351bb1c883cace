/* plan/dryrun.c -- see dryrun.h. All ranks of a stage are alike, so one rank per stage is planned. */
#include "plan/dryrun.h"

#include "base/folder.h"
#include "model/presets.h"
#include "parallel/rules.h"
#include "train/recipe_check.h"
#include "train/trainer_answers.h"

#include <stdlib.h>
#include <string.h>

static Status shape_of_preset(ModelShape *s, const char *name)
{
    Json *hf = NULL;
    TRY(preset_config(&hf, name));
    Status st = shape_read(s, hf, name);
    json_decref(hf);
    return st;
}

Status dryrun_shape(ModelShape *s, char *from, size_t n, const struct cfg_model *c)
{
    const char *path = *c->preset ? c->preset : c->path, *like = preset_like(path);
    if (!*path)
        return fail(E_CONFIG, "model.path is not set: name a folder with config.json, or a model.preset");
    if (file_is(path) && !preset_is(path)) {
        snprintf(from, n, "%.120s", path);
        TRY_CTX(shape_load(s, path), "model.%s", *c->preset ? "preset" : "path");
        return weights_exist(path) ? weights_find_mtp(s, path) : OK;
    }
    if (!*c->preset && !like)
        return fail(E_CONFIG, "model.path = %.200s: does not exist, and its last component names no "
                    "model.preset", path);
    snprintf(from, n, like && !preset_is(path) ? "preset %s for %.60s, which does not exist," : "preset %s",
             like ? like : path, path);
    return shape_of_preset(s, like && !*c->preset ? like : path);
}

static int64_t common_multiple(int64_t a, int64_t b)
{
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y, y = rest;
    }
    return a / x * b;
}

int dryrun_ranks(const struct cfg_parallel *p)
{
    int64_t attention = p->tp * p->cp, experts = p->ep * p->etp;
    if (attention > 1 << 20 || experts > 1 << 20) return 1 << 20;
    int64_t n = common_multiple(attention, experts);
    return n > (1 << 20) / p->pp ? 1 << 20 : (int)(n * p->pp);
}

static bool same_rows(const Stream *a, const Stream *b)
{
    return a->tokens == b->tokens && a->patches == b->patches && a->supervised == b->supervised;
}

/* Micro-batches that are not full take less memory than a run may need: the sizes are those of full ones. */
static Status take_full_sizes(DryRun *d, int stage, const EngineConf *conf, const Stream *full)
{
    EnginePlan *plan = &d->stage[stage].plan;
    Ledger      run = plan->ledger, step = plan->step_ledger;
    EngineConf  untimed = *conf;
    untimed.meter = NULL;
    TRY(engine_plan(plan, &d->shape, &untimed, full));
    plan->ledger = run, plan->step_ledger = step;
    return OK;
}

static Status plan_and_time(DryRun *d, int stage, EngineConf *conf, const Stream *full)
{
    Timeline *timeline = NULL;
    if (!d->content_known) d->content = content_assumed(&d->recipe, &d->shape, full);
    Stream mean = content_stream(full, &d->content);
    if (d->timed) {
        Load load = load_of(&mean);
        TRY(timeline_ask(&d->ask, &d->hw, conf, &d->shape, &load, d->ranks));
        TRY(timeline_open(&timeline, &d->hw, conf, d->uneven));
        conf->meter = timeline_listener(timeline);
    }
    Status st = engine_plan(&d->stage[stage].plan, &d->shape, conf, &mean);
    timeline_close(timeline, &d->stage[stage].time);
    if (!st && !same_rows(&mean, full)) st = take_full_sizes(d, stage, conf, full);
    d->stage[stage].time.floor = d->stage[stage].plan.backward_stop;
    return st;
}

/* GPUs communicate over NCCL. */
static void count_communicators(DryRun *d, const Mesh *place)
{
    Communicators c = communicators_of(place, d->per_node);
    if (!strcmp(d->recipe.device.backend, "cuda") && c.bytes > d->communicators.bytes) d->communicators = c;
}

/* One rank of a stage. */
static Status plan_stage(DryRun *d, int stage)
{
    CommConf    fake = { .kind = "fake", .rank = d->ranks / d->stages * stage, .size = d->ranks,
                        .per_node = d->per_node };
    StreamShape ss = shape_stream(&d->shape);
    EngineConf  conf;
    Ranks       r;
    Mesh        place;
    Comm       *world = NULL;
    ss.bytes = true;
    TRY(comm_open(&world, &fake));
    Status st = recipe_ranks(&r, &place, &d->recipe, &d->shape, world, NULL);
    if (!st) st = recipe_engine(&conf, &d->recipe, &d->shape, d->dtype, &r,
                               d->lora.conf.rank ? &d->lora.conf : NULL);
    if (!st) {
        Stream full = stream_full(&ss, &conf.budget);
        Answers answers = trainer_answers(&d->recipe);
        if (conf.evaluate && answers.run && recipe_can_decode(&r))
            conf.decode = (DecodeCapacity){ answers.docs, answers.tokens };
        d->chunks = r.layout.vpp, d->micros = r.micro, d->reserved_sms = conf.reserved_sms;
        count_communicators(d, &place);
        if (!d->trains.base) st = trainable_open(&d->trains, &d->shape, conf.frozen, &conf.lora);
        if (!st) st = plan_and_time(d, stage, &conf, &full);
        d->plans++;
    }
    comm_close(world);
    return st ? wrap(st, "stage %d", stage) : OK;
}

static Status time_step(DryRun *d)
{
    StageTime *time = calloc((size_t)d->stages, sizeof *time);
    if (!time) return fail(E_FIT, "no host memory for the times of %d stages", d->stages);
    for (int i = 0; i < d->stages; i++) time[i] = d->stage[i].time;
    Status st = timeline_step(&d->step, &d->ask, time, d->stages, &d->schedule);
    if (!st && fit_of((double)dryrun_peak(d, NULL), &d->hw) == FIT_NOT) d->step.wall = "memory";
    free(time);
    return st;
}

static Status open_all(DryRun *d)
{
    const struct cfg_model *c = &d->recipe.model;
    TRY(recipe_check_types(&d->recipe));
    TRY(recipe_check_lora(&d->recipe));
    TRY(dryrun_shape(&d->shape, d->model, sizeof d->model, c));
    TRY(recipe_shape(&d->shape, &d->recipe));
    if (*d->recipe.lora.path)
        TRY_CTX(lora_source_open(&d->lora, d->recipe.lora.path, &d->shape), "lora.path");
    d->dtype = d->shape.dtype;
    if (strcmp(c->dtype, "auto")) TRY(dtype_parse(&d->dtype, c->dtype));
    if (d->dtype != F32 && d->dtype != BF16)
        return fail(E_CONFIG,
                    "model.dtype = auto: %s is stored as %s, which training does not support; set bfloat16",
                    d->model, dtype_name(d->dtype));
    RuleInput x = rules_input(&d->recipe, &d->shape, d->ranks, d->per_node);
    TRY(rules_check(&x, NULL));
    d->stages = (int)x.pp;
    d->stage = calloc((size_t)d->stages, sizeof *d->stage);
    if (!d->stage) return fail(E_FIT, "no host memory for the plans of %d stages", d->stages);
    for (int i = 0; i < d->stages; i++) TRY(plan_stage(d, i));
    return d->timed ? time_step(d) : OK;
}

/* The backend that is planned for, whatever machine plans. */
static const char *backend_for(const Config *c, const Hardware *hw)
{
    if (hw) return !strcmp(hw->backend, "cpu") ? "cpu" : "cuda";
    return strcmp(c->device.backend, "meta") ? backend_pick(c->device.backend) : "cpu";
}

Status dryrun_open(DryRun *d, const Config *recipe, int ranks, int per_node, const Hardware *hw)
{
    return dryrun_open_conf(d, &(DryConf){ .recipe = recipe, .ranks = ranks, .per_node = per_node, .hw = hw,
                                           .uneven = USUAL_UNEVEN });
}

Status dryrun_open_conf(DryRun *d, const DryConf *c)
{
    *d = (DryRun){ .recipe = *c->recipe, .ranks = c->ranks, .per_node = c->per_node, .timed = c->hw != NULL,
                   .uneven = c->uneven, .content_known = c->content != NULL };
    d->recipe.keep = (MemPool){ 0 };                        /* the strings stay the caller's */
    d->recipe.device.backend = backend_for(c->recipe, c->hw);
    if (c->hw) d->hw = *c->hw;
    if (c->content) d->content = *c->content;
    Status st = open_all(d);
    if (st) dryrun_close(d);
    return st;
}

void dryrun_close(DryRun *d)
{
    free(d->stage);
    trainable_close(&d->trains);
    lora_source_close(&d->lora);
    schedule_close(&d->schedule);
    *d = (DryRun){ 0 };
}

size_t dryrun_device(const DryRun *d, int stage)
{
    return engine_device_bytes(&d->stage[stage].plan, d->recipe.device.backend);
}

size_t dryrun_peak(const DryRun *d, int *stage)
{
    size_t most = 0;
    for (int i = 0; i < d->stages; i++) {
        size_t bytes = dryrun_device(d, i);
        if (bytes <= most) continue;
        most = bytes;
        if (stage) *stage = i;
    }
    return most;
}

static const double TIGHT = 0.97;                            /* share of the capacity */

double fit_limit(const Hardware *hw) { return TIGHT * hw->capacity - hw->fixed; }

Fit fit_of(double bytes, const Hardware *hw)
{
    double share = (bytes + hw->fixed) / hw->capacity;
    return share <= FIT_WELL_SHARE ? FIT_WELL : share <= TIGHT ? FIT_TIGHT : FIT_NOT;
}

const char *fit_word(Fit f)
{
    static const char *const words[] = { "fits", "tight", "does not fit" };
    return words[f];
}
