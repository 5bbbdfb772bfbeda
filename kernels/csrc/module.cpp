// Python bindings: raw addresses and sizes only, so that the extension depends on no version of torch.
// Arguments are checked by deepinfer_kernels' operator interface. The GIL is released around each call.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core.h"
#include "ops.h"
#include "parallel.h"

namespace py = pybind11;
using namespace deepinfer;

namespace {

using Address = std::uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// (format, data, scale, M, K)
using WeightArgument = std::tuple<int, Address, Address, int64_t, int64_t>;

Weight weight_of(const WeightArgument& w) {
  return {static_cast<Format>(std::get<0>(w)), at<const uint8_t>(std::get<1>(w)), at<const uint8_t>(std::get<2>(w)),
          std::get<3>(w), std::get<4>(w)};
}

}  // namespace

PYBIND11_MODULE(_cpu, m) {
  m.doc() = "CPU kernels of DeepInfer.";
  using nogil = py::call_guard<py::gil_scoped_release>;

  m.def("set_num_threads", &set_num_threads, py::arg("n"));
  m.def("get_num_threads", &num_threads);
  m.def("set_isa", [](const std::string& name) { set_isa(name.c_str()); }, py::arg("name"));
  m.def("get_isa", [] { return core().name; });

  m.def("linear",
        [](Address x, bool x_f32, const WeightArgument& w, Address out, bool out_f32, int64_t N, bool quantize) {
          linear({at<void>(x), x_f32}, weight_of(w), {at<void>(out), out_f32}, N, quantize);
        },
        nogil());
  m.def("grouped_linear",
        [](Address x, const WeightArgument& w, Address out, int64_t N, int64_t G) {
          grouped_linear(at<bf16>(x), weight_of(w), at<bf16>(out), N, G);
        },
        nogil());
}
