// The matrix product under linear layers, routing, mixing and experts.
#pragma once

#include "numbers.h"
#include "ops.h"
#include "parallel.h"

namespace deepinfer {

// Rows of K values as float32, each padded with zeros to a multiple of 16.
class Rows {
 public:
  Rows(int64_t count, int64_t K) : padded_(round_up(K, 16)), values_(count * padded_), pointers_(count) {
    for (int64_t r = 0; r < count; ++r) {
      pointers_[r] = values_.data() + r * padded_;
      for (int64_t k = K; k < padded_; ++k) values_[r * padded_ + k] = 0.0f;
    }
  }
  float* row(int64_t r) { return values_.data() + r * padded_; }
  const float* const* pointers() const { return pointers_.data(); }
  int64_t padded() const { return padded_; }

 private:
  int64_t padded_;
  Buffer<float> values_;
  Buffer<const float*> pointers_;
};

inline void widen(const bf16* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]);
}
inline void narrow(const float* in, bf16* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_bf16(in[i]);
}

// x . w^T for all rows and the columns [first, first + M) of w, in blocks spread over the threads.
// write(row, column, count, sums) receives `count` neighbouring sums of one row.
template <class Write>
void product(const float* const* x, int64_t N, int64_t K, const Columns& w, int64_t first, int64_t M,
             const Write& write) {
  const int64_t chunks = (M + kColumnChunk - 1) / kColumnChunk;
  const int64_t blocks = (N + kRowBlock - 1) / kRowBlock;
  const int64_t rows = N < kRowBlock ? N : kRowBlock;
  parallel_for(blocks * chunks, rows * K * kColumnChunk, [&](int64_t unit) {
    const int64_t row = unit / chunks * kRowBlock, column = unit % chunks * kColumnChunk;
    const int64_t count = N - row < kRowBlock ? N - row : kRowBlock;
    const int64_t width = M - column < kColumnChunk ? M - column : kColumnChunk;
    Buffer<float> scratch(8 * round_up(K, 16));
    float sums[kRowBlock * kColumnChunk];
    core().dot_products(x + row, count, K, w, first + column, width, sums, kColumnChunk, scratch.data());
    for (int64_t r = 0; r < count; ++r) write(row + r, column, width, sums + r * kColumnChunk);
  });
}

}  // namespace deepinfer
