/* plan/search_print.c -- a search as text: the ranking, the reasons, what does not fit and by how much. */
#include "plan/accuracy.h"
#include "plan/dryrun.h"
#include "plan/search.h"

#include <stdlib.h>
#include <string.h>

enum { SHOWN = 8, MOST_GPUS = 1 << 15, LONG = 8192 };

static void print_task(FILE *out, const Search *s)
{
    const Task *t = &s->ask.task;
    fprintf(out, "%s on %d %s: %.0f GB each, %d per node; %lld sequences of %lld tokens a "
            "step, %s\n", t->model->name, t->gpus, t->hw.id, t->hw.capacity / 1e9,
            t->hw.domain < t->gpus ? t->hw.domain : t->gpus, (long long)t->gbs, (long long)t->seq,
            precision_plan_word(t->precision));
    if (t->foreign) fprintf(out, "with %s\n", task_engine_name(t));
    if (t->patches) fprintf(out, "%lld image patches in each\n", (long long)t->patches);
    if (t->lora) {
        char text[320];
        trains_text(text, sizeof text, t->lora);
        fprintf(out, "%s\n", text);
    }
}

static void print_place(FILE *out, const Search *s, int i)
{
    const FoundLayout *f = &s->found[i];
    char layout[96], words[96], dry[24] = "     -", dry_step[24] = "     -";
    layout_text(layout, sizeof layout, &s->ask, &f->c);
    search_words_text(words, sizeof words, f->c.recompute, "+");
    if (f->dried) snprintf(dry, sizeof dry, "%6.1f", f->dry_peak / 1e9);
    if (f->dried && f->dry_step > 0) snprintf(dry_step, sizeof dry_step, "%6.3g", f->dry_step);
    fprintf(out, "%3d  %-30s %d %4d %5lld  %6.1f %s%c %6.3g %s %7.0f %6.0f %5.1f  %s%s%s", i + 1, layout,
            f->c.zero, f->c.mbs, (long long)found_micros(&s->ask, &f->c), f->peak / 1e9, dry,
            f->tight ? '!' : ' ', f->time.step, dry_step, found_tokens_s(&s->ask, f), found_tflops(f),
            100 * found_mfu(f), *words ? words : "-", f->states ? ", " : "",
            f->states ? states_at(f->states)->name : "");
    if (f->c.offload > 0) fprintf(out, ", %.0f %% on the host", 100 * f->c.offload);
    if (f->c.ep * f->c.etp > 1 && f->c.dispatch != dispatcher_auto(false, false))
        fprintf(out, ", %s", dispatch_word(f->c.dispatch));
    fprintf(out, "%s\n", f->c.overlap ? ", overlap" : "");
}

static void print_ranking(FILE *out, const Search *s)
{
    bool tight = false;
    fprintf(out, "\n  #  layout                      zero  mbs micro analytic dry run  step s dry run"
            "   tok/s TFLOPS  MFU  recompute, states\n");
    fprintf(out, "                                                  GB, peak                       "
            " per GPU       %%\n");
    for (int i = 0; i < s->places; i++) {
        print_place(out, s, i);
        tight |= s->found[i].tight;
    }
    if (tight) fprintf(out, "  !  more than %.0f %% of the memory\n", 100 * FIT_WELL_SHARE);
}

static void print_lines(FILE *out, const char *title, const TextLines *l)
{
    if (l->n) fprintf(out, "\n%s\n", title);
    for (int i = 0; i < l->n; i++) fprintf(out, "  %s\n", l->at[i]);
}

static void print_memory(FILE *out, const Search *s, const FoundLayout *f)
{
    Task t = s->ask.task;
    const States *w = states_at(f->states);
    t.grad_bytes = w->grad, t.moment_bytes = w->moment, t.master_bytes = w->master;
    fprintf(
        out,
        "\nmemory of a rank by the analytic model, GB\n  stage   weights  grads  optim.   activ.  logits  "
        "vision buffers  fixed    total\n");
    for (int p = 0; p < f->c.pp; p++) {
        StageMemory m;
        analytic_memory(&m, &t, &f->c, p);
        fprintf(out, "  %5d  %8.1f %6.1f  %6.1f  %7.1f %7.1f %7.1f %7.1f %6.1f %8.1f\n", p, m.weights / 1e9,
                m.grads / 1e9, m.optimizer / 1e9, m.activations / 1e9, m.logits / 1e9, m.vision / 1e9,
                m.buffers / 1e9, m.fixed / 1e9, m.total / 1e9);
    }
}

static void print_seconds(FILE *out, const char *title, const char *const *name, const double *seconds, int n)
{
    const char *comma = "";
    fprintf(out, "%s", title);
    for (int i = 0; i < n; i++)
        if (seconds[i] > 0) fprintf(out, "%s %s %.3g", comma, name[i], seconds[i]), comma = ",";
    if (!*comma) fprintf(out, " none");
}

