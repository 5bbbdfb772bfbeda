#include "sampling_state.h"

namespace deepinfer {

TokenCounts::TokenCounts(std::span<const std::int32_t> prompt) {
  for (const std::int32_t token : prompt) {
    if (places_.emplace(token, ids_.size()).second) ids_.push_back(token);
  }
  num_prompt_ids_ = ids_.size();
  counts_.assign(ids_.size(), 0);
}

void TokenCounts::append(std::int32_t token) {
  const auto [entry, is_new] = places_.emplace(token, ids_.size());
  if (is_new) {
    ids_.push_back(token);
    counts_.push_back(0);
  }
  ++counts_[entry->second];
  output_.push_back(token);
}

void TokenCounts::pop() {
  const std::int32_t token = output_.back();
  output_.pop_back();
  const std::size_t place = places_.at(token);
  if (--counts_[place] > 0 || place < num_prompt_ids_) return;
  // The last place: those made later are gone already.
  places_.erase(token);
  ids_.pop_back();
  counts_.pop_back();
}

SamplingState::SamplingState(std::shared_ptr<const SamplingSpec> given, std::uint64_t own_seed,
                             std::span<const std::int32_t> prompt)
    : spec(std::move(given)), seed(own_seed) {
  if (!spec->has_penalties()) return;
  // Only the repetition penalty looks at the prompt.
  counts.emplace(spec->repetition_penalty != 1.0 ? prompt : std::span<const std::int32_t>());
}

void SamplingBatch::reserve(std::size_t rows) {
  temperature.reserve(rows);
  top_p.reserve(rows);
  min_p.reserve(rows);
  top_k.reserve(rows);
  num_logprobs.reserve(rows);
  forced.reserve(rows);
  seed.reserve(rows);
  position.reserve(rows);
  processed_logprobs.reserve(rows);
  penalties.reserve(3 * rows);
  for (auto* offsets : {&bias.offsets, &seen.offsets, &allowed.offsets, &banned.offsets}) {
    offsets->reserve(rows + 1);
  }
}

void SamplingBatch::add(const SamplingState& state, std::int64_t at, std::int64_t output_index) {
  const SamplingSpec& spec = *state.spec;
  temperature.push_back(spec.temperature);
  top_p.push_back(spec.top_p);
  min_p.push_back(spec.min_p);
  top_k.push_back(spec.top_k);
  num_logprobs.push_back(spec.num_logprobs);
  seed.push_back(state.seed);
  position.push_back(at);
  processed_logprobs.push_back(spec.processed_logprobs);
  const auto index = static_cast<std::size_t>(output_index);
  const bool is_forced = index < spec.forced.size();
  forced.push_back(is_forced ? spec.forced[index] : -1);
  has_forced |= is_forced;
  for (const double penalty : {spec.repetition_penalty, spec.frequency_penalty, spec.presence_penalty}) {
    penalties.push_back(penalty);
  }
  bias.add(spec.bias_ids, spec.bias);
  if (state.counts) {
    seen.add(state.counts->ids(), state.counts->counts());
  } else {
    seen.add({});
  }
  allowed.add(spec.allowed);
  banned.add(output_index < spec.min_tokens ? spec.early_banned : spec.banned);
}

void SamplingBatch::add_idle(std::int64_t at) {
  static const SamplingState kIdle(std::make_shared<SamplingSpec>(), 0, {});
  add(kIdle, at, 0);
}

}  // namespace deepinfer
