// The inner loops that exist once per instruction set, behind a table of function pointers.
//
// Order of summation, everywhere: a dot product over K keeps 16 float32 lanes; lane i adds the products of
// the k with floor(k / 2) = i (mod 16) in increasing k with fused multiply-adds, K counting as padded with
// zeros to a multiple of 32; then lanes i and i + 8 are added, then i + 4, i + 2, i + 1. Blocking, threads
// and instruction set change none of it. Pairs of neighbours per lane, because that is how bf16, fp8 and fp4
// unpack with the fewest instructions. Left-hand sides are stored in that "split" order: of each 32 values
// the 16 at even places, then the 16 at odd ones.
#pragma once

#include <cstdint>

namespace deepinfer {

enum class Format : int { bf16 = 0, f32 = 1, fp8 = 2, fp4 = 3, pointers = 4, split = 5 };

// The columns of a right-hand side, i.e. the rows of a weight [M, K], in storage format.
struct Columns {
  Format format;
  const void* data;                // first column; for `pointers`: per column a const float*, in split order
  int64_t stride = 0;              // bytes from one column to the next
  const uint8_t* scale = nullptr;  // e8m0 codes, one per 32 values
  int64_t scale_stride = 0;        // bytes from one row of scales to the next
  int scale_shift = 0;             // 2^scale_shift neighbouring columns share a row of scales
};

constexpr int64_t kColumnChunk = 24;  // a multiple of every tile width
constexpr int64_t kRowBlock = 64;
constexpr int64_t kIndexKeys = 32;          // keys whose index scores are computed at once
constexpr int64_t kDotScratch = 60 * 1024;  // floats of scratch memory for dot_products

struct Core {
  const char* name;

  // out[r * out_stride + c] = x[r] . column(first + c) for r < rows <= kRowBlock, c < columns <=
  // kColumnChunk. Each x[r] has K floats in split order, zero-padded to a multiple of 32.
  void (*dot_products)(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                       int64_t columns, float* out, int64_t out_stride, float* scratch);

  // K values into split order, zero-padded to a multiple of 32.
  void (*split)(const float* x, int64_t K, float* out);
  void (*split_bf16)(const uint16_t* x, int64_t K, float* out);

  // A cache record of K values (K a multiple of 32) into split order: e4m3 codes with an e8m0 scale per 32,
  // e2m1 codes with an e4m3 scale per 16.
  void (*split_fp8)(const uint8_t* codes, const uint8_t* scales, int64_t K, float* out);
  void (*split_fp4)(const uint8_t* codes, const uint8_t* scales, int64_t K, float* out);

  float (*dot)(const float* a, const float* b, int64_t n);  // in natural order: lane i has k = i (mod 16)
  // out[c] = x . rows[c] for the rows [count, K], in float64: 16 lanes like dot's, added in order. For what
  // scales the residual streams, where a float32 sum could fall on the wrong side of a bf16 tie.
  void (*dots_f64)(const float* x, const float* rows, int64_t count, int64_t K, double* out);
  void (*exponentials)(float* x, int64_t n);  // in place

  // A chunk of n scores of one head, in place: p = exp(scale * p - peak) rounded to bf16, where peak is
  // raised to the largest scaled score; the unrounded sum goes into the denominator. Returns the factor by
  // which what was accumulated before shrinks. p has room for n rounded up to 16.
  float (*fold)(float* p, int64_t n, float scale, float* peak, float* denominator);

  // acc[h * dim + d] = shrink[h] * acc[h * dim + d] + sum over i of p[h * p_stride + i] * values[i][d],
  // i ascending; dim a multiple of 16.
  void (*add_weighted)(const float* p, int64_t p_stride, const float* shrink, int64_t heads,
                       const float* const* values, int64_t count, int64_t dim, float* acc);

  // out[c] = bf16(sum over heads of bf16(weights[h] * relu(bf16(products[h * kIndexKeys + c])))), summed
  // exactly.
  void (*index_scores)(const float* products, const float* weights, int64_t heads, float* out);
};

// The table in use: the widest instruction set the CPU has, unless one was asked for.
const Core& core();
// "avx512", "avx2" or "plain"; throws std::invalid_argument when unknown or not available here.
void set_isa(const char* name);

extern const Core kCorePlain;
#if defined(__x86_64__)
extern const Core kCoreAvx2;
extern const Core kCoreAvx512;
#endif

}  // namespace deepinfer
