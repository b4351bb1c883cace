/* cli/init_write.c -- the recipe of `treb init` as commented YAML; see init.h. */
#include "cli/init.h"

#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A path as YAML, in JSON's quotes. */
static void put_path(FILE *f, const char *path)
{
    Json *s    = json_string(path);
    char *text = s ? json_dumps(s, JSON_ENCODE_ANY) : NULL;
    fputs(text ? text : "\"\"", f);
    free(text);
    json_decref(s);
}

static void put_found(FILE *f, const InitRun *x)
{
    const DataLook *d = &x->data;
    char            need[STR_BYTES], there[STR_BYTES];
    fprintf(f, "# Written by treb init.\n# model    %s, %.3f M parameters\n", x->setup.model.shape.family,
            (double)x->params / 1e6);
    fprintf(f,
            "# data     %lld samples; of %lld looked at: %.0f tokens on average, %lld in the longest, %.0f "
            "supervised",
            (long long)d->samples, (long long)d->looked, data_look_mean(d, d->sum.tokens),
            (long long)d->longest, data_look_mean(d, d->sum.supervised));
    if (d->pictures)
        fprintf(f, ", %.1f pictures of %.0f patches", (double)d->pictures / (double)d->looked,
                (double)d->sum.patches / (double)d->pictures);
    fprintf(f,
            "\n# machine  %d rank%s by the rates of %s; %s of %s planned on the fullest, %.3g s a step "
            "predicted\n",
            x->ranks, x->ranks == 1 ? "" : "s", x->hw.id, str_bytes(need, x->peak),
            str_bytes(there, x->available), x->step);
    if (d->bad)
        fprintf(f, "# beware   %lld samples cannot be used, the first: %s\n", (long long)d->bad, d->error);
}

static void put_model(FILE *f, const InitRun *x)
{
    fputs("\nmodel:\n  path: ", f);
    put_path(f, x->setup.recipe.model.path);
    fputc('\n', f);
    if (x->setup.model.shape.vision.depth)
        fputs("  # freeze_vit: true       # the vision tower stays as it is\n", f);
}

static void put_sources(FILE *f, const char *key, const char *const *path, int n)
{
    fprintf(f, "  %s:\n", key);
    for (int i = 0; i < n; i++) {
        fputs("    - path: ", f);
        put_path(f, path[i]);
        fputc('\n', f);
    }
}

static void put_data(FILE *f, const InitRun *x)
{
    const Config *c = &x->setup.recipe;
    fputs("\ndata:\n", f);
    const char *path[OPTION_LIST_MAX];
    int         n = 0;
    for (int i = 0; i < c->data.train.n && n < OPTION_LIST_MAX; i++) path[n++] = c->data.train.item[i].path;
    put_sources(f, "train", path, n);
    if (x->eval.n) put_sources(f, "eval", x->eval.value, x->eval.n);
    fprintf(f, "  max_length: %lld         # tokens; longer samples are an error, or truncation: right\n",
            (long long)c->data.max_length);
    if (x->data.bad) fputs("  bad_sample: skip         # listed in quarantine.jsonl\n", f);
    if (x->setup.model.shape.vision.depth)
        fprintf(f,
                "\nimage:\n  min_pixels: %lld\n  max_pixels: %lld      # larger pictures are reduced to this "
                "area\n",
                (long long)c->image.min_pixels, (long long)c->image.max_pixels);
}

static void put_train(FILE *f, const InitRun *x)
{
    const Config *c = &x->setup.recipe;
    fprintf(f, "\ntrain:\n  num_train_epochs: %g      # about %lld steps\n", c->train.num_train_epochs,
            (long long)x->steps);
    fprintf(f, "  micro_tokens: %lld       # of a micro-batch; documents are packed into it\n",
            (long long)c->train.micro_tokens);
    fprintf(f, "  micro_patches: %lld\n", (long long)c->train.micro_patches);
    fputs("  # global_tokens: 65536   # of a step over all ranks; unless set, one micro-batch on each rank\n",
          f);
    fprintf(f, "\noptim:\n  learning_rate: %g\n  warmup_ratio: 0.05\n", c->optim.learning_rate);
    if (c->lora.rank)
        fprintf(f,
                "\nlora:\n  rank: %lld                 # adapters; 0 trains all weights\n  alpha: %g\n"
                "  target_modules: [all-linear]\n",
                (long long)c->lora.rank, c->lora.alpha);
    else
        fputs(
            "\n# lora: {rank: 16}         # adapters in place of all weights, in a fraction of the memory\n",
            f);
}

/* The planner's keys of one section, or the word auto. */
static void put_planned(FILE *f, const InitRun *x, const char *section)
{
    size_t n   = strlen(section);
    bool   any = false;
    for (int i = 0; i < x->choice.keys.n; i++) {
        const char *key = x->choice.keys.at[i], *value = strchr(key, '=');
        if (strncmp(key, section, n) || key[n] != '.' || !value) continue;
        if (!any) fprintf(f, "\n%s:\n", section);
        fprintf(f, "  %.*s: %s\n", (int)(value - key - (ptrdiff_t)n - 1), key + n + 1, value + 1);
        any = true;
    }
    if (!any)
        fprintf(f, "\n# %s: auto%*s# as it is by default; the planner changes what would not fit\n", section,
                (int)(18 - n), "");
}

static void put_rest(FILE *f, const InitRun *x)
{
    int64_t every = x->steps / 5 > 1 ? x->steps / 5 : 1;
    bool    split = !x->eval.n && x->data.samples >= 40;
    fputs("\ncheckpoint:\n  output_dir: ", f);
    put_path(f, x->run);
    fprintf(
        f,
        "\n  save_steps: %lld\n  resume_from_checkpoint: auto   # the same command continues a run that was "
        "stopped\n",
        (long long)every);
    if (split || x->eval.n) fprintf(f, "\neval:\n  eval_steps: %lld\n", (long long)every);
    if (split) fputs("  split: 0.05              # of the samples are held out\n", f);
    fprintf(f, "\nlog:\n  logging_steps: %d\n", x->steps > 500 ? 10 : 1);
}

Status init_write(char **text, const InitRun *x)
{
    size_t n = 0;
    FILE  *f = open_memstream(text, &n);
    Config check;
    if (!f) return fail(E_FIT, "no memory for a recipe");
    put_found(f, x), put_model(f, x), put_data(f, x), put_train(f, x);
    put_planned(f, x, "parallel"), put_planned(f, x, "memory");
    put_rest(f, x);
    if (fclose(f)) return fail(E_FIT, "no memory for a recipe");
    config_default(&check);
    Status st = config_parse(&check, *text, n, "the recipe");
    config_close(&check);
    return st;
}
