/* train/refuse.c -- see refuse.h. */
#include "train/refuse.h"

#include "ops/backend.h"

#include <stdlib.h>
#include <string.h>

Status recipe_refuse_types(const Config *c)
{
    bool mixed = strcmp(c->device.dtype, "auto") && strcmp(c->device.dtype, c->model.dtype);
    if (strcmp(c->optim.grad_dtype, "float32"))
        return fail(E_CONFIG, "optim.grad_dtype = %s: gradients are summed in float32", c->optim.grad_dtype);
    if (mixed)
        return fail(E_CONFIG,
                    "device.dtype = %s with model.dtype = %s: weights and activations share one type here; "
                    "set model.dtype and leave device.dtype at auto",
                    c->device.dtype, c->model.dtype);
    return OK;
}

static Status refuse_device(const Config *c)
{
    const char *b = c->device.backend;
    if (!strcmp(b, "meta"))
        return fail(E_CONFIG, "device.backend = meta: a dry run trains nothing; set cpu or auto");
    TRY_CTX(backend_check(backend_pick(b)), "device.backend");
    if (!strcmp(c->comm.kind, "threads") || !strcmp(c->comm.kind, "fake"))
        return fail(E_CONFIG, "comm.kind = %s: is for tests and plans; set auto, mpi or nccl", c->comm.kind);
    if (c->lora.rank > 0)
        return fail(E_CONFIG, "lora.rank = %lld: there are no adapters yet; set it to 0 and freeze parts "
                    "with model.freeze_vit, freeze_aligner or freeze_llm", (long long)c->lora.rank);
    return OK;
}

/* What must be there, and what contradicts itself. */
static Status refuse_gaps(const Config *c)
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
        return fail(E_CONFIG, "eval.split = %g: data.eval names held-out data already; set one of them",
                    c->eval.split);
    if (c->train.max_steps == 0 && c->train.num_train_epochs <= 0)
        return fail(E_CONFIG, "train.max_steps and train.num_train_epochs are both 0: set one of them");
    return OK;
}

Status recipe_refuse(const Config *c)
{
    TRY(refuse_gaps(c));
    TRY(recipe_refuse_types(c));
    return refuse_device(c);
}
