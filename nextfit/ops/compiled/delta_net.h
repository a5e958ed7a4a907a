// What lies between the projections of a gated delta net (spec section 5), for decode and verify rows: commit what was
// accepted of the last step, then run this step's rows and log their inputs.
#pragma once

#include "vector.h"

namespace nextfit {

struct Sequence { // a row of Batch.table
  int64_t slot, replay, first_row, rows, first_position;
};

struct DeltaShape {
  int64_t key_heads, heads, key_dim, value_dim, taps, window;
  int64_t channels() const { return 2 * key_heads * key_dim + heads * value_dim; }
};

struct DeltaWeights {
  const float *taps; // [channels, taps]
  const float *decay, *dt_bias, *norm; // [heads], [heads], [value dim]
  const int64_t *key_of_value; // [heads]
  bool silu; // of the output gate; sigmoid otherwise
  float eps;
};

struct DeltaSlots { // first axis: slots; the logs have `window` rows
  bf16 *tail, *log; // [slots, taps - 1, channels], [slots, window, channels]
  float *matrix; // [slots, heads, key dim, value dim]
  float *key, *value, *decay, *beta; // [slots, window, heads, key dim], [.., value dim], [.., heads], [.., heads]
};

// Commit the tail of one sequence, log its rows, and convolve them, for the channels `first` to `end`:
// y [rows, channels] = silu(sum of taps * inputs).
inline void convolve(const DeltaShape &s, const DeltaWeights &w, const DeltaSlots &d, const Sequence &q, const bf16 *x,
                     int64_t x_stride, int64_t first, int64_t end, float *y) {
  int64_t reach = s.taps - 1, channels = s.channels(), n = end - first;
  bf16 *tail = d.tail + q.slot * reach * channels + first, *log = d.log + q.slot * s.window * channels + first;
  for (int64_t i = 0; i < reach; i++) { // ascending, so that nothing is overwritten before it is read
    int64_t from = i + q.replay;
    if (q.first_position == 0)
      std::memset(tail + i * channels, 0, n * sizeof(bf16));
    else if (from < reach)
      std::memmove(tail + i * channels, tail + from * channels, n * sizeof(bf16));
    else
      std::memcpy(tail + i * channels, log + (from - reach) * channels, n * sizeof(bf16));
  }
  for (int64_t j = 0; j < q.rows; j++) {
    const bf16 *row = x + (q.first_row + j) * x_stride + first;
    std::memcpy(log + j * channels, row, n * sizeof(bf16));
  }
  for (int64_t j = 0; j < q.rows; j++)
    for (int64_t c = 0; c < n; c += 16) {
      f32x16 total = {};
      for (int64_t i = 0; i < s.taps; i++) {
        int64_t from = j + i; // of the tail and the rows behind it
        const bf16 *input = from < reach ? tail + from * channels : log + (from - reach) * channels;
        f32x16 tap;
        for (int lane = 0; lane < 16; lane++) tap[lane] = w.taps[(first + c + lane) * s.taps + i];
        total += tap * floats(input + c);
      }
      store(y + (q.first_row + j) * channels + first + c, silu(total));
    }
}

// out [value dim] = key [key dim] times the matrix [key dim, value dim].
inline void read(const float *matrix, const float *key, int64_t keys, int64_t values, float *out) {
  for (int64_t v = 0; v < values; v += 16) {
    f32x16 total = {};
    for (int64_t k = 0; k < keys; k++) total += key[k] * floats(matrix + k * values + v);
    store(out + v, total);
  }
}

// S <- alpha S + k (x) beta (v - alpha S^T k). One function for rows that are tried and rows that are committed, so that
// both leave the same bits. `delta` [value dim] takes the last factor.
__attribute__((noinline)) inline void update(const float *from, float *to, const float *key, const float *value,
                                             float alpha, float beta, int64_t keys, int64_t values, float *delta) {
  read(from, key, keys, values, delta);
  for (int64_t v = 0; v < values; v += 16)
    store(delta + v, beta * (floats(value + v) - alpha * floats(delta + v)));
  for (int64_t k = 0; k < keys; k++)
    for (int64_t v = 0; v < values; v += 16)
      store(to + k * values + v, alpha * floats(from + k * values + v) + key[k] * floats(delta + v));
}

// x [n] / sqrt(sum x^2 + eps) * scale
inline void l2_norm(const float *x, int64_t n, float eps, float scale, float *y) {
  f32x16 squares = {};
  for (int64_t i = 0; i < n; i += 16) squares += floats(x + i) * floats(x + i);
  float factor = scale / std::sqrt(sum(squares) + eps);
  for (int64_t i = 0; i < n; i += 16) store(y + i, floats(x + i) * factor);
}

// One head of one sequence. `mixed` [rows, channels] is convolved; z [rows, heads * value dim], b and a [rows, heads] lie
// in rows `x_stride` apart; out [rows, heads * value dim]. `scratch` [key dim * (value dim + 1) + 2 * value dim].
inline void delta_head(const DeltaShape &s, const DeltaWeights &w, const DeltaSlots &d, const Sequence &q, int64_t h,
                       const float *mixed, const bf16 *z, const bf16 *b, const bf16 *a, int64_t x_stride, bf16 *out,
                       float *scratch) {
  int64_t keys = s.key_dim, values = s.value_dim, size = keys * values;
  float *matrix = d.matrix + (q.slot * s.heads + h) * size;
  float *tried = scratch, *query = tried + size, *delta = query + keys, *y = delta + values;
  auto logged = [&](float *log, int64_t j, int64_t width) {
    return log + ((q.slot * s.window + j) * s.heads + h) * width;
  };
  if (q.first_position == 0) std::memset(matrix, 0, size * sizeof(float));
  for (int64_t j = 0; j < q.replay; j++)
    update(matrix, matrix, logged(d.key, j, keys), logged(d.value, j, values), std::exp(*logged(d.decay, j, 1)),
           *logged(d.beta, j, 1), keys, values, delta);
  const float *current = matrix;
  for (int64_t j = 0; j < q.rows; j++) {
    int64_t row = q.first_row + j;
    const float *x = mixed + row * s.channels();
    int64_t place = w.key_of_value[h] * keys;
    float *key = logged(d.key, j, keys), *value = logged(d.value, j, values);
    l2_norm(x + place, keys, w.eps, 1 / std::sqrt((float)keys), query);
    l2_norm(x + s.key_heads * keys + place, keys, w.eps, 1, key);
    std::memcpy(value, x + 2 * s.key_heads * keys + h * values, values * sizeof(float));
    float step = widen(a[row * x_stride + h]) + w.dt_bias[h];
    float decay = w.decay[h] * (step > 20 ? step : std::log1p(std::exp(step)));
    float beta = sigmoid(widen(b[row * x_stride + h]));
    *logged(d.decay, j, 1) = decay;
    *logged(d.beta, j, 1) = beta;
    update(current, tried, key, value, std::exp(decay), beta, keys, values, delta);
    current = tried;
    read(tried, query, keys, values, y);
    f32x16 squares = {};
    for (int64_t v = 0; v < values; v += 16) squares += floats(y + v) * floats(y + v);
    float scale = 1 / std::sqrt(sum(squares) / values + w.eps);
    for (int64_t v = 0; v < values; v += 16) {
      f32x16 gate = floats(z + row * x_stride + h * values + v);
      gate = w.silu ? silu(gate) : sigmoid(gate);
      store(out + (row * s.heads + h) * values + v, floats(y + v) * scale * floats(w.norm + v) * gate);
    }
  }
}

// projected [rows, channels + heads * value dim + 2 * heads] with rows `x_stride` apart: convolution inputs, output gate,
// beta's and decay's logits. out [rows, heads * value dim]. mixed [rows, channels] float32 is scratch, and so is
// `scratch`, as `delta_head` needs it for each of `threads`. key_dim, value_dim and channels are multiples of 32.
inline void delta_net(const DeltaShape &s, const DeltaWeights &w, const DeltaSlots &d, const Sequence *sequences,
                      int64_t count, const bf16 *projected, int64_t x_stride, float *mixed, float *scratch,
                      bf16 *out) {
  int64_t channels = s.channels(), blocks = channels / 32, width = s.heads * s.value_dim;
  const bf16 *z = projected + channels, *b = z + width, *a = b + s.heads;
  int64_t each = s.key_dim * (s.value_dim + 1) + 2 * s.value_dim;
#pragma omp parallel
  {
#pragma omp for schedule(static)
    for (int64_t task = 0; task < count * blocks; task++) {
      int64_t first = task % blocks * 32;
      convolve(s, w, d, sequences[task / blocks], projected, x_stride, first, first + 32, mixed);
    }
#pragma omp for schedule(static)
    for (int64_t task = 0; task < count * s.heads; task++)
      delta_head(s, w, d, sequences[task / s.heads], task % s.heads, mixed, z, b, a, x_stride, out,
                 scratch + thread() * each);
  }
}

} // namespace nextfit
