/* tests/gpu_precision.c -- a step of a model with the widths of Qwen3-30B-A3B on the GPU, its products in
 * fp8_block and in bf16, from the same weights and tokens: the loss, and every gradient by its cosine. Every
 * token goes to all experts: where a router chooses, a token whose experts change has other gradients in bf16
 * too.
 *
 * TREB_GPU_BACKEND=cpu runs the CPU in place of the GPU; there and on an emulated GPU the model has a
 * fraction of the widths. */
#include "small.h"
#include "statelab.h"

#include <math.h>

static const char wide_text[] =
    "{\"model_type\": \"qwen3_moe\", \"dtype\": \"bfloat16\", \"vocab_size\": 8192, \"hidden_size\": 2048,"
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": 128,"
    " \"intermediate_size\": 6144, \"moe_intermediate_size\": 768, \"num_experts\": 8,"
    " \"num_experts_per_tok\": 8, \"norm_topk_prob\": true, \"rope_theta\": 1000000}";
static const char narrow_text[] =
    "{\"model_type\": \"qwen3_moe\", \"dtype\": \"bfloat16\", \"vocab_size\": 512, \"hidden_size\": 256,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 64,"
    " \"intermediate_size\": 256, \"moe_intermediate_size\": 128, \"num_experts\": 4,"
    " \"num_experts_per_tok\": 4, \"norm_topk_prob\": true, \"rope_theta\": 10000}";

static const char *const fp8_words[] = { "experts", "experts_dw", "attention", "mlp", "head" };
static const double      LEAST = 0.95, LEAST_OF_ALL = 0.99;
static const char       *backend = "cuda";
static ModelShape        shape;
static int64_t           tokens = 4096;

static void open_step(Engine *e, Stream *s, bool fp8)
{
    EngineConf  conf = small_conf((Budget){ .tokens = tokens, .docs = 4, .supervised = tokens });
    StreamShape ss = shape_stream(&shape);
    conf.backend = backend, conf.dtype = BF16, conf.deterministic = true, conf.fp8_weight_cache = true;
    if (fp8) EXPECT_OK(precision_set(&conf.precision, PREC_FP8, fp8_words, 5));
    EXPECT_OK(stream_open(s, &ss, &conf.budget));
    EXPECT_OK(stream_synthetic(s, tokens / 4, 0, 2, 2, shape.text.V, 11));
    small_engine(e, &shape, &conf, s);
}

/* The gradients of all parameters, one after the other. */
static float *grads_of(Engine *e, double *loss)
{
    const ParamSet *p = &e->model.params;
    int64_t n = 0, at = 0;
    *loss = small_step(e, 1.0f / (float)tokens).total;
    for (int i = 0; i < p->n; i++) n += t_count(p->p[i]->shard.g);
    float *g = malloc((size_t)n * sizeof *g);
    for (int i = 0; i < p->n; at += t_count(p->p[i++]->shard.g))
        backend_fetch(&e->be, g + at, p->p[i]->shard.g);
    EXPECT_OK(backend_sync(&e->be));
    return g;
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * b[i];
    return sum;
}

/* Prints the cosine of each tensor, which is held to LEAST, and that of all of them, to LEAST_OF_ALL. */
static void compare(const ParamSet *p, const float *a, const float *b)
{
    double both = 0, own = 0, other = 0;
    int64_t at = 0;
    for (int i = 0; i < p->n; at += t_count(p->p[i++]->shard.g)) {
        int64_t n = t_count(p->p[i]->shard.g);
        double  ab = dot(a + at, b + at, n), aa = dot(a + at, a + at, n), bb = dot(b + at, b + at, n);
        printf("  cosine %.5f  %s\n", ab / sqrt(aa * bb), p->p[i]->piece[0].name);
        EXPECT(ab >= LEAST * sqrt(aa * bb), "%s: cosine %.5f", p->p[i]->piece[0].name, ab / sqrt(aa * bb));
        both += ab, own += aa, other += bb;
    }
    double all = both / sqrt(own * other);
    printf("  cosine %.5f of all gradients\n", all);
    EXPECT(all >= LEAST_OF_ALL, "cosine %.5f of all gradients", all);
}

static void grads_are_near(void)
{
    Engine e;
    Stream s;
    double loss[2];
    float *grad[2];
    for (int fp8 = 0; fp8 < 2; fp8++) {
        open_step(&e, &s, fp8);
        grad[fp8] = grads_of(&e, &loss[fp8]);
        if (fp8) compare(&e.model.params, grad[1], grad[0]);
        engine_close(&e);
        stream_close(&s);
    }
    printf("  loss %.6f in fp8_block, %.6f in bf16\n", loss[1], loss[0]);
    EXPECT(fabs(loss[1] / loss[0] - 1) < 0.005, "loss %.6f, in bf16 %.6f", loss[1], loss[0]);
    free(grad[0]), free(grad[1]);
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
    char what[256] = "";
    backend_describe(backend, what, sizeof what);
    bool small = !strcmp(backend, "cpu") || strstr(what, "emulated");
    if (small) tokens = 256;
    shape = small_shape(small ? narrow_text : wide_text);
    RUN(grads_are_near);
    return lab_report();
}
