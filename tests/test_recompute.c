/* Recompute: no word of memory.recompute changes a loss or a gradient by one bit, whatever is dropped, on one
 * rank and on layouts; it saves what it should, and what was planned is what is used. */
#include "modelab.h"

static const char *const words[] = {
    "core_attn", "layernorm", "norm", "qkv", "moe_act", "moe_dispatch", "moe",
    "mlp", "vision_act", "vision", "full", "full:2", "full:uniform:3", "full:8",
    "full:100", "full:block:0", "full:block:1", "full:block:2", "full:block:100",
    "norm,moe_act", "core_attn,qkv,norm", "moe,mlp,vision", "full:block:2,norm,vision",
    "full:block:3,moe,mlp,qkv", "full:2,norm",
};
enum { WORDS = sizeof words / sizeof *words };

static void no_word_changes_a_bit(void)
{
    static const unsigned pictures[] = { 0, 7 };
    for (int d = 0; d < 2; d++)
        for (int p = 0; p < 2; p++) {
            DType dtype = d ? BF16 : F32;
            Left  want = mode_alone((Mode){ 0 }, dtype, pictures[p], NULL);
            for (int i = 0; i < WORDS; i++) {
                const char *word = words[i];
                Left got = mode_alone((Mode){ .recompute = word }, dtype, pictures[p], NULL);
                bool idle = !strcmp(word, "full:block:0") || (!pictures[p] && !strncmp(word, "vision", 6));
                expect_same(&got, &want, word);
                EXPECT(idle ? got.act == want.act : got.act < want.act, "%s: act %zu, without %zu", word,
                       got.act,
                       want.act);
                left_close(&got);
            }
            left_close(&want);
        }
}

/* Frozen parts keep no activations, with recompute or without. */
static void frozen_parts_stay_out(void)
{
    static const bool frozen[][GROUP_N] = {
        { [G_VIT] = true }, { [G_LLM] = true }, { [G_VIT] = true, [G_ALIGNER] = true },
        { [G_VIT] = true, [G_LLM] = true },
    };
    static const char *const some[] = { "moe", "vision", "full:3", "full:block:2,norm" };
    for (int f = 0; f < 4; f++) {
        Left want = mode_alone((Mode){ 0 }, F32, 7, frozen[f]);
        for (int i = 0; i < 4; i++) {
            Left got = mode_alone((Mode){ .recompute = some[i] }, F32, 7, frozen[f]);
            expect_same(&got, &want, some[i]);
            left_close(&got);
        }
        left_close(&want);
    }
}

