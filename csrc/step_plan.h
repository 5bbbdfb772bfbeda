// What one step computes, and what came of it. Plain values that own their memory.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sequence.h"

namespace deepinfer {

enum class SkipReason : uint8_t {
  token_budget,      // the rows before it used up max_num_batched_tokens
  no_free_page,      // no page is free for its next token, or not enough to admit it
  running_limit,     // as many requests run as may
  no_free_slot,      // every state slot is leased
  after_preemption,  // a step that had to preempt admits nobody
  shared_prompt,     // another completion of its request computes the prompt that both share
  in_flight,         // its next row depends on what a step under way draws
};
std::string_view label(SkipReason reason) noexcept;

// S sequences contribute N rows (tokens). Sequence s owns rows query_offsets[s] .. query_offsets[s+1] - 1,
// which are its tokens at positions starts[s] .. starts[s] + num_tokens[s] - 1. Decode rows come first. The
// last num_drafts[s] of a decoding sequence's rows are drafts: tokens that it has only if they are accepted.
// Copies are made before any row is computed; what one writes, no other reads.
//
// A plan made while another is outstanding may hold rows of tokens that are still to be drawn: their token_ids are
// kPendingToken, and token_sources names the row of the other plan's sampled rows that draws them. Sampled rows are
// those that yield a token, in order: of each sampling sequence its last known row and those of its drafts.
inline constexpr int32_t kPendingToken = -1;

struct StepPlan {
  int64_t step_id = 0;
  int32_t token_history = 0;                 // width of history
  std::vector<Handle> handles;               // [S]
  std::vector<int32_t> slots;                // [S]
  std::vector<int32_t> starts;               // [S]
  std::vector<int32_t> num_tokens;           // [S]
  std::vector<uint8_t> is_decode;            // [S]
  std::vector<uint8_t> samples;              // [S] its last row, and each row before a draft, yields a token
  std::vector<int32_t> num_drafts;           // [S]
  std::vector<int32_t> new_pages;            // [S] pages added at the end of its table by this step
  std::vector<int32_t> block_table_offsets;  // [S+1]
  std::vector<int32_t> block_table;          // pages covering positions 0 .. starts + num_tokens - 1
  std::vector<int32_t> tags;                 // [S] what the caller marked the sequence with
  std::vector<int32_t> token_ids;            // [N]
  std::vector<int32_t> token_sources;        // [N] sampled row of the plan before, -1 where the token is known
  std::vector<int32_t> positions;            // [N]
  std::vector<int32_t> query_offsets;        // [S+1]
  std::vector<int32_t> history;  // [S, token_history] tokens before the chunk, -1 before position 0
  std::vector<int32_t> page_copies;  // [C, 2] from, to
  std::vector<int32_t> slot_copies;  // [C, 2] from, to
  int32_t num_samples = 0;
  int32_t num_sampled_rows = 0;  // R: num_samples and their drafts
  int32_t num_pending = 0;       // rows of tokens that are still to be drawn
  int32_t any_tags = 0;          // bits that some sequence's tags have
  bool lacks_pages = false;      // somebody would have to be preempted, which waits until nothing is outstanding
  std::vector<std::pair<Handle, SkipReason>> skipped;
  std::vector<Handle> preempted;

  bool empty() const noexcept { return handles.empty(); }
};

// What was found outside about the tokens that a step drew for one sequence: it ends with the last of those kept.
struct Verdict {
  int32_t index = 0;     // which of the plan's sampling sequences
  int32_t num_kept = 0;  // how many of its tokens count
  SequenceState ending = SequenceState::finished_stop;
  std::string detail;  // see Sequence::end_detail
};

// One entry per output token that the step appended, in plan order.
struct CommitReport {
  std::vector<Handle> handles;
  std::vector<int32_t> tokens;
  std::vector<int32_t> output_index;  // 0 for the first output token of its request
};

}  // namespace deepinfer
