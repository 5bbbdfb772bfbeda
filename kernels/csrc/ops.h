// The operators, on contiguous arrays. Shapes are in the comments; `bf16` arrays are uint16_t.
#pragma once

#include <cstdint>

#include "core.h"

namespace deepinfer {

using bf16 = uint16_t;

// A matrix [M, K] or a stack of them, as its storage describes it.
struct Weight {
  Format format;
  const uint8_t* data;
  const uint8_t* scale;
  int64_t M, K;

  // Member `index` of a stack, as columns of a product.
  Columns columns(int64_t index = 0) const;
};

// A dense array of bf16 or float32.
struct Input {
  const void* data;
  bool is_f32;
};
struct Output {
  void* data;
  bool is_f32;
};

// x [N, K] -> out [N, M]; `quantize`: x goes through the fp8 codec first.
void linear(Input x, const Weight& weight, Output out, int64_t N, bool quantize);
// x [N, G, K], weight [G * R, K] -> out [N, G, R].
void grouped_linear(const bf16* x, const Weight& weight, bf16* out, int64_t N, int64_t G);

}  // namespace deepinfer
