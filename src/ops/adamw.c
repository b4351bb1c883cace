/* ops/adamw.c -- the gradient norm and the optimizer step: contract, cost, CPU.
 *
 *   squares      out += sum of x^2 over all tensors of a list, in double: fixed chunks of a tensor in order,
 *                for any number of threads, then tensors in the order of the list; each[cell] = the sum of
 *                one tensor, with a different cell for each (each may be absent). Tensors are f32 or bf16
 *   adamw        as PyTorch does it, p = the master, or w itself where there is none:
 *                p *= 1 - lr decay        g' = g min(1, max_norm / (sqrt(sumsq) + 1e-6))
 *                m += (1 - beta1) (g' - m)        v = beta2 v + (1 - beta2) g'^2
 *                p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps)       w = p, rounded
 *   set_weight   p = x, w = p, rounded: sets an initial value
 *
 * All tensors are dense and, but for those of a list, of one shape. w f32 or bf16 (bf16 needs a master), g
 * f32 or bf16, x f32, m and v f32 or bf16, rounded to nearest even, out and sumsq one f64, each a vector. A
 * master is f32, or i16 with a bf16 w: the 16 low bits that w lacks (bits_join). w is p rounded by bits_near
 * in both cases, so that both take bit-equal steps. Gradients are not clipped when sumsq is absent or
 * max_norm is 0. What changes from step to step is read at h.now where that is set. With a verdict other than
 * STEP_GOOD adamw does nothing. */
#include "ops/cpu/cpu_adamw.h"

static bool is_sum(Tensor t) { return t.dtype == F64 && t_count(t) == 1; }
static bool is_addend(const Addend *s) { return s->squared ? s->x.dtype == F32 : is_float(s->x); }

Cost squares_cost(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    Cost c = { .wr = t_bytes(out) };
    bool apart = t_has(each);
    REQUIRE(is_sum(out) && (!apart || (each.dtype == F64 && each.rank == 1)) && list->n >= 0 &&
            list->n <= ADDENDS, "squares: out %s each %s of %d tensors", t_fmt(out), t_fmt(each), list->n);
    for (int i = 0; i < list->n; i++) {
        const Addend *s = &list->at[i];
        REQUIRE(is_addend(s) && t_dense(s->x) && (!apart || (s->cell >= 0 && s->cell < each.n[0])),
                "squares: x %s cell %lld of %s", t_fmt(s->x), (long long)s->cell, t_fmt(each));
        c.flops += 2.0 * (double)t_count(s->x), c.rd += t_bytes(s->x), c.wr += apart ? 8 : 0;
    }
    return c;
}

bool adamw_same_shape(Tensor t, Tensor w)
{
    return t_dense(t) && t.rank == w.rank && !memcmp(t.n, w.n, sizeof t.n);
}
static bool alike(Tensor t, Tensor w) { return is_float(t) && adamw_same_shape(t, w); }

/* An f32 w alone or with an f32 master; a bf16 w with an f32 master or with its 16 low bits. */
bool adamw_is_master(Tensor w, Tensor master)
{
    if (!t_has(master)) return w.dtype == F32 && t_dense(w);
    bool split = master.dtype == I16 && w.dtype == BF16;
    return is_float(w) && t_dense(w) && adamw_same_shape(master, w) && (split || master.dtype == F32);
}

void adamw_check_step(Tensor sumsq, const AdamW *h)
{
    REQUIRE(h->step >= 1 && (!t_has(sumsq) || is_sum(sumsq)) && (!t_has(h->verdict) || is_sum(h->verdict)),
            "adamw: step %lld sumsq %s verdict %s", (long long)h->step, t_fmt(sumsq), t_fmt(h->verdict));
}

Cost adamw_cost(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq, AdamW h)
{
    Tensor p = t_has(master) ? master : w;
    REQUIRE(adamw_is_master(w, master) && alike(m, w) && alike(v, w) && alike(g, w),
            "adamw: w %s master %s m %s v %s g %s", t_fmt(w), t_fmt(master), t_fmt(m), t_fmt(v), t_fmt(g));
    adamw_check_step(sumsq, &h);
    int64_t state = t_bytes(m) + t_bytes(v) + t_bytes(p), narrow = t_has(master) ? t_bytes(w) : 0;
    return (Cost){ .flops = 15.0 * (double)t_count(w),
                   .rd    = state + t_bytes(g) + (p.dtype == I16 ? narrow : 0),
                   .wr    = state + narrow };
}

