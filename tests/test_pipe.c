/* tests/test_pipe.c -- schedules of the pipeline: known lists, counts, and all stages run at once under the
 * rules of the strictest transport. */
#include "commlab.h"
#include "parallel/pipe.h"

enum { STAGES = 8 };

static void open_all(Pipe *p, const PipeShape *s)
{
    for (int i = 0; i < s->stages; i++) EXPECT_OK(pipe_open(&p[i], s, i, NULL));
}

/* Where backward stops on a stage, for a model whose backward ends in chunk number `lowest`. */
static PipeBackwardStop floor_of(const PipeShape *s, int stage, int lowest)
{
    PipeBackwardStop f = { 0 };
    while (f.skipped_chunks < s->chunks && f.skipped_chunks * s->stages + stage < lowest) f.skipped_chunks++;
    f.stops_grad = f.skipped_chunks * s->stages + stage == lowest;
    return f;
}

static void open_above(Pipe *p, const PipeShape *s, int lowest)
{
    for (int i = 0; i < s->stages; i++) {
        PipeBackwardStop f = floor_of(s, i, lowest);
        EXPECT_OK(pipe_open(&p[i], s, i, &f));
    }
}

static void close_all(Pipe *p, int n)
{
    for (int i = 0; i < n; i++) pipe_close(&p[i]);
}

/* "F0.0 F1.0 B0.0 …" */
static const char *spelled(const Pipe *p)
{
    static char text[4096];
    int at = 0;
    for (int i = 0; i < p->actions; i++)
        at += snprintf(text + at, sizeof text - (size_t)at, "%s%c%d.%d", i ? " " : "",
                       "FB"[p->action[i].what], p->action[i].micro, p->action[i].chunk);
    return text;
}

static void expect_list(PipeShape s, int stage, const char *want)
{
    Pipe p;
    EXPECT_OK(pipe_open(&p, &s, stage, NULL));
    EXPECT(!strcmp(spelled(&p), want), "stage %d:\n    %s\n    %s", stage, spelled(&p), want);
    pipe_close(&p);
}

static void one_forward_one_backward(void)
{
    PipeShape s = { .stages = 3, .chunks = 1, .micros = 4 };
    expect_list(s, 0, "F0.0 F1.0 F2.0 B0.0 F3.0 B1.0 B2.0 B3.0");
    expect_list(s, 1, "F0.0 F1.0 B0.0 F2.0 B1.0 F3.0 B2.0 B3.0");
    expect_list(s, 2, "F0.0 B0.0 F1.0 B1.0 F2.0 B2.0 F3.0 B3.0");
    expect_list((PipeShape){ .stages = 1, .chunks = 1, .micros = 2 }, 0, "F0.0 B0.0 F1.0 B1.0");
    expect_list((PipeShape){ .stages = 4, .chunks = 1, .micros = 1 }, 0, "F0.0 B0.0");
    expect_list((PipeShape){ .stages = 1, .chunks = 1, .micros = 2, .extra_warmup = 1 }, 0,
                "F0.0 F1.0 B0.0 B1.0");
    for (int M = 1; M <= 6; M++)
        for (int stage = 0; stage < 4; stage++) {
            Pipe p;
            EXPECT_OK(pipe_open(&p, &(PipeShape){ 4, 1, M, 0, 0 }, stage, NULL));
            int want = 4 - stage < M ? 4 - stage : M;
            EXPECT(p.slots == want && pipe_in_flight(&p, 0) == want, "stage %d of %d: %d", stage, M, p.slots);
            pipe_close(&p);
        }
}

/* The table of PP 2, V 2, N 3, M 5: micro-batches 0 1 2 0 1 2 3 4 3 4, chunks 0 0 0 1 1 1 0 0 1 1. */
static void interleaved_table(void)
{
    PipeShape s = { .stages = 2, .chunks = 2, .micros = 5, .group = 3 };
    Pipe p;
    const int micro[] = { 0, 1, 2, 0, 1, 2, 3, 4, 3, 4 }, chunk[] = { 0, 0, 0, 1, 1, 1, 0, 0, 1, 1 };
    for (int stage = 0; stage < 2; stage++) {
        int n[2] = { 0, 0 };
        EXPECT_OK(pipe_open(&p, &s, stage, NULL));
        EXPECT(p.warmup == (stage ? 3 : 5) && p.actions == 20, "warm-up %d", p.warmup);
        for (int i = 0; i < p.actions; i++) {
            PipeAction a = p.action[i];
            int k = n[a.what]++, c = a.what == PIPE_FORWARD ? chunk[k] : 1 - chunk[k];
            EXPECT(a.micro == micro[k] && a.chunk == c, "%d: %d.%d", k, a.micro, a.chunk);
        }
        pipe_close(&p);
    }
}

