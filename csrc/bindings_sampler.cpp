#include "bindings.h"

namespace deepinfer {

void bind_sampler(pybind11::module_&) {}

}  // namespace deepinfer
