/* Offloaded activations: backward reads the values that forward computed, so offload changes no bit of a
 * loss or a gradient, alone, with recompute and on layouts. Device memory shrinks, device and host use the
 * planned bytes, and only the necessary copies are made. */
#include "modelab.h"

static const Mode modes[] = {
    { .offload = "attn_norm" }, { .offload = "qkv_linear" }, { .offload = "core_attn" }, { .offload = "qkv" },
    { .offload = "attn_proj" }, { .offload = "mlp_norm" }, { .offload = "norm" }, { .offload = "layernorm" },
    { .offload = "expert_fc1" }, { .offload = "moe_dispatch" }, { .offload = "moe_act" },
    { .offload = "moe" },
    { .offload = "mlp" }, { .offload = "vision" }, { .offload = "layer" }, { .offload = "layer,vision" },
    { .offload = "core_attn,attn_proj,expert_fc1,moe_act" },
    { .offload = "layer", .resident = 0.5 }, { .offload = "attn_norm,moe", .resident = 0.25 },
    { .offload = "layer", .resident = 1 },
    { .recompute = "norm", .offload = "core_attn,attn_norm" },
    { .recompute = "moe_act,norm", .offload = "expert_fc1,mlp_norm" },
    { .recompute = "moe,mlp", .offload = "attn_norm,qkv" }, { .recompute = "full", .offload = "attn_norm" },
    { .recompute = "full:2", .offload = "attn_norm" },
    { .recompute = "full:3", .offload = "attn_norm", .resident = 0.5 },
    { .recompute = "vision", .offload = "layer" },
    { .recompute = "full:block:3", .offload = "layer,vision" },
    { .recompute = "full:block:2,norm", .offload = "attn_norm,moe", .resident = 0.3 },
};
enum { MODES = sizeof modes / sizeof *modes };

static void no_word_changes_a_bit(void)
{
    static const unsigned pictures[] = { 0, 7 };
    for (int d = 0; d < 2; d++)
        for (int p = 0; p < 2; p++) {
            DType dtype = d ? BF16 : F32;
            Left  want = mode_alone((Mode){ 0 }, dtype, pictures[p], NULL);
            for (int i = 0; i < MODES; i++) {
                Left got = mode_alone(modes[i], dtype, pictures[p], NULL);
                bool idle = (!pictures[p] && !strcmp(modes[i].offload, "vision")) || modes[i].resident == 1;
                expect_same(&got, &want, mode_text(modes[i]));
                EXPECT(idle ? !got.host && !got.moved.out : got.host && got.moved.out,
                       "%s: %zu bytes on the host",
                       mode_text(modes[i]), got.host);
                EXPECT(got.moved.in <= got.moved.out && got.moved.out <= (int64_t)got.host,
                       "%s: %lld bytes out, %lld in, planned %zu", mode_text(modes[i]),
                       (long long)got.moved.out, (long long)got.moved.in, got.host);
                left_close(&got);
            }
            left_close(&want);
        }
}

/* Eight layers of which three are in staging buffers at any time: values of the others are on the host. */
static void the_device_holds_a_few_layers(void)
{
    Left all = mode_alone((Mode){ 0 }, F32, 0, NULL), offloaded = mode_alone((Mode){ .offload = "layer" },
                                                                             F32, 0, NULL);
    Left half = mode_alone((Mode){ .offload = "layer", .resident = 0.5 }, F32, 0, NULL);
    EXPECT(offloaded.act < 0.75 * (double)all.act, "act %zu of %zu", offloaded.act, all.act);
    EXPECT(half.act > offloaded.act && half.host < offloaded.host, "half: act %zu, host %zu; all: %zu, %zu",
           half.act,
           half.host, offloaded.act, offloaded.host);
    EXPECT(offloaded.scratch == all.scratch, "scratch %zu, without %zu", offloaded.scratch, all.scratch);
    EXPECT(all.host == 0 && !all.moved.in && !all.moved.out, "without it %zu bytes are on the host",
           all.host);
    left_close(&all), left_close(&offloaded), left_close(&half);
}