static void peaks(void)
{
    const int four[] = { 19, 17, 15, 13 }, eight[] = { 39, 37, 35, 33, 31, 29, 27, 25 };
    Pipe p[STAGES];
    open_all(p, &(PipeShape){ .stages = 4, .chunks = 4, .micros = 32 });
    for (int i = 0; i < 4; i++) EXPECT(p[i].slots == four[i], "stage %d: %d", i, p[i].slots);
    close_all(p, 4);
    open_all(p, &(PipeShape){ .stages = 8, .chunks = 4, .micros = 64 });
    for (int i = 0; i < 8; i++) EXPECT(p[i].slots == eight[i], "stage %d: %d", i, p[i].slots);
    close_all(p, 8);
    open_all(p, &(PipeShape){ .stages = 4, .chunks = 4, .micros = 32, .extra_warmup = 1 });
    EXPECT(p[0].slots == 20, "one more beside a backward: %d", p[0].slots);
    close_all(p, 4);
    open_all(p, &(PipeShape){ .stages = 4, .chunks = 4, .micros = 4 });
    EXPECT(p[0].slots == 16 && p[0].warmup == 16, "never more than there are: %d", p[0].slots);
    close_all(p, 4);
    EXPECT(fabs(pipe_bubble(&(PipeShape){ 4, 4, 8, 0, 0 }) - 3.0 / 35) < 1e-12, "bubble");
}

/* Between warm-up and the last backwards every forward overlaps with a backward of another slot. */
static void pairs(void)
{
    for (int stages = 1; stages <= 4; stages += 3)
        for (int ahead = 0; ahead < 2; ahead++)
            for (int stage = 0; stage < stages; stage++) {
                PipeShape s = { .stages = stages, .chunks = stages > 1 ? 3 : 1, .micros = 8,
                                .extra_warmup = ahead };
                Pipe p;
                int found = 0;
                EXPECT_OK(pipe_open(&p, &s, stage, NULL));
                for (int i = 0; i < p.steps; i++) {
                    const PipeAction *a = &p.action[p.step[i].action];
                    if (p.step[i].what != PIPE_OVERLAPPED) continue;
                    EXPECT(a[0].what == PIPE_FORWARD && a[1].what == PIPE_BACKWARD && a[0].slot != a[1].slot,
                           "F%d.%d beside B%d.%d", a[0].micro, a[0].chunk, a[1].micro, a[1].chunk);
                    found++;
                }
                EXPECT(found == (ahead ? 8 * s.chunks - p.warmup : 0), "stage %d: %d pairs", stage, found);
                pipe_close(&p);
            }
}

/* One forward and then one backward of each (micro, chunk), in a slot that no other has meanwhile; those of a
 * chunk come in order, so micro % pipe_in_flight is free too. */
static void expect_sound(const Pipe *p)
{
    enum { MOST = 4096 };
    static uint8_t seen[MOST], owner[MOST];
    int chunks = p->shape.chunks, next[2][64] = { 0 };
    EXPECT(p->actions == 2 * p->shape.micros * chunks, "%d actions", p->actions);
    memset(seen, 0, sizeof seen), memset(owner, 0, sizeof owner);
    for (int i = 0; i < p->actions; i++) {
        PipeAction a = p->action[i];
        int id = a.micro * chunks + a.chunk;
        bool forward = a.what == PIPE_FORWARD;
        EXPECT(a.micro == next[a.what][a.chunk]++, "%d of chunk %d out of order", a.micro, a.chunk);
        EXPECT(seen[id]++ == !forward, "%c%d.%d again or too early", "FB"[a.what], a.micro, a.chunk);
        EXPECT(a.slot >= 0 && a.slot < p->slots && owner[a.slot] == !forward, "slot %d", a.slot);
        owner[a.slot] = forward;
        EXPECT(next[0][a.chunk] - next[1][a.chunk] <= pipe_in_flight(p, a.chunk), "alive");
    }
    for (int i = 0; i < p->shape.micros * chunks; i++) EXPECT(seen[i] == 2, "%d ran %d times", i, seen[i]);
}

