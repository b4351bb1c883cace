/* train/trainer_files.c -- plan.json, expert_load.json and memory.json: of a run, for reports and checks. */
#include "train/trainer.h"

#include <stdlib.h>

static Json *arena_json(const Engine *e, int id)
{
    Json *labels = json_array();
    const PlanLabel *l = e->plan.label[id];
    for (int i = 0; i < ARENA_LABELS && l[i].bytes; i++)
        json_array_append_new(labels, json_pack("{s:s, s:I}", "name", l[i].name, "bytes",
                                                (json_int_t)l[i].bytes));
    return json_pack("{s:s, s:I, s:o}", "name", e->arena[id].name, "bytes", (json_int_t)e->plan.bytes[id],
                     "labels", labels);
}

Status trainer_write_plan(const Trainer *t, const Flops *f)
{
    Json *arenas = json_array();
    for (int i = 0; i < ARENA_N; i++)
        if (i != A_HOST || t->engine.plan.bytes[i])
            json_array_append_new(arenas, arena_json(&t->engine, i));
    Json *o = json_pack("{s:o, s:{s:f, s:f, s:f, s:f}, s:o}", "arenas", arenas, "flops", "vision",
                        f->part[PART_VISION], "merger", f->part[PART_MERGER], "decoder",
                        f->part[PART_DECODER], "head", f->part[PART_HEAD], "trains",
                        trainable_json(&t->trainable));
    Status st = run_folder_write_json(&t->folder, "plan.json", o);
    json_decref(o);
    return st;
}

static Json *counts_json(const double *now, const double *past, int64_t n)
{
    Json *list = json_array();
    for (int64_t i = 0; i < n; i++) json_array_append_new(list, json_integer((json_int_t)(now[i] + past[i])));
    return list;
}

Status trainer_write_expert_load(Trainer *t)
{
    ExpertCounts *r = &t->expert_counts;
    if (!r->layers) return OK;
    Json *layers = json_array();
    for (int64_t i = 0, at = 0; i < r->layers; i++, at += r->experts)
        json_array_append_new(layers,
                              json_pack("{s:I, s:o, s:o}", "layer", (json_int_t)r->layer[i], "image",
                                        counts_json(r->visual + at, r->past_visual + at, r->experts), "text",
                                        counts_json(r->text + at, r->past_text + at, r->experts)));
    Json *o = json_pack("{s:I, s:o}", "step", (json_int_t)t->step, "layers", layers);
    Status st = run_folder_write_json(&t->folder, "expert_load.json", o);
    json_decref(o);
    expert_counts_reset(r);
    return st;
}

typedef struct RankMemory { double measured, planned; } RankMemory;

static Json *memory_json(const RankMemory *all, int n)
{
    Json *ranks = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(ranks, json_pack("{s:i, s:f, s:f}", "rank", i, "measured_gib",
                                               all[i].measured / 0x1p30, "planned_gib",
                                               all[i].planned / 0x1p30));
    return json_pack("{s:o}", "ranks", ranks);
}

Status trainer_write_memory(Trainer *t)
{
    const char *backend = t->engine.conf.backend;
    int        n = t->place.world;
    RankMemory mine = { backend_memory_used(backend), (double)engine_device_bytes(&t->engine.plan, backend) };
    RankMemory *all = calloc((size_t)n, sizeof *all);
    if (!all) return fail(E_FIT, "no memory for %d ranks", n);
    all[0] = mine;
    if (t->conf.world) comm_host_gather(t->conf.world, all, &mine, sizeof mine);
    Json  *o = t->first ? memory_json(all, n) : NULL;
    Status st = t->first ? run_folder_write_json(&t->folder, "memory.json", o) : OK;
    json_decref(o);
    free(all);
    return st;
}
