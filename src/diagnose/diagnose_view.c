/* diagnose/diagnose_view.c -- a diagnosis as text and as JSON. */
#include "diagnose/diagnose.h"

#include <math.h>

enum { SHOWN = 8 };

static const double GIB = 1 << 30;

static const char *origin(const Diagnosis *d) { return d->e.measured ? "measured" : "predicted"; }

/* ---- text ---- */

const char *time_text(char buf[TIME_BYTES], double t)
{
    if (t < 1) snprintf(buf, TIME_BYTES, "%.3g ms", 1e3 * t);
    else       snprintf(buf, TIME_BYTES, "%.3g s", t);
    return buf;
}

static void print_parts(FILE *out, const Diagnosis *d)
{
    const StepProfile *s = &d->e.at;
    char               text[300];
    fprintf(out, "a step takes %s (%s): compute %s, exposed communication %s, bubble %s, waiting for "
            "launches %s, for data %s, for host copies %s\n", TIME(s->step), origin(d),
            TIME(known(s->compute)), TIME(fmax(0, known(s->exposed) - known(s->bubble))),
            TIME(known(s->bubble)), TIME(fmax(0, known(s->launch_starved) - known(s->data_wait))),
            TIME(known(s->data_wait)), TIME(known(s->copies)));
    if (d->e.measured)
        fprintf(out, "  the plan, with compute and links fitted to this, says %s\n", TIME(d->plan.step));
    content_text(text, sizeof text, &d->e.content);
    fprintf(out, "  plans are for %s\n", text);
}

static void print_wall(FILE *out, const Diagnosis *d)
{
    const WallFinding *w = &d->wall[d->first];
    if (!d->first) {
        fprintf(out, "wall: none (%s): no wall reaches its threshold; %.0f %% of the step is compute\n",
                origin(d), 100 * known(d->e.at.compute) / d->e.at.step);
        return;
    }
    fprintf(out, "wall: %s (%s)\n  evidence: %s\n  recoverable: %s at most, %+.0f %% throughput\n"
            "  look at: %s\n", wall_name(d->first), origin(d), w->evidence, TIME(w->recoverable),
            100 * d->ceiling, wall_check(d->first));
    for (WallId i = 1; i < WALL_N; i++)
        if (d->wall[i].found && i != d->first)
            fprintf(out, "  also: %s: %s\n", wall_name(i), d->wall[i].evidence);
}

static void print_fix(FILE *out, const Diagnosis *d, int i)
{
    const Fix *f = &d->fix[i];
    fprintf(out, "  %d  %s\n     %+.1f %% throughput, step %s, %.2f GiB (%+.2f); for %s: %s%s", i + 1, f->set,
            100 * f->gain, TIME(f->step), f->bytes / GIB, (f->bytes - d->e.bytes) / GIB, wall_name(f->wall),
            f->price, f->kind == FIX_OTHER ? "; changes what is trained" : "");
    if (*f->forbids) fprintf(out, "; forbids %s", f->forbids);
    fprintf(out, "; next wall: %s\n", wall_name(f->next));
}

void diagnose_print(FILE *out, const Diagnosis *d)
{
    print_parts(out, d);
    print_wall(out, d);
    if (d->fixes) fprintf(out, "fixes, best first, each as the plan with the change predicts\n");
    else          fprintf(out, "no listed change that fits is predicted to give 1 %% or more\n");
    for (int i = 0; i < d->fixes && i < SHOWN; i++) print_fix(out, d, i);
    if (d->fixes > SHOWN) fprintf(out, "  and %d more (--json)\n", d->fixes - SHOWN);
    for (int i = 0; i < d->traps; i++) fprintf(out, "note: %s\n", d->trap[i]);
}

/* ---- JSON ---- */

static Json *wall_json(const WallFinding *w)
{
    return json_pack("{s:s, s:b, s:f, s:s}", "wall", wall_name(w->id), "found", w->found, "recoverable",
                     w->recoverable, "evidence", w->evidence);
}

static Json *fix_json(const Fix *f)
{
    static const char *const kinds[] = { "same", "other", "command" };
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:f, s:f, s:f, s:b, s:s}", "set", f->set, "wall",
                     wall_name(f->wall), "kind", kinds[f->kind], "price", f->price, "forbids", f->forbids,
                     "bytes", f->bytes, "step", f->step, "gain", f->gain, "fits", f->fits, "next",
                     wall_name(f->next));
}

Status diagnose_json(Json **out, const Diagnosis *d)
{
    Json *walls = json_array(), *fixes = json_array(), *traps = json_array();
    for (WallId i = 1; i < WALL_N; i++) json_array_append_new(walls, wall_json(&d->wall[i]));
    for (int i = 0; i < d->fixes; i++) json_array_append_new(fixes, fix_json(&d->fix[i]));
    for (int i = 0; i < d->traps; i++) json_array_append_new(traps, json_string(d->trap[i]));
    *out = json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "source", origin(d),
                     "wall", wall_name(d->first), "step", d->e.at.step, "planned_step", d->plan.step,
                     "recoverable", d->first ? d->wall[d->first].recoverable : 0.0, "ceiling", d->ceiling,
                     "bytes", d->e.bytes, "limit", d->e.limit, "walls", walls, "fixes", fixes, "notes", traps,
                     "data", content_json(&d->e.content));
    return *out ? OK : fail(E_FIT, "no memory for a diagnosis");
}