/* Simulates all stages, each executing its steps. A message leaves its sender when the receiver has posted a
 * receive for it (rendezvous) or at once (buffered); its number alone identifies it. */
enum { SLOTS = 256 };
typedef struct Stage { int at, posted[2], sent[2], heard[2], left[2], owes[SLOTS]; } Stage;

static const PipeStep *nth_send(const Pipe *p, int way, int message)
{
    for (int i = 0; i < p->steps; i++)
        if (p->step[i].what == PIPE_SEND && p->step[i].way == way && p->step[i].message == message)
            return &p->step[i];
    return NULL;
}

static bool can_go(const Stage *st, int me, const PipeStep *s, bool rendezvous)
{
    int way = s->way;
    if (s->what == PIPE_FLUSH) return !rendezvous || st[s->peer].posted[way] > s->message;
    if (s->what == PIPE_RECV) return st[s->peer].sent[way] > s->message && st[me].posted[way] > s->message;
    return true;
}

/* A chunk without a backward may release its slot while its output is still being sent from it. */
static void expect_left(Stage *st, const Pipe *p, const PipeAction *a)
{
    EXPECT(p->slots <= SLOTS, "%d slots", p->slots);
    if (a->what == PIPE_BACKWARD && !pipe_skips_backward(p, *a)) st->owes[a->slot] = 0; /* it has arrived */
    if (a->what == PIPE_BACKWARD) return;
    EXPECT(st->owes[a->slot] <= st->left[PIPE_FORWARD], "stage %d: slot %d is still being sent", p->stage,
           a->slot);
    st->owes[a->slot] = 0;
}

static void go(Stage *st, const Pipe *all, int me, const PipeStep *s)
{
    int way = s->way, window = all[me].window;
    const PipeAction *mine = &all[me].action[s->action];
    if (s->what == PIPE_POST) {
        EXPECT(s->message == st[me].posted[way]++ && s->buffer == s->message % window, "posts in order");
        EXPECT(s->message - st[me].heard[way] < window, "stage %d: buffer %d is still full", me, s->buffer);
    }
    if (s->what == PIPE_FLUSH) st[me].left[way] = s->message + 1;
    if (s->what == PIPE_SEND) {
        EXPECT(s->message == st[me].sent[way]++, "sends in order");
        if (way == PIPE_FORWARD) st[me].owes[mine->slot] = s->message + 1;
    }
    if (s->what == PIPE_RUN || s->what == PIPE_OVERLAPPED) expect_left(&st[me], &all[me], mine);
    if (s->what != PIPE_RECV) return;
    const PipeStep *from = nth_send(&all[s->peer], way, s->message);
    const PipeAction *sent = &all[s->peer].action[from->action];
    int last = all[me].shape.stages - 1;
    int turn = way == PIPE_FORWARD ? (me == 0 ? 1 : 0) : (me == last ? -1 : 0);
    EXPECT(from->peer == me && sent->micro == mine->micro && sent->chunk + turn == mine->chunk,
           "stage %d wants %d.%d, message %d is %d.%d", me, mine->micro, mine->chunk, s->message, sent->micro,
           sent->chunk);
    EXPECT(s->message == st[me].heard[way]++, "heard in order");
}

static void expect_ends(const Pipe *all, int n, bool rendezvous)
{
    Stage st[STAGES] = { 0 };
    bool moved = true, ended = true;
    while (moved && !lab_.bad) {
        moved = false;
        for (int i = 0; i < n; i++)
            while (st[i].at < all[i].steps && can_go(st, i, &all[i].step[st[i].at], rendezvous)) {
                go(st, all, i, &all[i].step[st[i].at++]);
                moved = true;
            }
    }
    for (int i = 0; i < n; i++) ended &= st[i].at == all[i].steps;
    EXPECT(ended, "PP %d V %d M %d N %d: all wait for each other", n, all->shape.chunks, all->shape.micros,
           all->shape.group);
}

