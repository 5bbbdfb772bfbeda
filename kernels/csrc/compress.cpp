#include <algorithm>
#include <cstring>

#include "linear.h"

namespace deepinfer {
namespace {

// Softmax over the members per channel, times the values, summed in order.
void pool(const float* const* values, const float* const* scores, int64_t ratio, int64_t D, float* out) {
  Buffer<float> shares(ratio * D), peak(D), total(D);
  std::copy(scores[0], scores[0] + D, peak.data());
  for (int64_t i = 1; i < ratio; ++i)
    for (int64_t c = 0; c < D; ++c) peak[c] = std::max(peak[c], scores[i][c]);
  for (int64_t i = 0; i < ratio; ++i)
    for (int64_t c = 0; c < D; ++c) shares[i * D + c] = scores[i][c] - peak[c];
  core().exponentials(shares.data(), ratio * D);
  std::fill(total.data(), total.data() + D, 0.0f);
  for (int64_t i = 0; i < ratio; ++i)
    for (int64_t c = 0; c < D; ++c) total[c] += shares[i * D + c];
  std::fill(out, out + D, 0.0f);
  for (int64_t i = 0; i < ratio; ++i)
    for (int64_t c = 0; c < D; ++c) out[c] += values[i][c] * (shares[i * D + c] / total[c]);
}

}  // namespace

void compress_pool(const float* values, const float* scores, const float* state, const int64_t* members,
                   float* out, int64_t G, int64_t D, int64_t ratio) {
  parallel_for(G, 16 * ratio * D, [&](int64_t g) {
    Buffer<const float*> value(ratio), score(ratio);
    for (int64_t i = 0; i < ratio; ++i) {
      const int64_t member = members[g * ratio + i];
      value[i] = member >= 0 ? values + member * D : state + (-1 - member) * 2 * D;
      score[i] = member >= 0 ? scores + member * D : value[i] + D;
    }
    pool(value.data(), score.data(), ratio, D, out + g * D);
  });
}

void store_compress_state(const float* values, const float* scores, float* state, const int64_t* places,
                          int64_t N, int64_t D) {
  parallel_for(N, D, [&](int64_t n) {
    if (places[n] < 0) return;
    float* entry = state + places[n] * 2 * D;
    std::memcpy(entry, values + n * D, D * sizeof(float));
    std::memcpy(entry + D, scores + n * D, D * sizeof(float));
  });
}

}  // namespace deepinfer
