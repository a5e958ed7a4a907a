// Sixteen floats at a time, bf16 in memory. Every sum has one fixed order, whatever the number of rows.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <omp.h>
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace nextfit {

using bf16 = uint16_t;
using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = int32_t __attribute__((vector_size(64)));
using u32x16 = uint32_t __attribute__((vector_size(64)));
using u16x16 = uint16_t __attribute__((vector_size(32)));

template <typename V, typename T> inline V load(const T *p) {
  V v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

inline f32x16 fill(float x) { return f32x16{} + x; }
inline f32x16 floats(const float *p) { return load<f32x16>(p); }
inline f32x16 floats(const bf16 *p) {
  return (f32x16)(__builtin_convertvector(load<u16x16>(p), u32x16) << 16);
}
inline float widen(bf16 x) {
  uint32_t word = (uint32_t)x << 16;
  float y;
  std::memcpy(&y, &word, 4);
  return y;
}

// To nearest, ties to even; a NaN stays one.
inline void store(bf16 *p, f32x16 v) {
  u32x16 words = (u32x16)v;
  u32x16 rounded = (words + 0x7fffu + (words >> 16 & 1u)) >> 16;
  u32x16 chosen = v == v ? rounded : (words >> 16 | 0x40u);
  u16x16 narrow = __builtin_convertvector(chosen, u16x16);
  std::memcpy(p, &narrow, sizeof narrow);
}
inline void store(float *p, f32x16 v) { std::memcpy(p, &v, sizeof v); }
inline bf16 narrow(float x) {
  bf16 y[16];
  store(y, fill(x));
  return y[0];
}

inline float sum(f32x16 v) {
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

// e^x to 2 ulp between -87 and 88, where it is cut off. Cody and Waite's reduction, a Taylor polynomial of degree 7.
inline f32x16 exp(f32x16 x) {
  x = x < -87.0f ? fill(-87.0f) : x; // false for a NaN, which stays one
  x = x > 88.0f ? fill(88.0f) : x;
  f32x16 shifted = x * 1.44269504f + 12582912.0f; // the sum's lowest bits are the nearest integer
  f32x16 n = shifted - 12582912.0f;
  f32x16 r = x - n * 0.693359375f + n * 2.12194440e-4f;
  f32x16 y = fill(1.0f / 5040);
  y = y * r + 1.0f / 720;
  y = y * r + 1.0f / 120;
  y = y * r + 1.0f / 24;
  y = y * r + 1.0f / 6;
  y = y * r + 0.5f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  i32x16 power = ((i32x16)shifted - 0x4b400000 + 127) << 23;
  return y * (f32x16)power;
}

inline f32x16 sigmoid(f32x16 x) { return 1.0f / (1.0f + exp(-x)); }
inline f32x16 silu(f32x16 x) { return x * sigmoid(x); }
inline float sigmoid(float x) { return sigmoid(fill(x))[0]; }

// Sixteen products of the row x [columns] with rows of a weight, `count` <= 16 of them from w on: lanes beyond are not
// to be used. columns % 32 == 0.
inline f32x16 products(const bf16 *w, int64_t count, const bf16 *x, int64_t columns) {
  const bf16 *row[16];
  for (int64_t j = 0; j < 16; j++) row[j] = w + (j < count ? j : count - 1) * columns;
  f32x16 sums[16] = {};
#if defined(__AVX512BF16__)
  for (int64_t i = 0; i < columns; i += 32) {
    __m512bh b = load<__m512bh>(x + i);
#pragma GCC unroll 16
    for (int j = 0; j < 16; j++) sums[j] = _mm512_dpbf16_ps(sums[j], load<__m512bh>(row[j] + i), b);
  }
#else
  for (int j = 0; j < 16; j++) // words of two elements each
    for (int64_t i = 0; i < columns; i += 32) {
      u32x16 a = load<u32x16>(row[j] + i), b = load<u32x16>(x + i);
      sums[j] += (f32x16)(a << 16) * (f32x16)(b << 16);
      sums[j] += (f32x16)(a & 0xffff0000u) * (f32x16)(b & 0xffff0000u);
    }
#endif
  // a transposed sum: each step halves the vectors and keeps the same tree for every lane
#pragma GCC unroll 4
  for (int half = 8; half; half /= 2) {
    i32x16 first, second; // of a pair of vectors: the lanes whose bit `half` is clear, and those where it is set
    for (int i = 0; i < 16; i++) {
      first[i] = (i & half) ? (i ^ half) + 16 : i;
      second[i] = (i & half) ? i + 16 : i | half;
    }
#pragma GCC unroll 8
    for (int j = 0; j < half; j++)
      sums[j] = __builtin_shuffle(sums[j], sums[j + half], first) + __builtin_shuffle(sums[j], sums[j + half], second);
  }
  return sums[0];
}

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t thread() { return omp_get_thread_num(); }

} // namespace nextfit