static void print_time(FILE *out, const FoundLayout *f)
{
    static const char *const work[] = { "products", "experts", "attention", "memory-bound", "vision" };
    static const char *const links[] = { "tp", "cp", "ep", "pp", "dp" };
    static const char *const rest[] = { "bubble", "optimizer", "waiting for launches" };
    const StepTime *t = &f->time;
    fprintf(out, "\ntime of a step by the analytic model, s: %.3g\n", t->step);
    print_seconds(out, "  compute:", work,
                  (double[]){ t->gemm, t->experts, t->attention, t->memory, t->vision }, 5);
    if (t->replay > 0) fprintf(out, " (of them recomputed %.3g)", t->replay);
    print_seconds(out, "; exposed communication:", links,
                  (double[]){ t->tp, t->cp, t->ep, t->pp, t->dp }, 5);
    print_seconds(out, ";", rest, (double[]){ t->bubble, t->optimizer, t->launch }, 3);
    fprintf(out, "\n  bottleneck: %s\n", found_bottleneck(f));
}

/* Dispatchers that are worth a measurement; the search does not choose them by itself. */
static void print_tuning(FILE *out, const Search *s, const FoundLayout *f)
{
    Task t = s->ask.task;
    const States *w = states_at(f->states);
    t.grad_bytes = w->grad, t.moment_bytes = w->moment, t.master_bytes = w->master;
    if (f->c.ep * f->c.etp == 1) return;
    fprintf(out, "\nworth measuring\n");
    for (int i = 0; i < DISPATCHER_COUNT; i++) {
        Candidate c = f->c;
        StepTime st;
        if (c.dispatch == (DispatcherId)i || !dispatcher_rows[i].two_level) continue;
        c.dispatch = (DispatcherId)i;
        analytic_time(&st, &t, &c);
        fprintf(out, "  moe.dispatcher=%s: %+.1f %% step time by the analytic model\n",
                dispatch_word(c.dispatch), 100 * (st.step / f->time.step - 1));
    }
}

/* Dropped by a dry run, then too large by the analytic model, the nearest miss first; then forbidden by
 * rules, the most frequent first. */
static int by_nearness(const void *x, const void *y)
{
    const Refused *a = *(const Refused *const *)x, *b = *(const Refused *const *)y;
    int kind[2] = { a->rule > 0 ? 2 : 1 + a->rule, b->rule > 0 ? 2 : 1 + b->rule };
    if (kind[0] != kind[1]) return kind[0] - kind[1];
    if (a->rule > 0) return (a->n < b->n) - (a->n > b->n);
    return (a->peak > b->peak) - (a->peak < b->peak);
}

static void print_refused(FILE *out, const Search *s, const Refused *r)
{
    char layout[96], words[96];
    layout_text(layout, sizeof layout, &s->ask, &r->c);
    search_words_text(words, sizeof words, r->c.recompute, "+");
    if (r->rule > 0 || (r->rule == RULE_DRY && r->peak <= 0)) {
        if (r->rule > 0) fprintf(out, "  %8lld  rule %d: %s\n", (long long)r->n, r->rule, r->why);
        else fprintf(out, "  %8lld  the trainer refuses it: %s\n", (long long)r->n, r->why);
        return;
    }
    fprintf(out, "  %8lld  %stp=%d pp=%d%s: %.1f GB of %.1f%s, as %s mbs %d %s%s %s states%s\n",
            (long long)r->n, r->zero == 3 ? "fsdp " : "", r->tp, r->pp,
            r->rule == RULE_DRY ? " by dry run" : "", r->peak / 1e9, s->ask.task.hw.capacity / 1e9,
            r->rule == RULE_DRY ? "" : " at least", layout, r->c.mbs,
            *words ? "with " : "without recompute", words, states_at(r->states)->name,
            r->c.offload > 0 ? ", offloaded to the host" : "");
}

/* Whether other candidates with these degrees fit: then there is nothing to explain. */
static bool degrees_fit(const Search *s, const Refused *r)
{
    for (int i = 0; i < s->n && r->rule == 0; i++) {
        const Candidate *c = &s->found[i].c;
        if (c->tp == r->tp && c->pp == r->pp && c->zero == r->zero) return true;
    }
    return false;
}

static void print_refusals(FILE *out, const Search *s)
{
    const Refused *list[REFUSALS];
    int large = 0, ruled = 0, n = 0;
    for (int i = 0; i < s->refusals; i++)
        if (!degrees_fit(s, &s->refused[i])) list[n++] = &s->refused[i];
    qsort(list, (size_t)n, sizeof *list, by_nearness);
    if (n) fprintf(out, "\nleft out (how many, and the nearest miss)\n");
    for (int i = 0; i < n; i++) {
        int *shown = list[i]->rule > 0 ? &ruled : &large;
        if ((*shown)++ < SHOWN) print_refused(out, s, list[i]);
    }
    if (large > SHOWN) fprintf(out, "  and %d further kinds that are too large\n", large - SHOWN);
    if (ruled > SHOWN) fprintf(out, "  and %d further rules\n", ruled - SHOWN);
}

