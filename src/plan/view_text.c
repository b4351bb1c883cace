/* plan/view_text.c -- a dry run as text: rank placement, memory, FLOPs, communication, time. */
#include "plan/accuracy.h"
#include "plan/view.h"

#include "parallel/rules.h"

#include <string.h>

enum { BAR = 48, TOP_LABELS = 5, TOP_ADVICE = 16 };

static const double GIB = 1 << 30;

const char *const part_words[PART_N] = { "vision", "merger", "decoder", "head", "optimizer" };

LedgerComm view_comm(const DryRun *d, int stage, int g)
{
    const EnginePlan *p = &d->stage[stage].plan;
    const LedgerComm *m = &p->ledger.comm[g], *o = &p->step_ledger.comm[g];
    return (LedgerComm){ .calls = m->calls * d->micros + o->calls,
                         .intra_node = m->intra_node * d->micros + o->intra_node,
                         .inter_node = m->inter_node * d->micros + o->inter_node };
}

double view_flops(const DryRun *d, int stage, Part part)
{
    const EnginePlan *p = &d->stage[stage].plan;
    return p->ledger.by_part[part].flops * d->micros + p->step_ledger.by_part[part].flops;
}

static void put_bar(FILE *out, int from, int n, const char *fill)
{
    for (int i = 0; i < from; i++) fputc(' ', out);
    for (int i = 0; i < n; i++) fputs(fill, out);
}

/* The first letter of each arena, repeated by its share of the scale. */
static void put_stack(FILE *out, const EnginePlan *p, double scale)
{
    double sum = 0;
    int    at = 0;
    for (int i = 0; i < ARENA_N; i++) {
        if (!view_on_device(i)) continue;
        sum += (double)p->bytes[i];
        for (; at < (int)(sum / scale * BAR + 0.5); at++) fputc(*engine_arena_label((ArenaId)i), out);
    }
    for (; at < BAR; at++) fputc(' ', out);
}

/* Whether it fits; nothing without hardware. */
static void put_fit(FILE *out, const DryRun *d, double bytes)
{
    if (!d->timed) return;
    fprintf(out, "  %s", fit_word(fit_of(bytes, &d->hw)));
}

static void print_stages(FILE *out, const DryRun *d, double scale)
{
    fprintf(out, "\nmemory of a rank of each stage");
    if (d->timed)
        fprintf(out, "; %s has %.1f GiB, libraries take %.1f", d->hw.id, d->hw.capacity / GIB,
                d->hw.fixed / GIB);
    fprintf(out, "\n");
    if (d->communicators.bytes > 0)
        fprintf(out, "  %d communicators of NCCL may take %.1f GiB more (an estimate, not counted below)\n",
                d->communicators.groups + d->communicators.links, d->communicators.bytes / GIB);
    for (int s = 0; s < d->stages; s++) {
        const EnginePlan *p = &d->stage[s].plan;
        double bytes = (double)dryrun_device(d, s);
        fprintf(out, "  stage %-3d %9.2f GiB |", s, bytes / GIB);
        put_stack(out, p, scale);
        fprintf(out, "| %d in flight", p->slots);
        put_fit(out, d, bytes);
        fprintf(out, "\n");
    }
}

static void print_labels(FILE *out, const EnginePlan *p, int arena)
{
    for (int k = 0; k < TOP_LABELS && p->label[arena][k].bytes > p->bytes[arena] / 200; k++)
        fprintf(out, "%s %s %.2f", k ? "," : "  ", p->label[arena][k].name,
                (double)p->label[arena][k].bytes / GIB);
    fprintf(out, "\n");
}

/* What one op takes beside the arenas while it runs; from: bytes of the arenas. */
static void print_workspace(FILE *out, const EnginePlan *p, double from, double scale)
{
    int at = (int)(from / scale * BAR + 0.5), to = (int)((from + (double)p->workspace) / scale * BAR + 0.5);
    fprintf(out, "  %-12s %9.2f GiB |", "workspace", (double)p->workspace / GIB);
    put_bar(out, at, to - at, "\xe2\x96\x88");
    put_bar(out, BAR - to, 0, "");
    fprintf(out, "|  sums of backward attention\n");
}

