#include "bindings.h"

PYBIND11_MODULE(_C, m) {
  m.doc() = "Native core of DeepInfer: scheduler and sampler. Free of torch.";
  deepinfer::bind_scheduler(m);
  deepinfer::bind_sampler(m);
}
