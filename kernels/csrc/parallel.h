// Threads and scratch memory of the kernels.
//
// An op runs on the pool that is bound to the thread which calls it, an engine's; where none is, on the default one.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

#include "pool/thread_pool.h"

namespace deepinfer {

// Of the calling thread's pool.
int num_threads();
// Replaces the default pool, which is of all usable CPUs. Throws std::invalid_argument when n < 1.
void set_num_threads(int n);
// Makes a pool, nullptr for the default one, the calling thread's; returns the one before.
ThreadPool* bind_pool(ThreadPool* pool);

// Below this much work, in nanoseconds of one thread, waking another costs more than it saves.
constexpr int64_t kParallelWork = 20000;

// run(context, unit) for every unit in [0, units), on this thread and on idle ones of its pool.
void share_out(int64_t units, ThreadPool::Run run, const void* context);

// f(unit) for every unit in [0, units), in any order and on any thread. `work` estimates the nanoseconds of
// one unit: one per element of a loop, one per 16 multiply-adds of a product. f must not throw.
template <class F>
void parallel_for(int64_t units, int64_t work, const F& f) {
  if (units > 1 && units * work >= kParallelWork && num_threads() > 1) {
    const auto run = [](const void* context, int64_t unit) noexcept { (*static_cast<const F*>(context))(unit); };
    share_out(units, run, &f);
    return;
  }
  for (int64_t unit = 0; unit < units; ++unit) f(unit);
}

// Uninitialised, cache-line aligned array of a trivial type.
template <class T>
class Buffer {
 public:
  explicit Buffer(int64_t count) {
    const size_t bytes = (static_cast<size_t>(count) * sizeof(T) + 127) & ~size_t{63};
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

 private:
  T* data_;
};

constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

}  // namespace deepinfer
