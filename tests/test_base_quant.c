/* tests/test_base_quant.c -- adapters on a base in fp8, int8 or nf4: the bits of the decoded weights, memory
 * as planned, slices and parts of ranks, files, refusals. */
#include "loralab.h"
#include "model/weights.h"
#include "ops/weight_code.h"

static const CodeFormat formats[] = { CODE_FP8, CODE_INT8, CODE_NF4 };
enum { FORMATS = sizeof formats / sizeof *formats };

/* ---- one rank ---- */

/* A step's loss and the gradients of all adapters. */
typedef struct Seen { double loss; float *grads; size_t bytes, param; } Seen;

static void rig_with(Rig *r, Mode m, DType dtype)
{
    EngineConf conf = rig_conf(r, smooth_text, 7);
    EXPECT_OK(mode_apply(&conf, m));
    conf.dtype = dtype;
    select_lora(&r->lora, 0.1, false, everything);
    rig_open(r, conf, 7);
    fill_b(&r->e, 5);
}

static Seen run(Rig *r)
{
    Seen s = { .loss = small_step(&r->e, 0.1f).total, .bytes = r->e.arena[A_GRAD].used,
               .param = r->e.arena[A_PARAM].used };
    s.grads = malloc(s.bytes + 1);
    memcpy(s.grads, r->e.arena[A_GRAD].base, s.bytes);
    return s;
}

/* Weights of `wide` become what the codes of `coded` say; their number. */
static int decode_into(Rig *wide, Rig *coded)
{
    int n = 0;
    for (int i = 0; i < wide->e.model.params.n; i++) {
        Param *p = wide->e.model.params.p[i], *q = coded->e.model.params.p[i];
        if (!t_has(q->shard.codes.q)) continue;
        EXPECT(!t_has(q->shard.w) && q->frozen, "%s has another copy", q->piece[0].name);
        op_decode_weight(&wide->e.be, p->shard.w, q->shard.codes, (TileAt){ 0 });
        n++;
    }
    return n;
}

static void base_has_the_bits_of_its_decoded_weights(void)
{
    for (int k = 0; k < 2 * FORMATS; k++) {
        static Rig wide, coded;
        CodeFormat f = formats[k / 2];
        DType      d = k % 2 ? BF16 : F32;
        rig_with(&coded, (Mode){ .base = f }, d), rig_with(&wide, (Mode){ 0 }, d);
        int n = decode_into(&wide, &coded);
        Seen a = run(&coded), b = run(&wide);
        EXPECT(n > 10, "%s: %d weights in codes", base_quant_name(f), n);
        EXPECT(a.loss == b.loss, "%s: loss %.9g in codes, %.9g decoded", base_quant_name(f), a.loss, b.loss);
        EXPECT(a.bytes == b.bytes && !memcmp(a.grads, b.grads, a.bytes), "%s: gradients differ",
               base_quant_name(f));
        EXPECT(a.param < b.param && a.param == coded.e.plan.bytes[A_PARAM], "%s: %zu bytes, planned %zu",
               base_quant_name(f), a.param, coded.e.plan.bytes[A_PARAM]);
        free(a.grads), free(b.grads);
        rig_close(&coded), rig_close(&wide);
    }
}

static void memory_is_as_planned(void)
{
    for (int k = 0; k < FORMATS; k++) {
        static Rig r;
        rig_with(&r, (Mode){ .base = formats[k], .recompute = k % 2 ? "full" : "moe_act" }, BF16);
        engine_begin_step(&r.e, 1);
        ledger_clear(&r.e.be.ledger);
        engine_forward(&r.e, 0.1f);
        engine_backward(&r.e);
        EXPECT_OK(backend_sync(&r.e.be));
        expect_planned(&r.e, base_quant_name(formats[k]));
        rig_close(&r);
    }
}

/* ---- ranks ---- */

