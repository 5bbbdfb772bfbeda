// Reference-counted blocks, handed out as move-only leases: one instance serves KV pages, another state
// slots.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace deepinfer {

class BlockManager;

// One reference to one block; gives it back when destroyed, so a leak or a double free cannot be written.
// Must not outlive its manager.
class Lease {
 public:
  Lease() noexcept = default;
  Lease(Lease&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)), id_(std::exchange(other.id_, 0)) {}
  Lease& operator=(Lease&& other) noexcept {
    if (this != &other) {
      release();
      manager_ = std::exchange(other.manager_, nullptr);
      id_ = std::exchange(other.id_, 0);
    }
    return *this;
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  ~Lease() { release(); }

  // The leased block, or 0 (the null block) once released or moved from.
  int32_t id() const noexcept { return id_; }
  explicit operator bool() const noexcept { return manager_ != nullptr; }
  void release() noexcept;

 private:
  friend class BlockManager;
  Lease(BlockManager* manager, int32_t id) noexcept : manager_(manager), id_(id) {}

  BlockManager* manager_ = nullptr;
  int32_t id_ = 0;
};

// Hands out ids 1 .. num_blocks - 1; id 0 is the null block that padding may name and nobody may own.
// Free ids form an intrusive queue: the block freed longest ago is reused first, which keeps recently freed
// content findable for longest. Every operation but audit() is O(1).
class BlockManager {
 public:
  explicit BlockManager(int32_t num_blocks);   // throws std::invalid_argument below 2
  BlockManager(const BlockManager&) = delete;  // leases point here
  BlockManager& operator=(const BlockManager&) = delete;

  Lease allocate();       // throws std::runtime_error when nothing is free
  Lease pin(int32_t id);  // one more reference to an owned block; throws std::invalid_argument otherwise
  int32_t ref_count(int32_t id) const;  // throws std::invalid_argument outside 0 .. num_blocks - 1

  int32_t num_blocks() const noexcept { return static_cast<int32_t>(nodes_.size()); }
  int32_t num_usable() const noexcept { return num_blocks() - 1; }
  int32_t num_free() const noexcept { return num_free_; }

  // Throws std::runtime_error naming the first broken invariant of counts or free queue.
  void audit() const;

 private:
  friend class Lease;
  friend struct TestAccess;
  struct Node {
    int32_t ref_count = 0;
    int32_t next = 0;  // next free id, 0 at the tail; meaningful only while ref_count is 0
  };
  void unpin(int32_t id) noexcept;

  std::vector<Node> nodes_;
  int32_t head_ = 0;
  int32_t tail_ = 0;
  int32_t num_free_ = 0;
};

// Frees a block table from its tail, so that later pages are reused before the prefix they extend.
void release_table(std::vector<Lease>& table) noexcept;

}  // namespace deepinfer
