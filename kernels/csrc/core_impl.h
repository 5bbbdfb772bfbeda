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
constexpr int tile_columns(int rows) { return rows == 1 ? 8 : rows == 2 ? 6 : rows <= 5 ? 4 : 3; }
constexpr int kHeadTile = 4, kLaneTile = 4, kWideTile = 4;
#else
constexpr int kMaxRows = 3;
constexpr int tile_columns(int rows) { return rows == 1 ? 4 : 2; }
constexpr int kHeadTile = 4, kLaneTile = 1, kWideTile = 2;
#endif

// Columns a tile pass covers before the next block of K, so that a row tile stays in the first-level cache.
constexpr int64_t kBlock = 1024;

static inline int64_t round_up(int64_t n) { return (n + 31) & ~int64_t{31}; }

// A column being read: `load` gives the 32 values from k (k a multiple of 32), `load_tail` the last n < 32
// and zeros.
template <Format F>
struct Column;

template <>
struct Column<Format::f32> {
  const float* data;
  Pair load(int64_t k) const { return load_f32_pair(data + k); }
  Pair load_tail(int64_t k, int64_t n) const {
    float padded[32] = {};
    __builtin_memcpy(padded, data + k, n * sizeof(float));
    return load_f32_pair(padded);
  }
};

template <>
struct Column<Format::split> {
  const float* data;
  Pair load(int64_t k) const { return {DEEPINFER_ISA::load(data + k), DEEPINFER_ISA::load(data + k + 16)}; }
  Pair load_tail(int64_t k, int64_t) const { return load(k); }
};

template <>
struct Column<Format::pointers> : Column<Format::split> {};

template <>
struct Column<Format::bf16> {
  const uint16_t* data;
  Pair load(int64_t k) const { return load_bf16_pair(data + k); }
  Pair load_tail(int64_t k, int64_t n) const {
    uint16_t padded[32] = {};
    __builtin_memcpy(padded, data + k, n * sizeof(uint16_t));
    return load_bf16_pair(padded);
  }
};

template <>
struct Column<Format::fp8> {
  const uint8_t* data;
  const uint8_t* scale;
  Pair load(int64_t k) const { return load_e4m3_pair(data + k, scale[k / 32]); }
  Pair load_tail(int64_t k, int64_t n) const {
    uint8_t padded[32] = {};
    __builtin_memcpy(padded, data + k, n);
    return load_e4m3_pair(padded, scale[k / 32]);
  }
};

template <>
struct Column<Format::fp4> {
  const uint8_t* data;
  const uint8_t* scale;
  Pair load(int64_t k) const { return load_e2m1_pair(data + k / 2, kE8m0[scale[k / 32]]); }
  Pair load_tail(int64_t, int64_t) const { __builtin_unreachable(); }  // K is a multiple of 32
};

template <Format F>
static inline Column<F> column_at(const Columns& w, int64_t index) {
  if constexpr (F == Format::pointers) {
    return {{static_cast<const float* const*>(w.data)[index]}};
  } else {
    const uint8_t* data = static_cast<const uint8_t*>(w.data) + index * w.stride;
    if constexpr (F == Format::f32 || F == Format::split) return {reinterpret_cast<const float*>(data)};
    if constexpr (F == Format::bf16) return {reinterpret_cast<const uint16_t*>(data)};
    if constexpr (F == Format::fp8 || F == Format::fp4)
      return {data, w.scale + (index >> w.scale_shift) * w.scale_stride};
  }
}

template <int R, int C>
static inline void multiply_add(const float* const* x, int64_t k, const Pair (&weights)[C],
                                Lanes (&acc)[R][C]) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Lanes even = keep(load(x[r] + k));
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = fma(even, weights[c].even, acc[r][c]);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Lanes odd = keep(load(x[r] + k + 16));
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = fma(odd, weights[c].odd, acc[r][c]);
  }
}

// A block of decoded columns, whose stride is no power of two lest they share cache sets, and the register
// tiles of all rows, the last one padded for sum_sixteen.
constexpr int64_t kColumnStride = kBlock + 16;
constexpr int64_t kRowPartial = (kColumnChunk + 8) * 16;
static_assert(kColumnChunk * kColumnStride + (kRowBlock + 1) * kRowPartial <= kDotScratch);

// Part of K: [begin, end), the first one (`fresh`) starting from zero.
struct Span {
  int64_t begin, end;
  bool fresh;
};

