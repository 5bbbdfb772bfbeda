#include "parallel.h"

#include <atomic>
#include <stdexcept>
#include <string>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace deepinfer {
namespace {

int default_threads() {
#if defined(_OPENMP)
  return omp_get_max_threads();
#else
  return 1;
#endif
}

std::atomic<int>& threads() {
  static std::atomic<int> count{default_threads()};
  return count;
}

}  // namespace

int num_threads() { return threads().load(std::memory_order_relaxed); }

void set_num_threads(int n) {
  if (n < 1) throw std::invalid_argument("number of threads must be at least 1, got " + std::to_string(n));
  threads().store(n, std::memory_order_relaxed);
}

}  // namespace deepinfer
