// The inner loops that exist once per instruction set, behind a table of function pointers.
//
// Order of summation, everywhere: a dot product over K keeps 16 float32 lanes; lane i adds the products of
// k = i (mod 16) in increasing k with fused multiply-adds, a ragged tail counting as zeros; then lanes i and
// i + 8 are added, then i + 4, i + 2, i + 1. Blocking, threads and instruction set change none of it.
#pragma once

#include <cstdint>

namespace deepinfer {

enum class Format : int { bf16 = 0, f32 = 1, fp8 = 2, fp4 = 3, pointers = 4 };

// The columns of a right-hand side, i.e. the rows of a weight [M, K], in storage format.
struct Columns {
  Format format;
  const void* data;            // first column; for `pointers`: const float* per column
  int64_t stride = 0;          // bytes from one column to the next
  const uint8_t* scale = nullptr;  // e8m0 codes, one per 32 values
  int64_t scale_stride = 0;    // bytes from one row of scales to the next
  int scale_shift = 0;         // 2^scale_shift neighbouring columns share a row of scales
};

constexpr int kColumnChunk = 24;  // a multiple of every tile width
constexpr int kRowBlock = 64;

struct Core {
  const char* name;

  // out[r * out_stride + c] = x[r] . column(first + c) for r < rows, c < columns. Each x[r] has K floats,
  // then zeros up to a multiple of 16. `scratch` holds 8 columns of K floats, K rounded up to 16.
  void (*dot_products)(const float* const* x, int64_t rows, int64_t K, const Columns& w, int64_t first,
                       int64_t columns, float* out, int64_t out_stride, float* scratch);

  // One column as K floats, then zeros up to a multiple of 16.
  void (*decode_column)(const Columns& w, int64_t column, int64_t K, float* out);

  float (*sum_of_squares)(const float* x, int64_t padded);  // x zero-padded to a multiple of 16
  void (*exponentials)(float* x, int64_t n);                // in place

  // acc[h * dim + d] += sum over i of p[h * p_stride + i] * values[i][d], i ascending; dim a multiple of 16.
  void (*add_weighted)(const float* p, int64_t p_stride, int64_t heads, const float* const* values,
                       int64_t count, int64_t dim, float* acc);
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
