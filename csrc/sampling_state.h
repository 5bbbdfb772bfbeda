// How a sequence's tokens are drawn: the request's parameters, and what they make of the tokens so far.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

namespace deepinfer {

// The parameters of one request, the same for each of its completions and for every step. Immutable once shared.
struct SamplingSpec {
  double temperature = 0.0;
  std::int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  std::int32_t num_logprobs = -1;  // -1: none
  bool processed_logprobs = false;
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::vector<std::int32_t> bias_ids;
  std::vector<float> bias;
  std::vector<std::int32_t> allowed;
  std::vector<std::int32_t> banned;        // rising
  std::vector<std::int32_t> early_banned;  // in place of `banned` for the first min_tokens outputs; rising
  std::int64_t min_tokens = 0;
  std::vector<std::int32_t> forced;  // what the output begins with

  bool has_penalties() const noexcept {
    return repetition_penalty != 1.0 || frequency_penalty != 0.0 || presence_penalty != 0.0;
  }
};

// Which tokens a sequence has, each id once in order of appearance, and how often its output has it.
class TokenCounts {
 public:
  // prompt: ids that count as seen, though the output has none of them yet.
  explicit TokenCounts(std::span<const std::int32_t> prompt);
  void append(std::int32_t token);
  void pop();  // takes the last appended token back

  std::span<const std::int32_t> ids() const noexcept { return ids_; }
  std::span<const std::int32_t> counts() const noexcept { return counts_; }

 private:
  std::unordered_map<std::int32_t, std::size_t> places_;
  std::vector<std::int32_t> ids_, counts_;
  std::vector<std::int32_t> output_;
  std::size_t num_prompt_ids_;
};

struct SamplingState {
  SamplingState(std::shared_ptr<const SamplingSpec> spec, std::uint64_t seed, std::span<const std::int32_t> prompt);

  std::shared_ptr<const SamplingSpec> spec;
  std::uint64_t seed;
  std::optional<TokenCounts> counts;  // only where penalties ask for them
};

// One list per row, end to end: row i's is offsets[i] .. offsets[i + 1] - 1 of ids, and of what goes with them.
template <class Value>
struct RaggedColumn {
  std::vector<std::int64_t> offsets{0};
  std::vector<std::int32_t> ids;
  std::vector<Value> values;

  bool empty() const noexcept { return ids.empty(); }
  void add(std::span<const std::int32_t> row_ids, std::span<const Value> row_values = {}) {
    ids.insert(ids.end(), row_ids.begin(), row_ids.end());
    values.insert(values.end(), row_values.begin(), row_values.end());
    offsets.push_back(static_cast<std::int64_t>(ids.size()));
  }
};

// The parameters of R rows, one column each. A row is a token to be drawn.
struct SamplingBatch {
  std::vector<double> temperature, top_p, min_p;
  std::vector<std::int32_t> top_k, num_logprobs, forced;
  std::vector<std::uint64_t> seed;
  std::vector<std::int64_t> position;
  std::vector<std::uint8_t> processed_logprobs;
  std::vector<double> penalties;  // [R, 3] repetition, frequency, presence
  RaggedColumn<float> bias;
  RaggedColumn<std::int32_t> seen;
  RaggedColumn<std::int32_t> allowed, banned;  // without values
  bool has_forced = false;

  void reserve(std::size_t rows);
  // The token at an absolute position, the output's number `output_index`.
  void add(const SamplingState& state, std::int64_t position, std::int64_t output_index);
  // Rows of which nothing will be used: greedy, without anything else.
  void add_idle(std::int64_t position);
};

}  // namespace deepinfer