/* The fullest stage arena by arena; each bar begins where the bar before it ended. */
static void print_waterfall(FILE *out, const DryRun *d, int stage, double scale)
{
    const EnginePlan *p = &d->stage[stage].plan;
    double sum = 0;
    fprintf(out, "\nstage %d, the fullest, at the peak of each arena\n", stage);
    for (int i = 0; i < ARENA_N; i++) {
        if (!p->bytes[i]) continue;
        int from = (int)(sum / scale * BAR + 0.5);
        bool device = view_on_device(i);
        if (device) sum += (double)p->bytes[i];
        int to = (int)(sum / scale * BAR + 0.5);
        fprintf(out, "  %-12s %9.2f GiB |", engine_arena_label((ArenaId)i), (double)p->bytes[i] / GIB);
        put_bar(out, device ? from : 0, device ? to - from : 0, "\xe2\x96\x88");
        put_bar(out, BAR - (device ? to : 0), 0, "");
        fprintf(out, "|");
        print_labels(out, p, i);
    }
    if (p->workspace && strcmp(d->recipe.device.backend, "cpu")) print_workspace(out, p, sum, scale);
}

static void print_work(FILE *out, const DryRun *d)
{
    double sum = 0, by[PART_N] = { 0 }, most = 0;
    int    slow = 0;
    for (int s = 0; s < d->stages; s++) {
        double mine = 0;
        for (int p = 0; p < PART_N; p++) by[p] += view_flops(d, s, p), mine += view_flops(d, s, p);
        sum += mine;
        if (mine > most) most = mine, slow = s;
    }
    fprintf(out, "\nFLOPs of a step on one rank of every stage: %.1f TFLOP;", sum / 1e12);
    for (int p = 0; p < PART_N; p++)
        if (by[p] > 0) fprintf(out, " %s %.1f %%", part_words[p], 100 * by[p] / sum);
    if (d->stages > 1)
        fprintf(out, "; stage %d has %.2f of an even share", slow, most * d->stages / sum);
    fprintf(out, "\n");
}

/* Bandwidths and latencies that the times are from, and how they are known. */
static void print_links(FILE *out, const DryRun *d)
{
    const Hardware *h = &d->hw;
    char intra[64] = "data sheet", inter[64] = "data sheet";
    if (!d->timed) return;
    if (h->intra_ranks)
        snprintf(intra, sizeof intra, "measured, %d ranks over %s", h->intra_ranks, h->transport);
    if (h->inter_nodes)
        snprintf(inter, sizeof inter, "measured, %d nodes over %s", h->inter_nodes, h->transport);
    fprintf(out, "  links: intra-node %.3g GB/s, %.3g us (%s); inter-node %.3g GB/s, %.3g us (%s)\n",
            h->intra_bw * h->intra_share / 1e9, h->intra_delay * 1e6, intra,
            h->inter_bw * h->inter_share / 1e9, h->inter_delay * 1e6, inter);
}

/* For each group the stage that sends most. */
static void print_messages(FILE *out, const DryRun *d)
{
    fprintf(out, "\ncommunication of a rank in a step of %d micro-batch%s, on the stage that sends most\n",
            d->micros, d->micros > 1 ? "es" : "");
    fprintf(out, "  %-16s %9s %14s %14s  %s\n", "group", "calls", "intra-node MB", "inter-node MB", "for");
    for (int g = 0; g < GR_N; g++) {
        LedgerComm most = { 0 };
        for (int s = 0; s < d->stages; s++) {
            LedgerComm c = view_comm(d, s, g);
            if (c.intra_node + c.inter_node > most.intra_node + most.inter_node) most = c;
        }
        if (most.intra_node + most.inter_node == 0) continue;
        fprintf(out, "  %-16s %9lld %14.1f %14.1f  %s\n", group_name((GroupId)g), (long long)most.calls,
                (double)most.intra_node / 1e6, (double)most.inter_node / 1e6, group_use((GroupId)g));
    }
    print_links(out, d);
    if (d->reserved_sms)
        fprintf(out, "  %d SMs of each GPU are reserved for communication (comm.reserved_sms)\n",
                d->reserved_sms);
}