Cost set_weight_cost(Backend *be, Tensor w, Tensor master, Tensor x)
{
    REQUIRE(adamw_is_master(w, master) && alike(x, w) && x.dtype == F32,
            "set_weight: w %s master %s x %s", t_fmt(w), t_fmt(master), t_fmt(x));
    int64_t kept = t_has(master) && master.data != x.data ? t_bytes(master) : 0;
    return (Cost){ .rd = t_bytes(x), .wr = t_bytes(w) + kept };
}

static HOT double square_sum(const float *x, int64_t n)
{
    double s = 0.0;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += (double)x[i] * x[i];
    return s;
}

static HOT double plain_sum(const float *x, int64_t n)
{
    double s = 0.0;
    #pragma omp simd reduction(+:s)
    for (int64_t i = 0; i < n; i++) s += (double)x[i];
    return s;
}

/* Squares of bf16 elements, a piece at a time. */
static double narrow_square_sum(const uint16_t *x, int64_t n)
{
    float  buf[PIECE];
    double sum = 0.0;
    for (int64_t at = 0, k; at < n; at += k) {
        k = n - at < PIECE ? n - at : PIECE;
        cpu_widen(buf, x + at, k);
        sum += square_sum(buf, k);
    }
    return sum;
}

static double range_sum(const Addend *s, int64_t from, int64_t n)
{
    const float *x = (const float *)s->x.data + from;
    if (s->x.dtype == BF16) return narrow_square_sum((const uint16_t *)s->x.data + from, n);
    return s->squared ? plain_sum(x, n) : square_sum(x, n);
}

static double chunks_sum(const Addend *s)
{
    int64_t n = t_count(s->x);
    double  part[CPU_CHUNKS], sum = 0.0;
    #pragma omp parallel for schedule(static) if(worth_threads(n))
    for (int c = 0; c < CPU_CHUNKS; c++) {
        int64_t from = chunk_begin(n, c), to = chunk_begin(n, c + 1);
        part[c] = range_sum(s, from, to - from);
    }
    for (int c = 0; c < CPU_CHUNKS; c++) sum += part[c];
    return sum;
}

void cpu_squares(Backend *be, Tensor out, Tensor each, const Addends *list)
{
    for (int i = 0; i < list->n; i++) {
        const Addend *s = &list->at[i];
        double sum = chunks_sum(s);
        *(double *)out.data += sum;
        if (t_has(each)) ((double *)each.data)[s->cell] = sum;
    }
}

AdamStep adam_step(const AdamW *h)
{
    double b1 = h->beta1, b2 = h->beta2;
    return (AdamStep){ h->lr, (float)(h->lr / (1.0 - pow(b1, (double)h->step))),
                       (float)sqrt(1.0 - pow(b2, (double)h->step)) };
}

/* Computed once a step, in double. */
AdamFactors cpu_adam_factors(AdamW h, Tensor sumsq)
{
    double   clip = 1.0;
    AdamStep now = h.now ? *h.now : adam_step(&h);
    if (t_has(sumsq) && h.max_norm > 0.0f) clip = h.max_norm / (sqrt(*(const double *)sumsq.data) + 1e-6);
    return (AdamFactors){
        .shrink = (float)(1.0 - (double)now.lr * h.decay),
        .clip   = clip < 1.0 ? (float)clip : 1.0f,
        .in1    = (float)(1.0 - (double)h.beta1),
        .keep2  = h.beta2,
        .in2    = (float)(1.0 - (double)h.beta2),
        .root   = now.root,
        .eps    = h.eps,
        .step   = now.rate,
    };
}

