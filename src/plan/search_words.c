/* plan/search_words.c -- names of the settings of a candidate: in recipes, in --fix, in text. */
#include "base/str.h"
#include "ops/moment_code.h"
#include "plan/search.h"
#include "plan/timeline.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const States states[] = {
    { "f32",     4, 4, 4, true,  false, "f32 gradients, moments and master weights" },
    { "split",   4, 4, 2, true,  false, "master weights as bf16 and a 16-bit remainder: exact" },
    { "moments", 4, 2, 2, false, false, "moments in bf16: not bit-equal to f32 states" },
    { "bf16",    2, 2, 2, false, false, "gradients and moments in bf16: not bit-equal to f32 states" },
    { "int8",    4, 1 + 4.0 / MOMENT_BLOCK, 2, false, true,
      "moments in 8 bits by block: not bit-equal to f32 states" },
};
enum { STATES = sizeof states / sizeof *states };

const States *states_at(int i) { return i >= 0 && i < STATES ? &states[i] : NULL; }

const char *dispatch_word(DispatcherId id) { return dispatcher_rows[id].name; }

const char *found_bottleneck(const FoundLayout *f)
{
    const StepTime *t = &f->time;
    if (f->dried && f->dry_wall) return f->dry_wall;
    return bottleneck_name(t->step, t->tp + t->cp + t->ep + t->pp + t->dp + t->bubble, t->launch, t->replay);
}

int search_words(const char *list[RULE_LABELS], unsigned bits)
{
    int n = 0;
    for (int i = 0; i < RE_BITS; i++)
        if (bits & recompute_bits[i].bit) list[n++] = recompute_bits[i].word;
    return n;
}

void search_words_text(char *text, size_t n, unsigned bits, const char *between)
{
    const char *list[RULE_LABELS];
    int k = search_words(list, bits);
    size_t at = 0;
    *text = 0;
    for (int i = 0; i < k && at < n; i++)
        at += (size_t)snprintf(text + at, n - at, "%s%s", i ? between : "", list[i]);
}

/* Degrees above 1, then dp: "tp2 pp8 vpp4 ep8 dp4". */
void layout_text(char *text, size_t n, const SearchAsk *a, const Candidate *c)
{
    const struct {
        const char *name;
        int         degree;
    } axis[] = {
        { "tp", c->tp }, { "cp", c->cp },   { "pp", c->pp },         { "vpp", c->vpp },
        { "ep", c->ep }, { "etp", c->etp }, { "hsdp", c->replicas },
    };
    size_t at = 0;
    for (size_t i = 0; i < sizeof axis / sizeof *axis && at < n; i++)
        if (axis[i].degree > 1)
            at += (size_t)snprintf(text + at, n - at, "%s%d ", axis[i].name, axis[i].degree);
    if (at < n) snprintf(text + at, n - at, "dp%lld", (long long)found_dp(a, c));
}

void trains_text(char *text, size_t n, const LoraCost *x)
{
    const TrainableSummary *t = &x->trains;
    int64_t learn = t->adapters + t->whole, all = t->base + t->adapters, least = 0, most = 0;
    char whole[64] = "", rank[48] = "";
    int adapters = 0;
    for (int i = 0; i < t->n; i++) {
        const ModuleKind *k = &t->kind[i];
        if (k->status != MODULE_ADAPTED) continue;
        least = !adapters || k->least < least ? k->least : least;
        most  = k->most > most ? k->most : most, adapters += k->modules;
    }
    if (most) snprintf(rank, sizeof rank, least < most ? " of rank %lld to %lld" : " of rank %lld",
                       (long long)least, (long long)most);
    if (t->whole) snprintf(whole, sizeof whole, " and %.3f M parameters whole", (double)t->whole / 1e6);
    snprintf(text, n, "adapters%s on %d modules%s train: %.3f M of %.3f M parameters, %.3f %%; %.3f M are "
             "frozen", rank, adapters, whole, (double)learn / 1e6, (double)all / 1e6,
             100 * (double)learn / (double)all, (double)(t->base - t->whole) / 1e6);
}

