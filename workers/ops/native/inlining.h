// What the compiler is told of short loops and functions whose values are to stay in registers.
#pragma once

#if defined(__clang__)
#define HELEXA_UNROLL _Pragma("unroll")
#else
#define HELEXA_UNROLL _Pragma("GCC unroll 16")
#endif

#define HELEXA_INLINE static inline __attribute__((always_inline))