/* Widths whose cuts fall between blocks of 64. */
static const char cut_text[] =
    "{\"model_type\": \"qwen3_vl_moe\", \"image_token_id\": 90, \"video_token_id\": 91,"
    " \"dtype\": \"float32\","
    " \"text_config\": {\"vocab_size\": 97, \"hidden_size\": 64, \"num_hidden_layers\": 4,"
    "  \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 32, \"intermediate_size\": 256,"
    "  \"moe_intermediate_size\": 128, \"num_experts\": 8, \"num_experts_per_tok\": 2,"
    "  \"mlp_only_layers\": [2], \"rope_theta\": 10000.0, \"initializer_range\": 0.1,"
    "  \"rope_scaling\": {\"rope_type\": \"default\", \"mrope_section\": [6, 5, 5]}},"
    " \"vision_config\": {\"depth\": 2, \"hidden_size\": 64, \"intermediate_size\": 64, \"num_heads\": 2,"
    "  \"patch_size\": 4, \"num_position_embeddings\": 25, \"out_hidden_size\": 64,"
    "  \"deepstack_visual_indexes\": [0]}}";

static const char *const linear[] = { "all-linear", "*.mlp.gate", NULL };
static LoraSelection adapters;

static void case_of(const char *text, const char *layout)
{
    mode_layout_case(&the_case, layout, false, F32);
    the_case.shape = small_shape(text), the_case.rule = mode_rule(&the_case.shape.text, layout);
    EXPECT_OK(rules_check(&the_case.rule, NULL));
}

static double        alone_loss[MODE_STEPS], alone_norm[MODE_STEPS];
static const char   *base_folder;                             /* of files; NULL: drawn */

static Status load_base(Engine *e)
{
    SafeTensors st;
    TRY(st_open(&st, base_folder));
    Status s = weights_load(&e->model, &e->be, &st, NULL);
    st_close(&st);
    engine_publish_weights(e);
    return s;
}

/* Every element of the rank's part of the base is that of one rank's. */
static Engine whole;

static void check_codes(const Engine *e, const Param *p)
{
    const Param *q = param_in(&whole.model, p);
    int64_t      n = param_local(p), all = param_local(q);
    float       *mine = malloc((size_t)n * 4), *want = malloc((size_t)all * 4);
    StridedRange c[3];
    op_decode_weight((Backend *)&e->be, t_wrap(mine, F32, p->ndim, p->shard.shape), p->shard.codes,
                     (TileAt){ 0 });
    op_decode_weight((Backend *)&e->be, t_wrap(want, F32, q->ndim, q->shard.shape), q->shard.codes,
                     (TileAt){ 0 });
    for (int k = 0, m = param_ranges(p, c); k < m; k++)
        for (int64_t j = 0; j < c[k].count; j++)
            if (memcmp(mine + c[k].local + j * c[k].len, want + c[k].at + j * c[k].stride,
                       (size_t)c[k].len * 4))
                note("rank %d: %s is another weight", e->mesh.rank, p->piece[0].name);
    free(mine), free(want);
}

static void check_base(const Engine *e)
{
    int n = 0;
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        if (!t_has(p->shard.codes.q) || p->shard.codes.q.rank != p->ndim) continue;       /* or a slice */
        if (the_case.mode.base != CODE_FP8) check_codes(e, p);
        n++;
    }
    if (!n && the_case.rule.zero < 3) note("rank %d has no weight in codes", e->mesh.rank);
    if (e->arena[A_PARAM].used != e->plan.bytes[A_PARAM])
        note("weights take %zu bytes, planned %zu", e->arena[A_PARAM].used, e->plan.bytes[A_PARAM]);
}

static void rank_main(Peer *p)
{
    Engine e;
    Mesh   place;
    open_rank(&e, p, &place);
    if (base_folder && load_base(&e)) note("rank %d: %s", p->rank, status_text());
    check_base(&e);
    for (int i = 0; i < MODE_STEPS; i++) {
        double loss = 0, norm = 0, most = the_case.mode.base == CODE_FP8 ? 2e-3 : 1e-5;
        Status st = step(&the_case, &e, place.at[AX_DP], i, &loss, &norm);
        if (st) note("rank %d: %s", p->rank, status_text());
        else if (!(off_by(loss, alone_loss[i]) < most && off_by(norm, alone_norm[i]) < 20 * most))
            note("rank %d, step %d: loss %.9g, one rank %.9g; norm %.9g, %.9g", p->rank, i, loss,
                 alone_loss[i], norm, alone_norm[i]);
    }
    engine_close(&e);
}

