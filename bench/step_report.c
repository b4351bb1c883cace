/* bench/step_report.c -- prints the result of `treb bench step`, as text and as JSON. */
#include "bench/step.h"

#include <stdio.h>

static double step_tokens(const StepBench *b) { return (double)(b->micro * b->stream.tokens); }

static double bytes_of(const Engine *e)
{
    double n = 0;
    for (int i = 0; i < A_HOST; i++) n += (double)engine_arena_peak(e, i);
    return n;
}

/* What an arena held at its highest, the large labels by name. */
static void print_arena(const Engine *e, int id)
{
    const PlanLabel *l = e->plan.label[id];
    size_t peak = engine_arena_peak(e, id), plan = e->plan.bytes[id];
    printf("  %-8s %9.1f MiB %s", e->arena[id].name, (double)peak / (1 << 20),
           peak == plan ? "" : " differs from the plan");
    for (int i = 0; i < ARENA_LABELS && l[i].bytes * 20 > plan; i++)
        printf("  %s %.0f %%", l[i].name, 100.0 * (double)l[i].bytes / (double)plan);
    putchar('\n');
}

static void print_parts(const StepBench *b, const StepTimes *t)
{
    static const char *const names[PART_N] = { "vision", "merger", "decoder", "head", "optimizer" };
    const Ledger *l = &b->e.plan.ledger;
    for (int i = 0; i < PART_N; i++) {
        double f = (double)b->micro * l->by_part[i].flops;
        if (t->part[i] <= 0) continue;
        printf("  %-9s %8.2f ms  %8.4g TFLOP", names[i], t->part[i] * 1e3, f / 1e12);
        if (f > 0) printf("  mfu %.1f %%", 100 * f / t->part[i] / t->peak);
        if (i == PART_DECODER) printf("  %.2f ms a layer", t->part[i] * 1e3 / (double)b->shape.text.L);
        double times = i == PART_OPTIM ? 1 : (double)b->micro;
        if (*b->hw.id) printf("  predicted %.2f ms", b->expected.part[i] * 1e3 * times);
        putchar('\n');
    }
}

static void print_memory(const StepBench *b)
{
    double left, all, peak = bytes_of(&b->e), plan = (double)engine_device_bytes(&b->e.plan, b->backend);
    bool   alike = true;
    for (int i = 0; i < ARENA_N; i++) alike &= engine_arena_peak(&b->e, i) == b->e.plan.bytes[i];
    backend_memory(b->backend, &left, &all);
    printf("memory %.1f MiB, plan and run %s", peak / (1 << 20), alike ? "alike" : "DIFFER");
    if (!b->e.be.device->host_memory && all > 0)
        printf("; with workspace %.1f planned, with libraries %.1f used of %.1f MiB (%+.1f %% over the plan)",
               plan / (1 << 20), (all - left) / (1 << 20), all / (1 << 20), 100 * ((all - left) / plan - 1));
    putchar('\n');
    for (int i = 0; i < ARENA_N; i++)
        if (i != A_HOST || b->e.plan.bytes[i]) print_arena(&b->e, i);
    LedgerHost host = b->e.plan.ledger.host;
    if (host.in || host.out)
        printf("a micro-batch sends %.1f MiB to the host and gets %.1f back\n", (double)host.out / (1 << 20),
               (double)host.in / (1 << 20));
}

static void print_predicted(const StepBench *b, double measured)
{
    const StageTime *e = &b->expected;
    double micro = (double)b->micro * 1e3;
    if (!*b->hw.id) return;
    printf("predicted by %s: step %.1f ms +- %.0f %% (forward %.1f, backward %.1f, norm and AdamW %.1f); "
           "measured %.3f of it\n", b->hw.id, b->predicted.step * 1e3, 100 * b->predicted.error,
           e->forward * micro, e->backward * micro, e->update.seconds * 1e3, measured / b->predicted.step);
}

void step_print_host(const StepBench *b, const StepTimes *t)
{
    const GraphCache *g = &b->e.graphs;
    if (b->e.be.device->host_memory) return;
    printf("host %.2f ms in a step, %lld launches", t->host * 1e3, (long long)t->launches);
    if (g->be)
        printf("; %lld CUDA graphs, %.1f MiB; %lld times launched, %lld phases or scopes eagerly",
               (long long)g->counts.captured, (double)g->bytes / (1 << 20), (long long)g->counts.launched,
               (long long)g->counts.eager);
    putchar('\n');
}

static void print_energy(const StepTimes *t, const Energy *e)
{
    if (e->joules <= 0) return;
    printf("energy %.1f J a step, %.0f W and %.0f MHz on average, %.2f TFLOP a joule\n", e->joules,
           e->joules / e->seconds, e->mhz, t->flops / e->joules / 1e12);
}

void step_print_train(const StepTimes *t)
{
    double s = step_seconds(t);
    printf("as treb train runs it: step %.1f ms (%+.1f %%), mfu %.1f %%\n", t->train * 1e3,
           100 * (t->train / s - 1), 100 * t->flops / t->train / t->peak);
    print_energy(t, &t->train_energy);
}

