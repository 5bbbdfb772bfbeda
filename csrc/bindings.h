// Each part of csrc registers its classes with the one extension module here.
#pragma once

#include <pybind11/pybind11.h>

namespace deepinfer {

void bind_pools(pybind11::module_& m);
void bind_scheduler(pybind11::module_& m);
void bind_sampler(pybind11::module_& m);

}  // namespace deepinfer
