/* train/trainer_intro.c -- the log lines before the first step: model, ranks, memory, data, optimizer. */
#include "base/str.h"
#include "engine/recipe.h"
#include "train/trainer.h"
#include "ops/quant.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double mib(size_t bytes) { return (double)bytes / (1 << 20); }

static void log_summary_line(void *self, bool warning, const char *line)
{
    log_line(self, warning ? LOG_WARN : LOG_INFO, "%s", line);
}

static void log_model(const Trainer *t)
{
    const TrainableSummary *x = &t->trainable;
    log_info(&t->log, "model        %s, %.3f M parameters, %s", t->source.shape.family, (double)x->base / 1e6,
             dtype_name(t->source.dtype));
    trainable_print(x, log_summary_line, (void *)&t->log);
    if (*t->folder.resume)
        log_info(&t->log, "weights      from %s, after step %lld", t->folder.resume, (long long)t->step);
    else if (t->source.weights)
        log_info(&t->log, "weights      from %s", t->source.weights);
    else
        log_warn(&t->log,
                 "RANDOM WEIGHTS: model.preset has dimensions only; training starts from random weights, "
                 "seed %lld",
                 (long long)t->recipe->train.seed);
}

static void log_transport(const Trainer *t, const Comm *world)
{
    int    communicators;
    size_t bytes = comm_device_bytes(world, &communicators);
    log_info(&t->log, "transport    %s%s%s", comm_name(world), *comm_reason(world) ? ": " : "",
             comm_reason(world));
    if (communicators)
        log_info(&t->log, "             %d communicators took %.1f MiB of GPU memory", communicators,
                 mib(bytes));
}

static void log_ranks(const Trainer *t)
{
    char  *text = NULL, *next;
    size_t n = 0;
    FILE  *f = t->conf.world ? open_memstream(&text, &n) : NULL;
    if (!f) return;
    Status st = recipe_print_ranks(f, t->recipe, &t->source.shape, t->conf.world, &t->engine.mesh);
    if (fclose(f) || st) return;
    for (char *line = strtok_r(text, "\n", &next); line; line = strtok_r(NULL, "\n", &next))
        log_info(&t->log, "ranks        %s", line);
    log_info(&t->log, "             zero %d", t->ranks.zero);
    log_transport(t, t->conf.world);
    if (t->engine.be.reserved_sms)
        log_info(&t->log, "             %d SMs of each GPU are reserved for communication",
                 t->engine.be.reserved_sms);
    free(text);
}

static void log_memory(const Trainer *t)
{
    const Engine *e = &t->engine;
    char text[256] = "";
    for (int i = 0; i < ARENA_N; i++) {
        size_t at = strlen(text);
        if (i == A_HOST && !e->plan.bytes[i]) continue;
        snprintf(text + at, sizeof text - at, "%s%s %.1f", i ? ", " : "", e->arena[i].name,
                 mib(e->plan.bytes[i]));
    }
    log_info(&t->log, "memory       %.1f MiB%s planned and reserved: %s",
             mib(engine_device_bytes(&e->plan, e->conf.backend)), t->conf.world ? " on rank 0" : "", text);
    log_info(&t->log, "device       %s; 100 %% mfu is %.3g TFLOP/s in %s, %s", e->be.device->name,
             t->progress.peak.flops / 1e12, dtype_name(e->conf.dtype),
             t->progress.peak.measured ? "measured here in matrix products" : "as its data sheet says");
}

static void join_words(char *out, size_t n, const WordList *words)
{
    size_t at = 0;
    *out = 0;
    for (int i = 0; i < words->n && at < n; i++)
        at += (size_t)snprintf(out + at, n - at, i ? ", %s" : "%s", words->item[i]);
}

/* A weight that tp or etp cuts where no group ends: groups begin anew with the shard. */
static bool is_cut_in_groups(const ProductPrecision *f, const Param *p)
{
    bool cut = false;
    for (int d = p->ndim - 2; d >= 0 && d < p->ndim; d++)
        cut |= p->shard.shape[d] != p->shape[d] && p->shard.shape[d] % precision_group(f->format);
    return cut && precision_only_coded(f, p);
}

static void warn_cut_groups(const Trainer *t)
{
    const ParamSet *s = &t->engine.model.params;
    const Param    *first = NULL;
    int             n = 0, group = precision_group(t->engine.conf.precision.format);
    for (int i = 0; i < s->n; i++)
        if (is_cut_in_groups(&t->engine.conf.precision, s->p[i]) && !n++) first = s->p[i];
    if (n)
        log_warn(&t->log, "%d weights are cut inside groups of %d, the first is %s: their shards are "
                 "quantised by themselves, so that results differ from those of one rank by rounding; "
                 "parallel.tp and parallel.etp that leave multiples of %d avoid it", n, group,
                 first->piece[0].name, group);
}