static HOT void adam(float *restrict p, float *restrict m, float *restrict v, const float *restrict grad,
                     AdamFactors f, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * f.clip;
        m[i] += f.in1 * (g - m[i]);
        v[i]  = f.keep2 * v[i] + f.in2 * g * g;
        p[i]  = p[i] * f.shrink - f.step * (m[i] / (__builtin_sqrtf(v[i]) / f.root + f.eps));
    }
}

float *cpu_piece_open(Tensor t, int64_t at, int64_t n, float *buf)
{
    if (t.dtype == F32) return (float *)t.data + at;
    cpu_widen(buf, (const uint16_t *)t.data + at, n);
    return buf;
}
static void piece_close(Tensor t, int64_t at, int64_t n, const float *x)
{
    if (t.dtype != F32) cpu_narrow((uint16_t *)t.data + at, x, n);
}

static HOT void join(float *restrict p, const uint16_t *restrict w, const uint16_t *restrict rest, int64_t n)
{
    uint32_t *out = (uint32_t *)p;
    for (int64_t i = 0; i < n; i++) out[i] = bits_join(w[i], rest[i]);
}

static HOT void split(uint16_t *restrict w, uint16_t *restrict rest, const float *restrict p, int64_t n)
{
    const uint32_t *in = (const uint32_t *)p;
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = bits_quiet(in[i]);
        w[i] = bits_near(u), rest[i] = bits_rest(u);
    }
}

static HOT void round_off(uint16_t *restrict w, float *restrict p, int64_t n)
{
    uint32_t *io = (uint32_t *)p;
    for (int64_t i = 0; i < n; i++) io[i] = bits_quiet(io[i]), w[i] = bits_near(io[i]);
}

float *cpu_master_open(Tensor w, Tensor master, int64_t at, int64_t n, float *buf)
{
    if (!t_has(master)) return (float *)w.data + at;
    if (master.dtype == F32) return (float *)master.data + at;
    join(buf, (const uint16_t *)w.data + at, (const uint16_t *)master.data + at, n);
    return buf;
}
void cpu_master_close(Tensor w, Tensor master, int64_t at, int64_t n, float *p)
{
    uint16_t *narrow = (uint16_t *)w.data + at;
    float    *wide = (float *)w.data + at;
    if (t_has(master) && master.dtype == I16) split(narrow, (uint16_t *)master.data + at, p, n);
    else if (w.dtype == BF16) round_off(narrow, p, n);
    else if (wide != p) memcpy(wide, p, (size_t)n * sizeof *p);
}

void cpu_adamw(Backend *be, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor sumsq, AdamW h)
{
    int64_t n = t_count(w);
    AdamFactors f = cpu_adam_factors(h, sumsq);
    if (t_has(h.verdict) && *(const double *)h.verdict.data != STEP_GOOD) return;
    #pragma omp parallel for schedule(static) if(worth_threads(n))
    for (int64_t at = 0; at < n; at += PIECE) {
        float   pbuf[PIECE], mbuf[PIECE], vbuf[PIECE], gbuf[PIECE];
        int64_t k  = n - at < PIECE ? n - at : PIECE;
        float  *p  = cpu_master_open(w, master, at, k, pbuf);
        float  *pm = cpu_piece_open(m, at, k, mbuf), *pv = cpu_piece_open(v, at, k, vbuf);
        adam(p, pm, pv, cpu_piece_open(g, at, k, gbuf), f, k);
        piece_close(m, at, k, pm);
        piece_close(v, at, k, pv);
        cpu_master_close(w, master, at, k, p);
    }
}

void cpu_set_weight(Backend *be, Tensor w, Tensor master, Tensor x)
{
    int64_t n = t_count(w);
    #pragma omp parallel for schedule(static) if(worth_threads(n))
    for (int64_t at = 0; at < n; at += PIECE) {
        float   buf[PIECE];
        int64_t k = n - at < PIECE ? n - at : PIECE;
        bool    wide = t_has(master) && master.dtype == F32;
        float  *p = wide ? (float *)master.data + at : buf;
        if (p != (float *)x.data + at) memcpy(p, (const float *)x.data + at, (size_t)k * sizeof *p);
        cpu_master_close(w, master, at, k, p);
    }
}
