// Log-probabilities of a sequence's output tokens, kept as columns until somebody asks for them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace deepinfer {

// One entry per output token: its own, and those of the most likely tokens, at offsets[i] .. offsets[i + 1] - 1.
struct LogprobLog {
  std::vector<float> logprobs;
  std::vector<int32_t> ranks;
  std::vector<int64_t> offsets{0};
  std::vector<int32_t> top_ids;
  std::vector<float> top_logprobs;
  double cumulative = 0.0;

  void add(float logprob, int32_t rank, std::span<const int32_t> ids, std::span<const float> values) {
    logprobs.push_back(logprob);
    ranks.push_back(rank);
    top_ids.insert(top_ids.end(), ids.begin(), ids.end());
    top_logprobs.insert(top_logprobs.end(), values.begin(), values.end());
    offsets.push_back(static_cast<int64_t>(top_ids.size()));
    cumulative += logprob;
  }
};

// What a step's sampled rows have: views of R rows, as LogprobLog's columns.
struct SampledLogprobs {
  std::span<const float> logprobs;
  std::span<const int32_t> ranks;
  std::span<const int64_t> offsets;
  std::span<const int32_t> top_ids;
  std::span<const float> top_logprobs;
};

}  // namespace deepinfer
