/* engine/recipe.c -- see recipe.h. */
#include "engine/recipe.h"

#include "parallel/rules.h"
#include "engine/batching.h"

#include <stdlib.h>
#include <string.h>

/* The layers of this stage, by chunk. */
static Status assign_chunks(Ranks *r, const RuleInput *x, int stage)
{
    PipeLayout l;
    PipeLayoutSpec  ask = rules_pipe_layout(x);
    TRY(pipe_layout_open(&l, &ask));
    r->layout.vpp = l.chunks;
    for (int v = 0; v < l.chunks && v < MAX_CHUNKS; v++) {
        const PipeLayoutChunk *p = pipe_layout_at(&l, stage, v);
        r->chunk[v] = (Chunk){ p->from, p->to, p->embedding, p->loss };
    }
    int chunks = l.chunks;
    pipe_layout_close(&l);
    return chunks <= MAX_CHUNKS
               ? OK
               : fail(E_CONFIG, "parallel.vpp = %d: at most %d are supported; lower it", chunks, MAX_CHUNKS);
}

Status recipe_shape(ModelShape *s, const Config *c)
{
    bool train = !strcmp(c->model.mtp, "train");
    bool partly = c->lora.rank > 0 || *c->lora.path || c->model.freeze_llm;
    if (train && !s->text.mtp)
        return fail(E_CONFIG, "model.mtp = train: the model has no layer that predicts further tokens; set "
                    "it to auto");
    if (train && partly)
        return fail(E_CONFIG, "model.mtp = train: the layer that predicts further tokens trains with the "
                    "whole decoder alone; set it to auto");
    if (partly || !strcmp(c->model.mtp, "drop")) s->text.mtp = 0;
    return OK;
}

Status recipe_ranks(Ranks *r, Mesh *place, const Config *c, const ModelShape *s, Comm *world,
                    const Log *log)
{
    int       size = world ? world->size : 1;
    RuleInput x = rules_input(c, s, size, world ? comm_ranks_on_node(world) : 1);
    TRY(rules_check(&x, log));
    *r = (Ranks){ .world = world, .layout = rules_layout(&x), .zero = (int)c->parallel.zero,
                  .context = context_kind(c->parallel.cp_comm), .group = (int)c->parallel.microbatch_group,
                  .tp_chunks = (int)c->parallel.tp_chunks, .overlap = c->moe.overlap,
                  .dispatch = { .name = c->moe.dispatcher, .rank_capacity = c->moe.rank_capacity,
                                .timeout = 10 * c->comm.timeout } };
    mesh_place(place, world ? world->rank : 0, size, &r->layout);
    TRY(assign_chunks(r, &x, place->at[AX_PP]));
    return batching_micro(&r->micro, &c->train, place->size[AX_DP]);
}

Status recipe_print_ranks(FILE *out, const Config *c, const ModelShape *s, const Comm *world, const Mesh *m)
{
    RuleInput x = rules_input(c, s, world ? world->size : 1, world ? comm_ranks_on_node(world) : 1);
    return rules_print(out, &x, m);
}

static Status set_policy(uint8_t policy[LABEL_N], FullRecompute *full, const struct cfg_memory *m)
{
    for (int i = 0; i < m->recompute.n; i++) {
        const char *word = m->recompute.item[i];
        if (strcmp(word, "full")) TRY(policy_drop(policy, word));
        else TRY(recompute_full(policy, full, m->recompute_method, m->recompute_layers));
    }
    for (int i = 0; i < m->activation_offload.n; i++)
        TRY(policy_offload(policy, m->activation_offload.item[i]));
    return OK;
}

bool recipe_has_eval(const Config *c) { return c->data.eval.n > 0 || c->eval.split > 0; }

bool recipe_can_decode(const Ranks *r) { return r->layout.cp <= 1; }

bool recipe_by_source(const SourceList *s) { return s->n > 1 || (s->n && *s->item[0].channel); }

static Status store_of(OptimStore *o, const Config *c, DType dtype)
{
    *o = (OptimStore){ .split            = !strcmp(c->optim.master, "split"),
                       .offload_fraction = c->memory.optimizer_offload };
    if (o->split && dtype == F32)
        return fail(E_CONFIG, "optim.master = split: float32 weights need no separate master bits; set "
                    "model.dtype=bfloat16, or optim.master=float32");
    TRY(dtype_parse(&o->grads, c->optim.grad_dtype));
    if (o->grads != F32 && dtype == F32)
        return fail(E_CONFIG, "optim.grad_dtype = %s: gradients of float32 weights are float32; set "
                    "model.dtype=bfloat16, or optim.grad_dtype=float32", c->optim.grad_dtype);
    bool coded = !strcmp(c->optim.state_dtype, "int8");
    return coded ? (o->moments = U8, OK) : dtype_parse(&o->moments, c->optim.state_dtype);
}