/* Backward follows forward at once: the last layer is not copied, and others in staging buffers are not
 * copied back. */
static void what_is_here_stays(void)
{
    ModelShape shape = small_shape(deep_text);
    Budget     b = mode_budget(&shape, 0);
    int64_t    row = b.tokens * shape.text.D * 4;
    Left       got = mode_alone((Mode){ .offload = "mlp_norm" }, F32, 0, NULL);
    EXPECT(got.moved.out == 7 * row && got.moved.in == 5 * row, "%lld bytes out and %lld in, of rows of %lld",
           (long long)got.moved.out, (long long)got.moved.in, (long long)row);
    left_close(&got);
}

/* Even with late copies no value is read before it has arrived or overwritten before it has left, over
 * several micro-batches. */
static void late_copies_are_waited_for(void)
{
    static const Mode some[] = {
        { .offload = "layer,vision" }, { .offload = "core_attn,attn_proj" },
        { .recompute = "full:2", .offload = "attn_norm" },
        { .offload = "mlp_norm", .resident = 0.4 }, { .recompute = "norm", .offload = "moe" },
    };
    ModelShape shape = small_shape(deep_text);
    EngineConf plain = small_conf(mode_budget(&shape, 7));
    Stream s;
    Engine want, e;
    small_stream(&s, &shape, plain.budget, 0, 3, 7);
    small_engine(&want, &shape, &plain, &s);
    double loss = small_step(&want, 0.1f).total;
    for (int i = 0; i < 5; i++) {
        EngineConf conf = plain;
        EXPECT_OK(mode_apply(&conf, some[i]));
        small_engine(&e, &shape, &conf, &s);
        lazy_make(&e.be);
        for (int k = 0; k < 3; k++) {
            EXPECT(small_step(&e, 0.1f).total == loss, "%s: another loss", mode_text(some[i]));
            EXPECT(!memcmp(e.arena[A_GRAD].base, want.arena[A_GRAD].base, want.arena[A_GRAD].used),
                   "%s: gradients differ in step %d", mode_text(some[i]), k);
        }
        EXPECT(lazy_.late > 0, "%s: nothing was late", mode_text(some[i]));
        engine_close(&e);
    }
    engine_close(&want);
    stream_close(&s);
}

static void frozen_parts_offload_nothing(void)
{
    static const bool frozen[][GROUP_N] = {
        { [G_VIT] = true }, { [G_LLM] = true }, { [G_VIT] = true, [G_ALIGNER] = true },
    };
    static const Mode some[] = { { .offload = "vision" }, { .offload = "layer,vision" },
                                 { .recompute = "full:2", .offload = "attn_norm" } };
    for (int f = 0; f < 3; f++) {
        Left want = mode_alone((Mode){ 0 }, F32, 7, frozen[f]);
        for (int i = 0; i < 3; i++) {
            Left got = mode_alone(some[i], F32, 7, frozen[f]);
            expect_same(&got, &want, mode_text(some[i]));
            EXPECT(i || !frozen[f][G_VIT] || !got.host, "a frozen tower offloads %zu bytes", got.host);
            left_close(&got);
        }
        left_close(&want);
    }
}

static void layouts_agree(void)
{
    static const Mode some[] = {
        { .offload = "layer,vision" }, { .recompute = "norm,moe_act", .offload = "core_attn,expert_fc1" },
        { .recompute = "full:2", .offload = "attn_norm" },
        { .offload = "attn_norm,moe", .resident = 0.5 },
        { .recompute = "moe", .offload = "attn_proj,mlp_norm" },
        { .recompute = "full:block:1", .offload = "layer" },
    };
    static const ModeLayout layout[] = {
        { " world=2 tp=2", true, false },
        { " world=2 cp=2 ep=2", false, true },
        { " world=2 pp=2", true, false },
        { " world=2 pp=2 vpp=2", true, true },
        { " world=2 ep=2 zero=3", true, false },
        { " world=4 tp=2 ep=4 zero=2", false, false },
        { " world=4 ep=4 capacity=1", false, false },
        { " world=4 pp=2 ep=2 vpp=2", false, false },
        { " world=4 pp=4 zero=3", true, false },
    };
    mode_layouts(layout, sizeof layout / sizeof *layout, some);
}

