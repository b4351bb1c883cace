/* tune/ab.c -- see ab.h. */
#include "tune/ab.h"

#include "report/contract.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int ab_keys(const char *key[AB_KEYS], char keep[AB_SET], const char *set)
{
    int    n = 0;
    size_t depth = 0;
    bool   word = true;
    snprintf(keep, AB_SET, "%s", set);
    for (char *at = keep; *at; at++) {
        depth += *at == '[', depth -= *at == ']';
        if (*at == ' ' && !depth) word = true;
        else if (word && n < AB_KEYS) key[n++] = at, word = false;
        if (*at == '=') *at = 0, at += strcspn(at + 1, " [");
    }
    return n;
}

/* Refuses runs that differ in more than the candidate's keys, and names the difference. */
static Status check_contract(const Trial *a, const Trial *b, const char *set)
{
    ContractDifference d[4];
    Contract x, y;
    char     keep[AB_SET], text[600];
    const char *key[AB_KEYS];
    int keys = ab_keys(key, keep, set);
    TRY(contract_read(&x, a->run));
    Status st = contract_read(&y, b->run);
    if (st) return contract_close(&x), st;
    int n = contract_compare(d, 4, &x, &y, key, keys);
    if (n) {
        contract_text(text, sizeof text, d, n < 4 ? n : 4, n);
        st = fail(E_CHECK, "%s and %s cannot be compared: besides %s they differ in %s", a->run, b->run,
                  *set ? set : "nothing", text);
    }
    contract_close(&x), contract_close(&y);
    return st;
}

static Status read_label(const char **label, const Trial *t)
{
    Contract c;
    TRY(contract_read(&c, t->run));
    *label = label_word(&c.facts);
    contract_close(&c);
    return OK;
}

static Status run_one(AbCandidate *c, const TrialConf *conf, const Config *base, int *number)
{
    char   name[16];
    Config changed = *base;
    Trial *t = &c->run[c->runs];
    changed.keep = (MemPool){ 0 };
    snprintf(name, sizeof name, "%03d", (*number)++);
    Status st = config_set_all(&changed, c->set);
    if (!st) st = trial_run(t, conf, &changed, name);
    mem_pool_close(&changed.keep);
    c->runs++;
    printf("  %s  %-60s %s", name, *c->set ? c->set : "the base", trial_word(t->end));
    if (!t->end) printf(", %.4g s a step, %.4g tokens/s, %.1f GiB\n", t->step, t->rate, t->peak);
    else         printf(" (%.160s)\n", t->why);
    fflush(stdout);
    return st;
}

static bool measured(const AbCandidate *c)
{
    return c->runs && !c->run[0].end && !c->run[c->runs - 1].end;
}

static double mean_rate(const AbCandidate *c) { return (c->run[0].rate + c->run[c->runs - 1].rate) / 2; }

static void decide_candidate(AbCandidate *c, const AbCandidate *base)
{
    bool known = measured(c) && measured(base) && mean_rate(base) > 0;
    c->gain = known ? mean_rate(c) / mean_rate(base) - 1 : NAN;
    c->spread = known && c->runs > 1 ? fabs(c->run[0].rate - c->run[1].rate) / mean_rate(c) : NAN;
}

/* Also beyond what the steps of either run differ by. What failed once is not tried again. */
static bool is_clear(const AbRound *r, const AbCandidate *c)
{
    const Trial *a = &r->base.run[0], *b = &c->run[0];
    if (b->end || !(r->clear > 0) || a->rate <= 0) return b->end != TRIAL_OK;
    return fabs(b->rate / a->rate - 1) > fmax(r->clear, 2 * fmax(a->range, b->range));
}

/* The second half: what the first runs do not decide, and the base if there is any of it. */
static Status run_again(AbRound *r, const TrialConf *conf, const Config *base, int *number)
{
    bool again = !(r->clear > 0);
    for (int i = r->n - 1; i >= 0; i--) {
        if (is_clear(r, &r->candidate[i])) continue;
        TRY(run_one(&r->candidate[i], conf, base, number));
        again = true;
    }
    if (!again) return OK;
    TRY(run_one(&r->base, conf, base, number));
    return check_contract(&r->base.run[0], &r->base.run[1], "");
}

Status ab_run(AbRound *r, const TrialConf *conf, const Config *base, int *number)
{
    if (!r->base.runs) TRY(run_one(&r->base, conf, base, number));
    if (r->base.run[0].end)
        return fail(E_CHECK, "the recipe itself %s: %s", trial_word(r->base.run[0].end), r->base.run[0].why);
    for (int i = 0; i < r->n; i++) TRY(run_one(&r->candidate[i], conf, base, number));
    TRY(run_again(r, conf, base, number));
    TRY(read_label(&r->label, &r->base.run[r->base.runs - 1]));
    decide_candidate(&r->base, &r->base);
    r->noise = r->base.spread;
    for (int i = 0; i < r->n; i++) {
        AbCandidate *c = &r->candidate[i];
        if (measured(c)) TRY(check_contract(&r->base.run[0], &c->run[0], c->set));
        decide_candidate(c, &r->base);
    }
    return OK;
}

int ab_winner(const AbRound *r, double noise)
{
    int best = -1;
    for (int i = 0; i < r->n; i++) {
        const AbCandidate *c = &r->candidate[i];
        if (isnan(c->gain) || c->gain <= fmax(noise, c->spread / 2)) continue;
        if (best < 0 || c->gain > r->candidate[best].gain) best = i;
    }
    return best;
}