/* A replica of the model takes pp x max(tp cp, ep etp) GPUs whatever dp is. */
static Status print_count(FILE *out, const Search *s)
{
    const SearchAsk *a = &s->ask;
    const FoundLayout *f = s->found;
    int least;
    TRY(search_least(a, a->task.gpus, &least));
    fprintf(out, "\nGPUs\n");
    if (a->task.seq > LONG || f->c.cp > 1) {
        int rows = f->c.tp * f->c.cp, experts = f->c.ep * f->c.etp;
        fprintf(out,
                "  one replica takes %d: pp %d x the larger of tp x cp = %d and ep x etp = %d; cp "
                "shards neither experts nor stages\n",
                f->c.pp * (rows > experts ? rows : experts), f->c.pp, rows, experts);
    }
    if (least)
        fprintf(out, "  %d is the least number that fits without offload%s\n", least,
                least == a->task.gpus ? ": as given" : "");
    else fprintf(out, "  %d are too few without offload\n", a->task.gpus);
    return OK;
}

/* For each violated rule, the change that would satisfy it. */
static void print_fixes(FILE *out, const Search *s)
{
    for (int i = 0; i < s->refusals; i++) {
        const Refused *r = &s->refused[i];
        RuleInput  x = s->rules;
        RuleReport report;
        LayerSplit split;
        char       text[640];
        space_candidate(&x, &split, &s->ask, &r->c);
        rules_find(&report, &x);
        for (int k = 0; k < report.n; k++) {
            if (report.violation[k].number != r->rule) continue;
            rule_text(text, sizeof text, &report.violation[k]);
            fprintf(out, "  %s\n", text);
            break;
        }
    }
}

static Status print_without_fix(FILE *out, const SearchAsk *a)
{
    SearchAsk b, any;
    search_default(&any);
    if (!memcmp(&a->fix, &any.fix, sizeof any.fix)) return OK;
    b = *a, b.fix = any.fix;
    Search *t = malloc(sizeof *t);
    if (!t) return fail(E_FIT, "no memory for a search");
    Status st = search_open(t, &b);
    if (!st) fprintf(out, "  without --fix: %s\n", t->n ? "a layout fits" : "nothing fits either");
    if (!st) search_close(t);
    free(t);
    return st;
}

static Status print_nothing(FILE *out, const Search *s)
{
    const SearchAsk *a = &s->ask;
    char gpu[32];
    int least;
    if (!search_any_legal(s)) {
        fprintf(out, "\nno layout satisfies the rules; changes that would\n");
        print_fixes(out, s);
        return print_without_fix(out, a);
    }
    fprintf(out, "\nnothing fits: no legal layout keeps a rank within %.0f GB, with any recompute, states or "
            "offload\n", a->task.hw.capacity / 1e9);
    TRY(search_least(a, MOST_GPUS, &least));
    fprintf(out, "what would fit\n");
    if (least) fprintf(out, "  %d %s, or more\n", least, a->task.hw.id);
    else       fprintf(out, "  no number of %s up to %d\n", a->task.hw.id, MOST_GPUS);
    TRY(search_gpu(a, gpu, sizeof gpu));
    if (*gpu) fprintf(out, "  the same number of %s\n", gpu);
    else      fprintf(out, "  no other hardware row in this number\n");
    return print_without_fix(out, a);
}

Status search_print(FILE *out, const Search *s)
{
    TextLines l;
    char      known[240];
    print_task(out, s);
    if (s->places) {
        const FoundLayout *f = s->found;
        print_ranking(out, s);
        search_reasons(&l, s, f);
        print_lines(out, "why the first", &l);
        search_warnings(&l, s, f);
        print_lines(out, "warnings", &l);
        print_memory(out, s, f);
        print_time(out, f);
        print_tuning(out, s, f);
    }
    print_refusals(out, s);
    TRY(s->places ? print_count(out, s) : print_nothing(out, s));
    fprintf(out, "\n%lld candidates in %.2f s, %.0f a second%s", (long long)s->candidates, s->seconds,
            (double)s->candidates / (s->seconds > 0 ? s->seconds : 1),
            !s->wide ? "" : search_any_legal(s)
                ? "; the usual layouts do not fit, so unusual ones were tried"
                : "; no usual layout is legal, so unusual ones were tried");
    if (s->dried) fprintf(out, "; %d dry runs in %.1f s", s->dried, s->dry_seconds);
    accuracy_text(known, sizeof known, &s->ask.task.hw, s->ask.task.gpus, s->ask.task.engine);
    fprintf(out, "\ntimes: %s\n", known);
    return OK;
}
