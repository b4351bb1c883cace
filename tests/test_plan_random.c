/* tests/test_plan_random.c -- recipes drawn at random, legal and not: keys and values of config.def, layouts,
 * numbers of ranks, presets. Each is refused with the rule or the key that is wrong, or is planned. The seed
 * is printed; TREB_SEED sets it, TREB_RECIPES the number of recipes. */
#include "base/config_table.h"
#include "base/rng.h"
#include "lab.h"
#include "plan/dryrun.h"

#include <signal.h>
#include <time.h>

enum { CHANGES = 6, LINE = 160 };

static struct { uint64_t seed; char text[1200]; } now;      /* the current recipe, printed on a crash */

static void last_words(int sig)
{
    printf("  signal %d at %llu: %s\n", sig, (unsigned long long)now.seed, now.text);
    fflush(stdout);
    signal(sig, SIG_DFL);
    raise(sig);
}

static uint64_t below(uint64_t what, uint64_t n) { return rng_below(now.seed, 1, what, n); }

/* Typical numbers: powers of two, three times them, the bounds, beyond the bounds. */
static void draw_number(char *out, const ConfigRow *r, uint64_t k)
{
    double v = (double)(1ull << below(k, 13));
    switch (below(k + 1, 10)) {
    case 0: v *= 3; break;
    case 1: v = r->min; break;
    case 2: v = r->max; break;
    case 3: v = r->max * 2 + 1; break;
    case 4: v = -1; break;
    case 5: v = 0; break;
    default: break;
    }
    if (r->kind == K_INT) snprintf(out, LINE, "%.0f", v);
    else                  snprintf(out, LINE, "%g", below(k + 2, 2) ? v / 16 : v);
}

static void draw_word(char *out, const char *choices, uint64_t k)
{
    static const char *const others[] = { "full", "moe_act", "norm", "moe", "vision", "qkv", "core_attn",
                                          "mlp", "nonsense", "2", "shared_experts" };
    char copy[400], *word[32], *save = NULL;
    int  n = 0;
    snprintf(copy, sizeof copy, "%s", choices);
    for (char *w = strtok_r(copy, "|", &save); w && n < 32; w = strtok_r(NULL, "|", &save)) word[n++] = w;
    uint64_t at = below(k, (uint64_t)n + (n ? 1 : 11));
    snprintf(out, LINE, "%s", at < (uint64_t)n ? word[at] : others[below(k + 1, 11)]);
}

static void draw_text(char *out, const ConfigRow *r, uint64_t k)
{
    static const char *const texts[] = {
        "Et*3|(tt|)*22L", "E|t*48|L", "((t", "tttt|", "x", "", "E(t|)*47tL"
    };
    if (!strcmp(r->key, "layout")) snprintf(out, LINE, "%s", texts[below(k, 7)]);
    else                           snprintf(out, LINE, "%s", below(k, 2) ? "word" : "12");
}

/* "section.key=value" of any row but keys for files and machines. */
static bool draw_change(char *out, uint64_t k)
{
    static const char *const sections[] = { "parallel", "memory", "train", "moe", "optim", "eval" };
    ConfigRows rows = below(k, 8) ? config_section_rows(sections[below(k + 1, 6)]) : config_rows();
    const ConfigRow *r = &rows.row[below(k + 2, (uint64_t)rows.n)];
    char value[LINE], more[LINE];
    if (r->kind == K_SOURCES || !strcmp(r->section, "model") || !strcmp(r->section, "device")) return false;
    switch (r->kind) {
    case K_FLAG:   snprintf(value, LINE, "%s", below(k + 3, 2) ? "true" : "false"); break;
    case K_INT:
    case K_REAL:   draw_number(value, r, k + 3); break;
    case K_CHOICE: draw_word(value, r->choices, k + 3); break;
    case K_LIST:
        draw_word(more, r->choices, k + 5), draw_word(value, r->choices, k + 7);
        if (below(k + 9, 2)) snprintf(value + strlen(value), LINE - strlen(value), ",%.40s", more);
        snprintf(more, LINE, "[%.120s]", value), memcpy(value, more, LINE);
        break;
    default:       draw_text(value, r, k + 3); break;
    }
    snprintf(out, LINE + 80, "%s.%s=%s", r->section, r->key, value);
    return true;
}

