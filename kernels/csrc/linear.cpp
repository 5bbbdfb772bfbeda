#include "linear.h"

#include <algorithm>
#include <cstring>

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

void load_row(Rows& rows, int64_t r, Input x, int64_t offset, bool quantize) {
  if (x.is_f32)
    rows.set(r, static_cast<const float*>(x.data) + offset);
  else if (quantize)
    rows.set_quantized(r, static_cast<const bf16*>(x.data) + offset);
  else
    rows.set(r, static_cast<const bf16*>(x.data) + offset);
}

}  // namespace

void Rows::set_quantized(int64_t r, const bf16* x) {
  Buffer<float> values(K_);
  widen(x, values.data(), K_);
  quantize_dequantize_row(Codec::fp8_e8m0_32, values.data(), K_);
  set(r, values.data());
}

void dot_products(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                  int64_t columns, float* out, int64_t out_stride) {
  thread_local Buffer<float> scratch(kDotScratch);
  core().dot_products(x, rows, K, w, first, columns, out, out_stride, scratch.data());
}

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
    parallel_for(count, K, [&](int64_t r) { load_row(rows, r, x, (start + r) * K, quantize); });
    product(rows.pointers(), count, K, weight.columns(), 0, M,
            [&](int64_t row, int64_t column, int64_t width, const float* sums) {
              store_row(out, (start + row) * M + column, sums, width);
            });
  }
}

void grouped_linear(const bf16* x, const Weight& weight, bf16* out, int64_t N, int64_t G) {
  const int64_t K = weight.K, R = weight.M / G;
  const int64_t batch = std::max(kBatch / G, kRowBlock);
  for (int64_t start = 0; start < N; start += batch) {
    const int64_t count = std::min(batch, N - start);
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
