// The experts of a handful of rows (spec section 6): every chosen expert's weights are read once.
#pragma once

#include "vector.h"

namespace nextfit {

// The k largest of p [n], ascending by place; of equal ones the first. `taken` [n] is scratch.
inline void best(const float *p, int64_t n, int64_t k, bool *taken, int64_t *ids) {
  for (int64_t i = 0; i < n; i++) taken[i] = false;
  for (int64_t c = 0; c < k; c++) {
    int64_t top = -1;
    for (int64_t i = 0; i < n; i++)
      if (!taken[i] && (top < 0 || p[i] > p[top])) top = i;
    taken[top] = true;
  }
  for (int64_t i = 0, c = 0; i < n; i++)
    if (taken[i]) ids[c++] = i;
}

// Softmax of the router's logits [n] and the choice among them: ids [k] ascending, weights [k]; NaN counts as lowest.
inline void route(const bf16 *logits, int64_t n, int64_t k, bool normalise, float *p, bool *taken, int64_t *ids,
                  float *weights) {
  float top = -INFINITY, total = 0;
  for (int64_t i = 0; i < n; i++) {
    p[i] = widen(logits[i]);
    if (p[i] > top) top = p[i];
  }
  for (int64_t i = 0; i < n; i++) {
    p[i] = p[i] == p[i] ? std::exp(p[i] - top) : 0;
    total += p[i];
  }
  for (int64_t i = 0; i < n; i++) p[i] /= total;
  best(p, n, k, taken, ids);
  float chosen = 0;
  for (int64_t c = 0; c < k; c++) chosen += p[ids[c]];
  for (int64_t c = 0; c < k; c++) weights[c] = widen(narrow(p[ids[c]] / (normalise ? chosen : 1)));
}

struct Shape {
  int64_t rows, hidden, experts, k, width, shared; // width of an expert, of the shared one
};

// silu(gate) * up of 16 places.
inline void gated(bf16 *out, f32x16 gate, f32x16 up) { store(out, silu(gate) * up); }

// x [rows, hidden]; projected [rows, experts + 1 + 2 * shared]: the router's logits, the shared expert's gate, its
// gate and up; gate_up [experts, 2 * width, hidden], down [experts, hidden, width], shared_down [hidden, shared],
// out [rows, hidden], all bf16. Scratch: `inner` [rows, k * width + shared] bf16, `numbers` [rows * k + 2 * experts]
// float32, `ids` [2, rows, k] int64. hidden, width and shared are multiples of 32.
inline void experts(Shape s, const bf16 *x, int64_t x_stride, const bf16 *projected, int64_t projected_stride,
                    bool normalise, const bf16 *gate_up, const bf16 *down, const bf16 *shared_down, bf16 *inner,
                    float *numbers, int64_t *ids, bf16 *out, int64_t out_stride) {
  int64_t pairs = s.rows * s.k, *order = ids + pairs, n = 0;
  float *weights = numbers, *p = weights + pairs;
  bool *taken = reinterpret_cast<bool *>(p + s.experts);
  bf16 *inner_shared = inner + pairs * s.width;
  for (int64_t r = 0; r < s.rows; r++)
    route(projected + r * projected_stride, s.experts, s.k, normalise, p, taken, ids + r * s.k, weights + r * s.k);
  // pairs of a row and an expert, by expert: each one's weights then meet all of its rows while they are near
  for (int64_t e = 0; e < s.experts; e++)
    for (int64_t pair = 0; pair < pairs; pair++)
      if (ids[pair] == e) order[n++] = pair;
  int64_t blocks = s.width / 16;
#pragma omp parallel
  {
#pragma omp for schedule(static) nowait
    for (int64_t r = 0; r < s.rows; r++) {
      const bf16 *gate = projected + r * projected_stride + s.experts + 1, *up = gate + s.shared;
      for (int64_t i = 0; i < s.shared; i += 16)
        gated(inner_shared + r * s.shared + i, floats(gate + i), floats(up + i));
    }
#pragma omp for schedule(static)
    for (int64_t task = 0; task < pairs * blocks; task++) {
      int64_t pair = order[task / blocks], block = task % blocks * 16;
      const bf16 *gate = gate_up + (ids[pair] * 2 * s.width + block) * s.hidden, *up = gate + s.width * s.hidden;
      const bf16 *row = x + pair / s.k * x_stride;
      gated(inner + pair * s.width + block, products(gate, 16, row, s.hidden), products(up, 16, row, s.hidden));
    }
#pragma omp for schedule(static)
    for (int64_t task = 0; task < s.rows * s.hidden / 16; task++) {
      int64_t r = task % s.rows, block = task / s.rows * 16;
      f32x16 total = {};
      for (int64_t c = 0; c < s.k; c++) { // ascending experts: a fixed order of the sum
        int64_t pair = r * s.k + c;
        total += weights[pair] *
                 products(down + (ids[pair] * s.hidden + block) * s.width, 16, inner + pair * s.width, s.width);
      }
      float gate = sigmoid(widen(projected[r * projected_stride + s.experts]));
      total += gate * products(shared_down + block * s.shared, 16, inner_shared + r * s.shared, s.shared);
      store(out + r * out_stride + block, total);
    }
  }
}

} // namespace nextfit
