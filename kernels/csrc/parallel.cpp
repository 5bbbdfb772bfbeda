#include "parallel.h"

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__linux__)
#include <sched.h>
#endif

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

namespace deepinfer {
namespace {

constexpr int kSpins = 2000;  // tens of microseconds: helpers stay awake from one op to the next

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#else
  std::this_thread::yield();
#endif
}

int process_id() {
#if defined(__unix__) || defined(__APPLE__)
  return static_cast<int>(getpid());
#else
  return 0;
#endif
}

// CPUs this process may use.
int default_threads() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

// Threads that help whoever holds the pool. Started when first needed and never joined: they own nothing.
class Pool {
 public:
  std::atomic<int> threads{default_threads()};

  void share_out(int64_t units, Run run, const void* context) {
    const std::unique_lock<std::mutex> owner(mutex_, std::try_to_lock);
    // Another caller has the helpers, or this is a forked child, which has none.
    if (!owner || process_id() != process_) {
      for (int64_t unit = 0; unit < units; ++unit) run(context, unit);
      return;
    }
    start_helpers();
    run_ = run;
    context_ = context;
    units_ = units;
    next_.store(0);
    open_.store(true);
    round_.fetch_add(1);
    round_.notify_all();
    work();
    open_.store(false);
    // Only for units that a helper has begun.
    for (int spin = 0; inside_.load() != 0; ++spin) spin < kSpins ? pause() : std::this_thread::yield();
  }

 private:
  void work() {
    for (int64_t unit; (unit = next_.fetch_add(1)) < units_;) run_(context_, unit);
  }

  void start_helpers() {
    for (; helpers_ < threads.load() - 1; ++helpers_)
      std::thread([this, index = helpers_] { help(index); }).detach();
  }

  void help(int index) {
    for (uint64_t seen = 0;;) {
      seen = next_round(seen);
      if (index >= threads.load() - 1) continue;
      // Counted before looking whether the round is open: the owner closes it, then waits for the count.
      inside_.fetch_add(1);
      if (open_.load()) work();
      inside_.fetch_sub(1);
    }
  }

  uint64_t next_round(uint64_t seen) {
    for (int spin = 0; spin < kSpins; ++spin) {
      const uint64_t round = round_.load();
      if (round != seen) return round;
      pause();
    }
    round_.wait(seen);
    return round_.load();
  }

  const int process_ = process_id();
  std::mutex mutex_;
  int helpers_ = 0;
  Run run_ = nullptr;
  const void* context_ = nullptr;
  int64_t units_ = 0;
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<bool> open_{false};
  std::atomic<int> inside_{0};
  alignas(64) std::atomic<uint64_t> round_{0};
};

Pool& pool() {
  static Pool* const shared = new Pool;  // outlives the helpers
  return *shared;
}

}  // namespace

int num_threads() { return pool().threads.load(std::memory_order_relaxed); }

void set_num_threads(int n) {
  if (n < 1) throw std::invalid_argument("number of threads must be at least 1, got " + std::to_string(n));
  pool().threads.store(n);
}

void share_out(int64_t units, Run run, const void* context) { pool().share_out(units, run, context); }

}  // namespace deepinfer
