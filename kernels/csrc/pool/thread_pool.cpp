#include "thread_pool.h"

#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#if defined(__linux__)
#include <pthread.h>
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

// What tools that list threads show.
void set_name([[maybe_unused]] std::thread& thread) {
#if defined(__linux__)
  pthread_setname_np(thread.native_handle(), "deepinfer-pool");
#endif
}

}  // namespace

int usable_cpus() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  const unsigned count = std::thread::hardware_concurrency();
  return count == 0 ? 1 : static_cast<int>(count);
}

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads), process_(process_id()) {
  if (num_threads < 1) {
    throw std::invalid_argument("number of threads must be at least 1, got " + std::to_string(num_threads));
  }
}

ThreadPool::~ThreadPool() {
  if (process_id() != process_) {
    // A forked child: there is nothing to join, and a thread object that still stands for one must not be destroyed.
    new std::vector<std::thread>(std::move(helpers_));
    return;
  }
  stopping_.store(true);
  round_.fetch_add(1);
  round_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::share_out(std::int64_t units, Run run, const void* context) noexcept {
  const std::unique_lock<std::mutex> owner(mutex_, std::try_to_lock);
  // Another caller has the helpers, or this is a forked child, which has none.
  if (!owner || process_id() != process_) {
    for (std::int64_t unit = 0; unit < units; ++unit) run(context, unit);
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

HostPool ThreadPool::as_host_pool(void* (*bind)(void* self)) noexcept {
  const auto parallel_for = [](void* self, std::int64_t units, void (*work)(const void* context, std::int64_t unit),
                               const void* context) {
    static_cast<ThreadPool*>(self)->share_out(units, work, context);
  };
  return {kHostPoolVersion, num_threads_, this, parallel_for, bind};
}

void ThreadPool::work() {
  for (std::int64_t unit; (unit = next_.fetch_add(1)) < units_;) run_(context_, unit);
}

void ThreadPool::start_helpers() {
  try {
    while (helpers_.size() + 1 < static_cast<std::size_t>(num_threads_)) {
      set_name(helpers_.emplace_back([this] { help(); }));
    }
  } catch (const std::system_error&) {
    // The system has no more threads for this process: those there are do the work.
  } catch (const std::bad_alloc&) {
  }
}

void ThreadPool::help() {
  for (std::uint64_t seen = 0;;) {
    seen = next_round(seen);
    if (stopping_.load()) return;
    // Counted before looking whether the round is open: the owner closes it, then waits for the count.
    inside_.fetch_add(1);
    if (open_.load()) work();
    inside_.fetch_sub(1);
  }
}

std::uint64_t ThreadPool::next_round(std::uint64_t seen) const {
  for (int spin = 0; spin < kSpins; ++spin) {
    const std::uint64_t round = round_.load();
    if (round != seen) return round;
    pause();
  }
  round_.wait(seen);
  return round_.load();
}

}  // namespace deepinfer
