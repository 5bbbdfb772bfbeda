// One completion of a request inside the scheduler: its tokens, its progress, what it holds, and the states it may
// pass through.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "block_manager.h"
#include "logprob_log.h"
#include "sampling_state.h"
#include "token_log.h"

namespace deepinfer {

// Handles are issued in ascending order, so comparing two compares their arrival.
using Handle = int64_t;

enum class SequenceState : uint8_t {
  held,        // waits for something outside the step (a grammar, say); nobody waits for it
  waiting,     // never ran; owns no page and no slot
  prefilling,  // running, known tokens not all computed
  decoding,    // running, one known token left to compute in each step
  preempted,   // lost its pages and slot, keeps its tokens; waits to compute them again
  finished_stop,
  finished_length,
  finished_aborted,
  finished_error,
};
inline constexpr int kNumSequenceStates = 9;

std::string_view label(SequenceState state) noexcept;
std::string_view finish_reason(
    SequenceState state) noexcept;  // "stop", "length", "abort", "error"; "" if alive
constexpr bool is_finished(SequenceState s) noexcept { return s >= SequenceState::finished_stop; }
constexpr bool is_running(SequenceState s) noexcept {
  return s == SequenceState::prefilling || s == SequenceState::decoding;
}
bool may_follow(SequenceState from, SequenceState to) noexcept;

struct SequenceLimits {
  int64_t max_length = 0;  // tokens, prompt included, at which the sequence ends
  int64_t min_tokens = 0;  // the first min_tokens outputs never stop it
  std::vector<int32_t> stop_token_ids;
};

// When what happened, in the caller's seconds; 0 for what has not happened yet.
struct SequenceTimes {
  double first_scheduled = 0.0;
  double first_token = 0.0;
  double last_token = 0.0;
};

// Drafts that were verified and those accepted, by depth.
struct DraftCounts {
  int64_t num_verifications = 0;
  std::vector<int64_t> drafted, accepted;

  void add(int64_t num_drafts, int64_t num_accepted);
};

class Sequence {
 public:
  // group: handle of its request's first sequence, or 0 for the only one. Handles of a group are neighbours.
  Sequence(Handle handle, std::string request_id, std::span<const int32_t> prompt, SequenceLimits limits,
           Handle group = 0);

  Handle handle() const noexcept { return handle_; }
  Handle group() const noexcept { return group_; }
  const std::string& request_id() const noexcept { return request_id_; }
  const TokenLog& tokens() const noexcept { return tokens_; }
  int64_t num_tokens() const noexcept { return static_cast<int64_t>(tokens_.size()); }
  int64_t prompt_length() const noexcept { return prompt_length_; }
  int64_t num_output() const noexcept { return num_tokens() - prompt_length_; }
  int64_t max_length() const noexcept { return limits_.max_length; }

  int64_t num_computed() const noexcept { return num_computed_; }  // tokens whose KV exists
  int64_t in_flight() const noexcept { return in_flight_; }        // rows of the steps under way
  int64_t drafts_in_flight() const noexcept { return drafts_in_flight_; }  // those of them that are drafts
  int64_t num_scheduled() const noexcept { return num_computed_ + in_flight_; }
  // Tokens that the steps under way will add, values unknown; drafts may add more.
  int64_t num_pending() const noexcept { return num_pending_; }
  int64_t num_unscheduled() const noexcept { return num_tokens() + num_pending_ - num_scheduled(); }
  // Whether another row may be planned before the steps under way are committed.
  bool is_plannable() const noexcept {
    return drafts_in_flight_ == 0 && (num_pending_ == 0 || num_tokens() + num_pending_ < max_length());
  }
  // Whether its next row is that of its newest token, known or pending.
  bool decodes() const noexcept {
    return state_ == SequenceState::decoding ||
           (state_ == SequenceState::prefilling && num_pending_ > 0 && num_unscheduled() == 1);
  }
  // Which of the newest plan's sampled rows draws its pending token.
  int32_t pending_row() const noexcept { return pending_row_; }

  SequenceState state() const noexcept { return state_; }
  bool finished() const noexcept { return is_finished(state_); }
  void hold() noexcept { state_ = SequenceState::held; }  // how it begins, instead of waiting
  void transition(SequenceState to);  // throws std::logic_error when the table has no such edge

  // sampled_row: where the step draws its token; -1 if it draws none.
  void begin_step(int64_t num_rows, int64_t num_drafts, int32_t sampled_row) noexcept {
    in_flight_ += num_rows;
    drafts_in_flight_ += num_drafts;
    num_pending_ += sampled_row >= 0;
    pending_row_ = sampled_row;
  }
  // Its rows of a step are computed; of the drafts, the first num_accepted count.
  void complete_step(int64_t num_rows, int64_t num_drafts, bool is_sampled, int64_t num_accepted) noexcept {
    num_computed_ += num_rows - num_drafts + num_accepted;
    in_flight_ -= num_rows;
    drafts_in_flight_ -= num_drafts;
    num_pending_ -= is_sampled;
  }
  // No step is under way any more, and what they computed does not count.
  void forget_steps() noexcept { in_flight_ = drafts_in_flight_ = num_pending_ = 0; }
  // Its pages and slot hold what another sequence has computed of the same tokens.
  void adopt(int64_t num_computed) noexcept { num_computed_ = num_computed; }
  // Appends an output token; returns the terminal state that it brings about, if any.
  std::optional<SequenceState> append(int32_t token);
  // How many drafts can be of use: none after one that would end the sequence (stop id or length), or after a -1.
  int64_t num_useful(std::span<const int32_t> drafts) const noexcept;
  // Gives pages and slot back; the tokens stay and count as not computed.
  void release_resources() noexcept;

  std::vector<Lease> pages;  // page i covers positions i * page_size onwards
  Lease slot;
  std::optional<SamplingState> sampling;
  std::unique_ptr<LogprobLog> logprobs;  // only where they are asked for
  SequenceTimes times;
  DraftCounts drafts;
  int32_t num_preemptions = 0;
  int32_t tags = 0;         // the caller's own marks; plans carry them
  std::string end_detail;   // why it ended: a stop string, an error; "" where the state says all
  bool reported = false;    // its terminal event has been acknowledged

 private:
  friend struct TestAccess;
  bool stops_at(int32_t token, int64_t num_output) const noexcept;

  Handle handle_;
  Handle group_;
  std::string request_id_;
  TokenLog tokens_;
  int64_t prompt_length_;
  SequenceLimits limits_;
  int64_t num_computed_ = 0;
  int64_t in_flight_ = 0;
  int64_t drafts_in_flight_ = 0;
  int64_t num_pending_ = 0;
  int32_t pending_row_ = -1;
  SequenceState state_ = SequenceState::waiting;
};

}  // namespace deepinfer
