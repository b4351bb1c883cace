/* base/hot.h -- functions compiled for several instruction sets and chosen at start.
 *
 * Code that must be fast is a function marked HOT; OpenMP regions stay outside of it, because the compiler
 * outlines them before it clones. What a HOT function calls in its loops is INLINE, so that it is compiled
 * along with each clone. */
#ifndef BASE_HOT_H
#define BASE_HOT_H

#if defined(TREB_SANITIZE) || !defined(__x86_64__)
#define HOT                                   /* ifunc resolvers run before a sanitizer is ready */
#elif defined(__clang__)
#define HOT __attribute__((noinline))         /* clang does not clone a static function that is not inlined */
#else
#define HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline))
#endif
#define INLINE static inline __attribute__((always_inline))

/* A function for the levels of the x86-64 ABI, and whether this CPU has them. */
#if defined(__x86_64__)
#define TARGET_V3 __attribute__((target("arch=x86-64-v3")))
#if defined(__clang__)
#define TARGET_V4 __attribute__((target("arch=x86-64-v4")))
#define CPU_HAS_V3                                                                                           \
    (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
#define CPU_HAS_V4 (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && \
                    __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && \
                    __builtin_cpu_supports("avx512vl"))
#define CPU_HAS_AMX_BF16 false                /* clang 14 has no name for it to ask the CPU by */
#else
#define TARGET_V4 __attribute__((target("arch=x86-64-v4,prefer-vector-width=512")))
#define CPU_HAS_V3 __builtin_cpu_supports("x86-64-v3")
#define CPU_HAS_V4 __builtin_cpu_supports("x86-64-v4")
#define CPU_HAS_AMX_BF16 __builtin_cpu_supports("amx-bf16")
#endif
#endif

#endif
