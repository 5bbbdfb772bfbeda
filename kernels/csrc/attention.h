// What the attention operators share.
#pragma once

#include "numbers.h"
#include "ops.h"

namespace deepinfer {

constexpr int64_t kProbabilityChunk = 64;  // places over which probabilities share a running maximum

// A row's sum of weighted values in split order -> out [D] in natural order, over the denominator.
inline void finish(const float* total, float denominator, int64_t D, bf16* out) {
  for (int64_t d = 0; d < D; ++d) {
    const int64_t place = d % 32;
    out[d] = to_bf16(total[d - place + place / 2 + place % 2 * 16] / denominator);
  }
}

}  // namespace deepinfer
