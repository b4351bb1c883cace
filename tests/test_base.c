/* tests/test_base.c -- status texts, growing arrays, arenas, random numbers and the thread pool. */
#include "lab.h"
#include "base/arena.h"
#include "base/grow.h"
#include "base/num.h"
#include "base/rng.h"
#include "base/thread_pool.h"

#include <sys/mman.h>

/* ---- status ---- */

static Status inner(int n)  { return n ? fail(E_DATA, "row %d is bad", n) : OK; }
static Status middle(int n) { TRY(inner(n)); return OK; }
static Status outer(int n)  { TRY_CTX(middle(n), "file %s", "x.bin"); return OK; }

static void status_texts(void)
{
    char longest[20000];
    EXPECT_OK(outer(0));
    EXPECT_FAIL(outer(7), E_DATA, "file x.bin: row 7 is bad");
    EXPECT_FAIL(fail(E_IO, "again: %s", status_text()), E_IO, "again: file x.bin: row 7 is bad");
    memset(longest, 'a', sizeof longest - 1), longest[sizeof longest - 1] = 0;
    EXPECT_FAIL(fail(E_FIT, "%s", longest), E_FIT, "aaa");
    EXPECT_FAIL(wrap(E_FIT, "%s", longest), E_FIT, "aaa");
    EXPECT(strlen(status_text()) < sizeof longest, "cut, and ended");
}

static void exit_codes(void)
{
    static const struct { Status s; int code; } want[] = {
        { OK, 0 }, { E_OTHER, 1 }, { E_CONFIG, 2 }, { E_FIT, 3 }, { E_IO, 4 }, { E_DATA, 4 }, { E_DEVICE, 5 },
        { E_COMM, 6 }, { E_CHECK, 7 },
    };
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        EXPECT(status_exit_code(want[i].s) == want[i].code, "status %d", (int)want[i].s);
}

/* ---- growing arrays, numbers ---- */

static void arrays_grow(void)
{
    int64_t *v = NULL;
    int      cap = 0;
    for (int i = 0; i < 1000; i++) {
        bool grown = GROW(v, cap, i + 1);
        EXPECT(grown, "item %d", i);
        if (!grown) break;
        v[i] = i;
    }
    for (int i = 0; i < 1000 && i < cap; i++) EXPECT(v[i] == i, "item %d is %lld", i, (long long)v[i]);
    EXPECT(cap >= 1000 && cap < 2048, "capacity %d", cap);
    int64_t *before = v;
    EXPECT(GROW(v, cap, 10) && v == before, "an array that is large enough stays where it is");
    free(v);
}

static void arrays_refuse_to_overflow(void)
{
    struct { char bytes[1 << 20]; } *v = NULL;
    int64_t cap = 0;
    int     narrow = 0;
    EXPECT(!GROW(v, cap, INT64_MAX / 2) && !v && !cap, "a size above the address space");
    EXPECT(!GROW(v, narrow, (int64_t)INT32_MAX + 1) && !v && !narrow, "a capacity above its type");
}

static void numbers(void)
{
    EXPECT(min_i64(-3, 2) == -3 && max_i64(-3, 2) == 2 && min_int(5, 5) == 5 && max_size(1, 2) == 2,
           "min, max");
    EXPECT(ceil_div(0, 4) == 0 && ceil_div(9, 4) == 3 && round_up(8, 4) == 8, "rounding up");
}

/* ---- arena ---- */

static void arena_marks(void)
{
    static char memory[4096];
    Status sticky = OK;
    Arena  a;
    EXPECT_OK(arena_open(&a, "act", memory, sizeof memory, &sticky));
    void *p = arena_push(&a, "p", 1);
    ArenaMark m = arena_mark(&a);
    void *q = arena_push(&a, "q", ARENA_ALIGN + 1);
    EXPECT(p == memory && q == memory + ARENA_ALIGN && a.used == 3 * ARENA_ALIGN, "%zu used", a.used);
    arena_reset(&a, m);
    EXPECT(arena_push(&a, "r", 5) == q && a.peak == 3 * ARENA_ALIGN, "the bytes are reused, the peak stays");
    EXPECT(arena_push(&a, "zero", 0) && a.used == 2 * ARENA_ALIGN, "nothing takes nothing");
    arena_clear(&a);
    EXPECT(a.used == 0 && a.depth == 0 && a.peak == 3 * ARENA_ALIGN && !sticky, "cleared");
    arena_close(&a);
    arena_close(&a);
}

static const ArenaLabel *label(const Arena *a, const char *name)
{
    for (int i = 0; i < a->labels; i++)
        if (!strcmp(a->label[i].name, name)) return &a->label[i];
    return NULL;
}

