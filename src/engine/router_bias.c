/* engine/router_bias.c -- see router_bias.h. Counts are integers: their sum does not depend on the order of
 * ranks. */
#include "engine/router_bias.h"

void router_bias_open(Engine *e)
{
    int64_t layers = shape_routers(&e->model.shape.text);
    if (!(e->conf.bias_rate > 0) || !e->conf.train || !layers) return;
    e->bias_counts = t2(&e->arena[A_OPTIM], "router", I32, layers, e->model.shape.text.E);
}

/* The choices of MoE layer i on all ranks. */
static Tensor counts_of(const Engine *e, int64_t i)
{
    Tensor row = t_rows(e->bias_counts, i, 1);
    return t_wrap(row.data, I32, 1, &row.n[1]);
}

/* The ranks of a stage have different tokens; other stages have other layers. The counts that the host reads
 * stay those of this rank. */
static void sum_counts(Engine *e)
{
    for (int64_t i = 0; i < e->bias_counts.n[0]; i++)
        op_copy(&e->be, counts_of(e, i), step_results_counts(&e->results.device, i, COUNT_ALL));
    comm_all_reduce(e->mesh.comm[GR_tp_dp_cp], e->bias_counts, RED_SUM);
}

static void step_layer(Engine *e, const Decoder *d, Tensor verdict)
{
    const Moe *m = d->ffn ? decoder_moe(d) : NULL;
    if (m && m->score_bias)
        op_bias_step(&e->be, m->score_bias->shard.w, counts_of(e, m->index), verdict, e->conf.bias_rate);
}

void router_bias_step(Engine *e, Tensor verdict)
{
    if (!t_has(e->bias_counts)) return;
    ledger_enter(&e->be.ledger, PART_OPTIM);
    sum_counts(e);
    for (int64_t l = 0; l < shape_layers(&e->model.shape.text); l++)
        step_layer(e, &e->model.layer[l], verdict);
}
