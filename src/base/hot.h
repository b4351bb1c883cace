/* base/hot.h -- functions compiled for several instruction sets and chosen at start.
 *
 * Code that must be fast is a function marked HOT; OpenMP regions stay outside of it, because the compiler
 * outlines them before it clones. What a HOT function calls in its loops is INLINE, so that it is compiled
 * along with each clone. */
#ifndef BASE_HOT_H
#define BASE_HOT_H

#if defined(TREB_SANITIZE) || !defined(__x86_64__)
#define HOT                                   /* ifunc resolvers run before a sanitizer is ready */
#else
#define HOT __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), noinline))
#endif
#define INLINE static inline __attribute__((always_inline))

#endif
