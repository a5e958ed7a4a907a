// y = x W^T for a handful of rows: the weight is read once, each thread a stretch of it.
#pragma once

#include "vector.h"

namespace nextfit {

// x [rows, columns] with rows `x_stride` apart, weight [count, columns], out [rows, count] with rows `out_stride`
// apart, all bf16. columns % 32 == 0.
inline void linear(const bf16 *x, int64_t x_stride, int64_t rows, int64_t columns, const bf16 *weight,
                   int64_t count, bf16 *out, int64_t out_stride) {
#pragma omp parallel for schedule(static)
  for (int64_t block = 0; block < count; block += 16) {
    int64_t n = least(16, count - block);
    for (int64_t r = 0; r < rows; r++) {
      bf16 y[16];
      store(y, products(weight + block * columns, n, x + r * x_stride, columns));
      std::memcpy(out + r * out_stride + block, y, n * sizeof(bf16));
    }
  }
}

} // namespace nextfit
