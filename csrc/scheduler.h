// Continuous batching over paged KV: decides which tokens the next step computes, and applies its outcome.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>

#include "step_plan.h"

namespace deepinfer {

struct SchedulerOptions {
  int32_t page_size = 128;             // tokens per page
  int32_t num_pages = 0;               // null page included
  int32_t num_slots = 0;               // null slot included
  int32_t max_num_seqs = 0;            // requests running at once
  int32_t max_num_batched_tokens = 0;  // rows per step
  int32_t max_model_len = 0;           // tokens per request, prompt included
  int32_t max_chunk_tokens = 0;        // prefill rows per request and step
  int32_t token_history = 0;           // tokens before each chunk that the plan carries
};

struct SubmitOptions {
  int64_t max_tokens = 0;
  int64_t min_tokens = 0;
  std::vector<int32_t> stop_token_ids = {};
  int64_t num_completions = 1;
  bool is_held = false;
  int32_t tags = 0;
  std::shared_ptr<const SamplingSpec> sampling = nullptr;  // null: tokens are drawn elsewhere
  std::vector<uint64_t> seeds = {};  // one per completion, where there is sampling
};

// Tokens proposed to follow the newest ones of S sequences; row i of tokens, up to counts[i], is for handles[i].
struct Drafts {
  std::span<const Handle> handles;
  std::span<const int32_t> counts;
  std::span<const int32_t> tokens;  // [S, width]
  size_t width = 0;

  std::span<const int32_t> of(size_t i) const noexcept {
    return tokens.subspan(i * width, static_cast<size_t>(counts[i]));
  }
};

// How a sequence has ended.
struct Ending {
  Handle handle;
  SequenceState state;
  std::string detail;
};

// The sequences that will decode next, with nothing in flight: those for which drafts can be made.
struct DecodingView {
  std::vector<Handle> handles;      // [S] rising
  std::vector<int32_t> slots;       // [S]
  std::vector<int32_t> num_tokens;  // [S]
  std::vector<int32_t> newest;      // [S] each one's last token
  std::vector<int32_t> room;        // [S] drafts that can be of use
  std::vector<int32_t> tags;        // [S]
  std::vector<double> temperature;  // [S] 0 where tokens are drawn elsewhere
};

// Deterministic: the same calls give the same plans. Not thread-safe; the bindings lock around it.
//
// One step is release_deferred(), schedule(), commit(). Up to two plans may be outstanding, which the device runs in
// their order: the second one is made while the first is computed, with rows for tokens that the first will draw.
// They are committed in order too. Bad calls throw and change nothing: std::invalid_argument for bad values,
// std::logic_error for calls out of order.
//
// While a plan is outstanding nobody is preempted: who lacks a page waits, and lacks_pages says that the next plan
// should be made after the commit. Nor is a sequence planned whose outstanding rows are drafts, as nobody knows where
// it will go on, or whose pending token is its last.
//
// Progress. Every plan contains rows whenever a request runs, and always samples a token or advances the
// running request M with the most computed tokens (the oldest of equals):
//  - no more requests run than max_num_batched_tokens, so each decode row fits the budget;
//  - victims are the requests with the fewest computed tokens, so M is one only when it runs alone; then
//    every page that is not deferred is its own or free, and the length limit keeps it within the cache;
//  - prefills are served by most computed tokens first. If M is one, a step passes over it only after
//    selecting a decode row or a fork's, which samples; with no such row it may preempt for the page that it
//    lacks.
// Sampled tokens survive preemption and are at most the sum of max_tokens; between two of them the computed
// tokens of M only grow, up to max_model_len. So no trace of preemptions can go on for ever.
//
// Completions. A request for several is as many sequences with neighbouring handles. While one of them computes the
// prompt, those that never ran are passed over, but what they will need counts as taken, so that nobody behind
// them gets it. In the plan after the one that completes it, they fork: they share the pages before the one of the prompt's last token by
// reference, get copies of that page and of the slot, and compute that token again, for its logits. Its slot
// must therefore allow for one position to be processed again. Who misses that step (no page, or somebody was
// preempted) is admitted like anybody else, computes its prompt by itself, and the others wait for it; forks of
// requests that came later go before it, for their needs were set aside.
//
// Drafts. They take rows and pages that everybody else has left, and pages of rejected ones are free again after
// commit(): a plan is the one without drafts, and rows added to it.
class Scheduler {
 public:
  explicit Scheduler(const SchedulerOptions& options);
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Throws std::invalid_argument as submit() would, and changes nothing.
  void check(const std::string& request_id, std::span<const int32_t> prompt, const SubmitOptions& limits) const;
  // Returns the handle of the first completion; those of the others follow it. A held request waits for release().
  Handle submit(std::string request_id, std::span<const int32_t> prompt, const SubmitOptions& options);
  // The first handle of a live request; 0 if there is none of this id.
  Handle find(const std::string& request_id) const noexcept;
  // What a held sequence waited for is there. False if it is not held (any more).
  bool release(Handle handle);
  // Both end a live sequence at once, in any state, and return false if it has ended already. If it is part of
  // an outstanding plan, commit() drops its result.
  bool cancel(Handle handle);
  bool finish(Handle handle, SequenceState terminal, std::string detail = {});

