#include "bound_pool.h"

#include <stdexcept>
#include <vector>

#include "thread_pool.h"

namespace deepinfer {
namespace {

struct Binding {
  const HostPool* pool;
  void* before;  // what the backend's ops ran on
};

thread_local std::vector<Binding> bindings;

}  // namespace

void bind_pool(const HostPool& pool) {
  bindings.push_back({&pool, nullptr});
  if (pool.bind != nullptr) bindings.back().before = pool.bind(pool.self);
}

void unbind_pool(const HostPool& pool) {
  if (bindings.empty() || bindings.back().pool != &pool) {
    throw std::logic_error("a pool must be left by the thread that entered it, the newest first");
  }
  if (pool.bind != nullptr) pool.bind(bindings.back().before);
  bindings.pop_back();
}

const HostPool* bound_pool() { return bindings.empty() ? nullptr : bindings.back().pool; }

const HostPool& default_pool() {
  static const HostPool pool = (new ThreadPool(usable_cpus()))->as_host_pool(nullptr);  // outlives its helpers
  return pool;
}

}  // namespace deepinfer
