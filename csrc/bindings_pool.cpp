#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "bound_pool.h"
#include "thread_pool.h"

namespace py = pybind11;

namespace deepinfer {
namespace {

// A pool of the core's own, or one that a backend's capsule keeps. Its methods hold the GIL.
class EnginePool {
 public:
  explicit EnginePool(std::optional<int> num_threads)
      : own_(std::make_unique<ThreadPool>(num_threads.value_or(usable_cpus()))), pool_(own_->as_host_pool(nullptr)) {}

  explicit EnginePool(py::object capsule) {
    const auto* const pool = static_cast<const HostPool*>(PyCapsule_GetPointer(capsule.ptr(), kHostPoolName));
    if (pool == nullptr) throw py::error_already_set();
    if (pool->version != kHostPoolVersion) {
      throw std::invalid_argument("the host pool must have version " + std::to_string(kHostPoolVersion) + ", got " +
                                  std::to_string(pool->version) + "; rebuild whoever made it");
    }
    pool_ = *pool;
    capsule_ = std::move(capsule);
  }

  int num_threads() const { return pool_.num_threads; }

  void enter() {
    if (is_closed_) throw std::runtime_error("this pool is closed; make a new one");
    bind_pool(pool_);
    ++bindings_;
  }

  void leave() {
    unbind_pool(pool_);
    --bindings_;
    if (is_closed_) release();
  }

  // Whoever is inside finishes there.
  void close() {
    is_closed_ = true;
    release();
  }

 private:
  void release() {
    if (bindings_ > 0) return;
    own_.reset();
    capsule_ = py::object();
  }

  std::unique_ptr<ThreadPool> own_;
  py::object capsule_;
  HostPool pool_;
  int bindings_ = 0;
  bool is_closed_ = false;
};

}  // namespace

void bind_pools(py::module_& m) {
  m.def("usable_cpus", &usable_cpus, "CPUs this process may use.");
  py::class_<EnginePool>(m, "HostPool", R"(The threads of an engine: what its ops and its sampler run on.

A context manager, for one thread at a time or several: native code that the thread inside calls runs on the pool; other
threads' does not. Outside of any it runs on one thread per usable CPU. No result depends on it.)")
      .def(py::init<std::optional<int>>(), py::arg("num_threads") = py::none(),
           "So many threads, the calling one included; None: one per usable CPU. They start when first needed.")
      .def_static(
          "of", [](py::object capsule) { return std::make_unique<EnginePool>(std::move(capsule)); },
          py::arg("capsule"),
          "The pool of a backend: a PyCapsule as kernels/csrc/pool/host_pool.h says. ValueError for any other.")
      .def_property_readonly("num_threads", &EnginePool::num_threads)
      .def(
          "__enter__",
          [](EnginePool& self) -> EnginePool& {
            self.enter();
            return self;
          },
          py::return_value_policy::reference)
      .def(
          "__exit__", [](EnginePool& self, const py::object&, const py::object&, const py::object&) { self.leave(); },
          py::arg("kind") = py::none(), py::arg("error") = py::none(), py::arg("trace") = py::none())
      .def("close", &EnginePool::close,
           "End the threads, at the latest when everybody has left. Nobody may enter any more.");
}

}  // namespace deepinfer
