/* Vectors, and the functions of them, that the kernels share. Plain C with the vector types of GCC
 * and clang: any vector unit will do, AVX-512 does best. */

#ifndef FRACTIONATE_VECTORS_H
#define FRACTIONATE_VECTORS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
enum { LANES = 16, TILE = 12 };
#elif defined(__AVX__)
enum { LANES = 8, TILE = 6 };
#elif defined(__aarch64__)
enum { LANES = 4, TILE = 12 };
#else
enum { LANES = 4, TILE = 4 };
#endif

#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Vectors of a register's width for the products, of 16 numbers for everything else. */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t int_lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t word_lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float f16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef int32_t i16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef float f8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef double d8 __attribute__((vector_size(64), aligned(8), may_alias));

INLINE int64_t up_to(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

/* exp(x), to about one unit in the last place; 0 below -87, exp(88) above 88. */
#define EXPONENTIAL(name, floats, ints)                                                            \
    INLINE floats name(floats x) {                                                                 \
        const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */          \
        ints tiny = x < -87.0f, huge = x > 88.0f;                                                  \
        x = (floats)(((ints)x & ~(tiny | huge)) | (huge & (ints)((floats){} + 88.0f)));            \
        floats shifted = x * 1.44269504f + magic, power = shifted - magic;                         \
        floats rest = (x - power * 0.693359375f) + power * 2.12194440e-4f;                         \
        floats sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;                                   \
        sum = sum * rest + 8.3334519073e-3f;                                                       \
        sum = sum * rest + 4.1665795894e-2f;                                                       \
        sum = sum * rest + 1.6666665459e-1f;                                                       \
        sum = sum * rest + 5.0000001201e-1f;                                                       \
        sum = sum * (rest * rest) + rest + 1.0f;                                                   \
        return (floats)(((ints)sum + (((ints)shifted - 0x4B400000) << 23)) & ~tiny);               \
    }
EXPONENTIAL(exponential, f16, i16)
EXPONENTIAL(exponential_lanes, lanes, int_lanes)

INLINE float total(f16 x) {
    f8 sum = *(f8 *)&x + *((f8 *)&x + 1);
    return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

INLINE f16 larger(f16 a, f16 b) {
    i16 above = a > b;
    return (f16)(((i16)a & above) | ((i16)b & ~above));
}

INLINE float largest(f16 x) {
    float best = x[0];
    for (int i = 1; i < 16; i++) best = x[i] > best ? x[i] : best;
    return best;
}

#endif
