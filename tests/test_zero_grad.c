/* A trainable tensor whose gradient stays zero ends the run; steps that do not count do not. All ranks find
 * the same, here with routers that choose one expert: its weight is 1 whatever the logits are. */
#include "layoutlab.h"
#include "runlab.h"
#include "train/zero_grad.h"

static const float some[GROUP_N] = { 1e-3f, 1e-3f, 1e-3f }, none[GROUP_N] = { 0 };

/* ---- gradients made by hand ---- */

/* A weight with an adapter and a merger, and squares of gradients as a rank would have them. */
typedef struct Hand { Model m; Mesh mesh; ZeroGradCheck s; Lora lora; Param *w, *a, *b, *merger; } Hand;

static void hand_open(Hand *h, Comm *world)
{
    MeshLayout one = { .tp = 1, .cp = 1, .pp = 1, .vpp = 1, .ep = 1, .etp = 1, .replicas = 1, .cp_inner = 1 };
    *h = (Hand){ 0 };
    EXPECT_OK(mesh_open(&h->mesh, world, &one));
    h->w = param_matrix(&h->m.params, G_LLM, 8, 4, "w");
    h->a = param_matrix(&h->m.params, G_LLM, 2, 4, "a");
    param_piece(h->a, 2, "a.second");
    h->b = param_matrix(&h->m.params, G_LLM, 8, 2, "b");
    h->merger = param_matrix(&h->m.params, G_ALIGNER, 4, 4, "merger");
    h->lora = (Lora){ .a = h->a, .part = { { .b = h->b }, { .b = h->b } }, .parts = 2 };
    h->w->lora = &h->lora, h->w->frozen = true;
    h->a->step.has_grad = h->b->step.has_grad = h->merger->step.has_grad = true;
    EXPECT_OK(zero_grad_open(&h->s, &h->m, 3));
}

static void hand_close(Hand *h)
{
    zero_grad_close(&h->s);
    params_close(&h->m.params);
    mesh_close(&h->mesh);
}

/* A step with these squares of gradients. */
static int hand_step(Hand *h, const float *lr, double a, double second, double b, double merger)
{
    const double all[] = { -1, 0, a, second, b, merger };
    EXPECT(h->s.n == 5, "%d tensors", h->s.n);
    zero_grad_expect(&h->s, 1);
    return zero_grad_count_step(&h->s, &h->mesh, 1, all, lr);
}

static void counts(void)
{
    Hand h;
    Comm *world;
    EXPECT_OK(comm_open(&world, &(CommConf){ .kind = "fake", .size = 1 }));
    hand_open(&h, world);
    for (int i = 0; i < 5; i++)
        EXPECT(!hand_step(&h, none, 0, 0, 1, 1), "an A whose B could not move yet, step %d", i);
    EXPECT(!hand_step(&h, some, 0, 0, 1, 1), "the step that moves B");
    EXPECT(!hand_step(&h, some, 0, 1, 1, 1) && !hand_step(&h, some, 0, 1, 1, 1), "one and two in a row");
    EXPECT(hand_step(&h, some, 0, 1, 1, 1) == 1, "three");
    EXPECT_FAIL(zero_grad_error(&h.s), E_CHECK, "a: its gradient has been exactly zero for 3 steps");
    EXPECT(!hand_step(&h, some, 1, 1, 1, 0), "it lives");
    EXPECT_OK(zero_grad_error(&h.s));
    h.merger->step.has_grad = false;
    for (int i = 0; i < 5; i++) EXPECT(!hand_step(&h, some, 1, 1, 1, 0), "text alone");
    h.merger->step.has_grad = true;
    EXPECT(!hand_step(&h, some, 1, 1, 1, 0), "two with pictures");
    EXPECT(hand_step(&h, some, 1, 0, 1, 0) == 1, "and a third");
    EXPECT_FAIL(zero_grad_error(&h.s), E_CHECK, "merger");
    EXPECT(!hand_step(&h, some, 1, 0, 1, 1e-80), "the smallest is not nothing");
    EXPECT(hand_step(&h, some, 1, 0, 1, 1) == 1, "a tensor inside a parameter");
    EXPECT_FAIL(zero_grad_error(&h.s), E_CHECK, "a.second");
    h.s.limit = 0;
    EXPECT(!hand_step(&h, some, 0, 0, 0, 0), "never");
    EXPECT_OK(zero_grad_error(&h.s));
    hand_close(&h);
    comm_close(world);
}

