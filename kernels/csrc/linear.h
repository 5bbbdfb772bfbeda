// The matrix product under linear layers, routing, mixing and experts.
#pragma once

#include "numbers.h"
#include "ops.h"
#include "parallel.h"

namespace deepinfer {

// Rows of K values as dot_products wants them: float32 in split order, padded. The row length is never a
// multiple of 4 KiB, so that the rows of a tile do not fall into the same cache sets.
class Rows {
 public:
  Rows(int64_t count, int64_t K)
      : K_(K), stride_(round_up(K, 32) + 16), values_(count * stride_), pointers_(count) {
    for (int64_t r = 0; r < count; ++r) pointers_[r] = values_.data() + r * stride_;
  }
  void set(int64_t r, const float* x) { core().split(x, K_, values_.data() + r * stride_); }
  void set(int64_t r, const bf16* x) { core().split_bf16(x, K_, values_.data() + r * stride_); }
  void set_quantized(int64_t r, const bf16* x);  // as the fp8 codec keeps it
  const float* const* pointers() const { return pointers_.data(); }

 private:
  int64_t K_, stride_;
  Buffer<float> values_;
  Buffer<const float*> pointers_;
};

inline void widen(const bf16* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = from_bf16(in[i]);
}
inline void narrow(const float* in, bf16* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) out[i] = to_bf16(in[i]);
}

// Core::dot_products with memory of the calling thread.
void dot_products(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                  int64_t columns, float* out, int64_t out_stride);

// x . w^T for all rows and the columns [first, first + M) of w, in blocks spread over the threads.
// write(row, column, count, sums) receives `count` neighbouring sums of one row.
template <class Write>
void product(const float* const* x, int64_t N, int64_t K, const Columns& w, int64_t first, int64_t M,
             const Write& write) {
  const int64_t chunk = M < kColumnChunk * num_threads() ? 8 : kColumnChunk;  // small products: enough units
  const int64_t chunks = (M + chunk - 1) / chunk;
  const int64_t blocks = (N + kRowBlock - 1) / kRowBlock;
  const int64_t rows = N < kRowBlock ? N : kRowBlock;
  parallel_for(blocks * chunks, rows * K * chunk / 16, [&](int64_t unit) {
    const int64_t row = unit / chunks * kRowBlock, column = unit % chunks * chunk;
    const int64_t count = N - row < kRowBlock ? N - row : kRowBlock;
    const int64_t width = M - column < chunk ? M - column : chunk;
    float sums[kRowBlock * kColumnChunk];
    dot_products(x + row, count, K, w, first + column, width, sums, kColumnChunk);
    for (int64_t r = 0; r < count; ++r) write(row + r, column, width, sums + r * kColumnChunk);
  });
}

}  // namespace deepinfer
