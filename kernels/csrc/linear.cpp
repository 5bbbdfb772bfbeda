#include "linear.h"

#include <algorithm>
#include <cstring>

#include "codec.h"

namespace deepinfer {
namespace {

// Rows converted at once: bounds the float32 copy of x.
constexpr int64_t kBatch = 1024;

int64_t bytes_per_row(Format format, int64_t K) {
  switch (format) {
    case Format::bf16:
      return 2 * K;
    case Format::fp8:
      return K;
    case Format::fp4:
      return K / 2;
    default:
      return 4 * K;
  }
}

void store_row(Output out, int64_t offset, const float* values, int64_t count) {
  if (out.is_f32)
    std::memcpy(static_cast<float*>(out.data) + offset, values, count * sizeof(float));
  else
    narrow(values, static_cast<bf16*>(out.data) + offset, count);
}

void load_row(Rows& rows, int64_t r, Input x, int64_t offset, int64_t K, bool quantize) {
  if (x.is_f32) return rows.set(r, static_cast<const float*>(x.data) + offset);
  const bf16* row = static_cast<const bf16*>(x.data) + offset;
  if (!quantize) return rows.set(r, row);
  Buffer<float> values(K);
  widen(row, values.data(), K);
  quantize_dequantize_row(Codec::fp8_e8m0_32, values.data(), K);
  rows.set(r, values.data());
}

}  // namespace

Columns Weight::columns(int64_t index) const {
  const int64_t stride = bytes_per_row(format, K);
  Columns columns{format, data + index * M * stride, stride};
  if (format == Format::fp8 || format == Format::fp4) {
    const bool square = format == Format::fp8;
    const int64_t scale_rows = square ? (M + 31) / 32 : M;
    columns.scale_stride = (K + 31) / 32;
    columns.scale = scale + index * scale_rows * columns.scale_stride;
    columns.scale_shift = square ? 5 : 0;
  }
  return columns;
}

void linear(Input x, const Weight& weight, Output out, int64_t N, bool quantize) {
  const int64_t K = weight.K, M = weight.M;
  for (int64_t start = 0; start < N; start += kBatch) {
    const int64_t count = std::min(kBatch, N - start);
    Rows rows(count, K);
    parallel_for(count, K, [&](int64_t r) { load_row(rows, r, x, (start + r) * K, K, quantize); });
    product(rows.pointers(), count, K, weight.columns(), 0, M,
            [&](int64_t row, int64_t column, int64_t width, const float* sums) {
              store_row(out, (start + row) * M + column, sums, width);
            });
  }
}

void grouped_linear(const bf16* x, const Weight& weight, bf16* out, int64_t N, int64_t G) {
  const int64_t K = weight.K, R = weight.M / G;
  for (int64_t start = 0; start < N; start += kBatch) {
    const int64_t count = std::min(kBatch, N - start);
    Rows rows(count * G, K);  // group-major, so that a group's rows are neighbours
    parallel_for(count * G, K,
                 [&](int64_t i) { rows.set(i, x + ((start + i % count) * G + i / count) * K); });
    for (int64_t g = 0; g < G; ++g)
      product(rows.pointers() + g * count, count, K, weight.columns(), g * R, R,
              [&](int64_t row, int64_t column, int64_t width, const float* sums) {
                narrow(sums, out + ((start + row) * G + g) * R + column, width);
              });
  }
}

}  // namespace deepinfer
