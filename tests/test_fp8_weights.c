/* tests/test_fp8_weights.c -- weights that are kept and gathered in 8 bits alone: codes of slices, the codes
 * that ZeRO gathers, a frozen base without another copy. */
#include "loralab.h"
#include "model/weights.h"
#include "ops/quant.h"

#include <sys/stat.h>
#include <unistd.h>

/* ---- ops ---- */

enum { SIDE = 300, STACK = 3, BLOCKS = STACK * 3 * 3, ELEMS = STACK * SIDE * SIDE };

/* A weight, what quantize_weight makes of it, and what its slices make of it. */
static struct { float w[ELEMS], scale[BLOCKS], scale_t[BLOCKS], amax[BLOCKS], part[BLOCKS], turned[BLOCKS];
                uint16_t half[ELEMS]; uint8_t q[ELEMS], qt[ELEMS], got[ELEMS], back[ELEMS]; } ow;

typedef struct Stack { int64_t E, N, K; DType dtype; } Stack;

static Tensor view(const Stack *x, void *data, DType d, bool blocks, bool transposed)
{
    int64_t N = blocks ? quant_groups(x->N) : x->N, K = blocks ? quant_groups(x->K) : x->K;
    int64_t n[3] = { x->E, transposed ? K : N, transposed ? N : K };
    return t_wrap(data, d, x->E > 1 ? 3 : 2, x->E > 1 ? n : n + 1);
}

static Tensor part_of(void *data, DType d, int64_t at, int64_t n)
{
    return t_wrap((char *)data + (size_t)at * dtype_size(d), d, 1, &n);
}

static void *draw(const Stack *x, uint64_t seed)
{
    static const float odd[] = { INFINITY, NAN, -0.0f, 1e-42f, 3e38f };
    int64_t n = x->E * x->N * x->K;
    for (int64_t i = 0; i < n; i++) ow.w[i] = rng_normal(seed, 1, (uint64_t)i) * ldexpf(1, (int)(i % 7) - 3);
    if (seed % 3 == 0)
        for (uint64_t i = 0; i < 5; i++) ow.w[rng_below(seed, 2, i, (uint64_t)n)] = odd[i];
    if (x->dtype == F32) return ow.w;
    dtype_convert(ow.half, BF16, ow.w, F32, n);
    return ow.half;
}

/* The ranks of a group, one after another: amax over their slices, then codes by the scales of it. */
static void quantize_slices(Backend *be, const Stack *x, void *w, const int64_t *cut, int cuts)
{
    int64_t blocks = x->E * quant_groups(x->N) * quant_groups(x->K);
    memset(ow.amax, 0, sizeof ow.amax), memset(ow.got, 0xaa, sizeof ow.got);
    for (int i = 0; i < cuts; i++) {
        memset(ow.part, 0xff, sizeof ow.part);
        op_weight_amax(be, view(x, ow.part, F32, true, false),
                       part_of(w, x->dtype, cut[i], cut[i + 1] - cut[i]),
                       (WeightSlice){ cut[i], x->N, x->K });
        for (int64_t b = 0; b < blocks; b++) ow.amax[b] = ow.part[b] > ow.amax[b] ? ow.part[b] : ow.amax[b];
    }
    Tensor scale = view(x, ow.amax, F32, true, false);
    op_amax_scales(be, scale, scale, true);
    for (int i = 0; i < cuts; i++)
        op_quantize_slice(be, part_of(ow.got, E4M3, cut[i], cut[i + 1] - cut[i]),
                          part_of(w, x->dtype, cut[i], cut[i + 1] - cut[i]), scale,
                          (WeightSlice){ cut[i], x->N, x->K });
}

