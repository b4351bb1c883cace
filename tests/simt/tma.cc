/* tests/simt/tma.cc -- TMA: boxes of tensors to shared memory, and back; st.async.
 *
 * A load leaves NaN in its place when it is issued; the bytes come when no thread can run, and the mbarrier
 * with them. A store reads shared memory when its group is waited for, where nothing may have changed since
 * its issue, and writes device memory when the cluster has ended. */
#include "simt/threads.h"
#include "simt/tensor_map.h"
#include "tensor/dtype.h"

namespace simt {

enum { POISON = 0xff, ROW_MOST = 1024 };

struct Box { TensorMap map; int at[DIMS]; };            /* the box whose first element is `at` */

static Box box_at(const void *tensor_map, int dims, const int *at)
{
    Box b = { };
    if ((uintptr_t)tensor_map % 64) fail("TMA: a tensor map that is not aligned to 64 bytes");
    memcpy(&b.map, tensor_map, sizeof b.map);
    if (b.map.mark != TENSOR_MAP) fail("TMA: this is no tensor map");
    if (b.map.rank != dims) fail("TMA: a tensor map of rank %d for %d coordinates", b.map.rank, dims);
    memcpy(b.at, at, (size_t)dims * sizeof *at);
    if (b.at[0] * b.map.size % 16) fail("TMA: a box from column %d on, which is not on 16 bytes", b.at[0]);
    return b;
}

static uint32_t row_bytes(const Box &b) { return (uint32_t)b.map.box[0] * b.map.size; }
static int      rows_of(const Box &b, int d) { return d < b.map.rank ? b.map.box[d] : 1; }
static uint32_t box_bytes(const Box &b)
{
    return row_bytes(b) * (uint32_t)(rows_of(b, 1) * rows_of(b, 2));
}

/* Calls f(row of the box, device address, first byte, end) for all rows; first < end: those inside. */
template <class F> static void each_row(const Box &b, F f)
{
    const TensorMap &m = b.map;
    int64_t first = b.at[0] < 0 ? -(int64_t)b.at[0] : 0, end = (int64_t)m.extent[0] - b.at[0];
    if (end > m.box[0]) end = m.box[0];
    for (int z = 0, row = 0; z < rows_of(b, 2); z++)
        for (int y = 0; y < rows_of(b, 1); y++, row++) {
            int64_t at_y = b.at[1] + (int64_t)y, at_z = b.at[2] + (int64_t)z;
            bool inside = (m.rank < 2 || (at_y >= 0 && at_y < (int64_t)m.extent[1])) &&
                          (m.rank < 3 || (at_z >= 0 && at_z < (int64_t)m.extent[2]));
            char *p = m.base + at_z * (int64_t)m.stride[2] + at_y * (int64_t)m.stride[1] +
                      (int64_t)b.at[0] * m.size;
            f(row, p, first * m.size, inside ? end * m.size : 0);
        }
}

/* The place of 16 bytes of a row in shared memory. */
static Place place_of(const Box &b, Place at, int row, uint32_t byte)
{
    uint32_t x = at.at + (uint32_t)row * row_bytes(b) + byte;
    if (b.map.swizzled) x ^= (x >> 7 & 7) << 4;
    return { at.block, x };
}

/* ---- loads ---- */

static void load_now(const Box &b, Place to, uint32_t bar)
{
    char line[ROW_MOST];
    each_row(b, [&](int row, const char *from, int64_t first, int64_t end) {
        memset(line, 0, row_bytes(b));
        if (first < end) memcpy(line + first, from + first, (size_t)(end - first));
        for (uint32_t i = 0; i < row_bytes(b); i += 16)
            memcpy(shared_bytes(place_of(b, to, row, i), 16, 16), line + i, 16);
    });
    to.block->under_way--;
    mbarrier_complete(to.block, bar, (int)box_bytes(b));
}

static void load_to(const Box &b, Place to, uint32_t bar)
{
    mbarrier_check({ to.block, bar });
    memset(shared_bytes(to, box_bytes(b), 128), POISON, box_bytes(b));
    forget_stores(to, box_bytes(b));
    to.block->under_way++;
    later([=] { load_now(b, to, bar); });
}

void tma_load(uint32_t to, const void *map, uint32_t bar, int dims, const int *at, unsigned ranks)
{
    Box   b = box_at(map, dims, at);
    Place p = cluster_place(to), q = cluster_place(bar);
    if (row_bytes(b) > ROW_MOST) fail("TMA: rows of %u bytes are not emulated", row_bytes(b));
    if (p.block != q.block) fail("TMA: the mbarrier is in another block than the bytes");
    if (!ranks) { load_to(b, p, q.at); return; }
    for (int r = 0; ranks >> r; r++) {
        if (!(ranks >> r & 1)) continue;
        if (r >= cluster.size) fail("TMA: a multicast to block %d of a cluster of %d", r, cluster.size);
        if (!cluster.block[r]->live) fail("TMA: a multicast to block %d of the cluster, which has ended", r);
        load_to(b, { cluster.block[r], p.at }, q.at);
    }
}

void store_async(uint32_t to, uint32_t x, uint32_t bar)
{
    Place p = cluster_place(to), q = cluster_place(bar);
    if (p.block != q.block) fail("st.async: the mbarrier is in another block than the word");
    if (!(to >> WINDOW_BITS)) fail("st.async to %#x, which is not an address of mapa", to);
    mbarrier_check(q);
    memset(shared_bytes(p, 4, 4), POISON, 4);
    p.block->under_way++;
    later([=] {
        memcpy(shared_bytes(p, 4, 4), &x, 4);
        p.block->under_way--;
        mbarrier_complete(q.block, q.at, 4);
    });
}

/* ---- stores, by groups of a thread ---- */

struct Store { Box box; bool add; int group; Place from; std::vector<char> bytes; };
struct Bulk { std::vector<Store> open; int groups, read; Waiters waiters; };    /* groups: committed, read */

static Bulk bulk[CLUSTER_MOST][THREADS];
static std::vector<Store> &written = *new std::vector<Store>;

static Bulk *own() { return &bulk[here->slot][self()->number]; }

void bulk_open(Block *b)
{
    for (int i = 0; i < threads_of_block(); i++) {
        Bulk *x = &bulk[b->slot][i];
        x->open.clear(), x->groups = x->read = 0;
    }
}

static std::vector<char> read_box(const Box &b, Place from)
{
    std::vector<char> out(box_bytes(b));
    uint32_t n = row_bytes(b);
    for (uint32_t i = 0; i < out.size(); i += 16)
        memcpy(&out[i], shared_bytes(place_of(b, from, (int)(i / n), i % n), 16, 16), 16);
    return out;
}

static bool is_bf16(const Box &b) { return b.map.type == CU_TENSOR_MAP_DATA_TYPE_BFLOAT16; }

void tma_store(const void *map, uint32_t from, int dims, const int *at, bool add)
{
    Box   b = box_at(map, dims, at);
    Place p = { here, from };
    if (add && b.map.type != CU_TENSOR_MAP_DATA_TYPE_FLOAT32 && !is_bf16(b))
        fail("TMA: sums of f32 and bf16 alone are emulated");
    shared_pointer(from, box_bytes(b), 128);
    need_fenced(p, box_bytes(b), "TMA");
    own()->open.push_back({ b, add, own()->groups, p, read_box(b, p) });
}

void tma_commit() { own()->groups++; }

static void end_groups(Thread *t, int end)
{
    Bulk  *x = &bulk[t->block->slot][t->number];
    size_t kept = 0;
    for (Store &s : x->open) {
        if (s.group >= end) { x->open[kept++] = s; continue; }
        if (read_box(s.box, s.from) != s.bytes)
            fail("TMA: shared memory at %#x changes before a store has read it (wait_group.read)", s.from.at);
        written.push_back(s);
    }
    x->open.resize(kept);
    x->read = end;
    wake(x->waiters);
}

void tma_wait_read(int groups, Site site)
{
    Thread *t = self();
    Bulk   *x = own();
    int     end = x->groups - groups;
    if (end <= x->read) return;
    later([=] { end_groups(t, end); });
    while (x->read < end)
        wait_in(x->waiters, "cp.async.bulk.wait_group.read", site, __builtin_return_address(0));
}

/* ---- ends ---- */

void bulk_returned(Thread *t)
{
    if (!own()->open.empty()) fail("a thread returns while its TMA stores may still read shared memory");
    if (t->block->live == 1 && t->block->under_way)
        fail("the block ends before %d asynchronous writes to its shared memory", t->block->under_way);
}

static void add_f32(char *to, const char *from)
{
    float x, y;
    memcpy(&x, to, 4), memcpy(&y, from, 4);
    x += y;
    memcpy(to, &x, 4);
}

static void add_bf16(char *to, const char *from)
{
    uint16_t x, y;
    memcpy(&x, to, 2), memcpy(&y, from, 2);
    x = bf16_from_f32(bf16_to_f32(x) + bf16_to_f32(y));
    memcpy(to, &x, 2);
}

static void write(const Store &s)
{
    each_row(s.box, [&](int row, char *to, int64_t first, int64_t end) {
        const char *from = &s.bytes[(size_t)row * row_bytes(s.box)];
        if (first >= end) return;
        if (!s.add) { memcpy(to + first, from + first, (size_t)(end - first)); return; }
        for (int64_t i = first; i < end; i += is_bf16(s.box) ? 2 : 4)
            (is_bf16(s.box) ? add_bf16 : add_f32)(to + i, from + i);
    });
}

void bulk_close()
{
    for (const Store &s : written) write(s);
    written.clear();
}

}
