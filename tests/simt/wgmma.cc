/* tests/simt/wgmma.cc -- products of warpgroups, see wgmma.h. A warp computes its 16 rows; nothing but the
 * kernel's own barriers orders the four warps.
 *
 * Operands are read when a product is issued, and must be the same when the wait for it ends, which is when
 * no other thread can run. Accumulators hold NaN in between, which must be untouched; so must a in registers.
 * Accumulators that no product under way has need a wgmma.fence since they were last waited for. */
#include "simt/threads.h"

namespace simt {

enum { ROWS = 16, N_MOST = 256, K_MOST = 32, CHUNK = 16 };      /* CHUNK: bytes that the swizzle keeps */
const uint32_t UNDER_WAY = 0xffc5a5a5;                  /* in accumulators: a NaN */

/* ---- operands in shared memory: lines of 128 bytes with the 128-byte swizzle, eight of them a group ---- */

struct Operand { uint32_t at, lead, stride; };

static Operand operand_of(uint64_t descriptor)
{
    Operand o = { (uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
                  (uint32_t)(descriptor >> 32 & 0x3fff) << 4 };
    if (descriptor >> 62 != 1) fail("wgmma: descriptor %#llx has another swizzle than that of 128 bytes",
                                    (unsigned long long)descriptor);
    if (descriptor >> 49 & 7) fail("wgmma: descriptors with a base offset are not emulated");
    if (o.at & 0x380) fail("wgmma: an operand at %#x, which no swizzled group of lines begins at", o.at);
    return o;
}

/* The bytes of an operand's chunk: `along` chunks into line `line`; what the asynchronous proxy sees. */
static const char *chunk(const Operand &o, uint32_t line, uint32_t along)
{
    uint32_t at = o.at + line / 8 * o.stride + line % 8 * 128 + along * CHUNK;
    at ^= (at >> 7 & 7) << 4;
    need_fenced({ here, at }, CHUNK, "wgmma");
    return shared_bytes({ here, at }, CHUNK, CHUNK);
}

/* Chunks of an operand, `n` along M or N from `first` on, and K bytes along k: as the operand is stored. */
struct Chunks { char byte[(N_MOST + K_MOST) * K_MOST]; size_t used; };

static void read_lines(Chunks *c, const Operand &o, int first, int n)           /* lines along K */
{
    for (int i = first; i < first + n; i++)
        for (uint32_t j = 0; j < 2; j++, c->used += CHUNK)
            memcpy(c->byte + c->used, chunk(o, (uint32_t)i, j), CHUNK);
}

static void read_turned(Chunks *c, const Operand &o, int first, int n)          /* lines along M or N */
{
    for (uint32_t k = 0; k < 16; k++)
        for (int i = first; i < first + n; i += 8, c->used += CHUNK) {
            Operand part = o;
            part.at += (uint32_t)i / 64 * o.lead;
            memcpy(c->byte + c->used, chunk(part, k, (uint32_t)i % 64 / 8), CHUNK);
        }
}

static void read(Chunks *c, uint64_t descriptor, int turned, int first, int n)
{
    Operand o = operand_of(descriptor);
    c->used = 0;
    if (turned) read_turned(c, o, first, n);
    else        read_lines(c, o, first, n);
}

static float bf16_at(const char *p)
{
    uint16_t u;
    memcpy(&u, p, sizeof u);
    return __uint_as_float((uint32_t)u << 16);
}

/* out[k][i] of n numbers along M or N. */
template <int N> static void to_floats(float (*out)[N], const Chunks &c, int n, bool turned, bool e4m3)
{
    static float table[256];
    if (table[1] == 0)
        for (int i = 0; i < 256; i++) table[i] = e4m3_value((uint8_t)i);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < (e4m3 ? 32 : 16); k++)
            out[k][i] = e4m3   ? table[(uint8_t)c.byte[i * 32 + k]]
                      : turned ? bf16_at(c.byte + (k * n + i) * 2) : bf16_at(c.byte + i * 32 + k * 2);
}

static uint64_t sum_of(const Chunks &c)
{
    uint64_t h = 0xcbf29ce484222325u, x;
    for (size_t i = 0; i < c.used; i += 8) {
        memcpy(&x, c.byte + i, 8);
        h = (h ^ x) * 0x9e3779b97f4a7c15u, h ^= h >> 29;
    }
    return h;
}

/* ---- what is under way in a warp ---- */

struct Accumulators {
    float *d[LANES];                                    /* each N / 2 */
    int    N, group;                                    /* of the newest product */
    float  sum[ROWS][N_MOST];
};
struct Reading {                                        /* of one product: operands that must stay */
    uint64_t        a, b, sum;
    int             N, ta, tb, group;
    bool            registers;
    const uint32_t *word[LANES][4];
    uint32_t        held[LANES][4];
};
struct Used { const float *d; unsigned fences; };       /* accumulators that were waited for */

struct Warp {
    std::vector<Accumulators> open;
    std::vector<Reading>      readings;
    std::vector<Used>         used;
    unsigned fences;
    int      groups, done;                              /* committed; of those, done */
    Waiters  waiters;
};
static Warp warps[CLUSTER_MOST][WARPS];

static Warp *own_warp() { return &warps[here->slot][self()->number / LANES]; }
static int   first_row() { return self()->number / LANES % 4 * ROWS; }

void products_open(Block *b)
{
    for (Warp &w : warps[b->slot]) w.open.clear(), w.readings.clear(), w.used.clear(), w.fences = 0,
                                   w.groups = w.done = 0;
}

void products_close(Block *b)
{
    for (const Warp &w : warps[b->slot])
        if (!w.open.empty()) fail("a warp ends before its wgmma are done (wgmma.wait_group)");
}

/* Row and column, in a warp's rows, of a lane's accumulator i. */
static int row_of(int lane, int i)    { return lane / 4 + i / 2 % 2 * 8; }
static int column_of(int lane, int i) { return i / 4 * 8 + lane % 4 * 2 + i % 2; }

/* ---- issue ---- */

static void need_same(void *const *operand)
{
    const Product *p = (const Product *)operand[0];
    for (int l = 0; l < LANES; l++) {
        const Product *q = (const Product *)operand[l];
        if (!q || !p) fail("wgmma without lane %d", l);
        if (q->a != p->a || q->b != p->b || q->add != p->add || q->N != p->N)
            fail("wgmma: lanes of a warp have different operands");
    }
}

static void need_fence(const Warp *w, const float *d)
{
    unsigned since = 0;
    for (const Used &u : w->used)
        if (u.d == d) since = u.fences;
    if (w->fences == since) fail("wgmma: no wgmma.fence since its accumulators were the thread's");
}

static Accumulators *open_sums(Warp *w, void *const *operand)
{
    const Product *p = (const Product *)operand[0];
    for (Accumulators &a : w->open)
        if (a.d[0] == p->d) {
            if (a.N != p->N) fail("wgmma: products of different widths under way in the same accumulators");
            return &a;
        }
    need_fence(w, p->d);
    w->open.emplace_back();
    Accumulators *a = &w->open.back();
    a->N = p->N;
    for (int l = 0; l < LANES; l++) {
        a->d[l] = ((Product *)operand[l])->d;
        for (int i = 0; i < a->N / 2; i++) {
            a->sum[row_of(l, i)][column_of(l, i)] = p->add ? a->d[l][i] : 0.0f;
            memcpy(&a->d[l][i], &UNDER_WAY, 4);
        }
    }
    return a;
}

static void read_words(Reading *r, Chunks *a, void *const *operand)     /* as lines along K */
{
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < 4; i++) {
            r->word[l][i] = ((const Product *)operand[l])->word[i];
            r->held[l][i] = *r->word[l][i];
            memcpy(a->byte + (l / 4 + i % 2 * 8) * 32 + i / 2 * 16 + l % 4 * 4, &r->held[l][i], 4);
        }
}