static int compare_cuts(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void slices_give_the_codes_of_the_whole(void)
{
    Backend  be;
    uint64_t seed = first_seed();
    EXPECT_OK(backend_open(&be, "cpu"));
    for (uint64_t i = 0; i < 60; i++, seed++) {
        Stack x = { 1 + (int64_t)rng_below(seed, 3, 0, STACK), 1 + (int64_t)rng_below(seed, 3, 1, SIDE),
                    1 + (int64_t)rng_below(seed, 3, 2, SIDE), seed % 2 ? F32 : BF16 };
        int64_t n = x.E * x.N * x.K, blocks = x.E * quant_groups(x.N) * quant_groups(x.K);
        int64_t cut[6] = { 0, n };
        int     cuts = 1 + (int)rng_below(seed, 4, 0, 5);
        for (int k = 1; k < cuts; k++) cut[k + 1] = (int64_t)rng_below(seed, 5, (uint64_t)k, (uint64_t)n + 1);
        qsort(cut, (size_t)cuts + 1, sizeof *cut, compare_cuts);
        void *w = draw(&x, seed);
        op_quantize_weight(&be, view(&x, ow.q, E4M3, false, false), view(&x, ow.scale, F32, true, false),
                           view(&x, ow.qt, E4M3, false, true), view(&x, ow.scale_t, F32, true, true),
                           view(&x, w, x.dtype, false, false), true);
        quantize_slices(&be, &x, w, cut, cuts);
        EXPECT(!memcmp(ow.got, ow.q, (size_t)n), "seed %llu: codes differ", (unsigned long long)seed);
        EXPECT(!memcmp(ow.amax, ow.scale, (size_t)blocks * sizeof(float)), "seed %llu: scales differ",
               (unsigned long long)seed);
        op_transpose(&be, view(&x, ow.back, E4M3, false, true), view(&x, ow.got, E4M3, false, false));
        op_transpose(&be, view(&x, ow.turned, F32, true, true), view(&x, ow.amax, F32, true, false));
        EXPECT(!memcmp(ow.back, ow.qt, (size_t)n) && !memcmp(ow.turned, ow.scale_t,
               (size_t)blocks * sizeof(float)), "seed %llu: transposed", (unsigned long long)seed);
    }
    backend_close(&be);
}

/* Codes and scales of packed rows are those of quantize_rows; unpacked rows quantise to the same numbers. */
static void packed_rows(void)
{
    enum { ROWS = 20, WIDE = 300 };
    static float    x[ROWS * WIDE], scale[3 * ROWS], each[3 * ROWS], back[ROWS * WIDE];
    static uint8_t  q[ROWS * WIDE], code[ROWS * WIDE];
    static uint16_t y[ROWS * (WIDE / 2 + 16)];
    Backend  be;
    uint64_t seed = first_seed();
    EXPECT_OK(backend_open(&be, "cpu"));
    for (int i = 0; i < 40; i++, seed++) {
        int64_t R = (int64_t)rng_below(seed, 1, 0, ROWS + 1), K = 1 + (int64_t)rng_below(seed, 1, 1, WIDE);
        int64_t n[2] = { R, K }, g[2] = { quant_groups(K), R }, w[2] = { R, quant_packed_width(K) };
        Tensor  tx = t_wrap(x, F32, 2, n), ty = t_wrap(y, BF16, 2, w), tb = t_wrap(back, F32, 2, n);
        int32_t used[2] = { 0, (int32_t)(R - R / 4) };
        for (int64_t k = 0; k < R * K; k++) x[k] = rng_normal(seed, 2, (uint64_t)k) * ldexpf(1, (int)(k % 9));
        if (R && seed % 3 == 0) x[0] = NAN;
        for (int64_t k = 0; k < R * K; k++) back[k] = -7;
        op_pack_rows(&be, ty, tx);
        op_unpack_rows(&be, tb, t_wrap(code, E4M3, 2, n), t_wrap(each, F32, 2, g), ty,
                       t_wrap(used, I32, 1, (int64_t[]){ 2 }));
        op_quantize_rows(&be, t_wrap(q, E4M3, 2, n), t_wrap(scale, F32, 2, g), tx, (Tensor){ 0 }, true);
        for (int64_t k = 0; k < R * K; k++) {
            float want = k / K < used[1] ? e4m3_to_f32(q[k]) * scale[k % K / 128 * R + k / K] : -7;
            int64_t s = k % K / 128 * R + k / K;
            EXPECT(k / K >= used[1] || (code[k] == q[k] && !memcmp(&each[s], &scale[s], 4)), "other codes");
            EXPECT(!memcmp(&back[k], &want, 4) || (isnan(back[k]) && isnan(want)), "seed %llu: %g, not %g",
                   (unsigned long long)seed, back[k], want);
        }
        op_pack_rows(&be, ty, tb);
        op_unpack_rows(&be, tx, (Tensor){ 0 }, (Tensor){ 0 }, ty, (Tensor){ 0 });
        for (int64_t k = 0; k < R * K; k++)
            EXPECT(x[k] == back[k] || isnan(back[k]), "%g becomes %g when it is packed again", back[k], x[k]);
    }
    backend_close(&be);
}

/* ---- ZeRO ---- */

/* The whole bucket of something that each rank has a slice of. */
static Tensor gathered(const ShardBucket *b, Tensor own)
{
    int64_t n = b->elems;
    Tensor  whole = t_wrap(malloc((size_t)n * dtype_size((DType)own.dtype)), (DType)own.dtype, 1, &n);
    comm_all_gather(b->shard_comm, whole, own);
    return whole;
}

/* Codes and scales are those of the whole weight. */
static void check_item(Engine *e, const ShardItem *i, Tensor w, Tensor q)
{
    static const Tensor none;
    const Param *p = i->p;
    Stack   x = { p->ndim == 3 ? p->shard.shape[0] : 1, p->shard.shape[p->ndim - 2],
                  p->shard.shape[p->ndim - 1], e->conf.dtype };
    int64_t n = x.E * x.N * x.K, blocks = x.E * quant_groups(x.N) * quant_groups(x.K);
    uint8_t *code = malloc((size_t)n);
    float   *scale = malloc((size_t)blocks * sizeof *scale);
    op_quantize_weight(&e->be, view(&x, code, E4M3, false, false), view(&x, scale, F32, true, false), none,
                       none, view(&x, t_rows(w, i->at, n).data, x.dtype, false, false), true);
    if (memcmp(code, t_rows(q, i->at, n).data, (size_t)n)) note("%s: codes differ", p->piece[0].name);
    if (memcmp(scale, p->shard.fp8.scale.data, (size_t)blocks * sizeof *scale))
        note("%s: scales differ", p->piece[0].name);
    free(code), free(scale);
}

static void check_buckets(Engine *e)
{
    int coded = 0;
    for (ShardBucket *b = e->shard.bucket; b < e->shard.bucket + e->shard.buckets; b++) {
        if (!b->coded) continue;
        Tensor w = gathered(b, b->own_w), q = gathered(b, b->own_q);
        for (int k = b->first; k < b->first + b->n; k++) check_item(e, &e->shard.item[k], w, q);
        if (b->level < 3 && memcmp(q.data, b->q.data, (size_t)b->elems)) note("codes were not gathered");
        free(w.data), free(q.data);
        coded++;
    }
    if (!coded) note("no bucket is in codes");
}

static void check_memory(Engine *e)
{
    mode_memory(e, false);
    if (e->arena[A_PARAM].used != e->plan.bytes[A_PARAM])
        note("weights take %zu bytes, planned %zu", e->arena[A_PARAM].used, e->plan.bytes[A_PARAM]);
}

static double first_loss;

static void zero_rank(Peer *p)
{
    Engine e;
    Mesh   place;
    double loss = 0, norm;
    open_rank(&e, p, &place);
    for (int i = 0; i < MODE_STEPS; i++) {
        Status st = step(&the_case, &e, place.at[AX_DP], i, &loss, &norm);
        if (st) note("rank %d: %s", p->rank, status_text());
        if (!i && !p->rank) first_loss = loss;
    }
    shard_wait_weights(&e.shard);
    if (!the_case.mode.anew) check_buckets(&e);
    check_memory(&e);
    engine_close(&e);
}

/* The first step computes the same in both ways; later ones differ by the order in which norms are summed. */
static void gathers_codes(const char *layout, bool pictures, uint64_t seed)
{
    double loss[2];
    mode_case(layout, pictures, BF16, seed);
    for (int anew = 0; anew < 2; anew++) {
        failure.any = false, the_case.mode = (Mode){ .fp8 = true, .anew = anew, .one = seed % 2 };
        on_ranks((int)the_case.rule.world, 0, zero_rank);
        EXPECT(!failure.any, "%s, seed %llu: %s", layout, (unsigned long long)seed, failure.text);
        loss[anew] = first_loss;
    }
    EXPECT(loss[0] == loss[1], "%s: loss %.9g with codes, %.9g", layout, loss[0], loss[1]);
    empty(&the_case);
}

static void zero_gathers_codes(void)
{
    uint64_t seed = first_seed();
    gathers_codes(" world=2 zero=1", false, seed);
    gathers_codes(" world=4 zero=2 ep=2", true, seed + 1);
    gathers_codes(" world=4 zero=3", false, seed + 2);
    gathers_codes(" world=4 zero=3 ep=2 tp=2", true, seed + 3);
}

/* ---- codes of whole weights ---- */

static bool same_bytes(Tensor a, Tensor b)
{
    return t_has(a) == t_has(b) && (!t_has(a) || !memcmp(a.data, b.data, (size_t)t_bytes(a)));
}

static Tensor blank_like(Tensor t)
{
    if (t_has(t)) t.data = malloc((size_t)t_bytes(t) + 1);
    return t;
}

/* The weight of masters alone is they, rounded. */
static Tensor weight_of(Engine *e, const Param *p)
{
    Tensor q = p->shard.fp8.q, w = t_wrap(NULL, BF16, q.rank, q.n);
    if (t_has(p->shard.w)) return p->shard.w;
    w.data = malloc((size_t)t_bytes(w));
    op_set_weight(&e->be, t_wrap(w.data, BF16, 1, &p->shard.len), p->shard.master, p->shard.master);
    return w;
}

static void check_kept(Engine *e, const char *when)
{
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        const QuantizedWeight *z = &p->shard.fp8;
        if (!t_has(z->q)) continue;
        QuantizedWeight y = { blank_like(z->q), blank_like(z->scale), blank_like(z->qt),
                              blank_like(z->scale_t) };
        Tensor w = weight_of(e, p);
        op_quantize_weight(&e->be, y.q, y.scale, y.qt, y.scale_t, w, true);
        EXPECT(same_bytes(y.q, z->q) && same_bytes(y.scale, z->scale) && same_bytes(y.qt, z->qt) &&
               same_bytes(y.scale_t, z->scale_t), "%s, %s: codes are not those of the weight", when,
               p->piece[0].name);
        free(y.q.data), free(y.scale.data), free(y.qt.data), free(y.scale_t.data);
        if (!t_has(p->shard.w)) free(w.data);
    }
}

