#include "parallel.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>

namespace deepinfer {
namespace {

thread_local ThreadPool* bound = nullptr;

class DefaultPool {
 public:
  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }

  // Whoever runs on the one before finishes there.
  void replace(int num_threads) {
    auto pool = std::make_shared<ThreadPool>(num_threads);
    const std::lock_guard<std::mutex> lock(mutex_);
    num_threads_.store(num_threads, std::memory_order_relaxed);
    std::swap(pool_, pool);
  }

  std::shared_ptr<ThreadPool> get() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return pool_;
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<ThreadPool> pool_ = std::make_shared<ThreadPool>(usable_cpus());
  std::atomic<int> num_threads_{pool_->num_threads()};
};

DefaultPool& default_pool() {
  static DefaultPool* const shared = new DefaultPool;  // outlives its helpers
  return *shared;
}

}  // namespace

int num_threads() { return bound != nullptr ? bound->num_threads() : default_pool().num_threads(); }

void set_num_threads(int n) { default_pool().replace(n); }

ThreadPool* bind_pool(ThreadPool* pool) { return std::exchange(bound, pool); }

void share_out(int64_t units, ThreadPool::Run run, const void* context) {
  if (bound != nullptr) {
    bound->share_out(units, run, context);
  } else {
    default_pool().get()->share_out(units, run, context);
  }
}

}  // namespace deepinfer
