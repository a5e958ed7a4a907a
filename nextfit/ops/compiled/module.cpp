// What Python sees: addresses and sizes. nextfit/ops/compiled/__init__.py takes tensors and checks them.
#include <pybind11/pybind11.h>

#include "delta_net.h"
#include "experts.h"
#include "hyper.h"
#include "linear.h"

namespace py = pybind11;
using namespace nextfit;

namespace {

template <typename T> T *at(uintptr_t address) { return reinterpret_cast<T *>(address); }

// Built for the processor at hand (-march=native); false on one that lacks what was compiled in.
bool runs_here() {
#if defined(__x86_64__)
  __builtin_cpu_init();
#if defined(__AVX512BW__)
  if (!__builtin_cpu_supports("avx512bw")) return false;
#endif
#if defined(__AVX2__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return false;
#endif
#endif
  return true;
}

} // namespace

PYBIND11_MODULE(_kernels, m) {
  m.def("runs_here", &runs_here);
  using A = uintptr_t;
  using N = int64_t;
  py::call_guard<py::gil_scoped_release> free;
  m.def("delta_net", [](N key_heads, N heads, N key_dim, N value_dim, N taps, N window, A conv, A decay, A dt_bias,
                        A norm, A key_of_value, bool silu, float eps, A tail, A log, A matrix, A keys, A values,
                        A decays, A betas, A sequences, N count, A projected, N stride, A mixed, A scratch, A out) {
    DeltaShape s{key_heads, heads, key_dim, value_dim, taps, window};
    DeltaWeights w{at<float>(conv), at<float>(decay), at<float>(dt_bias), at<float>(norm), at<int64_t>(key_of_value),
                   silu, eps};
    DeltaSlots d{at<bf16>(tail), at<bf16>(log), at<float>(matrix), at<float>(keys), at<float>(values),
                 at<float>(decays), at<float>(betas)};
    delta_net(s, w, d, at<Sequence>(sequences), count, at<bf16>(projected), stride, at<float>(mixed),
              at<float>(scratch), at<bf16>(out));
  }, free);
  m.def("linear", [](A x, N x_stride, N rows, N columns, A weight, N count, A out, N out_stride) {
    linear(at<bf16>(x), x_stride, rows, columns, at<bf16>(weight), count, at<bf16>(out), out_stride);
  }, free);
  m.def("hyper_read", [](A x, N x_stride, N rows, N hidden, N streams, A gain, A down, A up, N rank, N injects,
                         float eps, A scratch, A out, N out_stride, A inject) {
    hyper_read(at<bf16>(x), x_stride, rows, hidden, streams, at<float>(gain), at<bf16>(down), at<bf16>(up), rank,
               injects, eps, at<bf16>(scratch), at<bf16>(out), out_stride, at<bf16>(inject));
  }, free);
  m.def("experts", [](N rows, N hidden, N count, N k, N width, N shared, A x, N x_stride, A projected,
                      N projected_stride, bool normalise, A gate_up, A down, A shared_down, A inner, A numbers, A ids,
                      A out, N out_stride) {
    Shape s{rows, hidden, count, k, width, shared};
    experts(s, at<bf16>(x), x_stride, at<bf16>(projected), projected_stride, normalise, at<bf16>(gate_up),
            at<bf16>(down), at<bf16>(shared_down), at<bf16>(inner), at<float>(numbers), at<int64_t>(ids),
            at<bf16>(out), out_stride);
  }, free);
}
