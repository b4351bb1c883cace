/* plan/view_json.c -- a dry run as JSON. Bytes and seconds. */
#include "plan/view.h"

#include <string.h>

static Json *arena_json(const EnginePlan *p, int arena)
{
    Json *labels = json_array();
    for (int k = 0; k < ARENA_LABELS && p->label[arena][k].bytes; k++)
        json_array_append_new(labels, json_pack("{s:s, s:I}", "name", p->label[arena][k].name, "bytes",
                                                (json_int_t)p->label[arena][k].bytes));
    return json_pack("{s:s, s:b, s:I, s:o}", "name", engine_arena_label((ArenaId)arena), "device",
                     (int)view_on_device(arena), "bytes", (json_int_t)p->bytes[arena], "labels", labels);
}

static Json *messages_json(const DryRun *d, int stage)
{
    Json *list = json_array();
    for (int g = 0; g < GR_N; g++) {
        LedgerComm c = view_comm(d, stage, g);
        if (c.intra_node + c.inter_node == 0) continue;
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:I}", "group", group_name((GroupId)g),
                                              "calls", (json_int_t)c.calls, "intra_node",
                                              (json_int_t)c.intra_node, "inter_node",
                                              (json_int_t)c.inter_node));
    }
    return list;
}

static Json *time_json(const StageTime *t)
{
    Json *parts = json_object();
    for (int p = 0; p < PART_N; p++) json_object_set_new(parts, part_words[p], json_real(t->part[p]));
    return json_pack("{s:f, s:f, s:f, s:f, s:o}", "forward", t->forward, "backward", t->backward,
                     "recompute", t->replay, "launch", t->launch, "parts", parts);
}

static Json *stage_json(const DryRun *d, int stage)
{
    const EnginePlan *p = &d->stage[stage].plan;
    Json *arenas = json_array(), *flops = json_object();
    for (int i = 0; i < ARENA_N; i++)
        if (p->bytes[i]) json_array_append_new(arenas, arena_json(p, i));
    for (int k = 0; k < PART_N; k++)
        json_object_set_new(flops, part_words[k], json_real(view_flops(d, stage, (Part)k)));
    Json *o = json_pack("{s:i, s:I, s:I, s:I, s:i, s:o, s:o, s:o}", "stage", stage, "device_bytes",
                        (json_int_t)dryrun_device(d, stage), "host_bytes", (json_int_t)p->bytes[A_HOST],
                        "workspace", (json_int_t)p->workspace, "in_flight", p->slots, "arenas", arenas,
                        "flops", flops, "messages", messages_json(d, stage));
    if (d->timed)
        json_object_set_new(o, "fit", json_string(fit_word(fit_of((double)dryrun_device(d, stage), &d->hw))));
    if (d->step.step > 0) json_object_set_new(o, "time", time_json(&d->stage[stage].time));
    return o;
}

static Json *step_json(const DryStep *s)
{
    Json *exposed = json_object();
    for (int g = 0; g < GR_N; g++)
        if (s->exposed[g] > 0) json_object_set_new(exposed, group_name((GroupId)g), json_real(s->exposed[g]));
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s, s:o}", "seconds", s->step,
                     "error", s->error, "compute", s->compute, "bubble", s->bubble, "optimizer", s->optimizer,
                     "launch", s->launch, "copies", s->copies, "tokens_s", s->tokens_s, "model_tflops",
                     s->model_tflops, "mfu", s->mfu, "hfu", s->hfu, "bottleneck", s->wall ? s->wall : "",
                     "exposed", exposed);
}

static Json *advice_json(const FitAdvice *a)
{
    Json *list = json_array();
    for (int i = 0; i < a->n; i++)
        json_array_append_new(list, json_pack("{s:s, s:i, s:s, s:I, s:I, s:b}", "set", a->row[i].set, "cost",
                                              a->row[i].cost, "price", a->row[i].price, "bytes",
                                              (json_int_t)a->row[i].bytes, "saves",
                                              (json_int_t)(a->bytes - a->row[i].bytes), "fits",
                                              (int)fit_row_fits(a, i)));
    return list;
}

static Json *estimates_json(const Estimate *e)
{
    Json *list = json_array();
    for (int i = 0; i < ESTIMATES; i++)
        json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "name", e[i].name, "states", e[i].state,
                                              "activations", e[i].activations));
    return list;
}

static Json *layout_json(const DryRun *d)
{
    MeshLayout l = view_layout(d);
    Mesh   m;
    mesh_place(&m, 0, d->ranks, &l);
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "ranks", d->ranks, "per_node",
                     d->per_node, "tp", l.tp, "cp", l.cp, "dp", m.size[AX_DP], "pp", d->stages, "vpp",
                     d->chunks, "ep", l.ep, "etp", l.etp, "edp", m.size[AX_EDP], "micro_batches", d->micros);
}

Status view_json(Json **out, const PlanView *v)
{
    const DryRun *d = v->dry;
    int    full = 0;
    double peak = (double)dryrun_peak(d, &full);
    Json  *stages = json_array();
    for (int s = 0; s < d->stages; s++) json_array_append_new(stages, stage_json(d, s));
    *out = json_pack("{s:s, s:s, s:s, s:s, s:o, s:I, s:i, s:i, s:o}", "recipe", v->title, "model", d->model,
                     "dtype", dtype_name(d->dtype), "backend", d->recipe.device.backend, "layout",
                     layout_json(d), "peak_bytes", (json_int_t)peak, "fullest_stage", full, "reserved_sms",
                     d->reserved_sms, "stages", stages);
    if (!*out) return fail(E_OTHER, "%s: a text that is not UTF-8, or no memory", v->title);
    if (d->timed)
        json_object_set_new(*out, "hardware",
                            json_pack("{s:s, s:I, s:I, s:s}", "id", d->hw.id, "capacity",
                                      (json_int_t)d->hw.capacity, "fixed", (json_int_t)d->hw.fixed, "fit",
                                      fit_word(fit_of(peak, &d->hw))));
    if (d->communicators.bytes > 0)
        json_object_set_new(*out, "communicators",
                            json_pack("{s:i, s:i, s:i, s:I}", "groups", d->communicators.groups, "links",
                                      d->communicators.links, "peers", d->communicators.peers, "bytes",
                                      (json_int_t)d->communicators.bytes));
    json_object_set_new(*out, "trains", trainable_json(&d->trains));
    if (d->step.step > 0) json_object_set_new(*out, "step", step_json(&d->step));
    json_object_set_new(*out, "data", content_json(&d->content));
    if (v->advice)    json_object_set_new(*out, "advice", advice_json(v->advice));
    if (v->estimates) json_object_set_new(*out, "estimators", estimates_json(v->estimates));
    return OK;
}
