#include "block_manager.h"

#include <stdexcept>
#include <string>

namespace deepinfer {

void Lease::release() noexcept {
  if (manager_ == nullptr) return;
  std::exchange(manager_, nullptr)->unpin(std::exchange(id_, 0));
}

BlockManager::BlockManager(int32_t num_blocks) {
  if (num_blocks < 2) {
    throw std::invalid_argument("num_blocks must be at least 2 (block 0 is never handed out), got " +
                                std::to_string(num_blocks));
  }
  nodes_.resize(static_cast<size_t>(num_blocks));
  for (int32_t id = 1; id + 1 < num_blocks; ++id) nodes_[id].next = id + 1;
  head_ = 1;
  tail_ = num_blocks - 1;
  num_free_ = num_blocks - 1;
}

Lease BlockManager::allocate() {
  if (head_ == 0) {
    throw std::runtime_error("no free block: all " + std::to_string(num_usable()) + " are leased");
  }
  const int32_t id = head_;
  head_ = nodes_[id].next;
  if (head_ == 0) tail_ = 0;
  nodes_[id] = {.ref_count = 1, .next = 0};
  --num_free_;
  return Lease(this, id);
}

Lease BlockManager::pin(int32_t id) {
  if (ref_count(id) == 0) {
    throw std::invalid_argument("block " + std::to_string(id) +
                                " is free; only an owned block can be pinned");
  }
  ++nodes_[id].ref_count;
  return Lease(this, id);
}

int32_t BlockManager::ref_count(int32_t id) const {
  if (id < 0 || id >= num_blocks()) {
    throw std::invalid_argument("block id must be in [0, " + std::to_string(num_blocks()) + "), got " +
                                std::to_string(id));
  }
  return nodes_[id].ref_count;
}

void BlockManager::unpin(int32_t id) noexcept {
  if (--nodes_[id].ref_count > 0) return;
  nodes_[id].next = 0;
  (tail_ == 0 ? head_ : nodes_[tail_].next) = id;
  tail_ = id;
  ++num_free_;
}

void BlockManager::audit() const {
  const auto fail = [](const std::string& what) { throw std::runtime_error("block manager: " + what); };
  if (nodes_[0].ref_count != 0) fail("the null block is owned");
  int32_t unowned = 0;
  for (int32_t id = 1; id < num_blocks(); ++id) {
    if (nodes_[id].ref_count < 0) fail("block " + std::to_string(id) + " has a negative reference count");
    unowned += nodes_[id].ref_count == 0;
  }
  // A queue of exactly the unowned blocks cannot be longer than their number unless it has a cycle.
  int32_t length = 0, last = 0;
  for (int32_t id = head_; id != 0 && length <= unowned; id = nodes_[id].next, ++length) {
    if (nodes_[id].ref_count != 0) fail("block " + std::to_string(id) + " is both free and owned");
    last = id;
  }
  if (length != unowned || num_free_ != unowned || tail_ != last) {
    fail(std::to_string(unowned) + " blocks are unowned, the free queue links " + std::to_string(length) +
         " and counts " + std::to_string(num_free_) + ", its tail is " + std::to_string(tail_) +
         " and its last link " + std::to_string(last));
  }
}

void release_table(std::vector<Lease>& table) noexcept {
  while (!table.empty()) table.pop_back();
}

}  // namespace deepinfer
