// What Python sees: addresses and sizes. nextfit/ops/compiled/__init__.py takes tensors and checks them.
#include <pybind11/pybind11.h>

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