static void print_step(FILE *out, const DryRun *d)
{
    const DryStep *s = &d->step;
    double         exposed = 0;
    char           known[240], content[300];
    if (!d->timed || s->step <= 0) return;
    for (int g = 0; g < LEDGER_GROUPS; g++) exposed += s->exposed[g];
    fprintf(out,
            "\nby the hardware row %s: a step takes %.3g s: compute %.3g, exposed "
            "communication %.3g, bubble %.3g, optimizer %.3g, waiting for launches %.3g, for host copies "
            "%.3g\n",
            d->hw.id, s->step, s->compute, exposed, s->bubble, s->optimizer, s->launch, s->copies);
    for (int g = 0; g < GR_N; g++)
        if (s->exposed[g] > 0.005 * s->step)
            fprintf(out, "  %-16s %.1f %% of the step\n", group_name((GroupId)g),
                    100 * s->exposed[g] / s->step);
    fprintf(out,
            "  %.0f tokens/s, %.0f model TFLOP/s a rank: MFU %.1f %%, HFU %.1f %%; bottleneck: "
            "%s\n",
            s->tokens_s, s->model_tflops, 100 * s->mfu, 100 * s->hfu, s->wall ? s->wall : "not known");
    accuracy_text(known, sizeof known, &d->hw, d->ranks, NULL);
    content_text(content, sizeof content, &d->content);
    fprintf(out, "  times: %s\n  %s\n", known, content);
}

static void print_estimates(FILE *out, const PlanView *v, int stage)
{
    const EnginePlan *p = &v->dry->stage[stage].plan;
    if (!v->estimates) return;
    fprintf(out, "\nother estimators, GiB; they leave out expert rows, buffers and uneven stages\n"
            "  %-18s %12s %12s %12s\n", "", "states", "activations", "sum");
    for (int i = 0; i < ESTIMATES; i++) {
        const Estimate *e = &v->estimates[i];
        fprintf(out, "  %-18s %12.2f %12.2f %12.2f\n", e->name, e->state / GIB, e->activations / GIB,
                (e->state + e->activations) / GIB);
    }
    double state = (double)(p->bytes[A_PARAM] + p->bytes[A_GRAD] + p->bytes[A_OPTIM]);
    double all = (double)dryrun_device(v->dry, stage);
    fprintf(out, "  %-18s %12.2f %12.2f %12.2f  (stage %d)\n", "this plan", state / GIB, (all - state) / GIB,
            all / GIB, stage);
}

static void print_advice(FILE *out, const FitAdvice *a)
{
    char line[400];
    if (!a) return;
    fprintf(out, "\nsettings that save memory, cheapest first\n");
    for (int i = 0; i < a->n; i++) {
        if (i >= TOP_ADVICE && i + 1 < a->n) continue;        /* the last may combine several */
        fit_row_text(line, sizeof line, a, i);
        fprintf(out, "  %s\n", line);
    }
    if (!fit_cheapest(a)) fprintf(out, "  none of these is enough, nor all together: use more ranks\n");
}

static void put_line(void *self, bool loud, const char *line)
{
    fprintf(self, "%s%s\n", loud ? "! " : "  ", line);
}

static void print_trains(FILE *out, const DryRun *d)
{
    fprintf(out, "\ntrainable, of %.3f M parameters\n", (double)d->trains.base / 1e6);
    trainable_print(&d->trains, put_line, out);
}

Status view_print(FILE *out, const PlanView *v)
{
    const DryRun *d = v->dry;
    RuleInput x = rules_input(&d->recipe, &d->shape, d->ranks, d->per_node);
    int    full = 0;
    double peak = (double)dryrun_peak(d, &full), scale = peak;
    if (d->timed && d->hw.capacity > scale) scale = d->hw.capacity;
    fprintf(out, "%s on %d rank%s, %d per node; %s in %s, %s\n", d->model, d->ranks, d->ranks > 1 ? "s" : "",
            d->per_node, "weights and activations", dtype_name(d->dtype), d->recipe.device.backend);
    TRY(rules_print(out, &x, NULL));
    placement_print(out, d);
    print_trains(out, d);
    print_stages(out, d, scale);
    print_waterfall(out, d, full, scale);
    print_work(out, d);
    print_messages(out, d);
    print_step(out, d);
    print_estimates(out, v, full);
    print_advice(out, v->advice);
    return OK;
}
