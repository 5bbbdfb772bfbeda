// Threads that help whoever shares out work. This folder is compiled into each extension that computes on the host.
//
// Own threads instead of OpenMP's: a caller shares out its units and finishes whatever nobody took, so it
// never waits for a thread that has not started. On a busy machine, or beside torch's own thread pool,
// OpenMP's closing barrier waits a scheduler time slice (milliseconds) for a thread that had nothing left to
// do.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "host_pool.h"

namespace deepinfer {

// CPUs this process may use; at least 1.
int usable_cpus();

// A caller and num_threads - 1 helpers, which start when first needed and end with the pool. In a forked child there
// are no helpers: everything is done by the caller.
class ThreadPool {
 public:
  using Run = void (*)(const void* context, std::int64_t unit);

  // Throws std::invalid_argument when num_threads < 1.
  explicit ThreadPool(int num_threads);
  // Nobody may be sharing out any more.
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // run(context, unit) for every unit in [0, units), on this thread and on idle ones. Of several callers at once one
  // has the helpers; the others do their units alone. run must not throw.
  void share_out(std::int64_t units, Run run, const void* context) noexcept;

  // The pool for other extensions; valid as long as it lives. bind: see HostPool.
  HostPool as_host_pool(void* (*bind)(void* self)) noexcept;

 private:
  void work();
  void start_helpers();
  void help();
  std::uint64_t next_round(std::uint64_t seen) const;

  const int num_threads_;
  const int process_;
  std::mutex mutex_;  // of who shares out
  std::vector<std::thread> helpers_;
  Run run_ = nullptr;
  const void* context_ = nullptr;
  std::int64_t units_ = 0;
  alignas(64) std::atomic<std::int64_t> next_{0};
  alignas(64) std::atomic<bool> open_{false};
  std::atomic<int> inside_{0};
  std::atomic<bool> stopping_{false};
  alignas(64) std::atomic<std::uint64_t> round_{0};
};

}  // namespace deepinfer