/* Whose gradients are bf16; adapters and what else is left of a model may have none. */
static void log_gradients(const Trainer *t)
{
    const ParamSet *s = &t->engine.model.params;
    int64_t         rounded = 0, all = 0;
    if (t->engine.conf.store.grads == F32) return;
    for (int i = 0; i < s->n; i++) {
        const Param *p = s->p[i];
        all += p->frozen ? 0 : param_local(p);
        rounded += t_has(p->shard.g) && p->shard.g.dtype == BF16 ? param_local(p) : 0;
    }
    if (!rounded)
        log_warn(&t->log, "optim.grad_dtype=bfloat16 changes nothing: no linear weight of attention, MLP or "
                 "experts trains, and gradients of adapters are float32");
    else
        log_info(&t->log, "gradients    of attention, MLP and experts in bfloat16: %.1f %% of what trains",
                 100 * (double)rounded / (double)all);
}

/* Whether weight gradients of the experts of some layer are computed from codes. */
static bool codes_dw(const Engine *e)
{
    for (int64_t l = 0; l < e->model.shape.text.L; l++) {
        const Moe *m = e->model.layer[l].ffn ? decoder_moe(&e->model.layer[l]) : NULL;
        if (m && moe_codes_dw(&e->env, m)) return true;
    }
    return false;
}

/* The words of y and dx, by the table; what dw of experts runs in is said apart. */
static void log_precision(const Trainer *t)
{
    const ProductPrecision *p = &t->engine.conf.precision;
    bool frozen = t->engine.shard.conf.fp8 && t->engine.shard.conf.base_codes;
    char text[128] = "";
    if (!precision_any(p)) return;
    for (int i = 0; i < SITES; i++) {
        const char *word = precision_site_word((Site)i);
        size_t      at = strlen(text);
        if (p->coded[i][PRODUCT_Y] && !strstr(text, word))             /* tower has two sites */
            snprintf(text + at, sizeof text - at, "%s%s", at ? ", " : "", word);
    }
    log_info(&t->log, "precision    %s: products of %s%s; the others in %s%s", precision_word(p->format),
             text, codes_dw(&t->engine) ? " (of experts, weight gradients too)" : "",
             dtype_name(t->engine.conf.dtype),
             frozen ? "; frozen weights of these products are kept in 8 bits alone" : "");
    warn_cut_groups(t);
}

/* Bytes of the base that is in codes, and its elements. */
static void log_base(const Trainer *t)
{
    const ParamSet *s = &t->engine.model.params;
    char            text[128];
    double          bytes = 0, n = 0;
    join_words(text, sizeof text, &t->recipe->model.base_quant_weights);
    if (!t->engine.conf.base.format) return;
    for (int i = 0; i < s->n; i++) {
        const WeightCodes *z = &s->p[i]->shard.codes;
        if (!t_has(z->q)) continue;
        n += (double)param_local(s->p[i]);
        bytes += (double)(t_bytes(z->q) + t_bytes(z->scale));
        if (t_has(z->first)) bytes += (double)(t_bytes(z->first) + t_bytes(z->group));
    }
    log_info(&t->log, "base         %s: %.3f G frozen weights of %s in %.2f GiB; their products run in %s",
             t->recipe->model.base_quant, n / 1e9, text, bytes / 0x1p30, dtype_name(t->engine.conf.dtype));
}

static void log_graphs(const Trainer *t)
{
    const Engine *e = &t->engine;
    char text[128];
    join_words(text, sizeof text, &t->recipe->train.cuda_graph);
    if (e->graphs.be)
        log_info(&t->log, "CUDA graphs  of %s, each shape from its second time on; %.0f MiB planned for them",
                 e->graphs.phases ? "forward, backward and update" : text, mib(e->plan.graphs));
}

static void log_dispatch(const Trainer *t)
{
    const Dispatcher *d = &t->engine.dispatch;
    if (d->ops) log_info(&t->log, "dispatch     %s (%s)", d->row->name, d->why);
}

static void log_data(const Trainer *t)
{
    const Budget *b = &t->data.budget;
    const struct cfg_train *c = &t->recipe->train;
    char why[64] = "train.max_steps", eval[64] = "no evaluation", each[64] = "";
    if (!c->max_steps) snprintf(why, sizeof why, "%g epochs", c->num_train_epochs);
    if (trainer_has_eval(t) && t->recipe->eval.eval_steps)
        snprintf(eval, sizeof eval, "evaluation every %lld steps", (long long)t->recipe->eval.eval_steps);
    log_info(&t->log, "data         %lld samples in an epoch; %s", (long long)loader_samples(t->loader),
             eval);
    if (t->data.ranks > 1) snprintf(each, sizeof each, " on each of %d data-parallel ranks", t->data.ranks);
    log_info(&t->log, "step         %d micro-batch%s of %lld tokens and %lld patches%s: %lld tokens",
             t->data.micro, t->data.micro == 1 ? "" : "es", (long long)b->tokens, (long long)b->patches, each,
             (long long)(t->data.ranks * t->data.micro * b->tokens));
    log_info(&t->log, "run          %s%lld steps (%s), %lld done, seed %lld",
             t->counted.estimated ? "about " : "", (long long)t->steps, why, (long long)t->step,
             (long long)c->seed);
    if (t->counted.estimated)
        log_info(&t->log,
                 "             estimated from %lld samples, within %.1f %%; the run ends with its data "
                 "(data.measure_samples=0 measures all before the first step)",
                 (long long)t->recipe->data.measure_samples, 100 * t->counted.within);
}