/* ---- whole runs ---- */

static RunLab lab;

static void open_or_die(Trainer *t, Config *c, const char *overrides)
{
    runlab_recipe(c, &lab, "still", overrides);
    Status st = trainer_open(t, &(TrainerConf){ .recipe = c, .least = LOG_ERROR });
    REQUIRE(!st, "%s", status_text());
}

static void close_run(Trainer *t, Config *c)
{
    trainer_close(t), config_close(c);
    folder_remove(lab_path("still"));
}

/* Query weights of zero give keys a zero gradient; without a learning rate they stay zero. */
static void ends_the_run(void)
{
    Trainer t;
    Config  c;
    for (int never = 0; never < 2; never++) {
        open_or_die(&t, &c, never ? "optim.learning_rate=0\ntrain.max_zero_steps=0\ntrain.max_steps=4"
                                  : "optim.learning_rate=0\ncheckpoint.save_steps=1");
        Tensor q = decoder_gqa(&t.engine.model.layer[1])->q_norm->shard.w;
        memset(q.data, 0, (size_t)t_bytes(q));
        if (never) EXPECT_OK(trainer_run(&t));
        else EXPECT_FAIL(trainer_run(&t), E_CHECK, "model.language_model.layers.1.self_attn.q_proj.weight");
        EXPECT(t.step == (never ? 4 : 3), "after step %lld", (long long)t.step);
        EXPECT(never || strstr(status_text(), "of 2 other tensors"), "%s", status_text());
        EXPECT(never || file_is(lab_path("still/checkpoint-2/MANIFEST.json")), "what was saved stays");
        close_run(&t, &c);
    }
}

/* An adapter on such a query: its B has a zero gradient, and its A is not checked before B moves. */
static void names_the_adapter(void)
{
    Trainer t;
    Config  c;
    open_or_die(&t, &c, "lora.rank=4\nlora.target_modules=[q_proj, v_proj]");
    Tensor q = decoder_gqa(&t.engine.model.layer[1])->q_norm->shard.w;
    memset(q.data, 0, (size_t)t_bytes(q));
    EXPECT_FAIL(trainer_run(&t), E_CHECK,
                "base_model.model.model.language_model.layers.1.self_attn.q_proj.lora_B.weight: its gradient "
                "has been exactly zero for 3 steps in a row, so");
    EXPECT(t.step == 3, "after step %lld", (long long)t.step);
    close_run(&t, &c);
}

/* Steps that do not count: text only, a learning rate of 0, one micro-batch a step, adapters whose B is
 * zero. */
static void no_false_alarm(void)
{
    static const char *const kinds[] = { "moe.aux_loss_coeff=0",
                                         "train.global_tokens=450\ndata.train=[%s]",
                                         "lora.rank=4\noptim.warmup_steps=3",
                                         "lora.rank=4\noptim.learning_rate=0\nmodel.dtype=bfloat16",
                                         "lora.rank=4\nlora.dropout=0.1\ndata.train=[%s]" };
    Trainer t;
    Config  c;
    char    line[500], text[600];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        snprintf(line, sizeof line, "%s\ntrain.max_steps=4", kinds[i]);
        snprintf(text, sizeof text, line, lab.text);
        open_or_die(&t, &c, text);
        EXPECT_OK(trainer_run(&t));
        close_run(&t, &c);
    }
}

/* ---- ranks ---- */

static struct { int found, routers; } seen[MOST];