static void arena_labels_at_peak(void)
{
    static char memory[16 * ARENA_ALIGN];
    Arena a;
    EXPECT_OK(arena_open(&a, "act", memory, sizeof memory, NULL));
    arena_push(&a, "kept", ARENA_ALIGN);
    ArenaMark m = arena_mark(&a);
    arena_push(&a, "early", 5 * ARENA_ALIGN);
    arena_reset(&a, m);
    char same[] = "late";                                   /* the text decides, not its address */
    arena_push(&a, "late", 6 * ARENA_ALIGN);
    arena_push(&a, same, ARENA_ALIGN);
    arena_reset(&a, m);
    arena_push(&a, "early", ARENA_ALIGN);
    EXPECT(a.peak == 8 * ARENA_ALIGN && label(&a, "late")->at_peak == 7 * ARENA_ALIGN, "peak %zu", a.peak);
    EXPECT(label(&a, "kept")->at_peak == ARENA_ALIGN && label(&a, "early")->at_peak == 0, "live at the peak");
    EXPECT(label(&a, "early")->top == 5 * ARENA_ALIGN && label(&a, "late")->used == 0, "tops and use");
    arena_close(&a);
}

static void arena_full_sticks(void)
{
    static char memory[2 * ARENA_ALIGN];
    Status sticky = OK;
    Arena  a;
    EXPECT_OK(arena_open(&a, "scratch", memory, sizeof memory, &sticky));
    arena_push(&a, "fits", ARENA_ALIGN);
    EXPECT(arena_push(&a, "large", 2 * ARENA_ALIGN) == memory && sticky == E_FIT, "status %d", (int)sticky);
    EXPECT(strstr(status_text(), "scratch") && strstr(status_text(), "large"), "%s", status_text());
    EXPECT(a.used == ARENA_ALIGN, "a push that failed takes nothing");
    for (size_t n = SIZE_MAX; n > SIZE_MAX - 600; n--) EXPECT(arena_push(&a, "endless", n) == memory, "wrap");
    EXPECT(!strstr(status_text(), "endless"), "the first failure is the one reported: %s", status_text());
    arena_push(&a, "exact", ARENA_ALIGN);
    EXPECT(a.used == a.cap, "it can be filled to the last byte");
    arena_close(&a);
}

static void arena_fails_on_request(void)
{
    static char memory[8 * ARENA_ALIGN];
    for (int n = 1; n <= 4; n++) {
        Status sticky = OK;
        Arena  a;
        EXPECT_OK(arena_open(&a, "act", memory, sizeof memory, &sticky));
        a.fail_at = n;
        for (int i = 1; i <= 4; i++) {
            arena_push(&a, "x", 1);
            EXPECT((sticky == E_FIT) == (i >= n), "push %d of a failure at %d", i, n);
        }
        arena_close(&a);
    }
}

