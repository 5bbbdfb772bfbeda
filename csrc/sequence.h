// One sample of a request inside the scheduler: its tokens, its progress, what it holds, and the states it may pass
// through.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "block_manager.h"

namespace deepinfer {

// Handles are issued in ascending order, so comparing two compares their arrival.
using Handle = int64_t;

enum class SequenceState : uint8_t {
  waiting,     // never ran; holds nothing
  prefilling,  // running, known tokens not all computed
  decoding,    // running, one known token left to compute in each step
  preempted,   // lost its pages and slot, keeps its tokens; waits to compute them again
  finished_stop,
  finished_length,
  finished_aborted,
  finished_error,
};
inline constexpr int kNumSequenceStates = 8;

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

class Sequence {
 public:
  // group: handle of its request's first sample, or 0 for the only one. Handles of a group are neighbours.
  Sequence(Handle handle, std::string request_id, std::span<const int32_t> prompt, SequenceLimits limits,
           Handle group = 0);

  Handle handle() const noexcept { return handle_; }
  Handle group() const noexcept { return group_; }
  const std::string& request_id() const noexcept { return request_id_; }
  const std::vector<int32_t>& tokens() const noexcept { return tokens_; }
  int64_t num_tokens() const noexcept { return static_cast<int64_t>(tokens_.size()); }
  int64_t prompt_length() const noexcept { return prompt_length_; }
  int64_t num_output() const noexcept { return num_tokens() - prompt_length_; }
  int64_t max_length() const noexcept { return limits_.max_length; }

  int64_t num_computed() const noexcept { return num_computed_; }  // tokens whose KV exists
  int64_t in_flight() const noexcept { return in_flight_; }        // rows of the step under way
  int64_t drafts_in_flight() const noexcept { return drafts_in_flight_; }  // those of them that are drafts
  int64_t num_scheduled() const noexcept { return num_computed_ + in_flight_; }
  int64_t num_unscheduled() const noexcept { return num_tokens() - num_scheduled(); }

  SequenceState state() const noexcept { return state_; }
  bool finished() const noexcept { return is_finished(state_); }
  void transition(SequenceState to);  // throws std::logic_error when the table has no such edge

  void begin_step(int64_t num_rows, int64_t num_drafts) noexcept {
    in_flight_ = num_rows;
    drafts_in_flight_ = num_drafts;
  }
  // Of the drafts, the first num_accepted count as computed.
  void complete_step(int64_t num_accepted) noexcept {
    num_computed_ += in_flight_ - drafts_in_flight_ + num_accepted;
    in_flight_ = drafts_in_flight_ = 0;
  }
  // Its pages and slot hold what another sequence has computed of the same tokens.
  void adopt(int64_t num_computed) noexcept { num_computed_ = num_computed; }
  // Appends an output token; returns the terminal state that it brings about, if any.
  std::optional<SequenceState> append(int32_t token);
  // Gives pages and slot back; the tokens stay and count as not computed.
  void release_resources() noexcept;

  std::vector<Lease> pages;  // page i covers positions i * page_size onwards
  Lease slot;
  bool reported = false;  // its terminal event has been taken

 private:
  friend struct TestAccess;
  Handle handle_;
  Handle group_;
  std::string request_id_;
  std::vector<int32_t> tokens_;
  int64_t prompt_length_;
  SequenceLimits limits_;
  int64_t num_computed_ = 0;
  int64_t in_flight_ = 0;
  int64_t drafts_in_flight_ = 0;
  SequenceState state_ = SequenceState::waiting;
};

}  // namespace deepinfer
