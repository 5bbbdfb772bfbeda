// A sequence's tokens. The one place where they are kept: everybody else reads a view.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace deepinfer {

// Token ids that only grow at the end. What a view shows never changes: appending writes behind it, and growing moves
// to a new buffer, while the old one lives for as long as somebody shares it.
class TokenLog {
 public:
  TokenLog() = default;
  explicit TokenLog(std::span<const std::int32_t> tokens) {
    reserve(tokens.size() + kFirstRoom);
    std::copy(tokens.begin(), tokens.end(), buffer_.get());
    size_ = tokens.size();
  }

  void push_back(std::int32_t token) {
    if (size_ == capacity_) reserve(std::max(2 * capacity_, kFirstRoom));
    buffer_[size_++] = token;
  }

  std::size_t size() const noexcept { return size_; }
  std::int32_t operator[](std::size_t place) const noexcept { return buffer_[place]; }
  std::int32_t back() const noexcept { return buffer_[size_ - 1]; }
  std::span<const std::int32_t> span() const noexcept { return {buffer_.get(), size_}; }
  // Keeps alive what span() points to.
  std::shared_ptr<const std::int32_t[]> share() const noexcept { return buffer_; }

 private:
  static constexpr std::size_t kFirstRoom = 16;

  void reserve(std::size_t capacity) {
    std::shared_ptr<std::int32_t[]> larger(new std::int32_t[capacity]);
    std::copy_n(buffer_.get(), size_, larger.get());
    buffer_ = std::move(larger);
    capacity_ = capacity;
  }

  friend struct TestAccess;
  std::shared_ptr<std::int32_t[]> buffer_;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace deepinfer