static void rank_main(Peer *p)
{
    Engine e;
    Mesh   place;
    ZeroGradCheck  s;
    double loss, norm;
    int    found = 0, routers = 0;
    open_rank(&e, p, &place);
    e.conf.z_coeff = 0;
    if (zero_grad_open(&s, &e.model, 3)) note("%s", status_text());
    for (int i = 0; i < 3; i++) {
        if (step(&the_case, &e, place.at[AX_DP], i, &loss, &norm)) note("%s", status_text());
        double *squares = e.results.device.sumsq.data;       /* in host memory */
        if (fabs(sqrt(squares[0]) - norm) > 1e-12 * norm) note("norm %g, %g", sqrt(squares[0]), norm);
        zero_grad_expect(&s, 0);
        found = zero_grad_count_step(&s, &e.mesh, 0, squares, some);
    }
    for (int i = 0; i < s.n; i++) {
        const Param *q = s.tensor[i].p;
        routers += q->linear == LINEAR_ROUTER;
        if ((s.tensor[i].in_a_row == 3) != (q->linear == LINEAR_ROUTER))
            note("rank %d, %s: %s was zero in %lld steps", p->rank, case_text(&the_case),
                 q->piece[s.tensor[i].piece].name, (long long)s.tensor[i].in_a_row);
    }
    seen[p->rank].found = found, seen[p->rank].routers = routers;
    zero_grad_close(&s);
    engine_close(&e);
}

/* Every kind of shard: a rank without a part of the tensor, or with a part whose gradient is zero, agrees
 * with all. */
static void ranks_agree(void)
{
    static const char *const layouts[] = { " cp=2 zero=0", " ep=4 zero=2", " pp=2 tp=2 zero=1",
                                           " tp=2 ep=2 etp=2 zero=3" };
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++) {
        Case *c = &the_case;
        draw_case(c, 7, 4, 3);
        RuleInput *r = &c->rule;
        r->tp = r->cp = r->pp = r->vpp = r->ep = r->etp = r->replicas = 1, r->domain = 0;
        r->recomputes = r->offloads = 0, r->overlap = false, r->cp_comm = "p2p", r->cp_sizes = 0;
        case_words(r, layouts[i]);
        r->dispatcher = r->ep * r->etp > 1 ? "alltoall" : "local";
        c->shape = shape_of(false), c->shape.text.K = 1;
        c->aux = AUX_NONE, c->pictures = true, c->rank_capacity = 0;
        EXPECT(rules_legal(r), "layout%s", layouts[i]);
        fill(c, 5);
        failure.any = false;
        on_ranks(4, 0, rank_main);
        EXPECT(!failure.any, "layout%s: %s", layouts[i], failure.text);
        for (int k = 0; k < 4; k++)
            EXPECT(seen[k].found == seen[k].routers && seen[k].routers, "layout%s, rank %d: %d still of %d",
                   layouts[i], k, seen[k].found, seen[k].routers);
        empty(c);
    }
}

static Status ended[2];
static char   words[2][400];

static void stage_main(Peer *p)
{
    Trainer t;
    Config  c;
    omp_set_num_threads(1);
    runlab_recipe(&c, &lab, "still", "optim.learning_rate=0\nparallel.pp=2\ncheckpoint.save_steps=1");
    Status st = trainer_open(&t, &(TrainerConf){ .recipe = &c, .least = LOG_ERROR, .world = p->world });
    if (!st && p->rank) {
        Tensor q = decoder_gqa(&t.engine.model.layer[1])->q_norm->shard.w;
        memset(q.data, 0, (size_t)t_bytes(q));
    }
    ended[p->rank] = st ? st : trainer_run(&t);
    snprintf(words[p->rank], sizeof *words, "%s", status_text());
    if (t.step != 3) note("rank %d ended after step %lld", p->rank, (long long)t.step);
    trainer_close(&t), config_close(&c);
}

/* A tensor of one pipeline stage ends all ranks with the same message; the checkpoint being saved is
 * complete. */
static void stages_end_together(void)
{
    failure.any = false;
    on_ranks(2, 0, stage_main);
    EXPECT(!failure.any, "%s", failure.text);
    for (int i = 0; i < 2; i++)
        EXPECT(ended[i] == E_CHECK && strstr(words[i], "layers.1.self_attn.q_proj.weight"),
               "rank %d: %d, %s", i, (int)ended[i], words[i]);
    EXPECT(file_is(lab_path("still/checkpoint-2/MANIFEST.json")), "the save that was out");
    folder_remove(lab_path("still"));
}

int main(void)
{
    setenv("TREB_FAMILY", "0", 0);                           /* layouts that other families refuse */
    runlab_open(&lab, 12);
    RUN(counts);
    RUN(ends_the_run);
    RUN(names_the_adapter);
    RUN(no_false_alarm);
    RUN(ranks_agree);
    RUN(stages_end_together);
    runlab_close(&lab);
    return lab_report();
}
