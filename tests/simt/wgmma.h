/* tests/simt/wgmma.h -- wgmma.mma_async as ptx.h has instructions: the text of every shape follows from what
 * it is. wgmma.cc has what it does. */
#ifndef TESTS_SIMT_WGMMA_H
#define TESTS_SIMT_WGMMA_H

namespace simt {

/* What a thread gives: its accumulators d (N / 2), a in shared memory or as words, b, the flags. */
struct Product {
    float          *d;
    const uint32_t *word[4];
    uint64_t        a, b;
    int             N, add, ta, tb;
    bool            e4m3, registers;
};
void product_issue(Product *p);
void products_fence();
void products_commit();
void products_wait(int groups, Site site = Site::here());

/* ---- texts ---- */

struct Text {
    uint64_t hash = text_hash("");
    constexpr Text &operator<<(const char *s)
    {
        for (; *s; s++) hash = text_step(hash, *s);
        return *this;
    }
    constexpr Text &operator<<(int n)
    {
        if (n >= 10) *this << n / 10;
        hash = text_step(hash, (char)('0' + n % 10));
        return *this;
    }
    constexpr Text &list(int from, int n)               /* {%from, ..., %from + n - 1} */
    {
        for (int i = 0; i < n; i++) *this << (i ? ", %" : "{%") << from + i;
        return *this << "}";
    }
};

/* Operands: the accumulators, a (a descriptor or four words), b, the predicate, then whether each operand in
 * shared memory is turned. */
constexpr uint64_t product_text(int N, bool e4m3, bool registers)
{
    int  d = N / 2, b = d + (registers ? 4 : 1), p = b + 1;
    Text t;
    t << "{\n.reg .pred p;\nsetp.ne.b32 p, %" << p << ", 0;\nwgmma.mma_async.sync.aligned.m64n" << N << "k"
      << (e4m3 ? 32 : 16) << ".f32" << (e4m3 ? ".e4m3.e4m3 " : ".bf16.bf16 ");
    t.list(0, d) << ", ";
    if (registers) t.list(d, 4);
    else           t << "%" << d;
    t << ", %" << b << ", p, 1, 1";
    if (!e4m3 && !registers) t << ", %" << p + 1 << ", %" << p + 2;
    if (registers) t << ", %" << p + 1;
    return (t << ";\n}\n").hash;
}

template <int N, bool E4M3, bool REGISTERS> struct WarpgroupProduct {
    template <class... T> static void run(T &&...x)
    {
        enum { D = N / 2, B = D + (REGISTERS ? 4 : 1), ADD = B + 1, TURNED = E4M3 ? 0 : REGISTERS ? 1 : 2 };
        static_assert(sizeof...(x) == ADD + 1 + TURNED, "as many operands as the text has");
        const void *at[] = { &x... };
        Product     p = { };
        p.d = (float *)at[0], p.N = N, p.e4m3 = E4M3, p.registers = REGISTERS;
        for (int i = 0; i < D; i++)
            if (at[i] != p.d + i) fail("wgmma: accumulators that are no array");
        if (REGISTERS)
            for (int i = 0; i < 4; i++) p.word[i] = (const uint32_t *)at[D + i];
        else
            p.a = *(const uint64_t *)at[D];
        p.b = *(const uint64_t *)at[B], p.add = *(const int *)at[ADD];
        if (TURNED == 2) p.ta = *(const int *)at[ADD + 1];
        if (TURNED) p.tb = *(const int *)at[ADD + TURNED];
        product_issue(&p);
    }
};

#define SIMT_PRODUCT(N, e4m3, registers)                                                           \
    template <> struct Ptx<product_text(N, e4m3, registers)> : WarpgroupProduct<N, e4m3, registers> { }
SIMT_PRODUCT(64, false, false);
SIMT_PRODUCT(72, false, false);
SIMT_PRODUCT(80, false, false);
SIMT_PRODUCT(96, false, false);
SIMT_PRODUCT(128, false, false);
SIMT_PRODUCT(256, false, false);
SIMT_PRODUCT(64, false, true);
SIMT_PRODUCT(72, false, true);
SIMT_PRODUCT(80, false, true);
SIMT_PRODUCT(128, true, false);
#undef SIMT_PRODUCT

SIMT_INSTRUCTION("wgmma.fence.sync.aligned;") { static void run() { products_fence(); } };
SIMT_INSTRUCTION("wgmma.commit_group.sync.aligned;") { static void run() { products_commit(); } };
SIMT_INSTRUCTION("wgmma.wait_group.sync.aligned %0;")
{
    static void run(int n, Site s = Site::here()) { products_wait(n, s); }
};

}

#endif
