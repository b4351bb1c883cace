/* tests/gpu_offload.c -- training on the GPU with the optimizer's state in host memory: the same losses and
 * the same bits as with all of it on the device, in the bytes that were planned.
 *
 * TREB_GPU_BACKEND=cpu runs the CPU in place of the GPU. */
#include "small.h"
#include "statelab.h"

static const char shape_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91,"
    " \"dtype\": \"bfloat16\","
    " \"text_config\": {\"vocab_size\": 128, \"hidden_size\": 128, \"num_hidden_layers\": 2,"
    "  \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64, \"intermediate_size\": 256,"
    "  \"moe_intermediate_size\": 64, \"num_experts\": 4, \"num_experts_per_tok\": 2,"
    "  \"rope_theta\": 10000.0, \"initializer_range\": 0.05,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [12, 10, 10]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 128, \"intermediate_size\": 256, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 128,"
    "  \"deepstack_visual_indexes\": [0]}}";

static const Budget roomy = { .tokens = 256, .patches = 128, .docs = 8, .supervised = 256 };
static const char  *backend = "cuda";
static ModelShape   shape;

enum { STEPS = 4 };
typedef struct Result { double loss[STEPS], norm[STEPS]; uint64_t state; size_t host; } Result;

static void train(Engine *e, Result *t)
{
    OptimConf o = { .adam = { 1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1 } };
    for (int i = 0; i < STEPS; i++, o.adam.step++) {
        t->loss[i] = small_step(e, 0.02f).total;
        engine_update(e, &o);
        EXPECT_OK(engine_read_grad_norm(e, &t->norm[i]));
    }
    EXPECT_OK(backend_sync(&e->be));
}

static Result train_with(DType dtype, OptimStore store)
{
    Result       t = { 0 };
    Engine     e;
    Stream     s;
    EngineConf conf = small_conf(roomy);
    conf.backend = backend, conf.dtype = dtype, conf.store = store, conf.deterministic = true;
    small_stream(&s, &shape, roomy, 0, 3, 7);
    small_engine(&e, &shape, &conf, &s);
    train(&e, &t);
    t.state = state_hash(&e.be, &e.model.params);
    t.host = e.plan.bytes[A_HOST];
    for (int i = 0; i < ARENA_N; i++)
        EXPECT(e.arena[i].peak == e.plan.bytes[i], "%s: %zu of %zu", e.arena[i].name, e.arena[i].peak,
               e.plan.bytes[i]);
    engine_close(&e);
    stream_close(&s);
    return t;
}

static Result compare(DType dtype, DType moments, DType grads)
{
    OptimStore way[] = { { moments, false, 0, 0, grads },   { moments, false, 1, 4096, grads },
                         { moments, false, 0.5, 0, grads }, { moments, true, 0, 0, grads },
                         { moments, true, 1, 20000, grads } };
    Result want = train_with(dtype, way[0]);
    for (int i = 1; i < (dtype == F32 ? 3 : 5); i++) {
        Result t = train_with(dtype, way[i]);
        EXPECT(!memcmp(t.loss, want.loss, sizeof t.loss) && !memcmp(t.norm, want.norm, sizeof t.norm) &&
                   t.state == want.state,
               "%s weights, %s moments, way %d: loss %.9g, not %.9g", dtype_name(dtype), dtype_name(moments),
               i, t.loss[STEPS - 1], want.loss[STEPS - 1]);
        EXPECT((t.host > 0) == (way[i].offload_fraction > 0), "%zu on the host", t.host);
    }
    return want;
}

static void the_same_bits(void)
{
    Result wide = compare(BF16, F32, F32), rounded = compare(BF16, F32, BF16);
    compare(BF16, BF16, F32);
    compare(BF16, U8, BF16);
    compare(F32, F32, F32);
    EXPECT(rounded.state != wide.state && fabs(rounded.loss[STEPS - 1] / wide.loss[STEPS - 1] - 1) < 0.01,
           "gradients in bf16: loss %.9g, in f32 %.9g", rounded.loss[STEPS - 1], wide.loss[STEPS - 1]);
}

int main(void)
{
    const char *name = getenv("TREB_GPU_BACKEND");
    if (name && *name) backend = name;
    if (backend_check(backend)) {
        printf("  skip all: %s\n", status_text());
        lab_.skipped++;
        return lab_report();
    }
    shape = small_shape(shape_text);
    RUN(the_same_bits);
    return lab_report();
}