Status recipe_lora(LoraConf *a, const struct cfg_lora *c, const LoraConf *loaded)
{
    if (*c->path && !loaded)
        return fail(E_CONFIG, "lora.path = %s: no adapter was loaded from there", c->path);
    if (loaded) {
        *a = *loaded;
        a->dropout = c->dropout;
        return OK;
    }
    *a = (LoraConf){ .rank = c->rank, .alpha = c->alpha, .dropout = c->dropout, .rslora = c->use_rslora,
                        .gaussian = !strcmp(c->init, "gaussian"), .shared_a = !strcmp(c->expert_a, "shared"),
                        .target = &c->target_modules, .exclude = &c->exclude_modules,
                        .save = &c->modules_to_save };
    return OK;
}

/* Refuses a recipe in which all loaded adapters are in frozen groups, and learning rates of groups that do
 * not train. */
static Status check_trainable(const EngineConf *e, const struct cfg_optim *o, const ModelShape *s)
{
    const struct { const char *key; double rate; Group group; } own[] = {
        { "vit_lr", o->vit_lr, G_VIT }, { "aligner_lr", o->aligner_lr, G_ALIGNER },
    };
    Model  m;
    Status st = OK;
    TRY(model_open_whole(&m, s, e->frozen, &e->lora));
    if (m.frozen[G_VIT] && m.frozen[G_ALIGNER] && m.frozen[G_LLM])
        st = fail(E_CONFIG, "model.freeze_* freezes every part that the adapter is on: nothing is left to "
                  "train; set one of them to false");
    for (int i = 0; i < 2 && !st; i++)
        if (own[i].rate > 0 && m.frozen[own[i].group])
            st = fail(E_CONFIG,
                      "optim.%s = %g: no parameter of that group trains; set it to 0, or unfreeze the group",
                      own[i].key, own[i].rate);
    model_close(&m);
    return st;
}

/* comm.reserved_sms, or what suits the run. A plan's world is fake: on GPUs it stands for NCCL. */
static int reserved_sms(const Config *c, const EngineConf *e)
{
    const Comm *world = e->ranks.world;
    if (c->comm.reserved_sms >= 0) return (int)c->comm.reserved_sms;
    if (strcmp(e->backend, "cuda") || !world || world->size == 1 || !c->moe.overlap) return 0;
    bool nccl = !strcmp(comm_name(world), "nccl") || !strcmp(comm_name(world), "fake");
    return nccl ? COMM_RESERVED_SMS : 0;
}

/* The words are checked with bf16 too: a recipe with a wrong one is wrong before its precision changes. */
static Status recipe_precision(ProductPrecision *out, const struct cfg_train *t)
{
    ProductPrecision p;
    Precision format = precision_find(t->precision);
    bool      narrow = format != PREC_BF16;
    if (narrow || t->fp8_products.n)
        TRY(precision_set(&p, format, t->fp8_products.item, t->fp8_products.n));
    if (narrow) *out = p;
    return OK;
}

static Status check_bias_rate(const EngineConf *e, const Config *c, const ModelShape *s)
{
    double rate = c->moe.bias_update_rate;
    if (!(rate > 0)) return OK;
    if (!s->text.score_bias)
        return fail(E_CONFIG, "moe.bias_update_rate = %g: the routers of this model have no bias that "
                    "selects experts; set it to 0", rate);
    if (e->lora.rank > 0 || e->frozen[G_LLM])
        return fail(E_CONFIG, "moe.bias_update_rate = %g: the biases of routers belong to the weights, "
                    "which this run does not train; set it to 0", rate);
    return OK;
}

/* A sigmoid router's loss of documents counts each by its tokens, as DeepSeek's does. */
static AuxForm aux_form(const char *word, const TextShape *t)
{
    if (!strcmp(word, "none")) return AUX_NONE;
    if (strcmp(word, "sequence")) return AUX_LAYER;
    return t->router == ROUTER_SIGMOID ? AUX_DOCUMENT_TOKENS : AUX_DOCUMENT;
}

