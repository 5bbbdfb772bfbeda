#include "bindings.h"

namespace deepinfer {

void bind_scheduler(pybind11::module_&) {}

}  // namespace deepinfer