static void one_rank(const Case *c)
{
    EngineConf conf = engine_conf(c);
    open_alone(&whole, c, conf);
    if (base_folder) EXPECT_OK(load_base(&whole));
    for (int i = 0; i < MODE_STEPS; i++) EXPECT_OK(step(c, &whole, 0, i, &alone_loss[i], &alone_norm[i]));
}

/* A token whose router logits tie may be routed differently: other data then, twice at most. */
static bool agrees(uint64_t seed)
{
    failure.any = false, the_case.weights = seed;
    fill(&the_case, seed);
    one_rank(&the_case);
    on_ranks((int)the_case.rule.world, 0, rank_main);
    engine_close(&whole);
    empty(&the_case);
    double any = failure.any;                                 /* all processes draw again, or none */
    if (commlab_.mpi) comm_host_max(commlab_.mpi, &any, 1);
    if (failure.any) printf("  %s: %s\n", case_text(&the_case), failure.text);
    return any == 0;
}

static void expect_agreement(uint64_t seed, CodeFormat f)
{
    bool good = false;
    the_case.lora = &adapters.conf, the_case.mode.base = f;
    for (uint64_t i = 0; i < 3 && !good; i++) good = agrees(seed + i * 1000003);
    EXPECT(good, "%s, %llu: %s: %s", base_quant_name(f), (unsigned long long)seed, case_text(&the_case),
           failure.text);
}

/* The layout cuts a weight inside blocks of nf4. */
static bool cuts_blocks(void)
{
    int64_t most = the_case.shape.text.D == 64 ? 4 : 1;
    return the_case.rule.tp > most || the_case.rule.etp > (most + 1) / 2;
}

/* The format of a drawn layout: that of TREB_BASE_QUANT, or one by the seed; nf4 where it can be cut. */
static CodeFormat format_of(uint64_t seed)
{
    const char *word = getenv("TREB_BASE_QUANT");
    for (int k = 0; word && k < FORMATS; k++)
        if (!strcmp(word, base_quant_name(formats[k]))) return formats[k];
    return seed % 3 && !cuts_blocks() ? CODE_NF4 : CODE_INT8;
}

/* TREB_LAYOUTS sets the number of layouts; over mpirun the processes are the ranks. */
static void random_layouts_agree(void)
{
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    select_lora(&adapters, 0, seed % 2, linear);
    for (int n = 0; n < number("TREB_LAYOUTS", 2); seed++) {
        draw_case(&the_case, seed, world, MODE_STEPS);
        the_case.dtype = F32, the_case.store = (OptimStore){ 0 };
        if (seed % 3 == 2) the_case.shape = small_shape(cut_text);
        CodeFormat f = format_of(seed);
        if (f != CODE_NF4 || !cuts_blocks()) expect_agreement(seed, f), n++;
    }
}

/* From files, whole, in slices and cut. */
static void layouts_load_the_same_base(void)
{
    static const char *const layout[] = { " world=4 zero=3 ep=2", " world=4 tp=2 etp=2 ep=2",
                                          " world=4 tp=4" };
    Engine   e;
    uint64_t seed = first_seed() + 7;
    select_lora(&adapters, 0, false, everything);
    for (int i = 0; i < 3; i++) {
        base_folder = NULL;
        case_of(cut_text, layout[i]);
        the_case.weights = seed;
        open_alone(&e, &the_case, engine_conf(&the_case));
        if (!i) EXPECT_OK(weights_save(&e.model, &e.be, lab_path("base"), BF16, 0));
        engine_close(&e);
        base_folder = lab_path("base");
        expect_agreement(seed, formats[1 + (seed + (uint64_t)i) % 2]);
    }
    base_folder = NULL;
}

/* ---- refusals ---- */