/* Weights and codes stay as they are. */
static void skip_update(Engine *e)
{
    static double verdict = STEP_NOT_FINITE;
    int64_t   one = 1;
    Tensor    bad = t_wrap(&verdict, F64, 1, &one);
    OptimConf o = { .adam = { 1e-1f, 0.9f, 0.95f, 1e-5f, 0.1f, 1.0f, 9, .verdict = bad } };
    engine_apply_update(e, &o);
    EXPECT_OK(backend_sync(&e->be));
}

typedef struct KeptCase { const char *name; Mode mode; OptimStore store; bool by_step, apart; } KeptCase;

/* Kept beside the weights, or in their place. by_step: updates make codes; apart: passes of their own do. */
static const KeptCase kept_cases[] = {
    { "f32",               { .fp8 = true, .beside = true }, { .moments = F32 }, true, false },
    { "split",             { .fp8 = true, .beside = true }, { .moments = F32, .split = true }, true, false },
    { "bf16 moments",      { .fp8 = true, .beside = true, .one = true },
      { .moments = BF16, .grads = BF16, .split = true }, true, false },
    { "moments in codes",  { .fp8 = true, .beside = true }, { .moments = U8 }, false, true },
    { "masters alone",     { .fp8 = true }, { .moments = F32 }, true, false },
    { "masters, bf16 moments", { .fp8 = true, .one = true }, { .moments = BF16, .grads = BF16 }, true,
      false },
    { "masters, moments in codes", { .fp8 = true }, { .moments = U8 }, false, true },
    { "offloaded",         { .fp8 = true, .beside = true },
      { .moments = F32, .offload_fraction = 0.5, .offload_chunk = 512 }, true, true },
};