typedef struct Draw { long long tp, cp, pp, vpp, ep, zero, tokens, micros, ranks; const char *model; } Draw;

/* A layout of powers of two and a number of ranks, which sometimes does not match. */
static Draw draw_layout(void)
{
    static const char *const models[] = { "Qwen3-VL-30B-A3B", "Qwen3-30B-A3B", "Qwen3-235B-A22B", "demo",
                                          "Qwen3-VL-2B", "Qwen3-VL-8B", "no-such-model" };
    Draw d = { 1ll << below(900, 3), 1ll << below(901, 2), 1ll << below(902, 4), 1, 1ll << below(904, 6),
               (long long)below(905, 4), 1024ll << below(909, 4), 0, 0,
               models[below(908, below(912, 4) ? 3 : 7)] };
    if (below(903, 3) == 0) d.vpp = 2, d.micros = d.pp << below(910, 3);
    if (below(906, 8) == 0) d.pp = 3;
    if (below(913, 4) == 0) d.micros = 1ll << below(911, 6);
    struct cfg_parallel p = { .tp = d.tp, .cp = d.cp, .pp = d.pp, .ep = d.ep, .etp = 1 };
    d.ranks = below(920, 5) ? (long long)dryrun_ranks(&p) << below(921, 3) : (long long)below(922, 700) + 1;
    return d;
}

static void draw_base(char *out, size_t n, int *ranks)
{
    Draw d = draw_layout();
    long long dp = d.ranks / (d.tp * d.cp * d.pp);
    *ranks = (int)d.ranks;
    snprintf(out, n, "model: {preset: %s}\n"
             "train: {micro_tokens: %lld, micro_patches: 4096, global_tokens: %lld}\n"
             "parallel: {tp: %lld, cp: %lld, pp: %lld, vpp: %lld, ep: %lld, zero: %lld}\n", d.model, d.tokens,
             d.tokens * d.micros * dp, d.tp, d.cp, d.pp, d.vpp, d.ep, d.zero);
}

/* A useful refusal names a rule or a key. */
static bool names_something(const char *text)
{
    ConfigRows rows = config_rows();
    char name[ROW_NAME];
    if (strstr(text, "(rule ")) return true;
    for EACH_ROW(r, rows) {
        snprintf(name, sizeof name, "%s.%s", r->section, r->key);
        if (strstr(text, name)) return true;
    }
    return false;
}

static const double ROUNDING = 1e-6;

static double parts_of(const DryStep *s)
{
    double parts = s->compute + s->bubble + s->optimizer + s->launch + s->copies;
    for (int g = 0; g < LEDGER_GROUPS; g++) parts += s->exposed[g];
    return parts;
}

/* A change that makes something faster makes no step longer, but for rounding. */
static void expect_no_worse(const char *change, const DryRun *was, const Config *c, int ranks,
                            const Hardware *hw, double uneven)
{
    DryRun  d;
    DryConf conf = { .recipe = c, .ranks = ranks, .per_node = 8, .hw = hw, .uneven = uneven };
    if (dryrun_open_conf(&d, &conf)) return;
    EXPECT(d.step.step <= (1 + ROUNDING) * was->step.step, "%llu: %s: %s: %g s, was %g",
           (unsigned long long)now.seed, now.text, change, d.step.step, was->step.step);
    dryrun_close(&d);
}

