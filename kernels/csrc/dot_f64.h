// Dot products where an f32 sum would be too coarse: what they scale is rounded to bf16 in the residual
// streams, and a value on the wrong side of a tie stays wrong in the caches.
#pragma once

#include <cstdint>

namespace deepinfer {

// Sum of a[k] * b[k] in f64, in 16 interleaved lanes added in order. Products of floats are exact in f64, so
// every instruction set gives the same bits.
inline double dot_f64(const float* a, const float* b, int64_t K) {
  constexpr int64_t kLanes = 16;
  double lanes[kLanes] = {};
  int64_t k = 0;
  for (; k + kLanes <= K; k += kLanes)
    for (int64_t i = 0; i < kLanes; ++i)
      lanes[i] += static_cast<double>(a[k + i]) * static_cast<double>(b[k + i]);
  for (int64_t i = 0; k + i < K; ++i)
    lanes[i] += static_cast<double>(a[k + i]) * static_cast<double>(b[k + i]);
  double total = 0.0;
  for (double lane : lanes) total += lane;
  return total;
}

}  // namespace deepinfer
