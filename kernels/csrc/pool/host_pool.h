// An engine's threads, as native code of one extension hands them to that of another: a PyCapsule with the name
// kHostPoolName holds a pointer to a HostPool, and the threads live as long as the capsule.
#pragma once

#include <cstdint>

namespace deepinfer {

inline constexpr const char* kHostPoolName = "deepinfer.host_pool";
inline constexpr std::int32_t kHostPoolVersion = 1;

extern "C" {

// Plain C: who fills it in and who calls it may be built by different compilers.
struct HostPool {
  std::int32_t version;      // kHostPoolVersion; it moves with this structure
  std::int32_t num_threads;  // the calling thread included; at least 1
  void* self;
  // work(context, unit) for every unit in [0, units), on the calling thread and any of the pool's, in any order;
  // returns when all are done. Never throws, and neither may work. Any thread may call it at any time.
  void (*parallel_for)(void* self, std::int64_t units, void (*work)(const void* context, std::int64_t unit),
                       const void* context);
  // Makes this pool the one that the ops which the calling thread calls run on; self is NULL for the default.
  // Returns whose it was, to be bound again later. NULL where a backend's ops have no use for it.
  void* (*bind)(void* self);
};

}  // extern "C"

}  // namespace deepinfer
