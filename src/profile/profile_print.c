/* profile/profile_print.c -- a profile as a table: measured beside predicted, field by field. */
#include "profile/profile_print.h"

#include "plan/view.h"
#include "profile/predict.h"

#include <math.h>
#include <string.h>

typedef struct Table {
    FILE              *out;
    const StepProfile *m, *p;
    double             step;
} Table;

/* "312.40 ms", "1.31 GiB", "41.3 %", "1204"; "-": not known. */
const char *profile_number(char out[32], double x, char unit)
{
    if (!isfinite(x)) snprintf(out, 32, "-");
    else if (unit == 's') snprintf(out, 32, "%.2f ms", x * 1e3);
    else if (unit == 'B')
        snprintf(out, 32, x >= 1e9 ? "%.2f GiB" : "%.2f MiB", x / (x >= 1e9 ? 0x1p30 : 0x1p20));
    else if (unit == '%') snprintf(out, 32, x < 1 ? "%.3f" : "%.2f", x);
    else snprintf(out, 32, fabs(x) < 1000 ? "%.4g" : "%.0f", x);
    return out;
}

/* A row whose numbers are both unknown or 0 is left out. */
static void row(const Table *t, const char *indent, const char *name, double m, double p, char unit)
{
    char a[32], b[32], share[32] = "", ratio[32] = "";
    bool any = (isfinite(m) && m != 0) || (isfinite(p) && p != 0);
    if (!any) return;
    if (unit == 's' && isfinite(m) && t->step > 0)
        snprintf(share, sizeof share, "%.1f %%", 100 * m / t->step);
    if (m > 0 && p > 1e-3 * m) snprintf(ratio, sizeof ratio, "%.2f", m / p);
    fprintf(t->out, "%s%-*s %14s %9s %14s %9s\n", indent, (int)(26 - strlen(indent)), name,
            profile_number(a, m, unit), share, profile_number(b, p, unit), ratio);
}

static void head(const Table *t, const char *title)
{
    fprintf(t->out, "\n%-26s %14s %9s %14s %9s\n", title, "measured", "of step", "predicted", "m / p");
}

/* Fields from `from` up to and without `to`; NULL: to the end. */
static void fields(const Table *t, const char *from, const char *to)
{
    bool on = false;
    for (int i = 0; i < profile_fields_n; i++) {
        const ProfileField *f = &profile_fields[i];
        on                    = (on || !strcmp(f->name, from)) && !(to && !strcmp(f->name, to));
        if (on) row(t, "  ", f->name, profile_value(t->m, f), profile_value(t->p, f), f->unit);
    }
}

static void list(const Table *t, const char *title, const double *m, const double *p, int n,
                 const char *const *names, char unit)
{
    bool any = false;
    for (int i = 0; i < n; i++) any = any || m[i] > 0 || p[i] > 0;
    if (!any) return;
    head(t, title);
    for (int i = 0; i < n; i++) row(t, "  ", names[i], m[i], p[i], unit);
}

static void arenas(const Table *t)
{
    head(t, "memory");
    for (int i = 0; i < ARENA_N; i++)
        row(t, "  ", engine_arena_label((ArenaId)i), t->m->arena[i], t->p->arena[i], 'B');
    fields(t, "memory_peak", "expert_max");
}

static void groups(const Table *t)
{
    for (int g = 0; g < GR_N; g++) {
        const GroupProfile *m = &t->m->group[g], *p = &t->p->group[g];
        if (m->calls <= 0 && p->calls <= 0) continue;
        head(t, group_name((GroupId)g));
        row(t, "  ", "calls", m->calls, p->calls, '1');
        row(t, "  ", "length", m->length, p->length, 's');
        row(t, "  ", "exposed", m->exposed, p->exposed, 's');
        row(t, "  ", "blocking", m->blocking, p->blocking, 's');
        row(t, "  ", "transfer", m->transfer, p->transfer, 's');
        row(t, "  ", "jitter", m->jitter, NAN, 's');
        row(t, "  ", "bytes inside the node", m->intra_node, p->intra_node, 'B');
        row(t, "  ", "bytes between nodes", m->inter_node, p->inter_node, 'B');
    }
}

static void print_ranks(FILE *out, const Profile *p)
{
    if (p->ranks < 2) return;
    fprintf(out, "\n%6s %6s %12s %12s %12s %12s %12s %12s\n", "rank", "stage", "step", "compute", "exposed",
            "starved", "memory", "data wait");
    for (int r = 0; r < p->ranks; r++) {
        const StepProfile *s = &p->rank[r];
        char               a[6][32];
        fprintf(out, "%6d %6d %12s %12s %12s %12s %12s %12s%s\n", r, p->stage[r],
                profile_number(a[0], s->step, 's'), profile_number(a[1], s->compute, 's'),
                profile_number(a[2], s->exposed, 's'), profile_number(a[3], s->launch_starved, 's'),
                profile_number(a[4], s->memory_peak, 'B'), profile_number(a[5], s->data_wait, 's'),
                r == p->slowest ? "  slowest" : "");
    }
    fprintf(out, "spread among ranks of a stage: %.1f %% of their own time\n", 100 * p->spread);
}

/* The micro-batches that the prediction is of, where its times are known. */
static void print_content(FILE *out, const Profile *p)
{
    BatchContent c;
    char         text[300];
    if (!content_of_step(&c, &p->predicted)) return;
    if (!content_of_step(&c, &p->measured)) c.source = CONTENT_ASSUMED;
    content_text(text, sizeof text, &c);
    fprintf(out, "predicted for %s\n", text);
}

static void print_head(FILE *out, const Profile *p)
{
    char device[200] = "";
    if (*p->device && strcmp(p->device, "built in"))
        snprintf(device, sizeof device, " (%.*s)", (int)strcspn(p->device, ",;"), p->device);
    fprintf(out, "%s: %d rank%s on %s%s, %s, %d profiled steps after %d to warm up; intervals from %s\n",
            p->recipe, p->ranks, p->ranks == 1 ? "" : "s", p->backend, device, p->dtype, p->steps, p->warmup,
            p->source);
    fprintf(out, "step %.2f ms unprofiled, %.2f ms profiled: the profiler costs %+.1f %%\n", p->plain * 1e3,
            p->profiled * 1e3, 100 * p->overhead);
    if (p->has_predicted && *p->hardware)
        fprintf(out, "predicted for %s: step %.2f ms +- %.0f %%, measured %.2f of it\n", p->hardware,
                p->predicted.step * 1e3, 100 * p->predicted_error, p->plain / p->predicted.step);
    else if (p->has_predicted)
        fprintf(out, "memory and bytes are predicted; times need a hardware row: treb bench calibrate, or "
                     "--hardware ID\n");
    if (p->has_predicted) print_content(out, p);
}

void profile_print(FILE *out, const Profile *p)
{
    Table t = { out, &p->measured, &p->predicted, p->measured.step };
    print_head(out, p);
    head(&t, p->ranks > 1 ? "slowest rank, one step" : "one step");
    fields(&t, "step", "forward");
    head(&t, "passes and host");
    fields(&t, "forward", "memory_peak");
    list(&t, "part", t.m->part, t.p->part, PART_N, part_words, 's');
    list(&t, "layers", t.m->layer, t.p->layer, LAYER_N, layer_names, 's');
    list(&t, "category", t.m->category, t.p->category, CAT_N, category_names, 's');
    groups(&t);
    arenas(&t);
    head(&t, "experts, energy, copies");
    fields(&t, "expert_max", NULL);
    print_ranks(out, p);
}