// Adds the products of a span to one register tile kept at `partial` [R][C][16].
template <int R, Format F>
static void tile(const float* const* x, Span span, const Columns& w, int64_t first, int64_t columns,
                 float* partial) {
  constexpr int C = tile_columns(R);
  const float* rows[R];
  Column<F> column[C];
  Lanes acc[R][C];
  Pair weights[C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) rows[r] = x[r];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c) column[c] = column_at<F>(w, first + (c < columns ? c : columns - 1));
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) acc[r][c] = span.fresh ? zero() : load(partial + (r * C + c) * 16);
  int64_t k = span.begin;
  for (; k + 32 <= span.end; k += 32) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) weights[c] = column[c].load(k);
    multiply_add<R, C>(rows, k, weights, acc);
  }
  if (k < span.end) {
    for (int c = 0; c < C; ++c) weights[c] = column[c].load_tail(k, span.end - k);
    multiply_add<R, C>(rows, k, weights, acc);
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) store(partial + (r * C + c) * 16, acc[r][c]);
}

// R rows against up to kColumnChunk columns; `partial` keeps the lanes between spans.
template <int R, Format F>
static void tiles(const float* const* x, Span span, const Columns& w, int64_t first, int64_t columns,
                  float* partial) {
  constexpr int C = tile_columns(R);
  for (int64_t c = 0; c < columns; c += C)
    tile<R, F>(x, span, w, first + c, columns - c, partial + c * R * 16);
}

template <Format F>
static void tiles_of(int64_t rows, const float* const* x, Span span, const Columns& w, int64_t first,
                     int64_t columns, float* partial) {
  switch (rows) {
    case 1:
      return tiles<1, F>(x, span, w, first, columns, partial);
    case 2:
      return tiles<2, F>(x, span, w, first, columns, partial);
    case 3:
      return tiles<3, F>(x, span, w, first, columns, partial);
#if defined(DEEPINFER_AVX512)
    case 4:
      return tiles<4, F>(x, span, w, first, columns, partial);
    case 5:
      return tiles<5, F>(x, span, w, first, columns, partial);
    case 6:
      return tiles<6, F>(x, span, w, first, columns, partial);
    case 7:
      return tiles<7, F>(x, span, w, first, columns, partial);
    case 8:
      return tiles<8, F>(x, span, w, first, columns, partial);
#endif
    default:
      __builtin_unreachable();
  }
}

// The sums of all register tiles of `rows` rows, which lie one after the other at `partial`.
static void finish(int64_t rows, int64_t columns, const float* partial, float* out, int64_t out_stride) {
  const int64_t width = tile_columns(static_cast<int>(rows));
  const int64_t padded = (columns + width - 1) / width * width;
  float totals[kMaxRows * (kColumnChunk + 8) + 16];
  for (int64_t i = 0; i < rows * padded; i += 16) sum_sixteen(partial + i * 16, totals + i);
  for (int64_t c = 0; c < columns; c += width) {
    const float* tile_totals = totals + c * rows;
    const int64_t count = columns - c < width ? columns - c : width;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < count; ++i) out[r * out_stride + c + i] = tile_totals[r * width + i];
  }
}

template <Format F>
static void decode_split(const Columns& w, int64_t index, int64_t begin, int64_t end, float* out) {
  const Column<F> column = column_at<F>(w, index);
  for (int64_t k = begin; k < end; k += 32) {
    const Pair value = k + 32 <= end ? column.load(k) : column.load_tail(k, end - k);
    store(out + k - begin, value.even);
    store(out + k - begin + 16, value.odd);
  }
}

// Many rows: per block of K, decode the columns once, then let tiles of equal height pass over them.
template <Format F>
static void dot_many(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                     int64_t columns, float* out, int64_t out_stride, float* scratch) {
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  const int64_t height = (rows + blocks - 1) / blocks;
  const Columns decoded{Format::split, scratch, kColumnStride * static_cast<int64_t>(sizeof(float))};
  float* partial = scratch + kColumnChunk * kColumnStride;
  const float* block_rows[kMaxRows];
  for (int64_t begin = 0; begin < K; begin += kBlock) {
    const int64_t end = K - begin < kBlock ? K : begin + kBlock;
    for (int64_t c = 0; c < columns; ++c)
      decode_split<F>(w, first + c, begin, end, scratch + c * kColumnStride);
    for (int64_t r = 0; r < rows; r += height) {
      const int64_t count = rows - r < height ? rows - r : height;
      for (int64_t i = 0; i < count; ++i) block_rows[i] = x[r + i] + begin;
      tiles_of<Format::split>(count, block_rows, {0, end - begin, begin == 0}, decoded, 0, columns,
                              partial + r * kRowPartial);
    }
  }
  for (int64_t r = 0; r < rows; r += height) {
    const int64_t count = rows - r < height ? rows - r : height;
    finish(count, columns, partial + r * kRowPartial, out + r * out_stride, out_stride);
  }
}

