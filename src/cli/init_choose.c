/* cli/init_choose.c -- budgets, adapters and layout that fit the ranks, by the planner; see init.h. */
#include "cli/init.h"

#include "base/num.h"
#include "base/str.h"
#include "engine/batching.h"
#include "plan/dryrun.h"

#include <math.h>
#include <string.h>

enum {
    TOKENS_CPU   = 1024,
    TOKENS_GPU   = 8192,
    STEP         = 256,
    SMALL_SET    = 5000,
    LEAST_STEPS  = 20,
    ADAPTER_RANK = 16
};

static int64_t ceil_to(double n, int64_t step) { return (int64_t)ceil(n / (double)step) * step; }

static bool on_gpu(const InitRun *x) { return !strcmp(x->hw.backend, "cuda"); }

static double all_tokens(const InitRun *x)
{
    return (double)x->data.samples * data_look_mean(&x->data, x->data.sum.tokens);
}

/* A tenth more than the longest sample that was seen. A micro-batch is no larger than leaves a small set some
 * steps. */
static void set_lengths(InitRun *x)
{
    Config *c             = &x->setup.recipe;
    double  few           = all_tokens(x) / (LEAST_STEPS * (double)x->ranks);
    int64_t usual         = on_gpu(x) ? TOKENS_GPU : TOKENS_CPU;
    c->data.max_length    = max_i64(ceil_to(1.1 * (double)x->data.longest, STEP), 2 * STEP);
    c->train.micro_tokens = max_i64(c->data.max_length, (double)usual < few ? usual : ceil_to(few, STEP));
}

/* As many patches as the samples of a micro-batch have, and at least those of the largest sample. */
static void set_patches(InitRun *x)
{
    Config *c              = &x->setup.recipe;
    const Load *sum        = &x->data.sum;
    double  share          = 1.1 * (double)sum->patches / (double)sum->tokens * (double)c->train.micro_tokens;
    c->train.micro_patches = ceil_to(fmax(share, (double)x->data.most_patches), STEP);
    if (!x->setup.model.shape.vision.depth) c->train.micro_patches = 0;
}

static Status plan_with_data(DryRun *d, const InitRun *x, const Config *recipe, int per_node)
{
    BatchContent content;
    Budget       budget = batching_budget(recipe, &x->setup.model.shape);
    DryConf      conf   = { .recipe = recipe, .ranks = x->ranks, .per_node = per_node, .hw = &x->hw,
                            .uneven = USUAL_UNEVEN, .content = &content };
    TRY(data_look_content(&content, &x->data, &budget));
    return dryrun_open_conf(d, &conf);
}

/* Whether the recipe fits, with what the planner changes of it. */
static Status try_fit(InitRun *x, bool *fits)
{
    Config *c = &x->setup.recipe;
    DryRun  d;
    AutoAsk ask = { .recipe    = c,
                    .ranks     = x->ranks,
                    .per_node  = hardware_node(&x->hw, x->ranks),
                    .hw        = x->hw,
                    .available = x->available };
    *fits       = false;
    set_patches(x);
    TRY(auto_find(&x->choice, &ask));
    Config with = *c;
    with.keep   = (MemPool){ 0 };
    Status st   = layout_keys_apply(&with, &x->choice.keys);
    if (!st) st = plan_with_data(&d, x, &with, ask.per_node);
    if (!st) {
        x->peak = (double)dryrun_peak(&d, NULL), x->step = d.step.step, x->params = d.trains.base;
        *fits = x->peak <= x->available;
        dryrun_close(&d);
    }
    mem_pool_close(&with.keep);
    return st;
}

/* Halves the micro-batch down to the longest sample. */
static Status try_lengths(InitRun *x, bool *fits)
{
    Config *c = &x->setup.recipe;
    for (set_lengths(x);; c->train.micro_tokens = max_i64(c->train.micro_tokens / 2, c->data.max_length)) {
        TRY(try_fit(x, fits));
        if (*fits || c->train.micro_tokens == c->data.max_length) return OK;
    }
}

static Status does_not_fit(const InitRun *x)
{
    char need[STR_BYTES], there[STR_BYTES];
    return fail(E_FIT,
                "adapters of rank %lld with micro-batches of %lld tokens need %s on a rank, which has %s; "
                "plan for more GPUs with --gpus N, or shorten data.max_length and image.max_pixels",
                (long long)x->setup.recipe.lora.rank, (long long)x->setup.recipe.train.micro_tokens,
                str_bytes(need, x->peak), str_bytes(there, x->available));
}

static void count_steps(InitRun *x)
{
    Config *c      = &x->setup.recipe;
    double  tokens = all_tokens(x), step = (double)(c->train.micro_tokens * x->ranks);
    if (!config_is_set(c, "train", "num_train_epochs") && x->data.samples < SMALL_SET)
        c->train.num_train_epochs = 3;
    x->steps = (int64_t)ceil(c->train.num_train_epochs * tokens / step);
}

Status init_choose(InitRun *x)
{
    Config *c    = &x->setup.recipe;
    bool    fits = false;
    if (x->rank > 0) c->lora.rank = x->rank;
    config_settle(c);
    TRY(try_lengths(x, &fits));
    if (!fits && x->rank < 0) {
        c->lora.rank = ADAPTER_RANK;
        config_settle(c);
        TRY(try_lengths(x, &fits));
    }
    count_steps(x);
    if (x->ranks > 1) layout_key(&x->choice.keys, "parallel.ranks=%d", x->ranks);
    return fits ? OK : does_not_fit(x);
}
