/* tests/gpuargs.h -- the arguments of an op that runs on both devices: on_gpu_*, ON_GPU, and their text in
 * messages: say_*, SAY. */
#ifndef TESTS_GPUARGS_H
#define TESTS_GPUARGS_H

#include "gputensors.h"

#include <stdarg.h>

static inline Tensor on_gpu_tensor(Tensor t)
{
    if (t.data) t.data = gpu_.a.base + ((char *)t.data - num_.a.base);
    return t;
}
static inline Segments on_gpu_segments(Segments s)
{
    s.starts = on_gpu_tensor(s.starts), s.kv_starts = on_gpu_tensor(s.kv_starts),
    s.kv_used = on_gpu_tensor(s.kv_used);
    return s;
}
static inline const void *on_gpu_address(const void *p)
{
    REQUIRE(!p || (const char *)p - num_.a.base < (ptrdiff_t)num_.a.used, "an address from before fresh()");
    return p ? gpu_.a.base + ((const char *)p - num_.a.base) : NULL;
}
static inline Dropout on_gpu_dropout(Dropout x)
{
    x.base = on_gpu_address(x.base);
    return x;
}
static inline LoraTerm     on_gpu_lora(LoraTerm t)
{
    t.low_rank = on_gpu_tensor(t.low_rank), t.w = on_gpu_tensor(t.w);
    t.dropout = on_gpu_dropout(t.dropout);
    return t;
}
static inline RouterGroups on_gpu_groups(RouterGroups g) { return g; }
static inline Factor   on_gpu_factor(Factor x)     { x.at = on_gpu_address(x.at); return x; }
static inline float    on_gpu_float(float x)       { return x; }
static inline int64_t  on_gpu_long(int64_t x)      { return x; }
static inline AdamW    on_gpu_adamw(AdamW x)
{
    x.now = on_gpu_address(x.now), x.verdict = on_gpu_tensor(x.verdict);
    return x;
}
static inline StepLimits on_gpu_limits(StepLimits x) { return x; }
static inline WeightSlice on_gpu_slice(WeightSlice x) { return x; }
static inline TileAt on_gpu_tile(TileAt x) { return x; }
static inline WeightCodes on_gpu_codes(WeightCodes z)
{
    z.q = on_gpu_tensor(z.q), z.scale = on_gpu_tensor(z.scale);
    z.first = on_gpu_tensor(z.first), z.group = on_gpu_tensor(z.group);
    return z;
}
static inline MicroCodes on_gpu_micro(MicroCodes z)
{
    z.q = on_gpu_tensor(z.q), z.scale = on_gpu_tensor(z.scale), z.tensor = on_gpu_tensor(z.tensor);
    return z;
}
static inline ColumnCodes on_gpu_columns(ColumnCodes z)
{
    z.q = on_gpu_tensor(z.q), z.scale = on_gpu_tensor(z.scale);
    return z;
}
static inline MicroRule on_gpu_rule(MicroRule r) { r.seed = on_gpu_address(r.seed); return r; }
static inline const Addends *on_gpu_list(const Addends *s)
{
    gpu_.list = *s;
    for (int i = 0; i < s->n; i++) gpu_.list.at[i].x = on_gpu_tensor(s->at[i].x);
    return &gpu_.list;
}
#define ON_GPU(x)                                                                                  \
    _Generic((x), Tensor: on_gpu_tensor, Segments: on_gpu_segments, AdamW: on_gpu_adamw,               \
             LoraTerm: on_gpu_lora, Factor: on_gpu_factor, Dropout: on_gpu_dropout,                    \
             StepLimits: on_gpu_limits, WeightSlice: on_gpu_slice, const Addends *: on_gpu_list,       \
             float: on_gpu_float, double: on_gpu_float, RouterGroups: on_gpu_groups,                   \
             WeightCodes: on_gpu_codes, TileAt: on_gpu_tile, MicroCodes: on_gpu_micro,                 \
             MicroRule: on_gpu_rule, ColumnCodes: on_gpu_columns, default: on_gpu_long)(x)

