// Threads and scratch memory of the kernels.
//
// Own threads instead of OpenMP's: a caller shares out its units and finishes whatever nobody took, so it
// never waits for a thread that has not started. On a busy machine, or beside torch's own thread pool,
// OpenMP's closing barrier waits a scheduler time slice (milliseconds) for a thread that had nothing left to
// do.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <new>

namespace deepinfer {

int num_threads();
// Throws std::invalid_argument when n < 1.
void set_num_threads(int n);

// Below this much work, in nanoseconds of one thread, waking another costs more than it saves.
constexpr int64_t kParallelWork = 20000;

using Run = void (*)(const void* context, int64_t unit) noexcept;
// run(context, unit) for every unit in [0, units), on this thread and on idle ones.
void share_out(int64_t units, Run run, const void* context);

// f(unit) for every unit in [0, units), in any order and on any thread. `work` estimates the nanoseconds of
// one unit: one per element of a loop, one per 16 multiply-adds of a product. f must not throw.
template <class F>
void parallel_for(int64_t units, int64_t work, const F& f) {
  if (units > 1 && units * work >= kParallelWork && num_threads() > 1) {
    const Run run = [](const void* context, int64_t unit) noexcept {
      (*static_cast<const F*>(context))(unit);
    };
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