static void kept_case(const KeptCase *k)
{
    enum { STEPS_KEPT = 3 };
    Engine e;
    double loss, norm;
    the_case.mode = k->mode, the_case.store = k->store;
    open_alone(&e, &the_case, engine_conf(&the_case));
    check_kept(&e, k->name);
    for (int i = 0; i < STEPS_KEPT; i++) {
        int64_t made = e.be.ledger.op[OP_adamw_fp8].calls, passes = e.be.ledger.op[OP_quantize_weight].calls;
        EXPECT_OK(step(&the_case, &e, 0, i, &loss, &norm));
        EXPECT(k->by_step == (e.be.ledger.op[OP_adamw_fp8].calls > made) &&
               k->apart == (e.be.ledger.op[OP_quantize_weight].calls > passes),
               "%s, step %d: %lld updates make codes, %lld passes", k->name, i,
               (long long)(e.be.ledger.op[OP_adamw_fp8].calls - made),
               (long long)(e.be.ledger.op[OP_quantize_weight].calls - passes));
        check_kept(&e, k->name);
    }
    skip_update(&e);
    check_kept(&e, "skipped");
    engine_publish_weights(&e);
    check_kept(&e, "loaded");
    engine_close(&e);
}

static void codes_are_those_of_the_weights(void)
{
    uint64_t seed = first_seed();
    mode_case(" world=1", true, BF16, seed);
    for (size_t i = 0; i < sizeof kept_cases / sizeof *kept_cases; i++) kept_case(&kept_cases[i]);
    empty(&the_case);
}

