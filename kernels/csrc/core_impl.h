// Definition of one Core table. Included by exactly one file per instruction set, which defines DEEPINFER_ISA
// (a namespace name) and DEEPINFER_TABLE. No standard-library templates here: their instances would be shared
// between files built for different instruction sets.
#pragma once

#if defined(DEEPINFER_AVX512) || defined(DEEPINFER_AVX2)
#include <immintrin.h>
#endif

#include "core.h"
#include "numbers.h"

namespace deepinfer {
namespace DEEPINFER_ISA {

#include "lanes.h"

// Register tiles: rows x columns accumulators of 16 lanes each.
#if defined(DEEPINFER_AVX512)
constexpr int kMaxRows = 8;
constexpr int tile_columns(int rows) { return rows <= 2 ? 8 : rows <= 4 ? 6 : rows <= 6 ? 4 : 3; }
constexpr int kHeadTile = 4, kLaneTile = 4;
#else
constexpr int kMaxRows = 3;
constexpr int tile_columns(int rows) { return rows == 1 ? 4 : 2; }
constexpr int kHeadTile = 4, kLaneTile = 1;
#endif

static inline int64_t round_up(int64_t n) { return (n + 15) & ~int64_t{15}; }

// A column being read: `load` gives 16 values from k, `load_tail` the last n < 16 and zeros.
template <Format F>
struct Column;

template <>
struct Column<Format::f32> {
  const float* data;
  Lanes load(int64_t k) const { return DEEPINFER_ISA::load(data + k); }
  Lanes load_tail(int64_t k, int64_t n) const {
    float padded[16] = {};
    __builtin_memcpy(padded, data + k, n * sizeof(float));
    return DEEPINFER_ISA::load(padded);
  }
};

template <>
struct Column<Format::pointers> : Column<Format::f32> {};

template <>
struct Column<Format::bf16> {
  const uint16_t* data;
  Lanes load(int64_t k) const { return load_bf16(data + k); }
  Lanes load_tail(int64_t k, int64_t n) const {
    uint16_t padded[16] = {};
    __builtin_memcpy(padded, data + k, n * sizeof(uint16_t));
    return load_bf16(padded);
  }
};

template <>
struct Column<Format::fp8> {
  const uint8_t* data;
  const uint8_t* scale;
  Lanes load(int64_t k) const { return mul(load_e4m3(data + k), splat(kE8m0[scale[k >> 5]])); }
  Lanes load_tail(int64_t k, int64_t n) const {
    uint8_t padded[16] = {};
    __builtin_memcpy(padded, data + k, n);
    return mul(load_e4m3(padded), splat(kE8m0[scale[k >> 5]]));
  }
};

template <>
struct Column<Format::fp4> {
  const uint8_t* data;
  const uint8_t* scale;
  Lanes load(int64_t k) const { return mul(load_e2m1(data + k / 2), splat(kE8m0[scale[k >> 5]])); }
  Lanes load_tail(int64_t k, int64_t n) const {
    uint8_t padded[8] = {};
    __builtin_memcpy(padded, data + k / 2, n / 2);
    return mul(load_e2m1(padded), splat(kE8m0[scale[k >> 5]]));
  }
};

template <Format F>
static inline Column<F> column_at(const Columns& w, int64_t index) {
  if constexpr (F == Format::pointers) {
    return {{static_cast<const float* const*>(w.data)[index]}};
  } else {
    const uint8_t* data = static_cast<const uint8_t*>(w.data) + index * w.stride;
    if constexpr (F == Format::f32) return {reinterpret_cast<const float*>(data)};
    if constexpr (F == Format::bf16) return {reinterpret_cast<const uint16_t*>(data)};
    if constexpr (F == Format::fp8 || F == Format::fp4)
      return {data, w.scale + (index >> w.scale_shift) * w.scale_stride};
  }
}

template <int R, int C>
static inline void multiply_add(const float* const* x, int64_t k, const Lanes (&weights)[C], Lanes (&acc)[R][C]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Lanes row = load(x[r] + k);
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = fma(row, weights[c], acc[r][c]);
  }
}

// One register tile over all of K. `columns` <= C are stored; the rest repeat the last one.
template <int R, Format F>
static void tile(const float* const* x, int64_t K, const Columns& w, int64_t first, int64_t columns, float* out,
                 int64_t out_stride) {
  constexpr int C = tile_columns(R);
  const float* rows[R];
  Column<F> column[C];
  Lanes acc[R][C], weights[C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) rows[r] = x[r];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) column[c] = column_at<F>(w, first + (c < columns ? c : columns - 1));
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = zero();
  int64_t k = 0;
  for (; k + 16 <= K; k += 16) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) weights[c] = column[c].load(k);
    multiply_add<R, C>(rows, k, weights, acc);
  }
  if (k < K) {
    for (int c = 0; c < C; ++c) weights[c] = column[c].load_tail(k, K - k);
    multiply_add<R, C>(rows, k, weights, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c)
      if (c < columns) out[r * out_stride + c] = sum(acc[r][c]);
}

