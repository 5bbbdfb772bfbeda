// What the scheduler can say about itself: why a request waits, and whether its invariants hold.
#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <unordered_set>

#include "scheduler.h"

namespace deepinfer {

namespace {

using std::to_string;

[[noreturn]] void broken(const std::string& what) { throw std::runtime_error("scheduler: " + what); }

std::string name_of(const Sequence& sequence) {
  return "request '" + sequence.request_id() + "' (handle " + to_string(sequence.handle()) + ", " +
         std::string(label(sequence.state())) + ")";
}

}  // namespace

std::string_view label(SkipReason reason) noexcept {
  switch (reason) {
    case SkipReason::token_budget: return "token_budget";
    case SkipReason::no_free_page: return "no_free_page";
    case SkipReason::running_limit: return "running_limit";
    case SkipReason::no_free_slot: return "no_free_slot";
    case SkipReason::after_preemption: return "after_preemption";
    case SkipReason::shared_prompt: return "shared_prompt";
    case SkipReason::in_flight: return "in_flight";
  }
  return "";
}

// ---- Explanations ----

std::string Scheduler::explain(Handle handle) const {
  const Sequence& sequence = this->sequence(handle);
  const std::string state(label(sequence.state()));
  if (sequence.finished()) {
    return state + ": ended after " + to_string(sequence.num_output()) + " output tokens";
  }
  if (is_running(sequence.state())) return state + ": " + explain_running(sequence);
  if (sequence.state() == SequenceState::held) return state + ": waits for something outside the scheduler";
  return state + ": " + explain_waiting(sequence);
}

// Looks for the first that waits for more than its prompt: nobody behind it is admitted.
std::string Scheduler::explain_waiting(const Sequence& sequence) const {
  Claims claims = running_claims();
  auto head = waiting_.begin();
  for (; awaits_prompt(*head->second) && !admission_obstacle(1, claims); ++head) {
    if (head->second == &sequence) {
      return "waits for the prompt that it shares, which another completion of its request is computing";
    }
    claim_fork(*head->second, claims);
  }
  if (head->second == &sequence) return explain_admission(sequence, claims);
  const auto ahead = std::distance(head, waiting_.find(sequence.handle()));
  return "behind " + to_string(ahead) + " earlier request" + (ahead == 1 ? "" : "s") +
         ", the first of which ('" + head->second->request_id() + "') " +
         explain_admission(*head->second, claims);
}

std::string Scheduler::explain_admission(const Sequence& head, const Claims& claims) const {
  const int64_t num_pages = awaits_prompt(head) ? 1 : pages_for(head.num_tokens());
  const int64_t num_awaiting = claims.places - num_running();
  const std::string beside =
      num_awaiting == 0 ? "" : " and " + to_string(num_awaiting) + " are about to, with a prompt that they share";
  const auto obstacle = admission_obstacle(num_pages, claims);
  if (!obstacle) {
    const auto last = std::find_if(last_skipped_.begin(), last_skipped_.end(),
                                   [&](const auto& skip) { return skip.first == head.handle(); });
    if (last == last_skipped_.end()) return "is next to be admitted";
    return last->second == SkipReason::token_budget
               ? "is next to be admitted; the last step had no token of " +
                     to_string(options_.max_num_batched_tokens) + " (max_num_batched_tokens) left for it"
               : "is next to be admitted; the last step could not (" + std::string(label(last->second)) + ")";
  }
  switch (*obstacle) {
    case SkipReason::running_limit:
      return "waits for a running request to end: " + to_string(num_running()) + " run" + beside +
             ", the limit is " +
             to_string(running_limit_) + " (the least of max_num_seqs " + to_string(options_.max_num_seqs) +
             ", usable slots " + to_string(slots_.num_usable()) + ", max_num_batched_tokens " +
             to_string(options_.max_num_batched_tokens) + ")";
    case SkipReason::no_free_slot:
      return "waits for a state slot: of " + to_string(slots_.num_usable()) + ", " +
             to_string(slots_.num_usable() - slots_.num_free()) + " are leased" +
             (num_awaiting == 0 ? "" : " and " + to_string(num_awaiting) + " spoken for");
    default:
      return "needs " + to_string(num_pages) + " pages for its " + to_string(head.num_tokens()) +
             " known tokens; " + to_string(pages_.num_free()) + " of " + to_string(pages_.num_usable()) +
             " are free, of which " + to_string(claims.places) + " running requests are expected to need " +
             to_string(claims.pages);
  }
}

std::string Scheduler::explain_running(const Sequence& sequence) const {
  std::string text = to_string(sequence.num_computed()) + " of " + to_string(sequence.num_tokens()) +
                     " known tokens computed, " +
                     to_string(sequence.in_flight() - sequence.drafts_in_flight()) + " in flight";
  if (sequence.drafts_in_flight() > 0) text += " and " + to_string(sequence.drafts_in_flight()) + " drafts";
  const auto last = std::find_if(last_skipped_.begin(), last_skipped_.end(),
                                 [&](const auto& skip) { return skip.first == sequence.handle(); });
  if (last == last_skipped_.end()) return text;
  text += "; the last step passed over it: ";
  if (last->second == SkipReason::token_budget) {
    return text + "earlier rows used up the " + to_string(options_.max_num_batched_tokens) +
           " tokens of max_num_batched_tokens";
  }
  if (last->second == SkipReason::in_flight) return text + "what comes next depends on a step under way";
  return text + "no page was free; " + to_string(pages_.num_free()) + " of " +
         to_string(pages_.num_usable()) + " are free now";
}

// ---- Audit ----

void Scheduler::audit() const {
  pages_.audit();
  slots_.audit();
  audit_queues();
  audit_resources();
  int64_t rows = 0;
  for (const auto& [handle, sequence] : sequences_) {
    audit_progress(*sequence);
    rows += sequence->in_flight();
  }
  if (rows > options_.max_num_batched_tokens * static_cast<int64_t>(std::max<size_t>(outstanding_.size(), 1)))
    broken(to_string(rows) + " rows are in flight, over the budget");
  size_t planned = 0;
  for (const Outstanding& outstanding : outstanding_) planned += outstanding.plan->token_ids.size();
  if (static_cast<size_t>(rows) != planned) {
    broken(to_string(rows) + " rows are in flight, the outstanding plans have " + to_string(planned));
  }
}

void Scheduler::audit_queues() const {
  if (num_running() > running_limit_) {
    broken(to_string(num_running()) + " requests run, the limit is " + to_string(running_limit_));
  }
  if (!std::is_sorted(running_.begin(), running_.end(),
                      [](const Sequence* a, const Sequence* b) { return a->handle() < b->handle(); })) {
    broken("the running queue is out of order");
  }
  for (const Sequence* sequence : running_) {
    if (!is_running(sequence->state())) broken(name_of(*sequence) + " is in the running queue");
  }
  for (const auto& [handle, sequence] : waiting_) {
    if (handle != sequence->handle()) broken(name_of(*sequence) + " waits under a wrong handle");
    if (sequence->state() != SequenceState::waiting && sequence->state() != SequenceState::preempted) {
      broken(name_of(*sequence) + " is in the waiting queue");
    }
  }
  for (const auto& [handle, sequence] : held_) {
    if (sequence->state() != SequenceState::held) broken(name_of(*sequence) + " is among those held");
  }
  for (const Sequence* sequence : retired_) {
    if (!sequence->finished()) broken(name_of(*sequence) + " is retired");
  }
  const std::unordered_set<const Sequence*> unreported(unreported_.begin(), unreported_.end());
  if (unreported.size() != unreported_.size()) broken("a request has two terminal events");
  for (const auto& [handle, sequence] : sequences_) {
    if (sequence->finished() ? !sequence->reported && !unreported.contains(sequence.get())
                             : sequence->reported || unreported.contains(sequence.get())) {
      broken(name_of(*sequence) + " has a terminal event lost or too many");
    }
  }
  // Each queue holds only its own states, so equal totals mean that everyone is in exactly one queue.
  if (running_.size() + waiting_.size() + held_.size() + retired_.size() != sequences_.size()) {
    broken(to_string(running_.size()) + " running, " + to_string(waiting_.size() + held_.size()) + " waiting and " +
           to_string(retired_.size()) + " retired requests do not add up to " + to_string(sequences_.size()));
  }
  size_t num_live = 0;
  for (const auto& [id, request] : live_ids_) num_live += static_cast<size_t>(request.num_alive);
  if (running_.size() + waiting_.size() + held_.size() != num_live) {
    broken(to_string(num_live) + " sequences are live by their ids, but " +
           to_string(running_.size() + waiting_.size() + held_.size()) + " wait or run");
  }
  for (const Sequence* source : sources_) {
    if (source->num_scheduled() != source->prompt_length() || !source->slot) {
      broken(name_of(*source) + " is to be forked, but does not hold exactly its prompt");
    }
  }
}

void Scheduler::audit_resources() const {
  std::vector<int32_t> page_leases(static_cast<size_t>(pages_.num_blocks()));
  std::vector<int32_t> slot_leases(static_cast<size_t>(slots_.num_blocks()));
  for (const auto& [handle, sequence] : sequences_) {
    for (const Lease& page : sequence->pages) ++page_leases[static_cast<size_t>(page.id())];
    if (sequence->slot) ++slot_leases[static_cast<size_t>(sequence->slot.id())];
  }
  const auto compare = [](const char* kind, const BlockManager& manager, const std::vector<int32_t>& leases) {
    for (int32_t id = 0; id < manager.num_blocks(); ++id) {
      const int32_t leased = leases[static_cast<size_t>(id)];
      if (manager.ref_count(id) != leased) {
        broken(std::string(kind) + " " + to_string(id) + " has " + to_string(manager.ref_count(id)) +
               " references, but requests hold " + to_string(leased) + " leases on it");
      }
    }
  };
  compare("page", pages_, page_leases);
  compare("slot", slots_, slot_leases);
  if (std::any_of(slot_leases.begin(), slot_leases.end(), [](int32_t n) { return n > 1; })) {
    broken("two requests share a state slot");
  }
}

void Scheduler::audit_progress(const Sequence& sequence) const {
  const std::string name = name_of(sequence);
  const auto held = static_cast<int64_t>(sequence.pages.size());
  // Of the pending tokens all but the newest may be in flight themselves.
  // One that has ended may have rows for tokens that it was never given.
  const int64_t computable = sequence.finished()
                                 ? sequence.num_scheduled()
                                 : sequence.num_tokens() + std::max<int64_t>(sequence.num_pending() - 1, 0);
  if (sequence.num_scheduled() - sequence.drafts_in_flight() > computable || sequence.num_computed() < 0 || sequence.drafts_in_flight() < 0 ||
      sequence.in_flight() < sequence.drafts_in_flight() || sequence.num_pending() < 0 ||
      sequence.num_pending() > static_cast<int64_t>(outstanding_.size())) {
    broken(name + " has " + to_string(sequence.num_tokens()) + " tokens, " +
           to_string(sequence.num_computed()) + " computed and " + to_string(sequence.in_flight()) +
           " in flight");
  }
  if (held != pages_for(sequence.num_scheduled())) {
    broken(name + " holds " + to_string(held) + " pages for " + to_string(sequence.num_scheduled()) +
           " tokens");
  }
  // A page is shared only when nobody will write to it.
  for (auto i = static_cast<size_t>((sequence.prompt_length() - 1) / options_.page_size);
       i < sequence.pages.size(); ++i) {
    if (pages_.ref_count(sequence.pages[i].id()) != 1) {
      broken(name + " shares page " + to_string(sequence.pages[i].id()) + ", which it writes to");
    }
  }
  if (sequence.num_tokens() > length_limit_ || sequence.num_tokens() > sequence.max_length()) {
    broken(name + " has " + to_string(sequence.num_tokens()) + " tokens, over its limit of " +
           to_string(std::min(length_limit_, sequence.max_length())));
  }
  if (sequence.drafts_in_flight() > 0 && sequence.num_scheduled() >= sequence.max_length()) {
    broken(name + " drafts " + to_string(sequence.drafts_in_flight()) + " tokens, past its limit of " +
           to_string(sequence.max_length()));
  }
  if (sequence.finished()) return;
  if (is_running(sequence.state()) != static_cast<bool>(sequence.slot))
    broken(name + " is wrong about its slot");
  if (!is_running(sequence.state()) && sequence.num_scheduled() != 0)
    broken(name + " waits, but has progress");
  if (is_running(sequence.state()) && sequence.num_scheduled() == 0) broken(name + " runs without any row");
  if (sequence.state() == SequenceState::decoding && sequence.num_tokens() - sequence.num_computed() != 1) {
    broken(name + " decodes with " + to_string(sequence.num_tokens() - sequence.num_computed()) +
           " tokens to compute");
  }
}

}  // namespace deepinfer