static bool legal(const PipeShape *s)
{
    if (s->chunks == 1) return s->group == s->stages;
    int rest = s->micros % s->group;
    return s->stages > 1 && s->group >= s->stages && s->group <= s->micros && (!rest || rest >= s->stages);
}

static void no_stage_waits_for_ever(void)
{
    Pipe p[STAGES];
    int tried = 0;
    for (int stages = 1; stages <= 6; stages++)
        for (int chunks = 1; chunks <= 4; chunks++)
            for (int micros = 1; micros <= 14; micros++)
                for (int group = stages; group <= (micros > stages ? micros : stages); group++)
                    for (int ahead = 0; ahead < 2 && !lab_.bad; ahead++) {
                        PipeShape s = { stages, chunks, micros, group, ahead };
                        if (!legal(&s)) continue;
                        open_all(p, &s);
                        for (int i = 0; i < stages; i++) expect_sound(&p[i]);
                        expect_ends(p, stages, false);
                        expect_ends(p, stages, true);
                        close_all(p, stages);
                        tried++;
                    }
    EXPECT(tried > 1000, "%d shapes", tried);
}

static int sends(const Pipe *p, int way)
{
    int n = 0;
    for (int i = 0; i < p->steps; i++) n += p->step[i].what == PIPE_SEND && p->step[i].way == way;
    return n;
}

/* Wherever backward stops: gradients are sent above that chunk and nowhere else, no stage waits for ever, and
 * no output is overwritten while it is being sent. */
static void backward_ends_anywhere(void)
{
    Pipe p[STAGES];
    int tried = 0;
    for (int stages = 1; stages <= 4; stages++)
        for (int chunks = 1; chunks <= 3; chunks++)
            for (int micros = 1; micros <= 9; micros++)
                for (int group = stages; group <= (micros > stages ? micros : stages); group++)
                    for (int k = 0; k < 2 * stages * chunks && !lab_.bad; k++) {
                        PipeShape s = { stages, chunks, micros, group, k % 2 };
                        int there = 0, back = 0;
                        if (!legal(&s)) continue;
                        open_above(p, &s, k / 2);
                        for (int i = 0; i < stages; i++) expect_sound(&p[i]);
                        expect_ends(p, stages, false);
                        expect_ends(p, stages, true);
                        for (int i = 0; i < stages; i++)
                            there += sends(&p[i], PIPE_FORWARD), back += sends(&p[i], PIPE_BACKWARD);
                        EXPECT(there == micros * (stages * chunks - 1) &&
                                   back == micros * (stages * chunks - 1 - k / 2),
                               "%d messages there, %d back above piece %d", there, back, k / 2);
                        for (int i = 0; i < stages; i++) pipe_split_slots(&p[i]), expect_sound(&p[i]);
                        expect_ends(p, stages, true);
                        close_all(p, stages);
                        tried++;
                    }
    EXPECT(tried > 1000, "%d shapes", tried);
}

/* The simulator detects a deadlock: without receives posted ahead, a group larger than the stages hangs. */
static void too_few_receives_deadlock(void)
{
    PipeShape s = { .stages = 2, .chunks = 2, .micros = 8, .group = 8 };
    Pipe p[STAGES];
    open_all(p, &s);
    EXPECT(p[0].window == 7, "window %d", p[0].window);
    Stage st[STAGES] = { 0 };
    bool moved = true;
    while (moved) {                      /* as no_stage_waits_for_ever, one receive at a time */
        moved = false;
        for (int i = 0; i < 2; i++)
            while (st[i].at < p[i].steps) {
                const PipeStep *k = &p[i].step[st[i].at];
                int shown = st[k->peer < 0 ? 0 : k->peer].heard[k->way] + 1;
                if (k->what == PIPE_FLUSH && k->message >= shown) break;
                if (k->what != PIPE_FLUSH && !can_go(st, i, k, true)) break;
                go(st, p, i, k);
                st[i].at++, moved = true;
            }
    }
    EXPECT(st[0].at < p[0].steps && st[1].at < p[1].steps, "it should not have ended");
    close_all(p, 2);
}