template <int R, Format F>
static void tiles(const float* const* x, int64_t K, const Columns& w, int64_t first, int64_t columns, float* out,
                  int64_t out_stride) {
  for (int64_t c = 0; c < columns; c += tile_columns(R)) {
    const int64_t width = columns - c < tile_columns(R) ? columns - c : tile_columns(R);
    tile<R, F>(x, K, w, first + c, width, out + c, out_stride);
  }
}

template <Format F>
static void tiles_of(int64_t rows, const float* const* x, int64_t K, const Columns& w, int64_t first,
                     int64_t columns, float* out, int64_t out_stride) {
  switch (rows) {
    case 1: return tiles<1, F>(x, K, w, first, columns, out, out_stride);
    case 2: return tiles<2, F>(x, K, w, first, columns, out, out_stride);
    case 3: return tiles<3, F>(x, K, w, first, columns, out, out_stride);
#if defined(DEEPINFER_AVX512)
    case 4: return tiles<4, F>(x, K, w, first, columns, out, out_stride);
    case 5: return tiles<5, F>(x, K, w, first, columns, out, out_stride);
    case 6: return tiles<6, F>(x, K, w, first, columns, out, out_stride);
    case 7: return tiles<7, F>(x, K, w, first, columns, out, out_stride);
    case 8: return tiles<8, F>(x, K, w, first, columns, out, out_stride);
#endif
    default: __builtin_unreachable();
  }
}

template <Format F>
static void decode(const Columns& w, int64_t index, int64_t K, float* out) {
  const Column<F> column = column_at<F>(w, index);
  int64_t k = 0;
  for (; k + 16 <= K; k += 16) store(out + k, column.load(k));
  if (k < K) store(out + k, column.load_tail(k, K - k));
}

static void decode_column(const Columns& w, int64_t column, int64_t K, float* out) {
  switch (w.format) {
    case Format::bf16: return decode<Format::bf16>(w, column, K, out);
    case Format::f32: return decode<Format::f32>(w, column, K, out);
    case Format::fp8: return decode<Format::fp8>(w, column, K, out);
    case Format::fp4: return decode<Format::fp4>(w, column, K, out);
    case Format::pointers: return decode<Format::pointers>(w, column, K, out);
  }
}

// Many rows: decode a few columns once, then let tiles of equal height pass over them.
static void dot_many(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                     int64_t columns, float* out, int64_t out_stride, float* scratch) {
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t height = (rows + blocks - 1) / blocks;
  const int64_t width = tile_columns(static_cast<int>(height));
  const int64_t padded = round_up(K);
  const Columns decoded{Format::f32, scratch, padded * static_cast<int64_t>(sizeof(float))};
  for (int64_t c = 0; c < columns; c += width) {
    const int64_t n = columns - c < width ? columns - c : width;
    for (int64_t i = 0; i < n; ++i) decode_column(w, first + c + i, K, scratch + i * padded);
    for (int64_t r = 0; r < rows; r += height) {
      const int64_t count = rows - r < height ? rows - r : height;
      tiles_of<Format::f32>(count, x + r, padded, decoded, 0, n, out + r * out_stride + c, out_stride);
    }
  }
}

