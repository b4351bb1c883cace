/* diagnose/run_step.c -- the step of a run from metrics.jsonl, where no profile was taken. */
#include "diagnose/source.h"
#include "report/report_run.h"

#include <math.h>
#include <string.h>

static double median(const ReportRun *run, const char *key)
{
    return series_median(series_find(&run->metrics, key));
}

/* Shares of the step; the length follows from what is hidden. */
static void read_groups(StepProfile *s, const ReportRun *run)
{
    char key[96];
    s->exposed = s->comm = 0;
    for (int g = 0; g < GR_N; g++) {
        snprintf(key, sizeof key, "perf/exposed_comm/%s", group_name((GroupId)g));
        double exposed = known(median(run, key)) * s->step;
        snprintf(key, sizeof key, "perf/hidden_comm/%s", group_name((GroupId)g));
        double hidden = fmin(0.999, known(median(run, key)));
        s->group[g] = (GroupProfile){ .exposed = exposed, .blocking = exposed,
                                      .length = exposed / (1 - hidden), .jitter = NAN };
        s->exposed += exposed, s->comm += s->group[g].length;
    }
    s->hidden = s->comm - s->exposed;
    s->bubble = s->group[GR_pp].exposed + s->group[GR_pp_back].exposed;
}

/* Seconds of a part have waits in them: its share of all parts is taken as its share of compute. */
static void read_parts(StepProfile *s, const ReportRun *run)
{
    static const char *const keys[PART_N] = { "perf/time_vision", "perf/time_merger", "perf/time_decoder",
                                              "perf/time_head", "perf/time_optimizer" };
    double sum = 0;
    for (int p = 0; p < PART_N; p++) sum += known(median(run, keys[p]));
    for (int p = 0; p < PART_N && sum > 0; p++)
        s->part[p] = known(median(run, keys[p])) / sum * s->compute;
    s->optimizer = s->part[PART_OPTIM];
}

Status step_of_metrics(StepProfile *s, const ReportRun *run)
{
    double gib = 1 << 30;
    step_profile_clear(s);
    s->step = median(run, "perf/step_time");
    if (!(s->step > 0))
        return fail(E_DATA, "%s: metrics.jsonl has no step times; `treb profile` measures a step", run->dir);
    s->data_wait = known(median(run, "perf/data_wait")) * s->step;
    read_groups(s, run);
    s->compute = fmax(0, s->step - s->exposed - s->data_wait);
    s->blocking = s->exposed, s->launch_starved = s->data_wait, s->idle = s->data_wait, s->copies = 0;
    s->dependency = s->residual = 0, s->busy = s->step - s->idle;
    read_parts(s, run);
    s->mfu = median(run, "perf/mfu"), s->hfu = median(run, "perf/hfu");
    s->memory_peak = median(run, KEY_PLANNED) * gib, s->memory_driver = median(run, KEY_MEASURED) * gib;
    s->expert_max = median(run, KEY_WORST);
    return OK;
}