static Status open_base(const char *text, CodeFormat f, const char *layout)
{
    EngineConf conf;
    case_of(text, layout);
    the_case.lora = &adapters.conf, the_case.mode = (Mode){ .base = f };
    conf = engine_conf(&the_case);
    StreamShape ss = shape_stream(&the_case.shape);
    Stream      full = stream_full(&ss, &conf.budget);
    Comm       *world;
    Mesh        place;
    TRY(comm_open(&world, &(CommConf){ .kind = "fake", .rank = 0, .size = (int)the_case.rule.world }));
    conf.ranks = ranks_of(&the_case, world, &place);
    EnginePlan plan;
    Status     st = engine_plan(&plan, &the_case.shape, &conf, &full);
    comm_close(world);
    return st;
}

static void cuts_inside_blocks_are_refused(void)
{
    select_lora(&adapters, 0, false, everything);
    EXPECT_FAIL(open_base(smooth_text, CODE_NF4, " world=2 tp=2"), E_CONFIG, "parallel.etp cuts");
    EXPECT_OK(open_base(cut_text, CODE_NF4, " world=2 tp=2"));
    EXPECT_FAIL(open_base(cut_text, CODE_NF4, " world=4 etp=4"), E_CONFIG, "down_proj");
    EXPECT_OK(open_base(smooth_text, CODE_INT8, " world=2 tp=2"));
}

static void wrong_keys_are_refused(void)
{
    static const char *const bad[] = { "experts", "norms" }, *const head[] = { "head" };
    BaseQuant b;
    EXPECT_FAIL(base_quant_read(&b, "nf4", bad, 2), E_CONFIG, "norms is none of");
    EXPECT_FAIL(base_quant_read(&b, "nf4", head, 1), E_CONFIG, "never quantised");
    EXPECT_FAIL(base_quant_read(&b, "int8", NULL, 0), E_CONFIG, "is empty");
    EXPECT_OK(base_quant_read(&b, "none", NULL, 0));
    EXPECT(!b.format, "none is %d", (int)b.format);
}

/* Files that another program has quantised. */
static Status file_with(const char *name)
{
    static const uint8_t zeros[64];
    SafeTensors st;
    StTensor    t[2] = { { .name = "a.weight", .dtype = U8, .rank = 2, .shape = { 32, 1 }, .data = zeros,
                           .bytes = 32 },
                         { .name = name, .dtype = U8, .rank = 1, .shape = { 4 }, .data = zeros,
                           .bytes = 4 } };
    EXPECT_OK(st_save(lab_path("x.safetensors"), t, 2));
    EXPECT_OK(st_open(&st, lab_path("x.safetensors")));
    Status s = st_check_scales(&st);
    st_close(&st);
    return s;
}

static void quantised_files_are_refused(void)
{
    EXPECT_FAIL(file_with("a.weight.absmax"), E_DATA,
                "a.weight.absmax: the files are quantised by bitsandbytes");
    EXPECT_FAIL(file_with("a.weight.quant_state.bitsandbytes__nf4"), E_DATA, "bitsandbytes");
    EXPECT_FAIL(file_with("a.SCB"), E_DATA, "model.base_quant");
    EXPECT_FAIL(file_with("a.qweight"), E_DATA, "GPTQ or AWQ");
    EXPECT_FAIL(file_with("a.weight.quant_map"), E_DATA, "bitsandbytes");
    EXPECT_FAIL(file_with("a.weight_packed"), E_DATA, "compressed-tensors");
    EXPECT_FAIL(file_with("a.qweights"), E_DATA, "a.weight is stored as u8");
}

int main(void)
{
    omp_set_num_threads(1);
    setenv("TREB_FAMILY", "0", 0);                           /* the targets are of models with a tower */
    processes_open();
    RUN(random_layouts_agree);
    if (commlab_.mpi) return processes_close();
    RUN(base_has_the_bits_of_its_decoded_weights);
    RUN(memory_is_as_planned);
    RUN(layouts_load_the_same_base);
    RUN(cuts_inside_blocks_are_refused);
    RUN(wrong_keys_are_refused);
    RUN(quantised_files_are_refused);
    return processes_close();
}
