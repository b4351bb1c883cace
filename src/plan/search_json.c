/* plan/search_json.c -- a search as JSON: one object, the ranking best first. Bytes and seconds. */
#include "base/json.h"
#include "plan/accuracy.h"
#include "plan/search.h"

static Json *json_lines(const TextLines *l)
{
    Json *list = json_array();
    for (int i = 0; i < l->n; i++) json_array_append_new(list, json_string(l->at[i]));
    return list;
}

static Json *json_words(unsigned recompute)
{
    const char *word[RULE_LABELS];
    int n = search_words(word, recompute);
    Json *list = json_array();
    for (int i = 0; i < n; i++) json_array_append_new(list, json_string(word[i]));
    return list;
}

static Json *json_candidate(const SearchAsk *a, const Candidate *c, int states)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:i, s:i, s:I, s:o, s:s, s:f, s:s, s:b}",
                     "replicas", c->replicas > 1 ? c->replicas : 1, "tp", c->tp, "cp", c->cp, "cp_inner",
                     c->cp_inner > 1 ? c->cp_inner : 1, "pp", c->pp, "vpp", c->vpp, "ep", c->ep, "etp",
                     c->etp, "dp", (json_int_t)found_dp(a, c), "zero", c->zero, "mbs", c->mbs,
                     "micro_batches", (json_int_t)found_micros(a, c), "recompute", json_words(c->recompute),
                     "states", states_at(states)->name, "offload", c->offload, "dispatcher",
                     dispatch_word(c->dispatch), "overlap", (int)c->overlap);
}

static Json *json_stages(const Task *task, const FoundLayout *f)
{
    Task t = *task;
    const States *w = states_at(f->states);
    Json *list = json_array();
    t.grad_bytes = w->grad, t.moment_bytes = w->moment, t.master_bytes = w->master;
    for (int p = 0; p < f->c.pp; p++) {
        StageMemory m;
        analytic_memory(&m, &t, &f->c, p);
        json_array_append_new(list,
                              json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "weights", m.weights,
                                        "grads", m.grads, "optimizer", m.optimizer, "activations",
                                        m.activations, "logits", m.logits, "vision", m.vision, "buffers",
                                        m.buffers, "fixed", m.fixed, "total", m.total));
    }
    return list;
}

static Json *json_time(const StepTime *t)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, "
                     "s:f}", "step", t->step, "gemm", t->gemm, "experts", t->experts, "attention",
                     t->attention, "memory", t->memory, "vision", t->vision, "recompute", t->replay, "tp",
                     t->tp, "cp", t->cp, "ep", t->ep, "pp", t->pp, "dp", t->dp, "bubble", t->bubble,
                     "optimizer", t->optimizer, "launch", t->launch, "tokens_s", t->tokens_s, "model_tflops",
                     t->model_tflops, "mfu", t->mfu);
}

static Json *json_found(const Search *s, const FoundLayout *f)
{
    TextLines why, beware;
    search_reasons(&why, s, f);
    search_warnings(&beware, s, f);
    Json *o = json_pack("{s:o, s:f, s:f, s:i, s:b, s:o, s:o, s:o, s:o}", "layout",
                        json_candidate(&s->ask, &f->c, f->states), "step", f->step, "peak", f->peak,
                        "stage", f->stage, "tight", (int)f->tight, "stages",
                        json_stages(&s->ask.task, f), "time", json_time(&f->time), "reasons",
                        json_lines(&why), "warnings", json_lines(&beware));
    json_object_set_new(o, "bottleneck", json_string(found_bottleneck(f)));
    if (f->dried)
        json_object_set_new(o, "dry_run", json_pack("{s:f, s:f}", "peak", f->dry_peak, "step", f->dry_step));
    return o;
}

static Json *json_refused(const Search *s, const Refused *r)
{
    Json *o = json_pack("{s:I, s:o}", "count", (json_int_t)r->n, "example",
                        json_candidate(&s->ask, &r->c, r->states));
    if (r->rule > 0) json_object_set_new(o, "rule", json_integer(r->rule));
    else json_object_set_new(o, "too_large", json_string(r->rule == RULE_DRY ? "dry run" : "analytic model"));
    if (r->peak > 0) json_object_set_new(o, "peak", json_real(r->peak));
    if (*r->why) json_object_set_new(o, "why", json_string(r->why));
    return o;
}

Status search_json(FILE *out, const Search *s)
{
    const Task *t = &s->ask.task;
    char        known[240];
    Json *ranking = json_array(), *refused = json_array();
    for (int i = 0; i < s->places; i++) json_array_append_new(ranking, json_found(s, &s->found[i]));
    for (int i = 0; i < s->refusals; i++) json_array_append_new(refused, json_refused(s, &s->refused[i]));
    Json *o = json_pack("{s:s, s:s, s:i, s:f, s:I, s:I, s:I, s:b, s:o, s:o, s:I, s:f, s:i, s:f}", "model",
                        t->model->name, "hardware", t->hw.id, "gpus", t->gpus, "capacity",
                        t->hw.capacity, "seq", (json_int_t)t->seq, "gbs", (json_int_t)t->gbs, "patches",
                        (json_int_t)t->patches, "fits", s->places > 0, "ranking", ranking, "refused", refused,
                        "candidates", (json_int_t)s->candidates, "seconds", s->seconds, "dry_runs",
                        s->dried, "error", t->hw.error);
    accuracy_text(known, sizeof known, &t->hw, t->gpus, t->engine);
    if (o) json_object_set_new(o, "accuracy", json_string(known));
    if (o && t->lora) json_object_set_new(o, "trains", trainable_json(&t->lora->trains));
    if (!o || json_dumpf(o, out, JSON_INDENT(2)) < 0) {
        json_decref(o);
        return fail(E_IO, "the plan could not be written as JSON");
    }
    json_decref(o);
    fputc('\n', out);
    return OK;
}
