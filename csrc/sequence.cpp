#include "sequence.h"

#include <algorithm>
#include <stdexcept>

namespace deepinfer {

namespace {

using enum SequenceState;

constexpr unsigned bit(SequenceState s) { return 1u << static_cast<unsigned>(s); }
constexpr unsigned kTerminal =
    bit(finished_stop) | bit(finished_length) | bit(finished_aborted) | bit(finished_error);

// Successors of each state. A sequence without output cannot stop or reach its length, and terminal states
// are final. A stop string may be found after the sequence was preempted, hence preempted -> finished_stop.
constexpr unsigned kSuccessors[kNumSequenceStates] = {
    // What was held may turn out to be whole before anything is computed.
    /* held       */ bit(waiting) | bit(finished_stop) | bit(finished_aborted) | bit(finished_error),
    /* waiting    */ bit(prefilling) | bit(finished_aborted) | bit(finished_error),
    /* prefilling */ bit(decoding) | bit(preempted) | bit(finished_stop) | bit(finished_aborted) |
        bit(finished_error),
    /* decoding   */ bit(preempted) | kTerminal,
    /* preempted  */ bit(prefilling) | bit(finished_stop) | bit(finished_aborted) | bit(finished_error),
    // none of the terminal ones
};

constexpr std::string_view kLabels[kNumSequenceStates] = {
    "held",      "waiting",       "prefilling",      "decoding",
    "preempted", "finished_stop", "finished_length", "finished_aborted", "finished_error",
};

}  // namespace

std::string_view label(SequenceState state) noexcept { return kLabels[static_cast<size_t>(state)]; }

std::string_view finish_reason(SequenceState state) noexcept {
  switch (state) {
    case finished_stop: return "stop";
    case finished_length: return "length";
    case finished_aborted: return "abort";
    case finished_error: return "error";
    default: return "";
  }
}

bool may_follow(SequenceState from, SequenceState to) noexcept {
  return (kSuccessors[static_cast<size_t>(from)] & bit(to)) != 0;
}

Sequence::Sequence(Handle handle, std::string request_id, std::span<const int32_t> prompt,
                   SequenceLimits limits, Handle group)
    : handle_(handle),
      group_(group),
      request_id_(std::move(request_id)),
      tokens_(prompt),
      prompt_length_(static_cast<int64_t>(prompt.size())),
      limits_(std::move(limits)) {}

void Sequence::transition(SequenceState to) {
  if (!may_follow(state_, to)) {
    throw std::logic_error("request '" + request_id_ + "' cannot go from " + std::string(label(state_)) +
                           " to " + std::string(label(to)));
  }
  state_ = to;
}

bool Sequence::stops_at(int32_t token, int64_t num_output) const noexcept {
  const auto& stops = limits_.stop_token_ids;
  return num_output > limits_.min_tokens && std::find(stops.begin(), stops.end(), token) != stops.end();
}

std::optional<SequenceState> Sequence::append(int32_t token) {
  tokens_.push_back(token);
  if (sampling && sampling->counts) sampling->counts->append(token);
  if (stops_at(token, num_output())) return finished_stop;
  if (num_tokens() >= limits_.max_length) return finished_length;
  return std::nullopt;
}

int64_t Sequence::num_useful(std::span<const int32_t> drafts) const noexcept {
  // Beside the drafts there is a token of the last row's own.
  const auto room = static_cast<size_t>(std::max<int64_t>(max_length() - num_tokens() - 1, 0));
  const size_t most = std::min(room, drafts.size());
  for (size_t i = 0; i < most; ++i) {
    if (drafts[i] < 0) return static_cast<int64_t>(i);
    if (stops_at(drafts[i], num_output() + static_cast<int64_t>(i) + 1)) return static_cast<int64_t>(i) + 1;
  }
  return static_cast<int64_t>(most);
}

void DraftCounts::add(int64_t num_drafts, int64_t num_accepted) {
  ++num_verifications;
  const auto depth = static_cast<size_t>(num_drafts);
  if (drafted.size() < depth) {
    drafted.resize(depth);
    accepted.resize(depth);
  }
  for (size_t i = 0; i < depth; ++i) {
    ++drafted[i];
    accepted[i] += static_cast<int64_t>(i) < num_accepted;
  }
}

void Sequence::release_resources() noexcept {
  release_table(pages);
  slot.release();
  num_computed_ = 0;
}

}  // namespace deepinfer
