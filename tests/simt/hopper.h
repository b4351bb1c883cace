/* tests/simt/hopper.h -- PTX instructions of Hopper as ptx.h has them: mbarriers, TMA, clusters, named
 * barriers, registers of a warpgroup. wgmma.h has products. */
#ifndef TESTS_SIMT_HOPPER_H
#define TESTS_SIMT_HOPPER_H

namespace simt {

/* mbarrier.cc; bytes: announced with the arrival */
void mbarrier_init(uint32_t at, int count);
void mbarriers_publish();
void mbarrier_arrive(uint32_t at, int bytes);
void mbarrier_arrive_cluster(uint32_t at);
void mbarrier_wait(uint32_t at, int parity, Site site);

/* shared.cc */
uint32_t shared_address_of(uint32_t at, int rank);      /* mapa */
void    *cluster_pointer(uint32_t at, uint32_t bytes);
void     fence_async();

/* barriers.cc, warpgroup.cc */
int  cluster_rank();
void cluster_arrive();
void cluster_wait(Site site);
void named_sync(int id, int threads, Site site);
void named_arrive(int id, int threads, Site site);
void registers_set(int n, bool more, Site site);

/* tma.cc; ranks: blocks of the cluster, 0: the one of the address */
void tma_load(uint32_t to, const void *map, uint32_t bar, int dims, const int *at, unsigned ranks);
void tma_store(const void *map, uint32_t from, int dims, const int *at, bool add);
void tma_commit();
void tma_wait_read(int groups, Site site);
void store_async(uint32_t to, uint32_t x, uint32_t bar);

/* warp.cc */
void store_matrices(void *const *operand);

/* ---- mbarriers ---- */

SIMT_INSTRUCTION("mbarrier.init.shared::cta.b64 [%0], %1;")
{
    static void run(uint32_t at, int count) { mbarrier_init(at, count); }
};
SIMT_INSTRUCTION("fence.mbarrier_init.release.cluster;") { static void run() { mbarriers_publish(); } };
SIMT_INSTRUCTION("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;")
{
    static void run(uint32_t at, int bytes) { mbarrier_arrive(at, bytes); }
};
SIMT_INSTRUCTION("mbarrier.arrive.shared::cta.b64 _, [%0];")
{
    static void run(uint32_t at) { mbarrier_arrive(at, 0); }
};
SIMT_INSTRUCTION("mbarrier.arrive.shared::cluster.b64 _, [%0];")
{
    static void run(uint32_t at) { mbarrier_arrive_cluster(at); }
};
SIMT_INSTRUCTION("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\nbra again;\nover:\n}")
{
    static void run(uint32_t at, int parity, Site s = Site::here()) { mbarrier_wait(at, parity, s); }
};

/* ---- clusters ---- */

SIMT_INSTRUCTION("mov.u32 %0, %%cluster_ctarank;") { static void run(int &rank) { rank = cluster_rank(); } };
SIMT_INSTRUCTION("mapa.shared::cluster.u32 %0, %1, %2;")
{
    static void run(uint32_t &there, uint32_t at, int rank) { there = shared_address_of(at, rank); }
};
SIMT_INSTRUCTION("st.async.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];")
{
    static void run(uint32_t to, int x, uint32_t bar) { store_async(to, (uint32_t)x, bar); }
};
template <class T> struct ClusterLoad {
    static void run(T &x, uint32_t at) { x = *(const T *)cluster_pointer(at, sizeof x); }
};
SIMT_INSTRUCTION("ld.shared::cluster.f32 %0, [%1];") : ClusterLoad<float> { };
SIMT_INSTRUCTION("ld.shared::cluster.f64 %0, [%1];") : ClusterLoad<double> { };
SIMT_INSTRUCTION("barrier.cluster.arrive.release;") { static void run() { cluster_arrive(); } };
SIMT_INSTRUCTION("barrier.cluster.wait.acquire;")
{
    static void run(Site s = Site::here()) { cluster_wait(s); }
};

/* ---- warpgroups ---- */

SIMT_INSTRUCTION("bar.sync %0, %1;")
{
    static void run(int id, int threads, Site s = Site::here()) { named_sync(id, threads, s); }
};
SIMT_INSTRUCTION("bar.arrive %0, %1;")
{
    static void run(int id, int threads, Site s = Site::here()) { named_arrive(id, threads, s); }
};
template <bool MORE> struct SetRegisters {
    static void run(int n, Site s = Site::here()) { registers_set(n, MORE, s); }
};
SIMT_INSTRUCTION("setmaxnreg.inc.sync.aligned.u32 %0;") : SetRegisters<true> { };
SIMT_INSTRUCTION("setmaxnreg.dec.sync.aligned.u32 %0;") : SetRegisters<false> { };

/* ---- TMA ---- */

SIMT_INSTRUCTION("fence.proxy.async.shared::cta;") { static void run() { fence_async(); } };

/* MULTICAST: the last operand has a bit for each block. */
template <bool MULTICAST> struct TensorLoad {
    template <class... C> static void run(uint32_t to, const void *map, uint32_t bar, int x, int y, C... more)
    {
        int at[] = { x, y, (int)more... };
        int dims = 2 + (int)sizeof...(more) - MULTICAST;
        tma_load(to, map, bar, dims, at, MULTICAST ? (unsigned)at[dims] : 0);
    }
};
SIMT_INSTRUCTION("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];") : TensorLoad<false> { };
SIMT_INSTRUCTION("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];") : TensorLoad<false> { };
SIMT_INSTRUCTION("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;") : TensorLoad<true> { };
SIMT_INSTRUCTION("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;") : TensorLoad<true> { };

template <bool ADD> struct TensorStore {
    static void run(const void *map, uint32_t from, int x, int y, int z)
    {
        int at[] = { x, y, z };
        tma_store(map, from, 3, at, ADD);
    }
};
SIMT_INSTRUCTION("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], [%1];")
    : TensorStore<false> { };
SIMT_INSTRUCTION("cp.reduce.async.bulk.tensor.3d.global.shared::cta.add.tile.bulk_group "
                 "[%0, {%2, %3, %4}], [%1];") : TensorStore<true> { };
SIMT_INSTRUCTION("cp.async.bulk.commit_group;") { static void run() { tma_commit(); } };
SIMT_INSTRUCTION("cp.async.bulk.wait_group.read %0;")
{
    static void run(int n, Site s = Site::here()) { tma_wait_read(n, s); }
};

/* ---- registers and ordinary stores ---- */

SIMT_INSTRUCTION("mov.b32 %0, %1;") { static void run(uint32_t &y, float x) { memcpy(&y, &x, sizeof y); } };
SIMT_INSTRUCTION("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};")
{
    static void run(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d, Site s = Site::here())
    {
        Matrices m = { { &a, &b, &c, &d }, at };
        meet_warp("stmatrix", ~0u, &m, store_matrices, s);
    }
};
SIMT_INSTRUCTION("st.shared.u16 [%0], %1;")
{
    static void run(uint32_t at, uint16_t x) { *(uint16_t *)shared_target(at, 2, 2) = x; }
};
SIMT_INSTRUCTION("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};")
{
    static void run(float *p, float a, float b, float c, float d)
    {
        if ((uintptr_t)p % 16) fail("red.global.add.v4 at %p, which is not a multiple of 16", (void *)p);
        p[0] += a, p[1] += b, p[2] += c, p[3] += d;
    }
};

}

#endif