Status recipe_base(BaseQuant *b, const Config *c)
{
    const struct cfg_model *m = &c->model;
    TRY(base_quant_read(b, m->base_quant, m->base_quant_weights.item, m->base_quant_weights.n));
    Precision p = precision_find(c->train.precision);
    if (b->format == CODE_NONE || p == PREC_BF16 || (b->format == CODE_FP8 && p == PREC_FP8)) return OK;
    return fail(E_CONFIG, "model.base_quant = %s with train.precision = %s: such weights are read by "
                "products in model.dtype; set train.precision=bf16, or model.base_quant=fp8 with "
                "train.precision=fp8_block", m->base_quant, c->train.precision);
}

/* Sets how a run that trains keeps its frozen weights. */
static Status recipe_frozen_base(EngineConf *e, const Config *c)
{
    TRY(recipe_base(&e->base, c));
    if (!e->base.format || e->lora.rank > 0) return OK;
    return fail(E_CONFIG, "model.base_quant = %s: only frozen weights under adapters can be quantised, and "
                "without adapters the whole model trains; set lora.rank, or model.base_quant=none",
                c->model.base_quant);
}

/* Which parts of the model train, and which activations are kept. */
static Status set_frozen_and_policy(EngineConf *e, const Config *c, const ModelShape *s)
{
    e->frozen[G_VIT] = c->model.freeze_vit, e->frozen[G_ALIGNER] = c->model.freeze_aligner;
    e->frozen[G_LLM] = c->model.freeze_llm;
    policy_default(e->policy);
    TRY(set_policy(e->policy, &e->full, &c->memory));
    e->resident = 1 - c->memory.activation_offload_fraction;
    if (!s->vision.depth && c->model.freeze_llm)
        return fail(E_CONFIG,
                    "model.freeze_llm: the model has no vision tower, so nothing is left to train; set "
                    "it to false");
    return OK;
}

/* Which products run in 8 bits, and in which forms their weights are kept. */
static Status set_fp8(EngineConf *e, const Config *c)
{
    e->fp8_weight_cache = c->memory.fp8_weight_cache;
    e->fp8_one_layout = !c->memory.fp8_transpose_cache;
    e->fp8_keep_wide = c->memory.fp8_bf16_weights;
    TRY(recipe_precision(&e->precision, &c->train));
    e->fp8_dispatch = c->moe.fp8_dispatch;
    if (e->fp8_dispatch && !(precision_is_fp8(&e->precision) && e->precision.coded[SITE_EXPERTS][PRODUCT_Y]))
        return fail(E_CONFIG, "moe.fp8_dispatch: the experts do not compute in these 8 bits; set "
                    "train.precision=fp8_block with experts among train.fp8_products, or drop it");
    return OK;
}

Status recipe_engine(EngineConf *e, const Config *c, const ModelShape *s, DType dtype, const Ranks *ranks,
                     const LoraConf *loaded)
{
    const char *aux = c->moe.aux_loss_type;
    *e = (EngineConf){ .backend       = backend_pick(c->device.backend),
                       .kernels       = c->device.kernels,
                       .dtype         = dtype,
                       .budget        = batching_budget(c, s),
                       .train         = true,
                       .deterministic = c->train.deterministic,
                       .capacity      = c->moe.capacity_factor,
                       .pad           = c->moe.pad_to_capacity,
                       .balance       = c->moe.force_balance,
                       .aux_coeff     = (float)c->moe.aux_loss_coeff,
                       .z_coeff       = (float)c->moe.z_loss_coeff,
                       .mtp_weight    = (float)c->model.mtp_loss_weight,
                       .bias_rate     = s->text.score_bias ? (float)c->moe.bias_update_rate : 0,
                       .ranks         = *ranks,
                       .evaluate      = recipe_has_eval(c),
                       .per_row_loss  = recipe_by_source(&c->data.train) || recipe_by_source(&c->data.eval) };
    TRY(graph_scopes_read(&e->graphs, c->train.cuda_graph.item, c->train.cuda_graph.n));
    TRY(store_of(&e->store, c, dtype));
    e->reserved_sms = reserved_sms(c, e);
    e->aux = aux_form(aux, &s->text);
    e->aux_over_step = !strcmp(aux, "global");
    if (e->aux == AUX_NONE) e->aux_coeff = 0;
    TRY(set_frozen_and_policy(e, c, s));
    TRY(recipe_lora(&e->lora, &c->lora, loaded));
    TRY(recipe_frozen_base(e, c));
    TRY(set_fp8(e, c));
    TRY(check_bias_rate(e, c, s));
    return check_trainable(e, &c->optim, s);
}