template <Format F>
static void dot_of(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                   int64_t columns, float* out, int64_t out_stride, float* scratch) {
  if (rows > kMaxRows) return dot_many<F>(x, rows, K, w, first, columns, out, out_stride, scratch);
  for (int64_t begin = 0; begin < K; begin += kBlock) {
    const int64_t end = K - begin < kBlock ? K : begin + kBlock;
    tiles_of<F>(rows, x, {begin, end, begin == 0}, w, first, columns, scratch);
  }
  finish(rows, columns, scratch, out, out_stride);
}

static void dot_products(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                         int64_t columns, float* out, int64_t out_stride, float* scratch) {
  switch (w.format) {
    case Format::bf16:
      return dot_of<Format::bf16>(x, rows, K, w, first, columns, out, out_stride, scratch);
    case Format::f32:
      return dot_of<Format::f32>(x, rows, K, w, first, columns, out, out_stride, scratch);
    case Format::fp8:
      return dot_of<Format::fp8>(x, rows, K, w, first, columns, out, out_stride, scratch);
    case Format::fp4:
      return dot_of<Format::fp4>(x, rows, K, w, first, columns, out, out_stride, scratch);
    case Format::pointers:
      return dot_of<Format::pointers>(x, rows, K, w, first, columns, out, out_stride, scratch);
    case Format::split:
      return dot_of<Format::split>(x, rows, K, w, first, columns, out, out_stride, scratch);
  }
}

static void split(const float* x, int64_t K, float* out) {
  decode_split<Format::f32>({Format::f32, x}, 0, 0, K, out);
}

static void split_bf16(const uint16_t* x, int64_t K, float* out) {
  decode_split<Format::bf16>({Format::bf16, x}, 0, 0, K, out);
}

static void split_fp8(const uint8_t* codes, const uint8_t* scales, int64_t K, float* out) {
  decode_split<Format::fp8>({Format::fp8, codes, 0, scales, 0, 0}, 0, 0, K, out);
}

static void split_fp4(const uint8_t* codes, const uint8_t* scales, int64_t K, float* out) {
  for (int64_t k = 0; k < K; k += 32) {
    const Pair unit = load_e2m1_pair(codes + k / 2, 1.0f);
    const Lanes scale = halves(kE4m3[scales[k / 16]], kE4m3[scales[k / 16 + 1]]);
    store(out + k, mul(unit.even, scale));
    store(out + k + 16, mul(unit.odd, scale));
  }
}

static float dot(const float* a, const float* b, int64_t n) {
  Lanes acc = zero();
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) acc = fma(load(a + k), load(b + k), acc);
  if (k < n) {
    float tail_a[16] = {}, tail_b[16] = {};
    __builtin_memcpy(tail_a, a + k, (n - k) * sizeof(float));
    __builtin_memcpy(tail_b, b + k, (n - k) * sizeof(float));
    acc = fma(load(tail_a), load(tail_b), acc);
  }
  return sum(acc);
}

template <int C>
static void dots_f64_tile(const float* x, const float* rows, int64_t K, double* out) {
  Wide acc[C] = {};
  int64_t k = 0;
  for (; k + 16 <= K; k += 16) {
    const Wide value = widen(load(x + k));
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) acc[c] = fma(value, widen(load(rows + c * K + k)), acc[c]);
  }
  if (k < K) {
    float tail_x[16] = {}, tail_row[16] = {};
    __builtin_memcpy(tail_x, x + k, (K - k) * sizeof(float));
    for (int c = 0; c < C; ++c) {
      __builtin_memcpy(tail_row, rows + c * K + k, (K - k) * sizeof(float));
      acc[c] = fma(widen(load(tail_x)), widen(load(tail_row)), acc[c]);
    }
  }
  for (int c = 0; c < C; ++c) {
    double lanes[16];
    store(lanes, acc[c]);
    out[c] = 0.0;
    for (const double lane : lanes) out[c] += lane;
  }
}

static void dots_f64(const float* x, const float* rows, int64_t count, int64_t K, double* out) {
  int64_t c = 0;
  for (; c + kWideTile <= count; c += kWideTile) dots_f64_tile<kWideTile>(x, rows + c * K, K, out + c);
  for (; c < count; ++c) dots_f64_tile<1>(x, rows + c * K, K, out + c);
}