/* ---- dispatch ---- */

static double sent_bytes;

static void dispatch_rank(Peer *p)
{
    Engine e;
    Mesh   place;
    double loss = 0, norm;
    open_rank(&e, p, &place);
    Status st = step(&the_case, &e, place.at[AX_DP], 0, &loss, &norm);
    if (st) note("rank %d: %s", p->rank, status_text());
    if (!p->rank) {
        first_loss = loss, sent_bytes = 0;
        for (int i = 0; i < LEDGER_GROUPS; i++)
            sent_bytes += (double)(e.be.ledger.comm[i].intra_node + e.be.ledger.comm[i].inter_node);
    }
    check_memory(&e);
    engine_close(&e);
}

/* Rows are quantised before they travel in place of after: the forward is the same to the bit. */
static void tokens_travel_in_codes(void)
{
    static const char *const layout[] = { " world=4 ep=4", " world=4 ep=2 etp=2",
                                          " world=4 ep=4 capacity=1" };
    uint64_t seed = first_seed();
    for (int d = 0; d < DISPATCHER_COUNT; d++) {
        const char *words = layout[(seed + (uint64_t)d) % 3];
        double loss[2], bytes[2];
        mode_case(words, false, d % 2 ? F32 : BF16, seed + (uint64_t)d);
        the_case.rule.dispatcher = dispatcher_rows[d].name;
        for (int packed = 0; packed < 2; packed++) {
            failure.any = false, the_case.mode = (Mode){ .fp8 = true, .packed = packed };
            on_ranks(4, 0, dispatch_rank);
            EXPECT(!failure.any, "%s%s: %s", dispatcher_rows[d].name, words, failure.text);
            loss[packed] = first_loss, bytes[packed] = sent_bytes;
        }
        EXPECT(loss[0] == loss[1], "%s%s: loss %.9g in codes, %.9g", dispatcher_rows[d].name, words, loss[1],
               loss[0]);
        EXPECT(bytes[1] < bytes[0], "%s: %g bytes are sent in codes, %g", words, bytes[1], bytes[0]);
        empty(&the_case);
    }
}

/* ---- layouts ---- */

static double alone_loss[MODE_STEPS];

static void layout_rank(Peer *p)
{
    Engine e;
    Mesh   place;
    open_rank(&e, p, &place);
    for (int i = 0; i < MODE_STEPS; i++) {
        double loss = 0, norm;
        Status st = step(&the_case, &e, place.at[AX_DP], i, &loss, &norm);
        double off = off_by(loss, alone_loss[i]);
        if (st) note("rank %d: %s", p->rank, status_text());
        else if (!(off < 0.02)) note("rank %d, step %d: off by %.2g", p->rank, i, off);
    }
    engine_close(&e);
}

static void alone(void)
{
    Engine e;
    double norm;
    open_alone(&e, &the_case, engine_conf(&the_case));
    for (int i = 0; i < MODE_STEPS; i++) EXPECT_OK(step(&the_case, &e, 0, i, &alone_loss[i], &norm));
    engine_close(&e);
}

/* Sums of other orders change last bits, which decide between codes; shards of tp and etp have blocks of
 * their own. TREB_LAYOUTS sets the number of layouts; over mpirun the processes are the ranks. */