/* More labels than rows, and more live pushes than the stack can name: both land on "other", in balance. */
static void arena_runs_out_of_names(void)
{
    enum { PUSHES = 40000 };
    size_t cap = (size_t)PUSHES * ARENA_ALIGN;
    void  *memory = mmap(NULL, cap, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    static char names[100][16];
    Arena a;
    EXPECT(memory != MAP_FAILED, "no address space");
    EXPECT_OK(arena_open(&a, "act", memory, cap, NULL));
    ArenaMark start = arena_mark(&a);
    for (int i = 0; i < 100; i++) snprintf(names[i], sizeof names[i], "n%d", i);
    for (int i = 0; i < PUSHES; i++) arena_push(&a, names[i % 100], 1);
    size_t sum = 0;
    for (int i = 0; i < a.labels; i++) sum += a.label[i].used;
    EXPECT(a.labels == ARENA_LABELS && sum == a.used && a.used == cap, "%zu of %zu", sum, a.used);
    arena_reset(&a, start);
    for (int i = 0; i < a.labels; i++)
        EXPECT(a.label[i].used == 0, "%s keeps %zu", a.label[i].name, a.label[i].used);
    arena_close(&a);
    munmap(memory, cap);
}

/* ---- random numbers ---- */

/* The vectors published with Random123 (kat_vectors, philox4x32 10). */
static void philox_known_answers(void)
{
    static const struct { uint32_t c[4], k[2], out[4]; } kat[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { ~0u, ~0u, ~0u, ~0u }, { ~0u, ~0u }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 },
          { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (int i = 0; i < 3; i++) {
        Rng4 c;
        memcpy(c.v, kat[i].c, sizeof c.v);
        c = rng_philox(c, kat[i].k[0], kat[i].k[1]);
        EXPECT(!memcmp(c.v, kat[i].out, sizeof c.v), "vector %d begins with %08x", i, c.v[0]);
    }
    uint64_t seed = 0x299f31d0a4093822ull, stream = 0x0370734413198a2eull, block = 0x85a308d3243f6a88ull;
    Rng4     b = rng_block(seed, stream, block);
    EXPECT(b.v[0] == 0xd16cfe09 && b.v[3] == 0x24126ea1, "how seed, stream and index are laid out");
    EXPECT(rng_u32(0, 0, 2) == 0xbc57ac4c && rng_u64(0, 0, 1) == 0x9b00dbd8bc57ac4cull, "words of a block");
}

static void rng_slices_agree(void)
{
    enum { N = 1000 };
    static float whole[N], part[N];
    uint64_t first = 1u << 31;
    rng_fill_normal(whole, N, 42, 7, first, 1.0f, 0.02f);
    for (int step = 1; step < 300; step = step * 2 + 1) {
        memset(part, 0xff, sizeof part);
        for (int i = 0; i < N; i += step)
            rng_fill_normal(part + i, i + step < N ? step : N - i, 42, 7, first + (uint64_t)i, 1.0f, 0.02f);
        EXPECT(!memcmp(whole, part, sizeof whole), "pieces of %d", step);
    }
    EXPECT(whole[77] == 1.0f + 0.02f * rng_normal(42, 7, first + 77), "one alone");
    rng_fill_uniform(whole, N, 42, 7, 3, -1, 1);
    rng_fill_uniform(part + 5, N - 5, 42, 7, 8, -1, 1);
    EXPECT(!memcmp(whole + 5, part + 5, (N - 5) * sizeof *whole), "uniform");
    EXPECT(whole[0] == -1 + 2 * rng_uniform(42, 7, 3), "one alone");
    rng_fill_uniform(NULL, 0, 42, 7, 3, -1, 1);
}

/* Moments of a million numbers, with bounds about five standard errors wide. */
static void rng_statistics(void)
{
    enum { N = 1 << 20 };
    float *x = malloc(N * sizeof *x);
    double m = 0, v = 0, k = 0, corr = 0;
    rng_fill_normal(x, N, 1, rng_stream("weight"), 0, 0, 1);
    for (int i = 0; i < N; i++) {
        double d = x[i];
        m += d / N, v += d * d / N, k += d * d * d * d / N, corr += d * x[i ^ 1] / N;
    }
    EXPECT(fabs(m) < 5e-3 && fabs(v - 1) < 7e-3 && fabs(k - 3) < 0.05, "%g %g %g", m, v, k);
    EXPECT(fabs(corr) < 1e-2, "neighbours of a pair: %g", corr);
    m = v = 0;
    rng_fill_uniform(x, N, 1, rng_stream("weight"), 0, 0, 1);
    for (int i = 0; i < N; i++) {
        m += x[i] / N, v += (double)x[i] * x[i] / N;
        EXPECT(x[i] >= 0 && x[i] < 1, "%g", x[i]);
    }
    EXPECT(fabs(m - 0.5) < 2e-3 && fabs(v - 1.0 / 3) < 2e-3, "%g %g", m, v);
    free(x);
    EXPECT(rng_stream("a") != rng_stream("b") && rng_stream("") >> 63 == 1, "streams by name");
}

static void rng_bounded(void)
{
    enum { N = 1000 };
    int64_t  order[N], other[N], seen[N] = { 0 };
    uint64_t hits[10] = { 0 };
    for (uint64_t i = 0; i < 10000; i++) hits[rng_below(3, 4, i, 10)]++;
    for (int i = 0; i < 10; i++) EXPECT(hits[i] > 850 && hits[i] < 1150, "%d: %d", i, (int)hits[i]);
    EXPECT(rng_below(3, 4, 5, 1) == 0, "one choice");
    rng_shuffle(order, N, 1, 2);
    rng_shuffle(other, N, 1, 3);
    for (int i = 0; i < N; i++) seen[order[i]]++;
    for (int i = 0; i < N; i++) EXPECT(seen[i] == 1, "%d is there %d times", i, (int)seen[i]);
    EXPECT(memcmp(order, other, sizeof order), "another stream, another order");
}

/* ---- threads ---- */

typedef struct Tally { ThreadPool *pool; int64_t count; int *hits; int64_t fail_from; } Tally;

static Status tally(void *arg, int64_t i)
{
    Tally *t = arg;
    __atomic_fetch_add(&t->hits[i], 1, __ATOMIC_RELAXED);
    return t->fail_from && i >= t->fail_from ? fail(E_DATA, "call %d", (int)i) : OK;
}

static void pool_runs_each_once(void)
{
    for (int workers = 0; workers <= 4; workers += 2) {
        ThreadPool p;
        EXPECT_OK(thread_pool_open(&p, workers));
        for (int64_t count = 0; count < 5000; count = count * 4 + 1) {
            Tally t = { &p, count, calloc((size_t)count + 1, sizeof(int)), 0 };
            EXPECT_OK(thread_pool_run(&p, count, tally, &t));
            for (int64_t i = 0; i < count; i++) EXPECT(t.hits[i] == 1, "%d: %d times", (int)i, t.hits[i]);
            free(t.hits);
        }
        thread_pool_close(&p);
        thread_pool_close(&p);
    }
}

static void pool_reports_failure(void)
{
    ThreadPool p;
    EXPECT_OK(thread_pool_open(&p, 3));
    Tally t = { &p, 1000, calloc(1000, sizeof(int)), 500 };
    EXPECT_FAIL(thread_pool_run(&p, 1000, tally, &t), E_DATA, "call ");
    int ran = 0;
    for (int i = 0; i < 1000; i++) ran += t.hits[i];
    EXPECT(ran < 1000 && t.hits[499] <= 1, "the rest is not begun: %d ran", ran);
    t.fail_from = 0;
    memset(t.hits, 0, 1000 * sizeof(int));
    EXPECT_OK(thread_pool_run(&p, 1000, tally, &t));
    free(t.hits);
    thread_pool_close(&p);
}

static Status nested(void *arg, int64_t i)
{
    Tally *t = arg;
    Tally  in = { t->pool, 50, t->hits + i * 50, 0 };
    return thread_pool_run(t->pool, 50, tally, &in);
}

static void pool_nests(void)
{
    ThreadPool p;
    EXPECT_OK(thread_pool_open(&p, 3));
    Tally t = { &p, 40, calloc(40 * 50, sizeof(int)), 0 };
    EXPECT_OK(thread_pool_run(&p, 40, nested, &t));
    for (int i = 0; i < 40 * 50; i++) EXPECT(t.hits[i] == 1, "%d: %d times", i, t.hits[i]);
    free(t.hits);
    thread_pool_close(&p);
}

static void pool_background(void)
{
    enum { JOBS = 20 };
    ThreadPool    p;
    ThreadPoolJob job[JOBS];
    int     hits[JOBS + 1] = { 0 };
    EXPECT_OK(thread_pool_open(&p, 2));
    Tally t = { &p, JOBS, hits, 0 };
    for (int i = 0; i < JOBS; i++) thread_pool_submit(&p, &job[i], i, tally, &t);
    for (int i = JOBS - 1; i >= 0; i--) EXPECT_OK(thread_pool_wait(&p, &job[i]));
    for (int i = 0; i < JOBS; i++) EXPECT(hits[i] == JOBS - 1 - i, "%d: %d", i, hits[i]);
    thread_pool_submit(&p, &job[0], JOBS, tally, &t);
    thread_pool_close(&p);                                         /* finishes what was submitted */
    EXPECT(hits[JOBS - 1] == 1 && job[0].left == 0, "the last job");
    EXPECT(cpu_count() >= 1, "cores");
}

static void messages_have_no_control_characters(void)
{
    EXPECT(fail(E_DATA, "%s: a\nb\tc", "x\033]0;t\007\177\xc2\x9b\xc3\xa4") == E_DATA, "status");
    EXPECT(!strcmp(status_text(), "x\\x1b]0;t\\x07\\x7f\\x9b\xc3\xa4: a\nb\tc"), "%s", status_text());
    EXPECT(wrap(E_DATA, "\033[2J") == E_DATA && !strchr(status_text(), '\033'), "%s", status_text());
}

int main(void)
{
    RUN(status_texts);
    RUN(exit_codes);
    RUN(arrays_grow);
    RUN(arrays_refuse_to_overflow);
    RUN(numbers);
    RUN(arena_marks);
    RUN(arena_labels_at_peak);
    RUN(arena_full_sticks);
    RUN(arena_fails_on_request);
    RUN(arena_runs_out_of_names);
    RUN(philox_known_answers);
    RUN(rng_slices_agree);
    RUN(rng_statistics);
    RUN(rng_bounded);
    RUN(pool_runs_each_once);
    RUN(pool_reports_failure);
    RUN(pool_nests);
    RUN(pool_background);
    RUN(messages_have_no_control_characters);
    return lab_report();
}