static inline void say(const char *fmt, ...)
{
    size_t  at = strlen(gpu_.said);
    va_list v;
    va_start(v, fmt);
    vsnprintf(gpu_.said + at, SAID - at, fmt, v);
    va_end(v);
}
static inline int say_tensor(Tensor t)
{
    say(" %s", t_fmt(t));
    if (t.data && !t_dense(t)) say("/%lld", (long long)t.s[0]);
    return 0;
}
static inline int say_segments(Segments s)
{
    return say(" %s %lld segments of %lld at most%s", s.causal ? "causal" : "full", (long long)s.n,
               (long long)s.longest, t_has(s.kv_starts) ? " over a cache" : ""),
           0;
}
static inline int say_dropout(Dropout d)
{
    if (d.p > 0) say(" dropout %g at (%lld, %lld)", (double)d.p, (long long)d.row, (long long)d.col);
    return 0;
}
static inline int say_lora(LoraTerm t)
{
    return t_has(t.low_rank) ? say(" LoRA term"), say_tensor(t.w), say_dropout(t.dropout) : 0;
}
static inline int say_list(const Addends *s)
{
    say(" %d:", s->n);
    for (int i = 0; i < s->n; i++) say(" %lld", (long long)t_count(s->at[i].x));
    return 0;
}
static inline int say_adamw(AdamW h)    { return say(" step %lld", (long long)h.step), 0; }
static inline int say_factor(Factor x)  { return say(" %g", (double)factor_value(x)), 0; }
/* By value or by address. */
static inline Factor any_factor(float value)
{
    float *at = t1(&num_.a, "lab", F32, 1).data;
    *at = value;
    return num_below(2) ? factor_at(at) : factor(value);
}
static inline int say_slice(WeightSlice s)
{
    return say(" at %lld of (%lld, %lld)", (long long)s.at, (long long)s.N, (long long)s.K), 0;
}
static inline int say_codes(WeightCodes z) { return say(" format %d", (int)z.format), say_tensor(z.q); }
static inline int say_tile(TileAt t)
{
    return say(" at %lld, %lld, %lld", (long long)t.e, (long long)t.row, (long long)t.col), 0;
}
static inline int say_micro(MicroCodes z)
{
    return say(" %s", precision_word(z.format)), say_tensor(z.q);
}
static inline int say_columns(ColumnCodes z) { return say(" columns"), say_tensor(z.q); }
static inline int say_rule(MicroRule r)
{
    return say("%s%s%s", r.blocks ? " blocks" : "", r.transposed ? " transposed" : "",
               r.seed ? " at random" : ""), 0;
}
static inline int say_groups(RouterGroups g) { return say(" %d of %d groups", g.top, g.groups), 0; }
static inline int say_limits(StepLimits h) { return say(" spike %g", h.spike), 0; }
static inline int say_float(float x)    { return say(" %g", (double)x), 0; }
static inline int say_long(int64_t x)   { return say(" %lld", (long long)x), 0; }
#define SAY(x)                                                                                     \
    _Generic((x), Tensor: say_tensor, Segments: say_segments, AdamW: say_adamw, LoraTerm: say_lora,    \
             Dropout: say_dropout, Factor: say_factor, const Addends *: say_list,                      \
             StepLimits: say_limits, WeightSlice: say_slice, float: say_float, double: say_float,      \
             RouterGroups: say_groups, WeightCodes: say_codes, TileAt: say_tile,                        \
             MicroCodes: say_micro, MicroRule: say_rule, ColumnCodes: say_columns, default: say_long)(x)

#define MAP1(f, a)       f(a)
#define MAP2(f, a, ...)  f(a), MAP1(f, __VA_ARGS__)
#define MAP3(f, a, ...)  f(a), MAP2(f, __VA_ARGS__)
#define MAP4(f, a, ...)  f(a), MAP3(f, __VA_ARGS__)
#define MAP5(f, a, ...)  f(a), MAP4(f, __VA_ARGS__)
#define MAP6(f, a, ...)  f(a), MAP5(f, __VA_ARGS__)
#define MAP7(f, a, ...)  f(a), MAP6(f, __VA_ARGS__)
#define MAP8(f, a, ...)  f(a), MAP7(f, __VA_ARGS__)
#define MAP9(f, a, ...)  f(a), MAP8(f, __VA_ARGS__)
#define MAP10(f, a, ...) f(a), MAP9(f, __VA_ARGS__)
#define MAP11(f, a, ...) f(a), MAP10(f, __VA_ARGS__)
#define MAP12(f, a, ...) f(a), MAP11(f, __VA_ARGS__)
#define MAP13(f, a, ...) f(a), MAP12(f, __VA_ARGS__)
#define MAP14(f, a, ...) f(a), MAP13(f, __VA_ARGS__)
#define MAP15(f, a, ...) f(a), MAP14(f, __VA_ARGS__)
#define MAP16(f, a, ...) f(a), MAP15(f, __VA_ARGS__)
#define MAP17(f, a, ...) f(a), MAP16(f, __VA_ARGS__)
#define NTH_(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, ...) r
#define MAP(f, ...)                                                                                          \
    NTH_(__VA_ARGS__, MAP17, MAP16, MAP15, MAP14, MAP13, MAP12, MAP11, MAP10, MAP9, MAP8, MAP7, MAP6, MAP5,  \
         MAP4, MAP3, MAP2, MAP1)                                                                             \
    (f, __VA_ARGS__)

#endif