static void random_layouts(void)
{
    uint64_t seed = first_seed();
    int      world = commlab_.mpi ? commlab_.mpi->size : 0;
    if (commlab_.mpi) EXPECT_OK(comm_host_broadcast(commlab_.mpi, &seed, sizeof seed));
    for (int i = 0; i < number("TREB_LAYOUTS", 3); i++, seed++) {
        draw_case(&the_case, seed, world, MODE_STEPS);
        the_case.mode = (Mode){ .fp8 = true, .packed = seed % 2 };
        the_case.weights = seed, failure.any = false;
        fill(&the_case, seed);
        alone();
        on_ranks((int)the_case.rule.world, 0, layout_rank);
        EXPECT(!failure.any, "seed %llu, %s: %s", (unsigned long long)seed, case_text(&the_case),
               failure.text);
        empty(&the_case);
    }
}

/* ---- a frozen base ---- */

typedef struct BaseRun { size_t param, frozen; double loss; float *grads; int64_t n; } BaseRun;

static BaseRun base_run(bool anew)
{
    static Rig r;
    EngineConf conf = rig_conf(&r, smooth_text, 7);
    BaseRun    out = { 0 };
    EXPECT_OK(mode_apply(&conf, (Mode){ .fp8 = true, .anew = anew }));
    conf.dtype = BF16;
    select_lora(&r.lora, 0.1, false, everything);
    rig_open(&r, conf, 7);
    fill_b(&r.e, 5);
    out.loss = small_step(&r.e, 0.1f).total;
    out.param = r.e.arena[A_PARAM].used, out.n = (int64_t)(r.e.arena[A_GRAD].used / sizeof(float));
    EXPECT(r.e.arena[A_PARAM].used == r.e.plan.bytes[A_PARAM], "weights take %zu, planned %zu",
           r.e.arena[A_PARAM].used, r.e.plan.bytes[A_PARAM]);
    for (int i = 0; i < r.e.model.params.n; i++) {
        const Param *p = r.e.model.params.p[i];
        bool base = p->frozen && precision_only_coded(&conf.precision, p);
        EXPECT(anew || !base || (!t_has(p->shard.w) && t_has(p->shard.fp8.q) && !t_has(p->shard.fp8.qt)),
               "%s has another copy", p->piece[0].name);
        if (base) out.frozen += (size_t)param_count(p);
    }
    out.grads = malloc(r.e.arena[A_GRAD].used);
    memcpy(out.grads, r.e.arena[A_GRAD].base, r.e.arena[A_GRAD].used);
    rig_close(&r);
    return out;
}

static void base_in_codes_changes_no_bit(void)
{
    BaseRun codes = base_run(false), anew = base_run(true);
    EXPECT(codes.loss == anew.loss, "loss %.9g in codes, %.9g", codes.loss, anew.loss);
    EXPECT(codes.n == anew.n && !memcmp(codes.grads, anew.grads, (size_t)codes.n * sizeof(float)),
           "gradients differ");
    EXPECT(codes.param < anew.param, "weights take %zu bytes in codes, %zu in bf16", codes.param, anew.param);
    free(codes.grads), free(anew.grads);
}

/* Weights of files: the base that a rank loads, whole or its slice. */
static const char *base_folder;

static void load_rank(Peer *p)
{
    Engine      e;
    Mesh        place;
    SafeTensors st;
    double      loss = 0, norm;
    open_rank(&e, p, &place);
    Status s = st_open(&st, base_folder);
    if (!s) s = weights_load(&e.model, &e.be, &st, NULL);
    st_close(&st);
    engine_publish_weights(&e);
    if (!s) s = step(&the_case, &e, place.at[AX_DP], 0, &loss, &norm);
    if (s) note("rank %d: %s", p->rank, status_text());
    if (!p->rank) first_loss = loss;
    check_memory(&e);
    engine_close(&e);
}

static void save_base(void)
{
    Engine e;
    open_alone(&e, &the_case, engine_conf(&the_case));
    EXPECT_OK(weights_save(&e.model, &e.be, base_folder, BF16, 0));
    engine_close(&e);
}