// exp by range reduction to |r| <= ln(2)/2 and a Taylor polynomial of degree 7; within 1 ulp. The power of
// two is applied in two halves, so that results reach from subnormals to infinity.
static inline Lanes exponential(Lanes x) {
  x = min(splat(89.0f), max(splat(-104.0f), x));
  const Lanes magic = splat(0x1.8p23f);
  const Lanes biased = fma(x, splat(0x1.715476p+0f), magic);
  const Lanes n = sub(biased, magic);
  Lanes r = fma(n, splat(-0x1.62e4p-1f), x);
  r = fma(n, splat(-0x1.7f7d1cp-20f), r);
  Lanes p = splat(1.0f / 5040.0f);
  constexpr float kCoefficients[] = {1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f,
                                     0.5f,          1.0f,          1.0f};
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

static float fold(float* p, int64_t n, float scale, float* peak, float* denominator) {
  const float infinity = __builtin_inff();
  Lanes best = splat(-infinity), total = zero();
  for (int64_t i = 0; i < n; i += 16) store(p + i, mul(load(p + i), splat(scale)));
  for (int64_t i = n; i % 16 != 0; ++i) p[i] = -infinity;
  for (int64_t i = 0; i < n; i += 16) best = max(best, load(p + i));
  const float old = *peak, found = largest(best), top = found > old ? found : old;
  for (int64_t i = 0; i < n; i += 16) {
    const Lanes share = exponential(sub(load(p + i), splat(top)));
    total = add(total, share);
    store(p + i, round_bf16(share));
  }
  float shrink[16];
  store(shrink, exponential(splat(old - top)));
  *peak = top;
  *denominator = *denominator * shrink[0] + sum(total);
  return shrink[0];
}

static void index_scores(const float* products, const float* weights, int64_t heads, float* out) {
  double totals[kIndexKeys] = {};
  float terms[kIndexKeys];
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t c = 0; c < kIndexKeys; c += 16) {
      const Lanes product = max(zero(), round_bf16(load(products + h * kIndexKeys + c)));
      store(terms + c, round_bf16(mul(product, splat(weights[h]))));
    }
    for (int64_t c = 0; c < kIndexKeys; ++c) totals[c] += static_cast<double>(terms[c]);
  }
  // Adding zero turns -0 into 0, so that the two tie.
  for (int64_t c = 0; c < kIndexKeys; ++c) out[c] = round_to_bf16(static_cast<float>(totals[c])) + 0.0f;
}

template <int H, int L>
static void add_weighted_tile(const float* p, int64_t p_stride, const float* shrink,
                              const float* const* values, int64_t count, int64_t dim, int64_t d, float* acc) {
  Lanes total[H][L], value[L];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) total[h][l] = mul(load(acc + h * dim + d + 16 * l), splat(shrink[h]));
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int l = 0; l < L; ++l) value[l] = keep(load(values[i] + d + 16 * l));
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const Lanes weight = keep(splat(p[h * p_stride + i]));
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
static void add_weighted_heads(const float* p, int64_t p_stride, const float* shrink,
                               const float* const* values, int64_t count, int64_t dim, float* acc) {
  int64_t d = 0;
  for (; d + 16 * kLaneTile <= dim; d += 16 * kLaneTile)
    add_weighted_tile<H, kLaneTile>(p, p_stride, shrink, values, count, dim, d, acc);
  for (; d < dim; d += 16) add_weighted_tile<H, 1>(p, p_stride, shrink, values, count, dim, d, acc);
}

static void add_weighted(const float* p, int64_t p_stride, const float* shrink, int64_t heads,
                         const float* const* values, int64_t count, int64_t dim, float* acc) {
  int64_t h = 0;
  for (; h + kHeadTile <= heads; h += kHeadTile)
    add_weighted_heads<kHeadTile>(p + h * p_stride, p_stride, shrink + h, values, count, dim, acc + h * dim);
  for (; h < heads; ++h)
    add_weighted_heads<1>(p + h * p_stride, p_stride, shrink + h, values, count, dim, acc + h * dim);
}

}  // namespace DEEPINFER_ISA

// Declared first: a constant without it would be private to this file.
extern const Core DEEPINFER_TABLE;
const Core DEEPINFER_TABLE{
    .name = DEEPINFER_NAME,
    .dot_products = DEEPINFER_ISA::dot_products,
    .split = DEEPINFER_ISA::split,
    .split_bf16 = DEEPINFER_ISA::split_bf16,
    .split_fp8 = DEEPINFER_ISA::split_fp8,
    .split_fp4 = DEEPINFER_ISA::split_fp4,
    .dot = DEEPINFER_ISA::dot,
    .dots_f64 = DEEPINFER_ISA::dots_f64,
    .exponentials = DEEPINFER_ISA::exponentials,
    .fold = DEEPINFER_ISA::fold,
    .add_weighted = DEEPINFER_ISA::add_weighted,
    .index_scores = DEEPINFER_ISA::index_scores,
};

}  // namespace deepinfer
