#include "bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native core of DeepInfer: scheduler and sampler. Free of torch.";
  m.attr("DEEPINFER_ABI") = "deepinfer-1";  // interfaces/seams.py, NATIVE_ABI
  deepinfer::bind_pools(m);
  deepinfer::bind_scheduler(m);
  deepinfer::bind_sampler(m);
}
