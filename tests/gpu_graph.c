/* tests/gpu_graph.c -- steps as CUDA graphs against the same steps run eagerly: the same losses, norms,
 * weights and moments to the bit.
 *
 * TREB_GPU_BACKEND=cpu skips: the CPU has no graphs (test_graph_cache.c records them there). */
#include "graphsteps.h"

/* Vision heads are 72 wide, those of the text 64. */
static const char shape_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91,"
    " \"dtype\": \"bfloat16\","
    " \"text_config\": {\"vocab_size\": 128, \"hidden_size\": 128, \"num_hidden_layers\": 3,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"intermediate_size\": 256,"
    "  \"moe_intermediate_size\": 64, \"num_experts\": 4, \"num_experts_per_tok\": 2,"
    "  \"mlp_only_layers\": [1], \"rope_theta\": 10000.0, \"initializer_range\": 0.05,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [12, 10, 10]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 144, \"intermediate_size\": 256, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 128,"
    "  \"deepstack_visual_indexes\": [0]}}";

typedef struct Way { const char *name; unsigned graphs; int most; } Way;

static const Way ways[] = {
    { "full", GRAPH_FULL, GRAPHS_MOST },
    { "a forward alone", GRAPH_FULL, 2 },                    /* clearing, a forward */
    { "attn, moe_router, moe_preprocess",
      GRAPH_BIT(ATTN) | GRAPH_BIT(MOE_ROUTER) | GRAPH_BIT(MOE_PREPROCESS), 0 },
    { "all scopes", GRAPH_ALL_SCOPES, 0 },
};
enum { WAYS = sizeof ways / sizeof *ways };

static void clear(Engine *e, const Arena *a)
{
    int64_t words = (int64_t)(a->cap / sizeof(float));
    op_fill(&e->be, t_wrap(a->base, F32, 1, &words), 0.0f);
}

/* The engine as it was opened: starting one takes longer than all its steps. */
static void restart(Engine *e, unsigned graphs)
{
    EXPECT_OK(engine_use_graphs(e, graphs));
    clear(e, &e->arena[A_GRAD]), clear(e, &e->arena[A_OPTIM]);
    EXPECT_OK(model_init(&e->model, &e->be, 3));
    engine_publish_weights(e);
}

static void compare(GraphRig *r, const GraphResult *want, const Way *w)
{
    restart(&r->e, w->graphs);
    if (w->most) r->e.graphs.most = w->most;
    GraphResult got = graph_run(r);
    GraphCounts n = got.counts;
    printf("  %s, %s: %d graphs, %d launched, %d eagerly\n", r->of->name, w->name, (int)n.captured,
           (int)n.launched, (int)n.eager);
    if (w->most == 2) got.counts = (GraphCounts){ .launched = 9, .captured = n.captured == 2 };
    graph_compare(r->of, want, &got);
}

static void graphs_give_the_same_bits(void)
{
    for (int i = 0; i < GRAPH_CASES; i++) {
        GraphRig r;
        graph_rig_open(&r, &graph_cases[i], shape_text);
        EngineConf c = graph_conf(&r, "cuda");
        c.graphs = GRAPH_FULL;
        small_engine(&r.e, &r.shape, &c, &r.s[0]);
        EXPECT_OK(engine_use_graphs(&r.e, 0));
        GraphResult want = graph_run(&r);
        for (int w = 0; w < WAYS; w++) compare(&r, &want, &ways[w]);
        engine_close(&r.e);
        graph_rig_close(&r);
    }
}

int main(void)
{
    const char *name = getenv("TREB_GPU_BACKEND");
    if ((name && *name && strcmp(name, "cuda")) || backend_check("cuda")) {
        printf("  skip all: %s\n", name && *name ? name : status_text());
        lab_.skipped++;
        return lab_report();
    }
    RUN(graphs_give_the_same_bits);
    return lab_report();
}
