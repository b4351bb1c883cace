/* How much of the communication of a step is hidden behind compute: two ranks over a slow link (linklab.h),
 * with and without what is to hide it. Losses are the same. TREB_HIDDEN=1 measures all kinds and prints
 * them; TREB_LINK sets the rate of the link in MB/s. */
#include "layoutlab.h"
#include "linklab.h"

static const char shape_text[] =
    "{\"model_type\": \"qwen3_moe\", \"dtype\": \"float32\", \"vocab_size\": 97, \"hidden_size\": 256,"
    " \"num_hidden_layers\": 6, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 36,"
    " \"intermediate_size\": 1024, \"moe_intermediate_size\": 256, \"num_experts\": 8,"
    " \"num_experts_per_tok\": 2, \"mlp_only_layers\": [%s], \"rope_theta\": 10000.0,"
    " \"initializer_range\": 0.02, \"tie_word_embeddings\": false}";

enum { TIMED = 3 };                                        /* steps, after one that is not measured */
typedef struct Layout { const char *name; bool dense; int tp, ep, zero, tp_chunks; bool overlap; } Layout;
typedef struct Measured { double loss, step; LedgerComm comm[GR_N]; } Measured;

static Measured measured[2];                                /* by rank */

static void rank_main(Peer *p)
{
    Engine    e;
    Mesh      place;
    Measured *m = &measured[p->rank];
    double    norm, from = 0;
    linklab_slow(p->world, 1e6 * number("TREB_LINK", 100));
    open_rank(&e, p, &place);
    for (int i = 0; i < 1 + TIMED; i++) {
        comm_barrier(p->world);
        if (i == 1) memset(e.be.ledger.comm, 0, sizeof e.be.ledger.comm), from = clock_now();
        EXPECT_OK(step(&the_case, &e, place.at[AX_DP], i, &m->loss, &norm));
    }
    m->step = (clock_now() - from) / TIMED;
    memcpy(m->comm, e.be.ledger.comm, sizeof m->comm);
    engine_close(&e);
}

/* Of rank 0. */
static Measured measure(const Layout *l)
{
    Case *c = &the_case;
    char  text[2048];
    snprintf(text, sizeof text, shape_text, l->dense ? "0, 1, 2, 3, 4, 5" : "");
    *c = (Case){ .shape = small_shape(text), .steps = 1 + TIMED, .dtype = F32, .tp_chunks = l->tp_chunks,
                 .weights = 5 };
    c->rule = (RuleInput){ .world = 2, .tp = l->tp, .cp = 1, .pp = 1, .vpp = 1, .ep = l->ep, .etp = 1,
                           .zero = l->zero, .replicas = 1, .cp_comm = "p2p", .layers = c->shape.text.L,
                           .heads = c->shape.text.H, .overlap = l->overlap, .layout = "",
                           .dispatcher = l->ep > 1 ? "alltoall" : "local", .recompute_method = "uniform",
                           .recompute_layers = 1 };
    fill(c, 5);
    on_ranks(2, 0, rank_main);
    empty(c);
    return measured[0];
}

static void print_measured(const Layout *l, const Measured *m)
{
    printf("  %-20s step %6.1f ms", l->name, 1e3 * m->step);
    for (int g = 0; g < GR_N; g++) {
        const LedgerComm *x = &m->comm[g];
        if (x->length > 0.02 * m->step * TIMED)
            printf("  %s %.1f of %.1f ms exposed, %.0f %% hidden", group_name((GroupId)g),
                   1e3 * x->exposed / TIMED, 1e3 * x->length / TIMED, 100 * (1 - x->exposed / x->length));
    }
    puts("");
}

/* Both layouts have the same loss, and the second exposes less of the group. */
static void expect_hidden(const Layout *plain, const Layout *hides, GroupId group)
{
    Measured a = measure(plain), b = measure(hides);
    if (getenv("TREB_HIDDEN")) print_measured(plain, &a), print_measured(hides, &b);
    EXPECT(a.loss == b.loss && a.loss > 0, "%s: loss %.9g, %s: %.9g", plain->name, a.loss, hides->name,
           b.loss);
    EXPECT(b.comm[group].exposed < a.comm[group].exposed, "%s: %g s exposed, %s: %g s", plain->name,
           a.comm[group].exposed, hides->name, b.comm[group].exposed);
}

static void overlap_hides_dispatch_with_zero_3(void)
{
    expect_hidden(&(Layout){ "ep 2, zero 3", false, 1, 2, 3, 1, false },
                  &(Layout){ "ep 2, zero 3, overlap", false, 1, 2, 3, 1, true }, GR_etp_ep);
}

static void others_are_measured(void)
{
    if (!getenv("TREB_HIDDEN")) SKIP("set TREB_HIDDEN=1");
    expect_hidden(&(Layout){ "ep 2, zero 1", false, 1, 2, 1, 1, false },
                  &(Layout){ "ep 2, zero 1, overlap", false, 1, 2, 1, 1, true }, GR_etp_ep);
    expect_hidden(&(Layout){ "ep 2, zero 2", false, 1, 2, 2, 1, false },
                  &(Layout){ "ep 2, zero 2, overlap", false, 1, 2, 2, 1, true }, GR_etp_ep);
    expect_hidden(&(Layout){ "tp 2", true, 2, 1, 1, 1, false },
                  &(Layout){ "tp 2, chunks 2", true, 2, 1, 1, 2, false }, GR_tp);
    Layout zero3 = { "zero 3", true, 1, 1, 3, 1, false };
    Measured m = measure(&zero3);
    print_measured(&zero3, &m);
}

int main(void)
{
    omp_set_num_threads(1);
    RUN(overlap_hides_dispatch_with_zero_3);
    RUN(others_are_measured);
    return lab_report();
}