/* The steps over a real transport, executed as the engine does: a message holds its own number. */
enum { BUFFERS = 16, WIDTH = 64 };
typedef struct Walker {
    Comm  *way[2];
    float  in[2][BUFFERS][WIDTH], out[2][WIDTH];
    Ticket in_t[2][BUFFERS], out_t[2];
} Walker;
static PipeShape walked;
static int       walked_above;

static Tensor row(float *x) { return t_wrap(x, F32, 2, (int64_t[]){ 1, WIDTH }); }
static float  spell(const PipeStep *s, const PipeAction *a, int piece)
{
    return (float)(s->way * 100000 + a->micro * 1000 + a->chunk * walked.stages + piece);
}

static void walk_step(Walker *w, const Pipe *p, const PipeStep *s)
{
    const PipeAction *a = &p->action[s->action];
    int step = s->way == PIPE_FORWARD ? -1 : 1;
    switch (s->what) {
    case PIPE_POST:
        w->in_t[s->way][s->buffer] = comm_recv_start(w->way[s->way], row(w->in[s->way][s->buffer]), s->peer);
        return;
    case PIPE_RECV: {
        comm_join(w->in_t[s->way][s->buffer]);
        float got = w->in[s->way][s->buffer][WIDTH - 1], want = spell(s, a, p->stage + step);
        EXPECT(got == want, "stage %d: %g, want %g", p->stage, got, want);
        return;
    }
    case PIPE_FLUSH: comm_join(w->out_t[s->way]); return;
    case PIPE_SEND:
        for (int i = 0; i < WIDTH; i++) w->out[s->way][i] = spell(s, a, p->stage);
        w->out_t[s->way] = comm_send_start(w->way[s->way], row(w->out[s->way]), s->peer);
        return;
    default: return;
    }
}

static void walk_rank(Peer *peer)
{
    Mesh m = { 0 };
    Pipe p;
    Walker *w = calloc(1, sizeof *w);
    EXPECT_OK(mesh_open(&m, peer->world, &(MeshLayout){ .pp = peer->size }));
    mesh_bind(&m, &peer->be);
    w->way[PIPE_FORWARD] = m.comm[GR_pp], w->way[PIPE_BACKWARD] = m.comm[GR_pp_back];
    PipeBackwardStop floor = floor_of(&walked, peer->rank, walked_above);
    EXPECT_OK(pipe_open(&p, &walked, peer->rank, &floor));
    EXPECT(p.window <= BUFFERS, "%d buffers", p.window);
    for (int i = 0; i < p.steps; i++) walk_step(w, &p, &p.step[i]);
    EXPECT_OK(backend_sync(&peer->be));
    pipe_close(&p);
    mesh_close(&m);
    free(w);
}

static void walked_over_threads(void)
{
    static const PipeShape shapes[] = {
        { 2, 1, 3, 0, 0 }, { 2, 2, 5, 3, 0 }, { 2, 3, 8, 8, 1 }, { 3, 2, 7, 4, 0 }, { 4, 1, 2, 0, 0 },
        { 4, 4, 8, 0, 1 }, { 4, 2, 9, 9, 0 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        walked = shapes[i];
        for (walked_above = 0; walked_above < walked.stages * walked.chunks; walked_above++)
            on_ranks(walked.stages, 0, walk_rank);
    }
}

static void printed(void)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    EXPECT_OK(pipe_print(f, &(PipeShape){ .stages = 4, .chunks = 4, .micros = 32 }));
    fclose(f);
    EXPECT(strstr(text, "32 micro-batches a step, interleaved; 2.3 % of the step is bubble"), "%s", text);
    EXPECT(strstr(text, "    0       18     19  F0.0 F1.0 F2.0 F3.0 F0.1"), "%s", text);
    free(text);
}

int main(void)
{
    RUN(one_forward_one_backward);
    RUN(interleaved_table);
    RUN(peaks);
    RUN(pairs);
    RUN(no_stage_waits_for_ever);
    RUN(backward_ends_anywhere);
    RUN(too_few_receives_deadlock);
    RUN(walked_over_threads);
    RUN(printed);
    return lab_report();
}