/* Layers that run in chunks recompute their rows, in buffers that were offloaded. */
static void chunked_layers_agree(void)
{
    static const Mode some[] = {
        { .offload = "layer" }, { .recompute = "moe_act", .offload = "expert_fc1,moe_act", .late = true },
        { .offload = "moe", .late = true },
    };
    uint64_t seed = first_seed();
    mode_layout(" world=2 ep=2 capacity=1", true, F32, seed, some, 3);
    EXPECT(mode_chunked[0] > 0, "seed %llu: no layer was cut", (unsigned long long)seed);
    mode_layout(" world=4 pp=2 ep=2 vpp=2 capacity=1 overlap", false, F32, seed, some, 3);
}

/* A forward that overlaps with a backward; each has separate staging buffers. */
static void overlapped_runs_agree(void)
{
    static const Mode some[] = { { .offload = "layer,vision" },
                                 { .recompute = "norm,mlp", .offload = "attn_norm,core_attn,expert_fc1" } };
    uint64_t seed = first_seed();
    mode_layout(" world=2 ep=2 zero=1 overlap", true, F32, seed, some, 2);
    mode_layout(" world=4 ep=4 zero=1 overlap capacity=1", false, F32, seed, some, 2);
    mode_layout(" world=4 pp=2 vpp=2 ep=2 overlap", false, F32, seed, some, 2);
}

/* Where the backward of a chunk comes later than its forward all offloaded values are copied, with delayed
 * copies. */
static void late_copies_of_pipelines(void)
{
    static const Mode some[] = {
        { .offload = "layer,vision", .late = true },
        { .recompute = "full:2", .offload = "attn_norm", .late = true },
        { .recompute = "norm", .offload = "core_attn,moe", .resident = 0.3, .late = true },
    };
    static const Mode overlapped[] = {
        { .offload = "layer", .late = true },
        { .recompute = "norm", .offload = "attn_proj,attn_norm", .late = true },
    };
    uint64_t seed = first_seed();
    mode_layout(" world=2 pp=2", true, F32, seed, some, 3);
    mode_layout(" world=2 pp=2 vpp=2", false, F32, seed, some, 3);
    mode_layout(" world=2 ep=2 zero=1 overlap", true, F32, seed, overlapped, 2);
}

static void words_are_read(void)
{
    uint8_t policy[LABEL_N];
    policy_default(policy);
    EXPECT(offload_buffers_needed(policy) == 0, "nothing is offloaded");
    EXPECT_OK(offload_words(policy, "moe_act,attn_proj"));
    EXPECT(policy[L_GATE_UP] == OFFLOAD && policy[L_CORE] == OFFLOAD && policy[L_ACT] == KEEP,
           "inputs of modules");
    EXPECT(offload_buffers_needed(policy) == 3, "three staging buffers");
    EXPECT_OK(offload_words(policy, "attn_norm"));
    EXPECT(policy[L_INPUT] == OFFLOAD && policy[L_ROUTE] == PIN && offload_buffers_needed(policy) == 4,
           "and one for inputs");
    EXPECT_FAIL(offload_words(policy, "mlp_act"), E_CONFIG, "expert_fc1");
    EXPECT_OK(policy_drop(policy, "norm"));
    EXPECT_FAIL(offload_words(policy, "qkv_linear"), E_CONFIG, "drops");
}

int main(void)
{
    RUN(no_word_changes_a_bit);
    RUN(the_device_holds_a_few_layers);
    RUN(what_is_here_stays);
    RUN(late_copies_are_waited_for);
    RUN(frozen_parts_offload_nothing);
    RUN(layouts_agree);
    RUN(chunked_layers_agree);
    RUN(overlapped_runs_agree);
    RUN(late_copies_of_pipelines);
    RUN(words_are_read);
    return lab_report();
}