void lines_add(TextLines *l, const char *fmt, ...)
{
    va_list args;
    if (l->n == sizeof l->at / sizeof *l->at) return;
    va_start(args, fmt);
    vsnprintf(l->at[l->n++], sizeof *l->at, fmt, args);
    va_end(args);
}

void search_default(SearchAsk *a)
{
    *a                = (SearchAsk){ .top = 5, .dry = true };
    a->fix            = (Fixed){ ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY, ANY };
    a->task.imbalance = 1.15;
}

static Status fix_recompute(int *bits, const char *value)
{
    const char *rest = value, *word;
    size_t n;
    for (*bits = 0; (word = str_item(&rest, '+', &n));) {
        int i = 0;
        if (!n || (n == 4 && !strncmp(word, "none", n))) continue;
        while (i < RE_BITS && (strncmp(recompute_bits[i].word, word, n) || recompute_bits[i].word[n])) i++;
        if (i == RE_BITS)
            return fail(E_CONFIG,
                        "--fix recompute=%s: %.*s is no recompute word; use for example none, "
                        "moe_act+layernorm, full",
                        value, (int)n, word);
        *bits |= (int)recompute_bits[i].bit;
    }
    return OK;
}

static Status fix_states(int *at, const char *value)
{
    for (int i = 0; i < STATES; i++)
        if (!strcmp(states[i].name, value)) return *at = i, OK;
    return fail(E_CONFIG, "--fix states=%s: expected f32, split, moments, bf16, int8", value);
}

static Status fix_dispatch(int *at, const char *value)
{
    int i = dispatcher_find(value);
    if (i >= 0) return *at = i, OK;
    return fail(E_CONFIG, "--fix dispatch=%s: expected %s", value, dispatcher_names());
}

static Status fix_one(Fixed *f, const char *key, const char *value)
{
    const struct {
        const char *key;
        int        *to, least;
    } number[] = {
        { "tp", &f->tp, 1 },           { "cp", &f->cp, 1 },
        { "pp", &f->pp, 1 },           { "vpp", &f->vpp, 1 },
        { "ep", &f->ep, 1 },           { "etp", &f->etp, 1 },
        { "mbs", &f->mbs, 1 },         { "zero", &f->zero, 0 },
        { "overlap", &f->overlap, 0 }, { "replicas", &f->replicas, 1 },
    };
    int64_t n;
    if (!strcmp(key, "recompute")) return fix_recompute(&f->recompute, value);
    if (!strcmp(key, "states"))    return fix_states(&f->states, value);
    if (!strcmp(key, "dispatch"))  return fix_dispatch(&f->dispatch, value);
    if (!strcmp(key, "offload")) {
        if (str_number(value, &f->offload) && f->offload >= 0 && f->offload <= 1) return OK;
        return fail(E_CONFIG, "--fix offload=%s: expected a share between 0 and 1", value);
    }
    for (size_t i = 0; i < sizeof number / sizeof *number; i++) {
        if (strcmp(number[i].key, key)) continue;
        int most = !strcmp(key, "zero") ? 3 : !strcmp(key, "overlap") ? 1 : 65536;
        if (!str_whole(value, &n) || n < number[i].least || n > most)
            return fail(E_CONFIG, "--fix %s=%s: expected a number from %d to %d", key, value,
                        number[i].least, most);
        return *number[i].to = (int)n, OK;
    }
    return fail(
        E_CONFIG,
        "--fix %s: unknown; known are tp, cp, pp, vpp, ep, etp, zero, replicas, mbs, recompute, states, "
        "offload, dispatch, overlap",
        key);
}

Status search_fix(Fixed *f, const char *text)
{
    const char *rest = text, *item;
    size_t n;
    while ((item = str_item(&rest, ',', &n))) {
        char pair[256], *value;
        if (!n) continue;
        if (n >= sizeof pair) return fail(E_CONFIG, "--fix %.40s...: too long", item);
        memcpy(pair, item, n), pair[n] = 0;
        if (!(value = strchr(pair, '=')))
            return fail(E_CONFIG, "--fix %s: expected name=value, such as tp=2", pair);
        *value++ = 0;
        TRY(fix_one(f, pair, value));
    }
    return OK;
}