void step_print_ragged(const StepBench *b, const StepTimes *t, const StepTimes *r)
{
    double s = step_seconds(r);
    printf("ragged: %lld documents of %lld to %lld tokens: step %.1f ms (%+.1f %%; forward %.1f, backward "
           "%.1f, norm and AdamW %.1f), %.4g TFLOP, mfu %.1f %%\n", (long long)b->stream.docs,
           (long long)b->shortest, (long long)b->longest, s * 1e3, 100 * (s / step_seconds(t) - 1),
           r->fwd * 1e3, r->bwd * 1e3, r->opt * 1e3, r->flops / 1e12, 100 * r->flops / s / r->peak);
    print_energy(r, &r->energy);
}

void step_print_start(const StepBench *b)
{
    printf("%s, %lld layers, on %s  %lld x %lld tokens in %lld documents, %lld supervised, %lld patches, "
           "%.3f B parameters, %s%s%s\n",
           b->shape.family, (long long)b->shape.text.L, b->backend, (long long)b->micro,
           (long long)b->stream.tokens, (long long)b->stream.docs, (long long)b->stream.supervised,
           (long long)b->stream.patches, (double)params_count(&b->e.model.params) / 1e9,
           dtype_name(b->dtype), b->fp8 ? ", fp8_block: " : "", b->fp8 ? b->fp8 : "");
    printf("start-up %.1f s, random weights %.1f s\n", b->start, b->ready - b->start);
}

void step_print(const StepBench *b, const StepTimes *t)
{
    double f = t->flops, s = step_seconds(t);
    printf("step %.1f ms (forward %.1f, backward %.1f, norm and AdamW %.1f)  loss %.3f\n", s * 1e3,
           t->fwd * 1e3, t->bwd * 1e3, t->opt * 1e3, b->losses.ce * (double)b->micro);
    print_predicted(b, s);
    printf("first step %.2fx, second %.2fx\n", t->first / s, t->second / s);
    printf("%.0f tokens/s  %.4g TFLOP a step  mfu %.1f %% of %.1f TFLOP/s (forward and backward alone %.1f "
           "%%)\n", step_tokens(b) / s, f / 1e12, 100 * f / s / t->peak, t->peak / 1e12,
           100 * f / (t->fwd + t->bwd) / t->peak);
    step_print_host(b, t);
    print_energy(t, &t->energy);
    if (*b->state) printf("GPU in the step: %s\n", b->state);
    if (t->busiest > 0) printf("busiest expert %.1fx the mean\n", t->busiest);
    print_parts(b, t);
    print_memory(b);
}

Json *step_json(const StepBench *b, const StepTimes *t)
{
    double left, all, f = t->flops, s = step_seconds(t);
    Json  *o = json_pack("{s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:s}",
                         "label", "benchmark-only", "backend", b->backend, "dtype", dtype_name(b->dtype),
                         "tokens", (json_int_t)b->stream.tokens, "patches", (json_int_t)b->stream.patches,
                         "step_s", s, "forward_s", t->fwd, "backward_s", t->bwd, "update_s", t->opt,
                         "first_step_s", t->first, "tokens_per_s", step_tokens(b) / s, "tflop", f / 1e12,
                         "mfu", f / s / t->peak, "mib", bytes_of(&b->e) / (1 << 20),
                         "card", b->state);              /* lint: a JSON key that stays */
    backend_memory(b->backend, &left, &all);
    json_object_set_new(o, "plan_mib",
                        json_real((double)engine_device_bytes(&b->e.plan, b->backend) / (1 << 20)));
    json_object_set_new(o, "device_mib", json_real((all - left) / (1 << 20)));
    json_object_set_new(o, "second_step_s", json_real(t->second));
    json_object_set_new(o, "host_s", json_real(t->host));
    if (t->train > 0) json_object_set_new(o, "train_step_s", json_real(t->train));
    if (t->energy.joules > 0) {
        json_object_set_new(o, "joules", json_real(t->energy.joules));
        json_object_set_new(o, "mhz", json_real(t->energy.mhz));
        json_object_set_new(o, "train_joules", json_real(t->train_energy.joules));
    }
    json_object_set_new(o, "launches", json_integer(t->launches));
    json_object_set_new(o, "loss", json_real(b->losses.total * (double)b->micro));
    if (*b->hw.id) {
        json_object_set_new(o, "predicted_by", json_string(b->hw.id));
        json_object_set_new(o, "predicted_s", json_real(b->predicted.step));
    }
    return o;
}

void step_print_floor(const StepBench *b, const StepTimes *t, const StepTimes *low)
{
    double s = step_seconds(t), f = step_seconds(low);
    char   said[48] = "";
    if (*b->hw.id) snprintf(said, sizeof said, " (predicted %.1f)", b->predicted.step * 1e3);
    printf("floor, the same frozen weights with an adapter on %s alone: step %.1f ms%s, forward %.1f, "
           "backward %.1f, the rest %.1f; %.0f tokens/s, mfu %.1f %%; the adapters' step takes %.3f of it\n",
           b->lowest.module, f * 1e3, said, low->fwd * 1e3, low->bwd * 1e3, low->opt * 1e3,
           step_tokens(b) / f, 100 * low->flops / f / low->peak, s / f);
}