/* Recomputing everything takes no less time and no more memory. */
static void expect_recompute(const DryRun *was, Config *c, int ranks, const Hardware *hw)
{
    DryRun d;
    if (config_set(c, "memory.recompute=full") || dryrun_open(&d, c, ranks, 8, hw)) return;
    double before = (double)dryrun_peak(was, NULL), after = (double)dryrun_peak(&d, NULL);
    EXPECT(d.step.step >= (1 - ROUNDING) * was->step.step, "%llu: %s: full recompute: %g s, was %g",
           (unsigned long long)now.seed, now.text, d.step.step, was->step.step);
    EXPECT(after <= (1 + ROUNDING) * before, "%llu: %s: full recompute: %g bytes, was %g",
           (unsigned long long)now.seed, now.text, after, before);
    dryrun_close(&d);
}

static void expect_monotone(const DryRun *d, Config *c, int ranks, const Hardware *hw)
{
    Hardware links = *hw, fast = *hw;
    links.intra_bw *= 2, links.inter_bw *= 2, links.host_bw *= 2;
    fast.bf16 *= 2, fast.memory_bw *= 2;
    expect_no_worse("links twice as fast", d, c, ranks, &links, USUAL_UNEVEN);
    expect_no_worse("a GPU twice as fast", d, c, ranks, &fast, USUAL_UNEVEN);
    expect_no_worse("balanced experts", d, c, ranks, hw, 1);
    expect_recompute(d, c, ranks, hw);
}

typedef struct Tally { int planned, refused, config; } Tally;

static void one(uint64_t seed, Tally *t)
{
    Config c;
    DryRun d = { 0 };
    Hardware hw;
    char   base[600], line[LINE + 80];
    now.seed = seed;
    int    ranks, n = below(923, 3) ? (int)below(924, 3) : (int)below(925, CHANGES);
    draw_base(base, sizeof base, &ranks);
    snprintf(now.text, sizeof now.text, "%d ranks: %s", ranks, base);
    config_default(&c);
    Status st = config_parse(&c, base, strlen(base), "recipe");
    for (int i = 0; i < n && !st; i++) {
        if (!draw_change(line, (uint64_t)i * 20)) continue;
        strncat(now.text, line, sizeof now.text - strlen(now.text) - 2), strcat(now.text, " ");
        st = config_set(&c, line);
    }
    t->config += st != OK;
    bool   timed = below(926, 2);
    if (!st) st = hardware_find(&hw, below(927, 2) ? "h100" : "gb200");
    if (!st) st = dryrun_open(&d, &c, ranks, 8, timed ? &hw : NULL);
    unsigned long long number = seed;
    if (st) EXPECT(names_something(status_text()), "%llu: %s: %s", number, now.text, status_text());
    else    EXPECT(d.plans == d.stages && dryrun_peak(&d, NULL) > 0, "%llu: %s", number, now.text);
    if (!st && timed)
        EXPECT(isfinite(d.step.step) && d.step.step > 0 && d.step.mfu > 0 && d.step.mfu < 1,
               "%llu: %s: a step of %g s, mfu %g", number, now.text, d.step.step, d.step.mfu);
    if (!st && timed)
        EXPECT(fabs(parts_of(&d.step) / d.step.step - 1) < ROUNDING,
               "%llu: %s: parts are %g of a step of %g s", number, now.text, parts_of(&d.step), d.step.step);
    if (!st && timed) expect_monotone(&d, &c, ranks, &hw);
    t->planned += !st, t->refused += st != OK;
    dryrun_close(&d);
    config_close(&c);
}

static void recipes_are_planned_or_refused(void)
{
    const char *given = getenv("TREB_SEED"), *many = getenv("TREB_RECIPES");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    int      n = many ? atoi(many) : 300;
    Tally    t = { 0 };
    signal(SIGABRT, last_words), signal(SIGSEGV, last_words), signal(SIGFPE, last_words);
    for (int i = 0; i < n; i++) one(seed + (uint64_t)i, &t);
    printf("  %d recipes from seed %llu: %d planned, %d refused, %d of them by their words\n", n,
           (unsigned long long)seed, t.planned, t.refused, t.config);
    EXPECT(n < 100 || (t.planned > n / 20 && t.refused > n / 20), "the draw is lopsided");
}

int main(void)
{
    RUN(recipes_are_planned_or_refused);
    return lab_report();
}