/* Along N: sums are of one order, that of k. */
static void add_product(float (*sum)[N_MOST], const float (*a)[ROWS], const float (*b)[N_MOST], int N, int K)
{
    for (int i = 0; i < ROWS; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < N; j++) sum[i][j] += a[k][i] * b[k][j];
}

static uint64_t sum_of_operands(const Reading &r, Chunks *c, int first)
{
    read(c, r.b, r.tb, 0, r.N);
    uint64_t b = sum_of(*c);
    if (r.registers) return b;
    read(c, r.a, r.ta, first, ROWS);
    return b ^ sum_of(*c) * 3;
}


static void issue(void *const *operand)
{
    static Chunks a, b;
    static float  fa[K_MOST][ROWS], fb[K_MOST][N_MOST];
    const Product *p = (const Product *)operand[0];
    Warp *w = own_warp();
    need_same(operand);
    agree("wgmma", p->b * 31 ^ p->a * 7 ^ (uint64_t)(p->N * 2 + (p->add != 0)));
    Accumulators *sums = open_sums(w, operand);
    if (!p->add) memset(sums->sum, 0, sizeof sums->sum);
    sums->group = w->groups;
    w->readings.emplace_back();
    Reading *r = &w->readings.back();
    r->a = p->a, r->b = p->b, r->N = p->N, r->ta = p->ta, r->tb = p->tb, r->group = w->groups;
    r->registers = p->registers;
    read(&b, p->b, p->tb, 0, p->N);
    r->sum = sum_of(b);
    if (p->registers) read_words(r, &a, operand);
    else              read(&a, p->a, p->ta, first_row(), ROWS), r->sum ^= sum_of(a) * 3;
    to_floats(fa, a, ROWS, p->ta, p->e4m3);
    to_floats(fb, b, p->N, p->tb, p->e4m3);
    add_product(sums->sum, fa, fb, p->N, p->e4m3 ? 32 : 16);
}