  // drafts of sequences that do not decode in this step are left out, and those that do not fit are cut off.
  // now: the caller's time in seconds, for SequenceTimes.
  std::shared_ptr<const StepPlan> schedule(const Drafts& drafts = {}, double now = 0.0);
  // Applies the outcome of the oldest outstanding plan.
  // tokens: those of each sampling sequence of the plan, in order; -1 ends that sequence with finished_error.
  // counts: how many of them are each sequence's, 1 + the drafts that were accepted; empty: one each. What comes
  // after a token that ends its sequence is dropped.
  // verdicts: by rising index, at most one for a sequence; of two endings at one token the verdict's counts.
  // logprobs: of the plan's sampled rows, for the sequences that keep them.
  CommitReport commit(const StepPlan& plan, std::span<const int32_t> tokens, std::span<const int32_t> counts = {},
                      std::span<const Verdict> verdicts = {}, const SampledLogprobs* logprobs = nullptr,
                      double now = 0.0);
  // Takes back every outstanding plan; no device may run one any more. Their live sequences go back to waiting and
  // compute everything again.
  void abandon();
  // How many tokens each sampling sequence of a plan gets: the drafts that its rows have drawn, up to the first that
  // they have not, and one more. sampled: [R], the token of each sampled row.
  static std::vector<int32_t> accepted_counts(const StepPlan& plan, std::span<const int32_t> sampled);

  // The only source of terminal events, in order of finishing: a sequence is there from its end until it is
  // acknowledged, so an event is lost only if nobody asks.
  std::vector<Ending> finished() const;
  void acknowledge(Handle handle);  // throws std::logic_error for a live sequence; a second time does nothing

  // The rows that draw a plan's tokens, R of them. Those of sequences that have ended meanwhile are idle. Draws depend
  // on everything committed, so it is made when the plan is the oldest outstanding one.
  SamplingBatch sampling_batch(const StepPlan& plan) const;
  // One row per sequence: the token that follows its newest one and so many drafts.
  SamplingBatch draft_batch(const Drafts& drafts) const;
  DecodingView decoding_view() const;
  std::vector<int32_t> num_useful(const Drafts& drafts) const;
  // Returns the pages and slots of finished requests and forgets those whose terminal event was taken.
  void release_deferred();

  const SchedulerOptions& options() const noexcept { return options_; }
  const Sequence& sequence(Handle handle) const;  // throws std::invalid_argument for an unknown handle
  int64_t num_outstanding() const noexcept { return static_cast<int64_t>(outstanding_.size()); }
  const BlockManager& pages() const noexcept { return pages_; }
  const BlockManager& slots() const noexcept { return slots_; }
  int64_t num_waiting() const noexcept { return static_cast<int64_t>(waiting_.size() + held_.size()); }
  int64_t num_running() const noexcept { return static_cast<int64_t>(running_.size()); }
  int64_t num_preemptions() const noexcept { return num_preemptions_; }
  bool has_unfinished() const noexcept { return !waiting_.empty() || !running_.empty() || !held_.empty(); }
  // Whether a plan made now could have rows: somebody runs or waits for nothing but the scheduler.
  bool has_work() const noexcept { return !waiting_.empty() || !running_.empty(); }

  std::string explain(Handle handle) const;
  void audit() const;  // throws std::runtime_error naming the first broken invariant

