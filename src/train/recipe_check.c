/* train/recipe_check.c -- see recipe_check.h. */
#include "train/recipe_check.h"

#include "comm/comm.h"
#include "ops/backend.h"

#include <stdlib.h>
#include <string.h>

Status recipe_check_types(const Config *c)
{
    bool mixed = strcmp(c->device.dtype, "auto") && strcmp(c->device.dtype, c->model.dtype);
    if (mixed)
        return fail(E_CONFIG,
                    "device.dtype = %s with model.dtype = %s: weights and activations share one type here; "
                    "set model.dtype and leave device.dtype at auto",
                    c->device.dtype, c->model.dtype);
    return OK;
}

/* ---- adapters ---- */

static bool same_words(const WordList *a, const WordList *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++) same = !strcmp(a->item[i], b->item[i]);
    return same;
}

/* A key of the section that differs from its default, or NULL. loaded: except dropout, which the run
 * decides. */
static const char *lora_set(const struct cfg_lora *a, bool loaded)
{
    Config d;
    config_default(&d);
    const struct cfg_lora *b = &d.lora;
    const struct { const char *key; bool set; } keys[] = {
        { "rank",            a->rank != b->rank },
        { "alpha",           a->alpha != b->alpha },
        { "use_rslora",      a->use_rslora != b->use_rslora },
        { "dropout",         a->dropout != b->dropout && !loaded },
        { "target_modules",  !same_words(&a->target_modules, &b->target_modules) },
        { "exclude_modules", !same_words(&a->exclude_modules, &b->exclude_modules) },
        { "modules_to_save", !same_words(&a->modules_to_save, &b->modules_to_save) },
        { "init",            strcmp(a->init, b->init) != 0 },
        { "expert_a",        strcmp(a->expert_a, b->expert_a) != 0 },
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (keys[i].set) return keys[i].key;
    return NULL;
}

/* A lora key that the recipe sets without lora.rank, even to its default: the whole model would train. */
static const char *lora_without_rank(const Config *c)
{
    const char *key = config_is_set(c, "lora", "rank") ? NULL : config_is_set(c, "lora", NULL);
    return key && strcmp(key, "path") ? key : NULL;
}

Status recipe_check_lora(const Config *c)
{
    const struct cfg_lora *a = &c->lora;
    const char *key = lora_set(a, *a->path != 0);
    if (*a->path && key)
        return fail(E_CONFIG, "lora.%s: the adapter at lora.path = %s has its own; drop one of the two",
                    key, a->path);
    if (*a->path) return OK;
    if (!a->rank && !key) key = lora_without_rank(c);
    if (!a->rank && key)
        return fail(E_CONFIG, "lora.%s: lora.rank = 0 means no adapters; set lora.rank, or drop this key",
                    key);
    if (a->rank && a->alpha == 0)
        return fail(E_CONFIG,
                    "lora.alpha = 0: adapters scaled by 0 have no effect and no gradient; set it to the "
                    "rank or twice the rank");
    if (a->rank && !a->target_modules.n)
        return fail(E_CONFIG, "lora.target_modules is empty: no module gets an adapter; set all-linear, or "
                    "lora.rank=0");
    return OK;
}

static Status check_device(const Config *c)
{
    const char *b = c->device.backend;
    if (!strcmp(b, "meta"))
        return fail(E_CONFIG, "device.backend = meta: a dry run trains nothing; set cpu or auto");
    TRY_CTX(backend_check(backend_pick(b)), "device.backend");
    if (!comm_trains(c->comm.kind))
        return fail(E_CONFIG, "comm.kind = %s: for tests and plans only; set auto, mpi or nccl",
                    c->comm.kind);
    return OK;
}

/* Required keys and contradictions. */
static Status check_required(const Config *c)
{
    if (!*c->model.path && !*c->model.preset)
        return fail(E_CONFIG,
                    "model.path is not set: name a folder with a model in HF form, or a model.preset");
    if (!c->data.train.n) return fail(E_CONFIG, "data.train is not set: name a file or a glob to train on");
    if (!*c->checkpoint.output_dir)
        return fail(E_CONFIG, "checkpoint.output_dir is not set: name a folder for the run");
    if (c->model.freeze_vit && c->model.freeze_aligner && c->model.freeze_llm)
        return fail(E_CONFIG,
                    "model.freeze_vit, freeze_aligner and freeze_llm together leave nothing to train");
    if (c->eval.eval_on_start && !c->data.eval.n && c->eval.split <= 0)
        return fail(E_CONFIG, "eval.eval_on_start: no data is held out; set data.eval or eval.split");
    if (c->data.eval.n && c->eval.split > 0)
        return fail(E_CONFIG, "eval.split = %g: data.eval already names held-out data; set only one of them",
                    c->eval.split);
    if (c->train.max_steps == 0 && c->train.num_train_epochs <= 0)
        return fail(E_CONFIG, "train.max_steps and train.num_train_epochs are both 0: set one of them");
    return OK;
}

Status recipe_check(const Config *c)
{
    TRY(check_required(c));
    TRY(recipe_check_types(c));
    TRY(recipe_check_lora(c));
    return check_device(c);
}