static void dot_products(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                         int64_t columns, float* out, int64_t out_stride, float* scratch) {
  if (rows > kMaxRows) return dot_many(x, rows, K, w, first, columns, out, out_stride, scratch);
  switch (w.format) {
    case Format::bf16: return tiles_of<Format::bf16>(rows, x, K, w, first, columns, out, out_stride);
    case Format::f32: return tiles_of<Format::f32>(rows, x, K, w, first, columns, out, out_stride);
    case Format::fp8: return tiles_of<Format::fp8>(rows, x, K, w, first, columns, out, out_stride);
    case Format::fp4: return tiles_of<Format::fp4>(rows, x, K, w, first, columns, out, out_stride);
    case Format::pointers: return tiles_of<Format::pointers>(rows, x, K, w, first, columns, out, out_stride);
  }
}

static float sum_of_squares(const float* x, int64_t padded) {
  Lanes acc = zero();
  for (int64_t k = 0; k < padded; k += 16) {
    const Lanes value = load(x + k);
    acc = fma(value, value, acc);
  }
  return sum(acc);
}

// exp by range reduction to |r| <= ln(2)/2 and a Taylor polynomial of degree 7; within 1 ulp. The power of two
// is applied in two halves, so that results reach from subnormals to infinity.
static inline Lanes exponential(Lanes x) {
  x = min(splat(89.0f), max(splat(-104.0f), x));
  const Lanes magic = splat(0x1.8p23f);
  const Lanes biased = fma(x, splat(0x1.715476p+0f), magic);
  const Lanes n = sub(biased, magic);
  Lanes r = fma(n, splat(-0x1.62e4p-1f), x);
  r = fma(n, splat(-0x1.7f7d1cp-20f), r);
  Lanes p = splat(1.0f / 5040.0f);
  constexpr float kCoefficients[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f};
  for (const float c : kCoefficients) p = fma(p, r, splat(c));
  Lanes rest;
  const Lanes first = power_of_two(biased, &rest);
  return mul(mul(p, first), rest);
}

static void exponentials(float* x, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) store(x + i, exponential(load(x + i)));
  if (i < n) {
    float padded[16] = {};
    __builtin_memcpy(padded, x + i, (n - i) * sizeof(float));
    store(padded, exponential(load(padded)));
    __builtin_memcpy(x + i, padded, (n - i) * sizeof(float));
  }
}

template <int H, int L>
static void add_weighted_tile(const float* p, int64_t p_stride, const float* const* values, int64_t count,
                              int64_t dim, int64_t d, float* acc) {
  Lanes total[H][L], value[L];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) total[h][l] = load(acc + h * dim + d + 16 * l);
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) value[l] = load(values[i] + d + 16 * l);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const Lanes weight = splat(p[h * p_stride + i]);
#pragma GCC unroll 4
      for (int l = 0; l < L; ++l) total[h][l] = fma(weight, value[l], total[h][l]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) store(acc + h * dim + d + 16 * l, total[h][l]);
}

template <int H>
static void add_weighted_heads(const float* p, int64_t p_stride, const float* const* values, int64_t count,
                               int64_t dim, float* acc) {
  int64_t d = 0;
  for (; d + 16 * kLaneTile <= dim; d += 16 * kLaneTile)
    add_weighted_tile<H, kLaneTile>(p, p_stride, values, count, dim, d, acc);
  for (; d < dim; d += 16) add_weighted_tile<H, 1>(p, p_stride, values, count, dim, d, acc);
}

static void add_weighted(const float* p, int64_t p_stride, int64_t heads, const float* const* values,
                         int64_t count, int64_t dim, float* acc) {
  int64_t h = 0;
  for (; h + kHeadTile <= heads; h += kHeadTile)
    add_weighted_heads<kHeadTile>(p + h * p_stride, p_stride, values, count, dim, acc + h * dim);
  for (; h < heads; ++h) add_weighted_heads<1>(p + h * p_stride, p_stride, values, count, dim, acc + h * dim);
}

}  // namespace DEEPINFER_ISA

extern const Core DEEPINFER_TABLE{DEEPINFER_NAME,
                                  DEEPINFER_ISA::dot_products,
                                  DEEPINFER_ISA::decode_column,
                                  DEEPINFER_ISA::sum_of_squares,
                                  DEEPINFER_ISA::exponentials,
                                  DEEPINFER_ISA::add_weighted};

}  // namespace deepinfer