static void base_is_loaded_in_slices(void)
{
    static const char *const layout[] = { " world=2 zero=3", " world=4 zero=3 ep=2", " world=2 tp=2" };
    static LoraSelection lora;
    uint64_t seed = first_seed();
    base_folder = lab_path("base");
    select_lora(&lora, 0, false, everything);
    for (int i = 0; i < 3; i++) {
        double loss[2];
        mode_case(layout[i], false, BF16, seed + (uint64_t)i);
        if (!i) save_base();
        the_case.lora = &lora.conf;
        for (int anew = 0; anew < 2; anew++) {
            failure.any = false, the_case.mode = (Mode){ .fp8 = true, .anew = anew };
            on_ranks((int)the_case.rule.world, 0, load_rank);
            EXPECT(!failure.any, "%s: %s", layout[i], failure.text);
            loss[anew] = first_loss;
        }
        EXPECT(loss[0] == loss[1], "%s: loss %.9g from a base in codes, %.9g", layout[i], loss[0], loss[1]);
        empty(&the_case);
    }
}

/* ---- files ---- */

static const char wide_text[] =
    "{\"model_type\": \"qwen3_moe\", \"dtype\": \"float32\", \"vocab_size\": 97, \"hidden_size\": 260,"
    " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 36,"
    " \"intermediate_size\": 140, \"moe_intermediate_size\": 132, \"num_experts\": 2,"
    " \"num_experts_per_tok\": 2, \"mlp_only_layers\": [1], \"rope_theta\": 10000.0}";

/* An element is its code times the scale of its block, computed here one by one. */
static int check_file(const SafeTensors *st)
{
    int coded = 0;
    for (int i = 0; i < st->count; i++) {
        const StTensor *t = &st->tensor[i];
        if (!t->scale) continue;
        int64_t N = t->shape[0], K = t->shape[1], across = quant_groups(K), from = N * K / 3;
        float  *got = malloc((size_t)(N * K) * sizeof *got);
        st_read(got + from, t, from, N * K - from), st_read(got, t, 0, from);
        for (int64_t k = 0; k < N * K; k++) {
            float s;
            memcpy(&s, (const float *)t->scale->data + k / K / 128 * across + k % K / 128, sizeof s);
            float want = e4m3_to_f32(((const uint8_t *)t->data)[k]) * s;
            if (got[k] != want) EXPECT(false, "%s[%lld] is %g, not %g", t->name, (long long)k, got[k], want);
        }
        free(got);
        coded++;
    }
    return coded;
}

/* Rounding to e4m3 is off by 1/16 of an element at most, or by half the least code of its block. */
static void check_near(const Engine *e, const Engine *was)
{
    for (int i = 0; i < e->model.params.n; i++) {
        const Param *p = e->model.params.p[i];
        const float *x = p->shard.w.data, *y = was->model.params.p[i]->shard.w.data;
        bool   coded = precision_site(p) < SITES && p->linear != LINEAR_HEAD;
        double most = 0, off = 0;
        for (int64_t k = 0; k < param_count(p); k++) most = fmax(most, fabs((double)y[k]));
        for (int64_t k = 0; k < param_count(p); k++)
            off = fmax(off, fabs((double)x[k] - y[k]) - (coded ? fabs((double)y[k]) / 16 : 0));
        EXPECT(off <= (coded ? most / 448 / 1000 : most / 200), "%s is off by %g", p->piece[0].name, off);
        EXPECT(!coded || memcmp(x, y, (size_t)param_count(p) * sizeof *x), "%s is exact", p->piece[0].name);
    }
}

static void exports_are_read_back(void)
{
    Engine      a, b;
    SafeTensors st;
    Stream      s;
    ModelShape  shape = small_shape(wide_text);
    EngineConf  conf = small_conf(mode_budget(&shape, 0));
    small_stream(&s, &shape, conf.budget, 0, 3, 0);
    small_engine(&a, &shape, &conf, &s), small_engine(&b, &shape, &conf, &s);
    EXPECT_OK(weights_save(&a.model, &a.be, lab_path("fp8"), E4M3, 0));
    EXPECT_OK(st_open(&st, lab_path("fp8")));
    EXPECT_OK(st_check_scales(&st));
    EXPECT(check_file(&st) == 2 * 4 + 3 + 2 * 3, "%d tensors in 8 bits", check_file(&st));
    EXPECT(!st_find(&st, "lm_head.weight_scale_inv"), "the head is in 8 bits");
    EXPECT_OK(weights_load(&b.model, &b.be, &st, NULL));
    check_near(&b, &a);
    st_close(&st);
    engine_close(&a), engine_close(&b);
    stream_close(&s);
}

