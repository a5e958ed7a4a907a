// The read of a hyper-connection for a handful of rows (spec section 2), in two passes over its weights.
#pragma once

#include "vector.h"

namespace nextfit {

// RMS norm of each of `groups` parts of x [width] times gain [width].
inline void grouped_norm(const bf16 *x, const float *gain, int64_t width, int64_t groups, float eps, bf16 *y) {
  int64_t part = width / groups;
  for (int64_t g = 0; g < width; g += part) {
    f32x16 squares = {};
    for (int64_t i = g; i < g + part; i += 16) squares += floats(x + i) * floats(x + i);
    float scale = 1.0f / std::sqrt(sum(squares) / part + eps);
    for (int64_t i = g; i < g + part; i += 16) store(y + i, floats(x + i) * scale * floats(gain + i));
  }
}

// x [rows, streams * hidden], down [rank (+ streams), streams * hidden], up [streams * hidden, rank], out [rows,
// hidden], inject [rows, streams or 0], bf16; gain [streams * hidden] float32. `scratch` [rows, streams * hidden + rank]
// bf16. hidden and rank are multiples of 32.
inline void hyper_read(const bf16 *x, int64_t x_stride, int64_t rows, int64_t hidden, int64_t streams,
                       const float *gain, const bf16 *down, const bf16 *up, int64_t rank, int64_t injects,
                       float eps, bf16 *scratch, bf16 *out, int64_t out_stride, bf16 *inject) {
  int64_t width = streams * hidden, lows = rank + injects;
  bf16 *normed = scratch, *low = scratch + rows * width;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t r = 0; r < rows; r++)
      grouped_norm(x + r * x_stride, gain, width, streams, eps, normed + r * width);
#pragma omp for schedule(static)
    for (int64_t block = 0; block < lows; block += 16)
      for (int64_t r = 0; r < rows; r++) {
        f32x16 y = products(down + block * width, least(16, lows - block), normed + r * width, width) / (float)streams;
        if (block < rank)
          store(low + r * rank + block, silu(y));
        else
          for (int64_t j = 0; j < injects; j++) inject[r * injects + j] = narrow(2 * sigmoid(y[j]));
      }
#pragma omp for schedule(static)
    for (int64_t block = 0; block < hidden; block += 16)
      for (int64_t r = 0; r < rows; r++) {
        f32x16 total = {};
        for (int64_t s = 0; s < streams; s++) {
          int64_t first = s * hidden + block;
          f32x16 gate = sigmoid(products(up + first * rank, 16, low + r * rank, rank));
          total += gate * floats(normed + r * width + first);
        }
        store(out + r * out_stride + block, total / (float)streams);
      }
  }
}

} // namespace nextfit