static const char *default_rate(const Trainer *t)
{
    if (!t->engine_conf.lora.rank || config_is_set(t->recipe, "optim", "learning_rate")) return "";
    return " (the default with adapters; optim.learning_rate sets it)";
}

static void log_optimizer(const Trainer *t)
{
    const struct cfg_optim *o = &t->recipe->optim;
    const struct cfg_moe *m = &t->recipe->moe;
    char groups[96] = "";
    if (t->lr.peak[G_VIT] != t->lr.peak[G_LLM] || t->lr.peak[G_ALIGNER] != t->lr.peak[G_LLM])
        snprintf(groups, sizeof groups, " (vision tower %g, mergers %g)", t->lr.peak[G_VIT],
                 t->lr.peak[G_ALIGNER]);
    log_info(&t->log,
             "optimizer    AdamW, lr %g%s%s, %lld warm-up steps, %s to %g, weight decay %g, gradient norm "
             "clipped to %g",
             o->learning_rate, groups, default_rate(t), (long long)t->lr.warmup, o->lr_scheduler_type,
             o->min_lr, o->weight_decay, o->max_grad_norm);
    if (!t->expert_counts.layers) return;
    if (t->engine.conf.aux_coeff > 0)
        log_info(&t->log, "balance      auxiliary loss (%s), coefficient %g%s", m->aux_loss_type,
                 m->aux_loss_coeff, m->z_loss_coeff > 0 ? ", with z-loss" : "");
    else
        log_info(&t->log, "balance      no auxiliary loss%s", m->z_loss_coeff > 0 ? ", with z-loss" : "");
}

static void log_space(const Trainer *t)
{
    const SaveSpace *s = &t->save_space;
    char             each[STR_BYTES], final[STR_BYTES], left[STR_BYTES], peak[STR_BYTES];
    if (!(s->most > 0)) return;
    str_bytes(each, s->each), str_bytes(final, s->final);
    log_info(&t->log, "             %s each%s%s%s; the disk has %s left", each,
             s->final > s->each ? ", " : "", s->final > s->each ? final : "",
             s->final > s->each ? " the last" : "",
             s->left > 0 ? str_bytes(left, s->left) : "an unknown space");
    if (s->left > 0 && s->left < s->peak)
        log_warn(&t->log,
                 "the checkpoints of this run take up to %s, and the disk has %s left; lower "
                 "checkpoint.save_total_limit or make space",
                 str_bytes(peak, s->peak), left);
}

static void log_checkpoints(const Trainer *t)
{
    const struct cfg_checkpoint *c = &t->recipe->checkpoint;
    char every[64] = "at the end", keep[64] = "all kept";
    if (c->save_steps) snprintf(every, sizeof every, "every %lld steps", (long long)c->save_steps);
    if (c->save_total_limit)
        snprintf(keep, sizeof keep, "the last %lld and the best kept", (long long)c->save_total_limit);
    log_info(&t->log, "checkpoints  %s, %s, %s; HF export: %s", t->folder.dir, every, keep,
             c->save_only_model ? "alone, without optimizer state: a run cannot resume from it" : c->hf);
    log_space(t);
}

/* Variables that configure other tools and that may still be set in a shell: here only the recipe counts. */
static void log_environment(const Trainer *t)
{
    static const char *const theirs[] = { "MAX_PIXELS", "MIN_PIXELS", "VIDEO_MAX_PIXELS", "FPS",
                                          "FPS_MAX_FRAMES", "IMAGE_MAX_TOKEN_NUM", "VIDEO_MAX_TOKEN_NUM" };
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++)
        if (getenv(theirs[i]))
            log_warn(
                &t->log,
                "the environment sets %s, which treb does not read; set image.* or video.* in the recipe",
                theirs[i]);
}

void trainer_log_setup(const Trainer *t)
{
    log_model(t);
    for (int i = 0; i < TRAINER_NOTES && t->conf.notes[i]; i++) log_info(&t->log, "%s", t->conf.notes[i]);
    log_ranks(t);
    log_memory(t);
    log_precision(t);
    log_gradients(t);
    log_base(t);
    log_graphs(t);
    log_dispatch(t);
    log_data(t);
    log_optimizer(t);
    log_checkpoints(t);
    log_environment(t);
}