void product_issue(Product *p) { meet_warp("wgmma.mma_async", ~0u, p, issue, Site::here()); }

static void fence(void *const *)  { own_warp()->fences++; }
static void commit(void *const *) { own_warp()->groups++; }
void products_fence()
{
    int any;
    meet_warp("wgmma.fence", ~0u, &any, fence, Site::here());
}
void products_commit()
{
    int any;
    meet_warp("wgmma.commit_group", ~0u, &any, commit, Site::here());
}

/* ---- the end of groups ---- */

static void end_reading(const Reading &r)
{
    static Chunks c;
    if (sum_of_operands(r, &c, first_row()) != r.sum)
        fail("wgmma: an operand in shared memory changes before wgmma.wait_group (b at %#x)",
             operand_of(r.b).at);
    for (int l = 0; l < LANES && r.registers; l++)
        for (int i = 0; i < 4; i++)
            if (*r.word[l][i] != r.held[l][i]) fail("wgmma: registers of a change before wgmma.wait_group");
}

static void end_sums(const Accumulators &a)
{
    for (int l = 0; l < LANES; l++)
        for (int i = 0; i < a.N / 2; i++) {
            if (memcmp(&a.d[l][i], &UNDER_WAY, 4))
                fail("wgmma: lane %d writes to accumulators before wgmma.wait_group", l);
            a.d[l][i] = a.sum[row_of(l, i)][column_of(l, i)];
        }
}

/* All groups below `end`. */
static void end_groups(Warp *w, int end)
{
    for (size_t i = 0; i < w->readings.size();)
        if (w->readings[i].group < end) {
            end_reading(w->readings[i]);
            w->readings.erase(w->readings.begin() + (long)i);
        } else i++;
    for (size_t i = 0; i < w->open.size();) {
        if (w->open[i].group >= end) { i++; continue; }
        const float *d = w->open[i].d[0];
        end_sums(w->open[i]);
        for (size_t j = 0; j < w->used.size(); j++)
            if (w->used[j].d == d) w->used.erase(w->used.begin() + (long)j--);
        w->used.push_back({ d, w->fences });
        w->open.erase(w->open.begin() + (long)i);
    }
    w->done = end;
    wake(w->waiters);
}

struct Wait { int groups, end; };

static void wait(void *const *operand)
{
    Warp *w = own_warp();
    int   end = w->groups - ((const Wait *)operand[0])->groups;
    for (int l = 0; l < LANES; l++) ((Wait *)operand[l])->end = end;
    if (end > w->done) later([=] { end_groups(w, end); });
}

void products_wait(int groups, Site site)
{
    Wait  x = { groups, 0 };
    Warp *w = own_warp();
    meet_warp("wgmma.wait_group", ~0u, &x, wait, site);
    while (w->done < x.end) wait_in(w->waiters, "wgmma.wait_group", site, __builtin_return_address(0));
}

}
