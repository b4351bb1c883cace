/* tests/test_recipes.c -- the seconds of a step in a recipe's comment are its plan's, and every recipe for
 * several GPUs is about as fast as its own layout can be: no other setting of recompute, dispatcher and
 * overlap, nor whole experts in place of cut ones, nor another number of sets of shards, that fits its GPUs
 * is predicted to take a tenth less time. */
#include "lab.h"
#include "plan/dryrun.h"

#include <glob.h>

typedef struct Recipe {
    const char *path;
    int         ranks;
    char        gpu[32];
    Hardware    hw;
} Recipe;

/* "recipes/qwen3-vl-30b-a3b-16-h100-3d.yaml" is for 16 ranks, each an h100: the first number between dashes,
 * and what follows it; "1-24gb" for any GPU of 24 GiB, to which device.memory_limit holds an h200. False: the
 * name has none. */
static bool read_name(Recipe *r, const char *path)
{
    int end = 0;
    *r = (Recipe){ .path = path };
    for (const char *at = path; !end && (at = strchr(at, '-')); at++)
        if (sscanf(at, "-%d-%31[a-z0-9]%n", &r->ranks, r->gpu, &end) != 2) end = 0;
    size_t n = strlen(r->gpu);
    if (n > 2 && !strcmp(r->gpu + n - 2, "gb") && r->gpu[0] != 'g') snprintf(r->gpu, sizeof r->gpu, "h200");
    if (end) EXPECT_OK(hardware_find(&r->hw, r->gpu));
    return end > 0;
}

/* Seconds of a step; 0: refused, or too large. */
static double seconds_of(const Recipe *r, char *const *set, int n)
{
    Config c;
    DryRun d;
    double step = 0;
    Hardware hw = r->hw;
    if (config_open(&c, r->path, n, (char **)set)) return 0;
    hardware_limit(&hw, c.device.memory_limit);
    if (!dryrun_open(&d, &c, r->ranks, hardware_node(&hw, r->ranks), &hw)) {
        if (fit_of((double)dryrun_peak(&d, NULL), &hw) != FIT_NOT) step = d.step.step;
        dryrun_close(&d);
    }
    config_close(&c);
    return step;
}

static void expect_not_much_faster(const Recipe *r, double own, char *const *set, int n)
{
    double other = seconds_of(r, set, n);
    EXPECT(other == 0 || own <= 1.1 * other, "%s takes %.3g s, with %s %s %.3g s", r->path, own, set[0],
           n > 1 ? set[1] : "", other);
}

/* The number before " s a step" in the line of the comment that says what is planned; 0: there is none. */
static double planned_in_comment(const char *path)
{
    char   line[256];
    double seconds = 0;
    FILE  *f = fopen(path, "r");
    REQUIRE(f, "cannot read %s", path);
    while (!seconds && fgets(line, sizeof line, f)) {
        char *at = strstr(line, "Planned: ") ? strstr(line, " s a step") : NULL;
        if (!at) continue;
        for (*at = 0; at > line && at[-1] != ' '; at--) continue;
        seconds = atof(at);
    }
    fclose(f);
    return seconds;
}

static void comment_is_the_plan(const Recipe *r, double own)
{
    double said = planned_in_comment(r->path);
    EXPECT(said == 0 || fabs(said / own - 1) < 0.03, "%s: its comment says %g s, its plan %g s", r->path,
           said, own);
}

static void no_setting_is_much_faster(const Recipe *r)
{
    static char *const sets[] = { "memory.recompute=[]",
                                  "memory.recompute=[moe_act,layernorm]",
                                  "memory.recompute=[moe,layernorm]",
                                  "memory.recompute=[moe,layernorm,vision]",
                                  "moe.dispatcher=auto",
                                  "moe.dispatcher=hybridep",
                                  "moe.overlap=true",
                                  "parallel.etp=1" };
    static char *const replicas[] = { "parallel.replicas=2", "parallel.replicas=4" };
    double             own    = seconds_of(r, NULL, 0);
    EXPECT(own > 0, "%s: %s", r->path, status_text());
    comment_is_the_plan(r, own);
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) expect_not_much_faster(r, own, &sets[i], 1);
    for (size_t i = 0; i < 2 && strstr(r->path, "fsdp"); i++)
        for (int k = 0; k < 4; k++) {
            char *const set[] = { replicas[i], sets[k] };
            expect_not_much_faster(r, own, set, 1), expect_not_much_faster(r, own, set, 2);
        }
}

static void recipes_agree_with_the_planner(void)
{
    glob_t g;
    int    n = 0;
    REQUIRE(!glob("recipes/*.yaml", 0, NULL, &g), "no recipes: run from the root of the tree");
    for (size_t i = 0; i < g.gl_pathc; i++) {
        Recipe r;
        if (!read_name(&r, g.gl_pathv[i])) continue;
        no_setting_is_much_faster(&r);
        n++;
    }
    EXPECT(n >= 30, "%d recipes for GPUs", n);
    globfree(&g);
}

int main(void)
{
    RUN(recipes_agree_with_the_planner);
    return lab_report();
}
