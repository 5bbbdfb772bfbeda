#include <algorithm>
#include <cmath>

#include "linear.h"

namespace deepinfer {
namespace {

float rstd(const float* x, int64_t d, float eps) {
  return 1.0f / std::sqrt(core().dot(x, x, d) / static_cast<float>(d) + eps);
}

}  // namespace

void engram_gate(const bf16* x, const bf16* kv, const bf16* q_weight, const bf16* k_weight, float norm_eps,
                 float clamp, const bool* mask, bf16* out, int64_t N, int64_t m, int64_t d) {
  const float root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  parallel_for(N * m, 8 * d, [&](int64_t unit) {
    const int64_t n = unit / m, stream = unit % m;
    const bf16* memory = kv + n * (m + 1) * d;
    const bf16* value = memory + m * d;
    Buffer<float> buffer(3 * d);
    float *query = buffer.data(), *key = query + d, *weighted = key + d;
    widen(x + unit * d, query, d);
    widen(memory + stream * d, key, d);
    for (int64_t k = 0; k < d; ++k)
      weighted[k] = query[k] * (from_bf16(q_weight[stream * d + k]) * from_bf16(k_weight[stream * d + k]));
    const float dot = core().dot(weighted, key, d) * rstd(query, d, norm_eps) * rstd(key, d, norm_eps) * root;
    const float logit = std::copysign(std::sqrt(std::max(std::abs(dot), clamp)), dot);
    float gate = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logit))));
    if (mask != nullptr && !mask[n]) gate = 0.0f;
    for (int64_t k = 0; k < d; ++k) out[unit * d + k] = to_bf16(query[k] + gate * from_bf16(value[k]));
  });
}

}  // namespace deepinfer
