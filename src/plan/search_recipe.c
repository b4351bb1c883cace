/* plan/search_recipe.c -- a candidate as a recipe: the reasons as comments, then the keys. */
#include "plan/accuracy.h"
#include "plan/search.h"

#include <string.h>

static void print_reasons(FILE *out, const Search *s, const FoundLayout *f)
{
    const Task *t = &s->ask.task;
    char        layout[96], known[240];
    TextLines l;
    layout_text(layout, sizeof layout, &s->ask, &f->c);
    fprintf(out, "# %s on %d %s, %d per node: %s.\n", t->model->preset ? t->model->preset : t->model->name,
            t->gpus, t->hw.id, t->hw.domain < t->gpus ? t->hw.domain : t->gpus, layout);
    if (t->lora) {
        char text[320];
        trains_text(text, sizeof text, t->lora);
        fprintf(out, "# Adapters: %s.\n", text);
    }
    fprintf(out, "# Predicted: %.3g s a step of %lld tokens, %.0f tokens/s per GPU, MFU %.1f %%.\n", f->step,
            (long long)(t->seq * t->gbs), found_tokens_s(&s->ask, f), 100 * found_mfu(f));
    accuracy_text(known, sizeof known, &t->hw, t->gpus, t->engine);
    fprintf(out, "# Times: %s.\n", known);
    fprintf(out, "# Memory of the fullest rank: %.1f GB by the analytic model", f->peak / 1e9);
    if (f->dried) fprintf(out, ", %.1f GB by dry run", f->dry_peak / 1e9);
    fprintf(out, ", of %.0f GB.\n#\n", t->hw.capacity / 1e9);
    search_reasons(&l, s, f);
    for (int i = 0; i < l.n; i++) fprintf(out, "#   - %s\n", l.at[i]);
    search_warnings(&l, s, f);
    for (int i = 0; i < l.n; i++) fprintf(out, "#   ! %s\n", l.at[i]);
}

Status search_recipe(FILE *out, const Search *s, const FoundLayout *f, const char *command)
{
    Config cfg;
    TRY(search_config(&cfg, &s->ask, f));
    print_reasons(out, s, f);
    fprintf(out, "#\n# Found by: %s\n", command);
    fputs("# Name your data before training: data.train=FILE on the command line, or below as\n"
          "#   data: {train: [{path: data/train.jsonl}]}\n",
          out);
    if (s->ask.task.model->preset)
        fputs("# model.preset begins with random weights; for trained ones name their folder as model.path "
              "instead.\n",
              out);
    config_dump_short(out, &cfg);
    config_close(&cfg);
    return ferror(out) ? fail(E_IO, "the recipe could not be written") : OK;
}