 private:
  friend struct TestAccess;
  struct Selection {
    Sequence* sequence;
    int64_t num_tokens;
    int32_t new_pages;
    std::span<const int32_t> drafts = {};  // the last of num_tokens
  };
  struct Step {
    int64_t budget = 0;
    std::vector<Selection> selected;
    std::vector<std::pair<Handle, SkipReason>> skipped;
    std::vector<Handle> preempted;
    std::vector<int32_t> page_copies;
    std::vector<int32_t> slot_copies;
    bool lacks_pages = false;
  };
  // A sequence's part of an outstanding plan.
  struct Flight {
    Sequence* sequence;
    int32_t num_rows;
    int32_t num_drafts;
    bool is_sampled;
  };
  struct Outstanding {
    std::shared_ptr<const StepPlan> plan;
    std::vector<Flight> flights;
  };
  // What is spoken for: places among the running, and free pages that will soon be asked for.
  struct Claims {
    int64_t places = 0;
    int64_t pages = 0;
  };

  std::vector<Sequence*> running_in(SequenceState state) const;
  void select_decodes(Step& step);
  void select_forks(Step& step);
  void fork(const Sequence& source, Sequence& sample, Step& step);
  void select_prefills(Step& step, std::vector<Sequence*> prefills);
  void admit_waiting(Step& step);
  void add_drafts(Step& step, const Drafts& drafts);
  bool add_draft(Selection& selection);
  std::shared_ptr<StepPlan> build_plan(const Step& step, double now);
  void append_to_plan(StepPlan& plan, const Selection& selection) const;

  void run(Sequence& sequence);
  void select(Sequence& sequence, int64_t num_tokens, Step& step);
  bool make_room(Sequence& sequence, Step& step);
  void preempt(Sequence& victim, Step& step);
  Sequence& least_work_lost() const;

  int64_t pages_for(int64_t num_tokens) const noexcept {
    return (num_tokens + options_.page_size - 1) / options_.page_size;
  }
  int64_t computable_tokens(const Sequence& sequence) const noexcept;
  int64_t expected_growth(const Sequence& sequence, int64_t num_pages) const noexcept;
  Claims running_claims() const noexcept;
  void claim_fork(const Sequence& sample, Claims& claims) const noexcept;
  bool awaits_prompt(const Sequence& sequence) const noexcept;
  bool is_awaited(const Sequence& sequence) const noexcept;
  void note_source(Sequence& sequence);
  bool give_up_ended_sources() noexcept;
  void trim_pages(Sequence& sequence) noexcept;
  std::optional<SkipReason> admission_obstacle(int64_t num_pages, const Claims& claims) const noexcept;
  std::string explain_waiting(const Sequence& sequence) const;
  std::string explain_admission(const Sequence& head, const Claims& claims) const;
  std::string explain_running(const Sequence& sequence) const;

  Sequence* lookup(Handle handle) const noexcept;
  void retire(Sequence& sequence, SequenceState terminal);
  void check_commit(const StepPlan& plan, std::span<const int32_t> tokens,
                    std::span<const int32_t> counts) const;
  std::optional<SequenceState> append(Sequence& sequence, std::span<const int32_t> tokens, const Verdict* verdict,
                                      int64_t first_row, const SampledLogprobs* logprobs, CommitReport& report);

  void audit_queues() const;
  void audit_resources() const;
  void audit_progress(const Sequence& sequence) const;

  SchedulerOptions options_;
  int64_t length_limit_;   // min(max_model_len, tokens that the cache holds)
  int64_t running_limit_;  // min(max_num_seqs, usable slots, max_num_batched_tokens)
  BlockManager pages_;     // declared before the sequences, whose leases point here
  BlockManager slots_;
  std::unordered_map<Handle, std::unique_ptr<Sequence>> sequences_;
  struct LiveRequest {
    Handle first;
    int64_t num_alive;
  };
  std::unordered_map<std::string, LiveRequest> live_ids_;
  std::unordered_map<Handle, Sequence*> held_;
  // By arrival. Admission overtakes only completions that wait for their prompt, whose needs are set aside.
  std::map<Handle, Sequence*> waiting_;
  std::vector<Sequence*> running_;     // by arrival
  std::vector<Sequence*> retired_;     // finished, not forgotten
  std::vector<Sequence*> unreported_;  // finished, terminal event not acknowledged
  // Have computed exactly their prompt, or will have by the newest plan, and others wait for it; until the next
  // plan. One may have ended by that: it keeps what it holds until then.
  std::vector<Sequence*> sources_;
  std::deque<Outstanding> outstanding_;
  std::vector<std::pair<Handle, SkipReason>> last_skipped_;
  Handle next_handle_ = 1;
  int64_t next_step_id_ = 0;
  int64_t num_preemptions_ = 0;
};

}  // namespace deepinfer
