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

/* Vectors of a register's width: compilers make poor code of wider ones. */
typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t int_lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t word_lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef float half_lanes __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef double wide_lanes __attribute__((vector_size(4 * LANES), aligned(8), may_alias));

INLINE int64_t up_to(int64_t size, int64_t multiple) { return (size + multiple - 1) / multiple * multiple; }

/* exp(x), to about one unit in the last place; 0 below -87, exp(88) above 88. */
INLINE lanes exponential(lanes x) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
    int_lanes tiny = x < -87.0f, huge = x > 88.0f;
    x = (lanes)(((int_lanes)x & ~(tiny | huge)) | (huge & (int_lanes)((lanes){} + 88.0f)));
    lanes shifted = x * 1.44269504f + magic, power = shifted - magic;
    lanes rest = (x - power * 0.693359375f) + power * 2.12194440e-4f;
    lanes sum = rest * 1.9875691500e-4f + 1.3981999507e-3f;
    sum = sum * rest + 8.3334519073e-3f;
    sum = sum * rest + 4.1665795894e-2f;
    sum = sum * rest + 1.6666665459e-1f;
    sum = sum * rest + 5.0000001201e-1f;
    sum = sum * (rest * rest) + rest + 1.0f;
    return (lanes)(((int_lanes)sum + (((int_lanes)shifted - 0x4B400000) << 23)) & ~tiny);
}

INLINE float total(lanes x) {
    float parts[LANES];
    *(lanes *)parts = x;
    UNROLL
    for (int width = LANES / 2; width >= 4; width /= 2) {
        UNROLL
        for (int i = 0; i < width; i++) parts[i] += parts[i + width];
    }
    return (parts[0] + parts[1]) + (parts[2] + parts[3]);
}

INLINE lanes larger(lanes a, lanes b) {
    int_lanes above = a > b;
    return (lanes)(((int_lanes)a & above) | ((int_lanes)b & ~above));
}

INLINE float largest(lanes x) {
    float best = x[0];
    UNROLL
    for (int i = 1; i < LANES; i++) best = x[i] > best ? x[i] : best;
    return best;
}

#endif
