/* tests/simt/shared.cc -- the shared memory of the blocks of a cluster: the dynamic part first, then every
 * declaration as it is first met, at the same place in each block; addresses; which ordinary stores the
 * asynchronous proxy (TMA, wgmma) does not see yet. */
#include "simt/threads.h"

namespace simt {

enum { MEMORY = 4 * SHARED_MOST, GAP = SANITIZED ? 64 : 0, POISON = 0xff, WORD = 4, WORDS = MEMORY / WORD };
enum { NUMBER_BITS = 11 };                              /* of a thread, plus 1 */
static_assert(THREADS < 1 << NUMBER_BITS, "a thread fits");

alignas(1024) static char memory[CLUSTER_MOST][MEMORY];
static size_t memory_used, memory_asked;                /* with and without gaps */
static uint32_t unfenced[CLUSTER_MOST][WORDS];          /* the last store: thread + 1, and its fences */
unsigned      shared_epoch;

/* ---- what a block has ---- */

static void clear(Block *b, size_t from, size_t bytes)
{
    fiber_unpoison(b->memory + from, bytes);
    memset(b->memory + from, POISON, bytes);
    memset(&unfenced[b->slot][from / WORD], 0, bytes / WORD * WORD);
}

static size_t reserve(size_t bytes, size_t align)
{
    size_t from = (memory_used + (memory_used ? GAP : 0) + align - 1) / align * align;
    memory_asked += bytes;
    if (memory_asked > (size_t)gpu().shared_most)
        fail("%zu bytes of shared memory, the device has %d for a block", memory_asked, gpu().shared_most);
    for (int r = 0; r < cluster.size; r++) clear(cluster.block[r], from, bytes);
    memory_used = from + bytes;
    return from;
}

size_t shared_reserve(size_t bytes, size_t align) { return reserve(bytes, align > 16 ? align : 16); }

void *dynamic_shared(size_t align)
{
    if (align > 1024) fail("dynamic shared memory aligned to %zu bytes", align);
    return here->memory;
}

void memory_close()
{
    for (int i = 0; i < CLUSTER_MOST; i++) fiber_poison(memory[i], memory_used);
    memory_used = memory_asked = 0, shared_epoch++;
}

/* The first block of a cluster begins with no declaration met; neither have the others. */
void memory_open(Block *b)
{
    b->memory = memory[b->slot];
    if (!launched->bytes) return;
    if (!memory_used) reserve(launched->bytes, 1024);
    else              clear(b, 0, launched->bytes);
}

/* ---- addresses ---- */

uint32_t shared_address(const void *p)
{
    if ((const char *)p < here->memory || (const char *)p > here->memory + memory_used)
        fail("an address is taken for one of shared memory and is not");
    return (uint32_t)((const char *)p - here->memory);
}

uint32_t shared_address_of(uint32_t at, int rank)
{
    if (at >> WINDOW_BITS) fail("mapa of %#x, which is an address of a cluster", at);
    if (rank < 0 || rank >= cluster.size) fail("mapa for block %d of a cluster of %d", rank, cluster.size);
    return at | (uint32_t)(rank + 1) << WINDOW_BITS;
}

Place cluster_place(uint32_t at)
{
    int    rank = (int)(at >> WINDOW_BITS) - 1;
    Block *b = rank < 0 ? here : cluster.block[rank];
    if (!b->live) fail("access to shared memory of block %u of the cluster, which has ended", b->index.x);
    return { b, at & ((1u << WINDOW_BITS) - 1) };
}

char *shared_bytes(const Place &p, uint32_t bytes, uint32_t align)
{
    if (p.at % align) fail("shared address %#x is not a multiple of %u", p.at, align);
    if (p.at + bytes > memory_used)
        fail("%u bytes at shared address %#x: the block has %zu", bytes, p.at, memory_used);
    return p.block->memory + p.at;
}

void *shared_pointer(uint32_t at, uint32_t bytes, uint32_t align)
{
    if (at >> WINDOW_BITS) fail("%#x is an address of a cluster, not of the block's shared memory", at);
    return shared_bytes({ here, at }, bytes, align);
}

void *cluster_pointer(uint32_t at, uint32_t bytes)
{
    if (!(at >> WINDOW_BITS)) fail("%#x is an address of the block, not one of mapa", at);
    return shared_bytes(cluster_place(at), bytes, bytes);
}

/* ---- the asynchronous proxy ---- */

void note_stores(uint32_t at, uint32_t bytes)
{
    uint32_t by = (uint32_t)self()->number + 1, fences = self()->fences;
    for (uint32_t i = at / WORD; i < (at + bytes + WORD - 1) / WORD; i++)
        unfenced[here->slot][i] = by | fences << NUMBER_BITS;
}

void *shared_target(uint32_t at, uint32_t bytes, uint32_t align)
{
    void *p = shared_pointer(at, bytes, align);
    note_stores(at, bytes);
    return p;
}

void fence_async() { self()->fences++; }

void forget_stores(const Place &p, uint32_t bytes)
{
    memset(&unfenced[p.block->slot][p.at / WORD], 0, (bytes + WORD - 1) / WORD * WORD);
}

void need_fenced(const Place &p, uint32_t bytes, const char *reader)
{
    const uint32_t *word = &unfenced[p.block->slot][p.at / WORD];
    for (uint32_t i = 0; i < (bytes + WORD - 1) / WORD; i++) {
        if (!word[i]) continue;
        uint32_t by = (word[i] & ((1u << NUMBER_BITS) - 1)) - 1, fences = word[i] >> NUMBER_BITS;
        if ((p.block->thread[by].fences << NUMBER_BITS) >> NUMBER_BITS == fences)
            fail("%s reads shared address %#x, which thread %u stored to without fence.proxy.async since",
                 reader, p.at + i * WORD, by);
    }
}

}
