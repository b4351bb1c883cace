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

static void graphs_give_the_same_bits(void)
{
    for (int i = 0; i < GRAPH_CASES; i++) {
        GraphRig r;
        graph_rig_open(&r, &graph_cases[i], shape_text);
        EngineConf  c = graph_conf(&r, "cuda");
        GraphResult want = graph_train(&r, &c, NULL);
        c.graphs = true;
        GraphResult got = graph_train(&r, &c, NULL);
        graph_compare(r.of, &want, &got);
        printf("  %s: %d graphs, %d launched, %d phases eagerly\n", r.of->name, (int)got.counts.captured,
               (int)got.counts.launched, (int)got.counts.eager);
        graph_rig_close(&r);
    }
}

static void take_two(Engine *e) { e->graphs.most = 2; }      /* clearing, a forward */

static void a_forward_alone_is_a_graph(void)
{
    for (int i = 2; i < GRAPH_CASES; i++) {
        GraphRig r;
        graph_rig_open(&r, &graph_cases[i], shape_text);
        EngineConf  c = graph_conf(&r, "cuda");
        GraphResult want = graph_train(&r, &c, NULL);
        c.graphs = true;
        GraphResult got = graph_train(&r, &c, take_two);
        EXPECT(got.counts.captured == 2, "%d captured", (int)got.counts.captured);
        got.counts = (GraphCounts){ .launched = 9, .captured = 1 };
        graph_compare(r.of, &want, &got);
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
    RUN(a_forward_alone_is_a_graph);
    return lab_report();
}