static Status scales_of_shape(int64_t rows, int64_t cols, DType d, const char *name)
{
    static const float zeros[64];
    SafeTensors st;
    StTensor    t[2] = { { .name = "a.weight", .dtype = d, .rank = 2, .shape = { 10, 20 }, .data = zeros,
                           .bytes = 200 },
                         { .name = name, .dtype = F32, .rank = 2, .shape = { rows, cols }, .data = zeros,
                           .bytes = (size_t)(rows * cols) * 4 } };
    EXPECT_OK(st_save(lab_path("x.safetensors"), t, 2));
    EXPECT_OK(st_open(&st, lab_path("x.safetensors")));
    Status s = st_check_scales(&st);
    st_close(&st);
    return s;
}

/* A file with a weight of type d and, if that is e4m3, a scale of type `of`; `cut` bytes are missing. */
static Status file_of(DType d, DType of, double scale, long cut)
{
    static const uint8_t zeros[1600];
    const char *path = lab_path("y.safetensors");
    uint8_t     value[8];
    float       x = (float)scale;
    SafeTensors st;
    StTensor    t[2] = { { .name = "a.weight", .dtype = d, .rank = 2, .shape = { 10, 20 }, .data = zeros,
                           .bytes = 200 * dtype_size(d) },
                         { .name = "a.weight_scale_inv", .dtype = of, .rank = 2, .shape = { 1, 1 },
                           .data = value, .bytes = dtype_size(of) } };
    dtype_convert(value, of, &x, F32, 1);
    EXPECT_OK(st_save(path, t, d == E4M3 ? 2 : 1));
    struct stat s;
    EXPECT(!stat(path, &s) && !truncate(path, s.st_size - cut), "cannot cut %s", path);
    TRY(st_open(&st, path));
    Status r = st_check_scales(&st);
    st_close(&st);
    return r;
}

static void damaged_files_are_refused(void)
{
    static const DType types[] = { F32, BF16 };
    static const double bad[] = { NAN, INFINITY, -INFINITY, -1 };
    static const DType codes[] = { U8, I8, I16, I32, I64, BOOL, E5M2 };
    for (int k = 0; k < 2; k++) {
        EXPECT_OK(file_of(E4M3, types[k], 0.5, 0));
        EXPECT_OK(file_of(E4M3, types[k], 0, 0));
        for (int i = 0; i < 4; i++)
            EXPECT_FAIL(file_of(E4M3, types[k], bad[i], 0), E_DATA, "a.weight_scale_inv: scale 0 is");
    }
    EXPECT_FAIL(file_of(E4M3, F64, 1, 0), E_DATA, "a.weight has shape [10, 20] and its scales f64");
    EXPECT_FAIL(file_of(E4M3, I32, 1, 0), E_DATA, "its scales i32");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        EXPECT_FAIL(file_of(codes[i], F32, 1, 0), E_DATA, "a.weight is stored as");
    for (long cut = 1; cut < 250; cut += 31)
        EXPECT_FAIL(file_of(E4M3, F32, 1, cut), E_DATA, "y.safetensors");
}

static void wrong_scales_are_refused(void)
{
    EXPECT_OK(scales_of_shape(1, 1, E4M3, "a.weight_scale_inv"));
    EXPECT_FAIL(scales_of_shape(1, 2, E4M3, "a.weight_scale_inv"), E_DATA, "a.weight has shape [10, 20]");
    EXPECT_FAIL(scales_of_shape(1, 1, E4M3, "a.weight_scale"), E_DATA, "a.weight is FP8 without _scale_inv");
    EXPECT_FAIL(scales_of_shape(1, 1, U8, "a.weight_scale_inv"), E_DATA, "no F8_E4M3 tensor");
}

int main(void)
{
    omp_set_num_threads(1);
    processes_open();
    RUN(random_layouts);
    if (commlab_.mpi) return processes_close();
    RUN(slices_give_the_codes_of_the_whole);
    RUN(packed_rows);
    RUN(zero_gathers_codes);
    RUN(codes_are_those_of_the_weights);
    RUN(tokens_travel_in_codes);
    RUN(base_in_codes_changes_no_bit);
    RUN(base_is_loaded_in_slices);
    RUN(exports_are_read_back);
    RUN(wrong_scales_are_refused);
    RUN(damaged_files_are_refused);
    return processes_close();
}