/* Inputs that are kept, by n: of 8 layers of a model without pictures. */
static void groups_keep_one_input(void)
{
    ModelShape shape = small_shape(deep_text);
    Budget b = mode_budget(&shape, 0);
    size_t row = ((size_t)b.tokens * (size_t)shape.text.D * 4 + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    Left one = mode_alone((Mode){ .recompute = "full" }, F32, 0, NULL);
    static const struct { const char *word; size_t fewer; } want[] = {
        { "full:2", 4 }, { "full:3", 5 }, { "full:4", 6 }, { "full:7", 6 }, { "full:8", 7 }, { "full:50", 7 },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        Left got = mode_alone((Mode){ .recompute = want[i].word }, F32, 0, NULL);
        EXPECT(one.act - got.act == want[i].fewer * row, "%s: %zu bytes less, not %zu of %zu", want[i].word,
               one.act - got.act, want[i].fewer, row);
        EXPECT(got.scratch > one.scratch, "%s: a group is live and takes no memory", want[i].word);
        left_close(&got);
    }
    left_close(&one);
}

/* A layer whose values are dropped runs once more and no more often, whatever the group. */
static double replayed(const char *word)
{
    ModelShape shape = small_shape(deep_text);
    EngineConf conf = small_conf(mode_budget(&shape, 0));
    EnginePlan plan;
    Stream     s;
    double     sum = 0;
    EXPECT_OK(mode_apply(&conf, (Mode){ .recompute = word }));
    small_stream(&s, &shape, conf.budget, 0, 3, 0);
    EXPECT_OK(engine_plan(&plan, &shape, &conf, &s));
    stream_close(&s);
    for (int i = 0; i < LEDGER_OPS; i++) sum += plan.ledger.op[i].extra;
    return sum;
}

static void a_group_is_recomputed_once(void)
{
    double none = replayed(NULL), one = replayed("full"), two = replayed("full:2"), all = replayed("full:8");
    double half = replayed("full:block:4"), whole = replayed("full:block:8");
    EXPECT(one > none && whole == one, "full %g, block of all %g", one - none, whole - none);
    EXPECT(half > none && half < one, "block of 4: %g of %g", half - none, one - none);
    EXPECT(two > one && all > two, "outputs inside groups are recomputed: %g, %g, %g", one, two, all);
    EXPECT(all - none < 1.6 * (one - none), "%g for one group, %g for layers alone", all - none, one - none);
}

static void layouts_agree(void)
{
    static const Mode some[] = {
        { .recompute = "norm,moe_act" }, { .recompute = "full:2" }, { .recompute = "full:block:1,moe" },
        { .recompute = "moe,mlp" }, { .recompute = "full:1" }, { .recompute = "full:3" },
    };
    static const ModeLayout layout[] = {
        { " world=2 tp=2", true, false },
        { " world=2 cp=2 ep=2", false, true },
        { " world=2 pp=2", true, true },
        { " world=2 pp=2 vpp=2", true, false },
        { " world=2 ep=2 zero=3", true, false },
        { " world=2 zero=3", false, true },
        { " world=2 zero=2", true, false },
        { " world=4 tp=2 ep=2 zero=1", false, false },
        { " world=4 ep=4 capacity=1", false, false },
        { " world=4 pp=2 ep=2 vpp=2", false, false },
        { " world=4 pp=2 zero=3 vpp=2", true, false },
    };
    mode_layouts(layout, sizeof layout / sizeof *layout, some);
}

/* Weights that live elsewhere come once for a replay and the backward after it, with one layer to a group and
 * with two, whose buffers there are. */
static void weights_come_once(void)
{
    static const char *const some[] = { NULL, "full", "full:2", "full:4" };
    static ModeSeen seen[MOST];
    int64_t said[4];
    mode_case(" world=2 zero=3", false, F32, first_seed());
    for (int i = 0; i < 4; i++) {
        mode_train(seen, (Mode){ .recompute = some[i] });
        said[i] = mode_said[0];
    }
    EXPECT(said[1] == said[0] && said[2] == said[0], "%lld calls, in groups of one %lld, of two %lld",
           (long long)said[0], (long long)said[1], (long long)said[2]);
    EXPECT(said[3] > said[0], "%lld calls in groups of four: is anything gathered?", (long long)said[3]);
    empty(&the_case);
}

/* A forward that overlaps with a backward: replays must not yield. */
static void overlapped_runs_agree(void)
{
    static const Mode some[] = { { .recompute = "norm,moe_act" }, { .recompute = "qkv,mlp,core_attn" } };
    uint64_t seed = first_seed();
    mode_layout(" world=2 ep=2 zero=1 overlap", true, F32, seed, some, 2);
    mode_layout(" world=4 ep=4 zero=1 overlap capacity=1", false, F32, seed, some, 2);
    mode_layout(" world=4 pp=2 vpp=2 ep=2 overlap", false, F32, seed, some, 2);
}

static void words_are_read(void)
{
    uint8_t policy[LABEL_N];
    FullRecompute    f = { 0 };
    policy_default(policy);
    EXPECT_OK(recompute_words(policy, &f, "norm,full:block:3"));
    EXPECT(f.method == FULL_BLOCK && f.layers == 3 && policy[L_NORM] == DROP && policy[L_QKV] == KEEP,
           "block");
    EXPECT_OK(recompute_word(policy, &f, "full:4"));
    EXPECT(f.method == FULL_UNIFORM && f.layers == 4 && policy[L_QKV] == DROP && policy[L_ROUTE] == PIN,
           "uniform");
    EXPECT_FAIL(recompute_word(policy, &f, "full:some:4"), E_CONFIG, "uniform or block");
    EXPECT_FAIL(recompute_word(policy, &f, "full:uniform"), E_CONFIG, "full:uniform:N");
    EXPECT_FAIL(recompute_word(policy, &f, "full:0"), E_CONFIG, "one layer or more");
    EXPECT_FAIL(recompute_word(policy, &f, "fuller"), E_CONFIG, "moe_act");
    EXPECT_FAIL(recompute_words(policy, &f, "norm,moe_acts"), E_CONFIG, "moe_acts is not a label");
}

int main(void)
{
    RUN(no_word_changes_a_bit);
    RUN(frozen_parts_stay_out);
    RUN(groups_keep_one_input);
    RUN(a_group_is_recomputed_once);
    RUN(layouts_agree);
    RUN(weights_come_once);
    RUN(overlapped_runs_agree);
    RUN(words_are_read);
    return lab_report();
}
