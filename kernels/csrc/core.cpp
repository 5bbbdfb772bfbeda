#include "core.h"

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

namespace deepinfer {
namespace {

std::vector<const Core*> available() {
  std::vector<const Core*> cores;
#if defined(__x86_64__)
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
    cores.push_back(&kCoreAvx512);
  if (avx2) cores.push_back(&kCoreAvx2);
#endif
  cores.push_back(&kCorePlain);
  return cores;
}

std::atomic<const Core*>& current() {
  static std::atomic<const Core*> chosen{available().front()};
  return chosen;
}

}  // namespace

const Core& core() { return *current().load(std::memory_order_acquire); }

void set_isa(const char* name) {
  std::string names;
  for (const Core* candidate : available()) {
    if (std::string(name) == candidate->name) {
      current().store(candidate, std::memory_order_release);
      return;
    }
    names += names.empty() ? candidate->name : std::string(", ") + candidate->name;
  }
  throw std::invalid_argument("instruction set '" + std::string(name) +
                              "' is not available on this CPU; use one of: " + names);
}

}  // namespace deepinfer
