#include "scheduler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace deepinfer {

namespace {

using enum SequenceState;
using std::to_string;

constexpr size_t kMaxOutstanding = 2;

const SchedulerOptions& validated(const SchedulerOptions& options) {
  const auto at_least = [](const char* name, int64_t value, int64_t least, const char* why = "") {
    if (value < least) {
      throw std::invalid_argument(std::string(name) + " must be at least " + to_string(least) + why +
                                  ", got " + to_string(value));
    }
  };
  at_least("page_size", options.page_size, 1);
  at_least("num_pages", options.num_pages, 2, " (page 0 is never handed out)");
  at_least("num_slots", options.num_slots, 2, " (slot 0 is never handed out)");
  at_least("max_num_seqs", options.max_num_seqs, 1);
  at_least("max_num_batched_tokens", options.max_num_batched_tokens, 1);
  at_least("max_model_len", options.max_model_len, 2, " (one prompt token and one output token)");
  at_least("max_chunk_tokens", options.max_chunk_tokens, 1);
  at_least("token_history", options.token_history, 0);
  return options;
}

bool older(const Sequence* a, const Sequence* b) noexcept { return a->handle() < b->handle(); }

bool more_computed(const Sequence* a, const Sequence* b) noexcept {
  return a->num_computed() != b->num_computed() ? a->num_computed() > b->num_computed() : older(a, b);
}

}  // namespace

Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(validated(options)),
      length_limit_(
          std::min<int64_t>(options.max_model_len, int64_t{options.num_pages - 1} * options.page_size)),
      running_limit_(std::min({options.max_num_seqs, options.num_slots - 1, options.max_num_batched_tokens})),
      pages_(options.num_pages),
      slots_(options.num_slots) {}

// ---- Requests ----

void Scheduler::check(const std::string& request_id, std::span<const int32_t> prompt,
                      const SubmitOptions& limits) const {
  const auto refuse = [&](const std::string& what) {
    throw std::invalid_argument("request '" + request_id + "': " + what);
  };
  const auto length = static_cast<int64_t>(prompt.size());
  if (prompt.empty()) refuse("the prompt is empty; give at least one token");
  if (limits.max_tokens < 1) refuse("max_tokens must be at least 1, got " + to_string(limits.max_tokens));
  if (limits.num_completions < 1) {
    refuse("num_completions must be at least 1, got " + to_string(limits.num_completions));
  }
  if (limits.sampling && static_cast<int64_t>(limits.seeds.size()) != limits.num_completions) {
    refuse("seeds must be one per completion (" + to_string(limits.num_completions) + "), got " +
           to_string(limits.seeds.size()));
  }
  if (limits.min_tokens < 0) refuse("min_tokens must be at least 0, got " + to_string(limits.min_tokens));
  if (length >= options_.max_model_len) {
    refuse("the prompt has " + to_string(length) + " tokens, but max_model_len is " +
           to_string(options_.max_model_len) +
           " and must leave room for one output token; shorten the prompt");
  }
  if (length >= length_limit_) {
    refuse("the prompt and one output token need " + to_string(pages_for(length + 1)) + " pages (" +
           to_string(length + 1) + " tokens), but the cache has " + to_string(pages_.num_usable()) + " of " +
           to_string(options_.page_size) + " tokens; shorten the prompt or enlarge the cache");
  }
  const auto negative = std::find_if(prompt.begin(), prompt.end(), [](int32_t token) { return token < 0; });
  if (negative != prompt.end()) {
    refuse("token ids must not be negative, got " + to_string(*negative) + " at position " +
           to_string(negative - prompt.begin()));
  }
}

Handle Scheduler::submit(std::string request_id, std::span<const int32_t> prompt,
                         const SubmitOptions& options) {
  check(request_id, prompt, options);
  if (live_ids_.contains(request_id)) {
    throw std::invalid_argument("request '" + request_id +
                                "': a request with this id is still alive; choose another id");
  }
  const auto length = static_cast<int64_t>(prompt.size());
  const Handle first = next_handle_;
  const int64_t max_length = length + std::min(options.max_tokens, length_limit_ - length);
  const SequenceLimits own{max_length, options.min_tokens, options.stop_token_ids};
  for (; next_handle_ < first + options.num_completions; ++next_handle_) {
    const Handle group = options.num_completions > 1 ? first : 0;
    auto sequence = std::make_unique<Sequence>(next_handle_, request_id, prompt, own, group);
    sequence->tags = options.tags;
    if (options.sampling) {
      sequence->sampling.emplace(options.sampling, options.seeds[static_cast<size_t>(next_handle_ - first)], prompt);
      if (options.sampling->num_logprobs >= 0) sequence->logprobs = std::make_unique<LogprobLog>();
    }
    if (options.is_held) {
      sequence->hold();
      held_.emplace(next_handle_, sequence.get());
    } else {
      waiting_.emplace(next_handle_, sequence.get());
    }
    sequences_.emplace(next_handle_, std::move(sequence));
  }
  live_ids_.emplace(std::move(request_id), LiveRequest{first, options.num_completions});
  return first;
}

Handle Scheduler::find(const std::string& request_id) const noexcept {
  const auto it = live_ids_.find(request_id);
  return it == live_ids_.end() ? 0 : it->second.first;
}

bool Scheduler::release(Handle handle) {
  this->sequence(handle);
  const auto it = held_.find(handle);
  if (it == held_.end()) return false;
  it->second->transition(waiting);
  waiting_.emplace(handle, it->second);
  held_.erase(it);
  return true;
}

Sequence* Scheduler::lookup(Handle handle) const noexcept {
  const auto it = sequences_.find(handle);
  return it == sequences_.end() ? nullptr : it->second.get();
}

const Sequence& Scheduler::sequence(Handle handle) const {
  if (const Sequence* sequence = lookup(handle)) return *sequence;
  throw std::invalid_argument("handle " + to_string(handle) +
                              " is unknown: never issued, or forgotten after its request ended");
}

bool Scheduler::cancel(Handle handle) { return finish(handle, finished_aborted); }

bool Scheduler::finish(Handle handle, SequenceState terminal, std::string detail) {
  Sequence* sequence = lookup(handle);
  if (sequence == nullptr || sequence->finished()) {
    if (handle < 1 || handle >= next_handle_) {
      throw std::invalid_argument("handle " + to_string(handle) + " was never issued");
    }
    return false;
  }
  const SequenceState before = sequence->state();
  retire(*sequence, terminal);
  sequence->end_detail = std::move(detail);
  if (is_running(before)) {
    std::erase(running_, sequence);
  } else if (before == held) {
    held_.erase(handle);
  } else {
    waiting_.erase(handle);
  }
  return true;
}

void Scheduler::retire(Sequence& sequence, SequenceState terminal) {
  sequence.transition(terminal);
  const auto id = live_ids_.find(sequence.request_id());
  if (--id->second.num_alive == 0) live_ids_.erase(id);
  retired_.push_back(&sequence);
  unreported_.push_back(&sequence);
}

std::vector<Ending> Scheduler::finished() const {
  std::vector<Ending> endings;
  endings.reserve(unreported_.size());
  for (const Sequence* sequence : unreported_) {
    if (sequence->reported) continue;
    endings.push_back({sequence->handle(), sequence->state(), sequence->end_detail});
  }
  return endings;
}

void Scheduler::acknowledge(Handle handle) {
  Sequence* sequence = lookup(handle);
  if (sequence == nullptr) return;
  if (!sequence->finished()) {
    throw std::logic_error("handle " + to_string(handle) + " is alive, so there is no end to acknowledge");
  }
  sequence->reported = true;
}

void Scheduler::release_deferred() {
  std::erase_if(unreported_, [](const Sequence* sequence) { return sequence->reported; });
  std::erase_if(sources_, [this](const Sequence* source) { return !is_awaited(*source); });
  std::erase_if(retired_, [this](Sequence* sequence) {
    if (sequence->in_flight() > 0) return false;
    if (std::find(sources_.begin(), sources_.end(), sequence) != sources_.end()) return false;
    sequence->release_resources();
    if (!sequence->reported) return false;
    sequences_.erase(sequence->handle());
    return true;
  });
}

// ---- Planning ----

std::shared_ptr<const StepPlan> Scheduler::schedule(const Drafts& drafts, double now) {
  if (outstanding_.size() == kMaxOutstanding) {
    throw std::logic_error("plans " + to_string(outstanding_.front().plan->step_id) + " and " +
                           to_string(outstanding_.back().plan->step_id) +
                           " are still outstanding; commit the first before scheduling another step");
  }
  for (size_t i = 0; i < drafts.handles.size(); ++i) {
    for (const int32_t token : drafts.of(i)) {
      if (token < 0) {
        throw std::invalid_argument("drafts must be token ids, got " + to_string(token) + " for handle " +
                                    to_string(drafts.handles[i]));
      }
    }
  }
  Step step;
  step.budget = options_.max_num_batched_tokens;
  select_decodes(step);
  std::vector<Sequence*> prefills = running_in(prefilling);  // without the forks of this step
  select_forks(step);
  select_prefills(step, std::move(prefills));
  admit_waiting(step);
  add_drafts(step, drafts);
  last_skipped_ = step.skipped;
  return build_plan(step, now);
}

std::vector<Sequence*> Scheduler::running_in(SequenceState state) const {
  std::vector<Sequence*> sequences;
  sequences.reserve(running_.size());
  std::copy_if(running_.begin(), running_.end(), std::back_inserter(sequences),
               [&](const Sequence* sequence) { return sequence->state() == state; });
  return sequences;
}

void Scheduler::select_decodes(Step& step) {
  step.selected.reserve(running_.size());
  std::vector<Sequence*> decodes;
  decodes.reserve(running_.size());
  std::copy_if(running_.begin(), running_.end(), std::back_inserter(decodes),
               [](const Sequence* sequence) { return sequence->decodes(); });
  for (Sequence* sequence : decodes) {
    if (!is_running(sequence->state())) continue;  // preempted for a row before it
    if (!sequence->is_plannable()) {
      step.skipped.emplace_back(sequence->handle(), SkipReason::in_flight);
    } else if (make_room(*sequence, step)) {
      select(*sequence, 1, step);
    }
  }
}

// Before prefills: each takes a single row, and the next step is too late for it.
void Scheduler::select_forks(Step& step) {
  Claims claims = sources_.empty() ? Claims{} : running_claims();
  for (const Sequence* source : sources_) {
    auto it = waiting_.lower_bound(source->group());
    while (it != waiting_.end() && it->second->group() == source->group()) {
      Sequence& sibling = *it->second;
      if (sibling.state() != waiting) {  // preempted: it has tokens of its own
        ++it;
        continue;
      }
      if (!step.preempted.empty() || step.budget == 0 || admission_obstacle(1, claims)) break;
      claim_fork(sibling, claims);
      it = waiting_.erase(it);
      fork(*source, sibling, step);
      --claims.pages;  // the one that it has now
    }
  }
  give_up_ended_sources();
  sources_.clear();
}

void Scheduler::fork(const Sequence& source, Sequence& sibling, Step& step) {
  const int64_t computed = sibling.prompt_length() - 1;
  const auto num_shared = static_cast<size_t>(computed / options_.page_size);
  run(sibling);
  for (size_t i = 0; i < num_shared; ++i) sibling.pages.push_back(pages_.pin(source.pages[i].id()));
  sibling.adopt(computed);
  select(sibling, 1, step);
  for (const int32_t slot : {source.slot.id(), sibling.slot.id()}) step.slot_copies.push_back(slot);
  if (computed % options_.page_size == 0) return;  // its own page starts with the token that it computes
  for (const Sequence* sequence : {&source, &std::as_const(sibling)}) {
    step.page_copies.push_back(sequence->pages[num_shared].id());
  }
}

void Scheduler::select_prefills(Step& step, std::vector<Sequence*> prefills) {
  std::sort(prefills.begin(), prefills.end(), more_computed);
  for (Sequence* sequence : prefills) {
    if (sequence->state() != prefilling || sequence->decodes()) continue;  // preempted for a row before it, or planned
    if (!sequence->is_plannable()) {
      step.skipped.emplace_back(sequence->handle(), SkipReason::in_flight);
      continue;
    }
    if (step.budget == 0) {
      step.skipped.emplace_back(sequence->handle(), SkipReason::token_budget);
      continue;
    }
    // With rows in the plan already, waiting for a page costs less than taking one away from somebody.
    if (step.selected.empty()) {
      if (!make_room(*sequence, step)) continue;
    } else if (computable_tokens(*sequence) == 0) {
      step.skipped.emplace_back(sequence->handle(), SkipReason::no_free_page);
      continue;
    }
    select(*sequence,
           std::min({sequence->num_unscheduled(), int64_t{options_.max_chunk_tokens}, step.budget,
                     computable_tokens(*sequence)}),
           step);
  }
}

void Scheduler::admit_waiting(Step& step) {
  Claims claims = waiting_.empty() ? Claims{} : running_claims();
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    Sequence& head = *it->second;
    const bool awaits = awaits_prompt(head);
    auto obstacle = admission_obstacle(awaits ? 1 : pages_for(head.num_tokens()), claims);
    if (!step.preempted.empty()) obstacle = SkipReason::after_preemption;
    if (step.budget == 0 && !awaits) obstacle = SkipReason::token_budget;
    if (obstacle) {
      step.skipped.emplace_back(head.handle(), *obstacle);
      return;
    }
    if (awaits) {
      step.skipped.emplace_back(head.handle(), SkipReason::shared_prompt);
      claim_fork(head, claims);
      ++it;
      continue;
    }
    it = waiting_.erase(it);
    run(head);
    select(head, std::min({head.num_tokens(), int64_t{options_.max_chunk_tokens}, step.budget}), step);
    ++claims.places;
    claims.pages += expected_growth(head, static_cast<int64_t>(head.pages.size()));
  }
}

void Scheduler::run(Sequence& sequence) {
  sequence.transition(prefilling);
  sequence.slot = slots_.allocate();
  running_.insert(std::upper_bound(running_.begin(), running_.end(), &sequence, older), &sequence);
}

// First everybody's first draft, then everybody's second: the earlier a draft, the likelier it is accepted.
void Scheduler::add_drafts(Step& step, const Drafts& drafts) {
  struct Wish {
    Selection* selection;
    std::span<const int32_t> tokens;
  };
  if (drafts.handles.empty()) return;
  std::unordered_map<Handle, size_t> places;
  for (size_t i = 0; i < drafts.handles.size(); ++i) places.emplace(drafts.handles[i], i);
  std::vector<Wish> wishes;
  for (Selection& selection : step.selected) {
    const Sequence& sequence = *selection.sequence;
    const auto found = places.find(sequence.handle());
    // Drafts follow a known token.
    if (sequence.state() != decoding || sequence.num_pending() > 0 || found == places.end()) continue;
    // Beside the drafts there is a token of the last row's own.
    const auto useful = static_cast<size_t>(sequence.max_length() - sequence.num_tokens() - 1);
    const std::span<const int32_t> tokens = drafts.of(found->second);
    wishes.push_back({&selection, tokens.first(std::min(useful, tokens.size()))});
  }
  for (size_t depth = 0; !wishes.empty() && step.budget > 0; ++depth) {
    std::erase_if(wishes, [&](const Wish& wish) {
      if (depth >= wish.tokens.size() || step.budget == 0 || !add_draft(*wish.selection)) return true;
      wish.selection->drafts = wish.tokens.first(depth + 1);
      --step.budget;
      return false;
    });
  }
}

// One more row, unless it needs a page and none is free.
bool Scheduler::add_draft(Selection& selection) {
  Sequence& sequence = *selection.sequence;
  const int64_t end = sequence.num_scheduled() + selection.num_tokens + 1;
  if (pages_for(end) > static_cast<int64_t>(sequence.pages.size())) {
    if (pages_.num_free() == 0) return false;
    sequence.pages.push_back(pages_.allocate());
    ++selection.new_pages;
  }
  ++selection.num_tokens;
  return true;
}

// How many more tokens its own pages and the free ones can take.
int64_t Scheduler::computable_tokens(const Sequence& sequence) const noexcept {
  const int64_t pages = static_cast<int64_t>(sequence.pages.size()) + pages_.num_free();
  return pages * options_.page_size - sequence.num_scheduled();
}

// Pages that a running request will ask for soon, when it holds num_pages: the rest of its known tokens, or one
// more to grow into.
int64_t Scheduler::expected_growth(const Sequence& sequence, int64_t num_pages) const noexcept {
  const int64_t at_most = pages_for(sequence.max_length() - 1);  // the last token is never computed
  return std::max(pages_for(sequence.num_tokens()), std::min(num_pages + 1, at_most)) - num_pages;
}

Scheduler::Claims Scheduler::running_claims() const noexcept {
  Claims claims{.places = num_running(), .pages = 0};
  for (const Sequence* sequence : running_) {
    claims.pages += expected_growth(*sequence, static_cast<int64_t>(sequence->pages.size()));
  }
  return claims;
}

// A fork takes one page, the last of its prompt, and grows like anybody else.
void Scheduler::claim_fork(const Sequence& sibling, Claims& claims) const noexcept {
  ++claims.places;
  claims.pages += 1 + expected_growth(sibling, pages_for(sibling.prompt_length()));
}

// Whether another completion is computing the prompt that this one, which never ran, can start from.
bool Scheduler::awaits_prompt(const Sequence& sequence) const noexcept {
  if (sequence.group() == 0 || sequence.state() != waiting || sequence.prompt_length() == 1) return false;
  auto it = std::lower_bound(running_.begin(), running_.end(), sequence.group(),
                             [](const Sequence* s, Handle handle) { return s->handle() < handle; });
  for (; it != running_.end() && (*it)->group() == sequence.group(); ++it) {
    if ((*it)->num_output() == 0) return true;
  }
  return false;
}

// Whether others can start from what this sequence holds: it has computed exactly its prompt, or a step under way
// does, which is before any that is planned now.
bool Scheduler::is_awaited(const Sequence& sequence) const noexcept {
  const int64_t length = sequence.prompt_length();
  if (sequence.group() == 0 || length == 1 || sequence.num_scheduled() != length) return false;
  auto it = waiting_.lower_bound(sequence.group());
  for (; it != waiting_.end() && it->second->group() == sequence.group(); ++it) {
    if (it->second->state() == waiting) return true;
  }
  return false;
}

// Keeps the first of a request's sequences that others can start from.
void Scheduler::note_source(Sequence& sequence) {
  const auto is_sibling = [&](const Sequence* source) { return source->group() == sequence.group(); };
  if (sequence.num_output() == 0 && is_awaited(sequence) &&
      std::none_of(sources_.begin(), sources_.end(), is_sibling)) {
    sources_.push_back(&sequence);
  }
}

// Nobody computes with what these hold, so it is the first to go. False if there is none.
bool Scheduler::give_up_ended_sources() noexcept {
  return std::erase_if(sources_, [](Sequence* source) {
           if (!source->finished() || source->in_flight() > 0) return false;
           source->release_resources();
           return true;
         }) > 0;
}

// Nothing is reserved for the newcomer: pages are leased chunk by chunk. But it must find enough free ones
// for its known tokens beside what the running requests are about to need, or they would soon preempt each
// other.
std::optional<SkipReason> Scheduler::admission_obstacle(int64_t num_pages,
                                                        const Claims& claims) const noexcept {
  if (claims.places >= running_limit_) return SkipReason::running_limit;
  if (slots_.num_free() <= claims.places - num_running()) return SkipReason::no_free_slot;
  if (num_pages + claims.pages > pages_.num_free()) return SkipReason::no_free_page;
  return std::nullopt;
}

void Scheduler::select(Sequence& sequence, int64_t num_tokens, Step& step) {
  const auto before = sequence.pages.size();
  const auto after = static_cast<size_t>(pages_for(sequence.num_scheduled() + num_tokens));
  while (sequence.pages.size() < after) sequence.pages.push_back(pages_.allocate());
  step.selected.push_back({&sequence, num_tokens, static_cast<int32_t>(after - before), {}});
  step.budget -= num_tokens;
}

// Preempts until the sequence can compute one token. False if that took the sequence itself, if it runs alone (then
// only deferred pages are missing, and they come back without any work lost), or if a plan is outstanding, whose rows
// must keep their pages.
bool Scheduler::make_room(Sequence& sequence, Step& step) {
  while (computable_tokens(sequence) == 0) {
    if (give_up_ended_sources()) continue;
    if (running_.size() == 1 || !outstanding_.empty()) {
      step.skipped.emplace_back(sequence.handle(), SkipReason::no_free_page);
      step.lacks_pages |= !outstanding_.empty();
      return false;
    }
    Sequence& victim = least_work_lost();
    preempt(victim, step);
    if (&victim == &sequence) return false;
  }
  return true;
}

Sequence& Scheduler::least_work_lost() const {
  return **std::max_element(running_.begin(), running_.end(),
                            [](const Sequence* a, const Sequence* b) { return more_computed(a, b); });
}

void Scheduler::preempt(Sequence& victim, Step& step) {
  std::erase_if(step.selected, [&](const Selection& selection) {
    if (selection.sequence != &victim) return false;
    step.budget += selection.num_tokens;
    return true;
  });
  victim.transition(preempted);
  ++victim.num_preemptions;
  victim.release_resources();
  std::erase(running_, &victim);
  waiting_.emplace(victim.handle(), &victim);
  step.preempted.push_back(victim.handle());
  ++num_preemptions_;
}

std::shared_ptr<StepPlan> Scheduler::build_plan(const Step& step, double now) {
  auto plan = std::make_shared<StepPlan>();
  const size_t num_seqs = step.selected.size();
  size_t table_length = 0;
  for (const Selection& selection : step.selected) table_length += selection.sequence->pages.size();
  const auto num_rows = static_cast<size_t>(options_.max_num_batched_tokens - step.budget);
  plan->step_id = next_step_id_++;
  plan->token_history = options_.token_history;
  plan->handles.reserve(num_seqs);
  for (auto* column :
       {&plan->slots, &plan->starts, &plan->num_tokens, &plan->new_pages, &plan->num_drafts, &plan->tags})
    column->reserve(num_seqs);
  plan->is_decode.reserve(num_seqs);
  plan->samples.reserve(num_seqs);
  plan->block_table_offsets.reserve(num_seqs + 1);
  plan->query_offsets.reserve(num_seqs + 1);
  plan->block_table.reserve(table_length);
  plan->token_ids.reserve(num_rows);
  plan->token_sources.reserve(num_rows);
  plan->positions.reserve(num_rows);
  plan->history.reserve(num_seqs * static_cast<size_t>(options_.token_history));
  plan->block_table_offsets.push_back(0);
  plan->query_offsets.push_back(0);

  Outstanding outstanding{plan, {}};
  outstanding.flights.reserve(num_seqs);
  for (const Selection& selection : step.selected) {
    append_to_plan(*plan, selection);
    Sequence& sequence = *selection.sequence;
    const auto num_drafts = static_cast<int32_t>(selection.drafts.size());
    const bool is_sampled = plan->samples.back() != 0;
    sequence.begin_step(selection.num_tokens, num_drafts, is_sampled ? plan->num_sampled_rows : -1);
    if (is_sampled) plan->num_sampled_rows += 1 + num_drafts;
    outstanding.flights.push_back(
        {&sequence, static_cast<int32_t>(selection.num_tokens), num_drafts, is_sampled});
    if (sequence.times.first_scheduled == 0.0) sequence.times.first_scheduled = now;
    if (is_sampled) note_source(sequence);
  }
  plan->lacks_pages = step.lacks_pages;
  plan->page_copies = step.page_copies;
  plan->slot_copies = step.slot_copies;
  plan->skipped = step.skipped;
  plan->preempted = step.preempted;
  // An empty plan has nothing to commit, so a caller may drop it and poll again.
  if (!plan->empty()) outstanding_.push_back(std::move(outstanding));
  return plan;
}

void Scheduler::append_to_plan(StepPlan& plan, const Selection& selection) const {
  const Sequence& sequence = *selection.sequence;
  const std::span<const int32_t> tokens = sequence.tokens().span();
  const int64_t start = sequence.num_scheduled();
  const int64_t end = start + selection.num_tokens;
  // The last known row's end: what comes behind it are drafts, or the pending token.
  const int64_t last = end - static_cast<int64_t>(selection.drafts.size());
  const int64_t known = std::min(last, sequence.num_tokens());
  const bool samples = last == sequence.num_tokens() + sequence.num_pending();
  plan.handles.push_back(sequence.handle());
  plan.slots.push_back(sequence.slot.id());
  plan.starts.push_back(static_cast<int32_t>(start));
  plan.num_tokens.push_back(static_cast<int32_t>(selection.num_tokens));
  plan.new_pages.push_back(selection.new_pages);
  plan.is_decode.push_back(sequence.decodes());
  plan.samples.push_back(samples);
  plan.num_samples += samples;
  plan.num_drafts.push_back(static_cast<int32_t>(selection.drafts.size()));
  plan.tags.push_back(sequence.tags);
  plan.any_tags |= sequence.tags;
  for (const Lease& page : sequence.pages) plan.block_table.push_back(page.id());
  plan.block_table_offsets.push_back(static_cast<int32_t>(plan.block_table.size()));
  if (start < known) plan.token_ids.insert(plan.token_ids.end(), tokens.begin() + start, tokens.begin() + known);
  plan.token_sources.insert(plan.token_sources.end(), static_cast<size_t>(std::max<int64_t>(known - start, 0)), -1);
  if (known < last) {
    plan.token_ids.push_back(kPendingToken);
    plan.token_sources.push_back(sequence.pending_row());
    ++plan.num_pending;
  }
  plan.token_ids.insert(plan.token_ids.end(), selection.drafts.begin(), selection.drafts.end());
  plan.token_sources.insert(plan.token_sources.end(), selection.drafts.size(), -1);
  for (int64_t position = start; position < end; ++position) {
    plan.positions.push_back(static_cast<int32_t>(position));
  }
  plan.query_offsets.push_back(static_cast<int32_t>(plan.token_ids.size()));
  for (int64_t position = start - options_.token_history; position < start; ++position) {
    plan.history.push_back(position < 0 ? -1 : tokens[static_cast<size_t>(position)]);
  }
}

// ---- Outcome ----

void Scheduler::check_commit(const StepPlan& plan, std::span<const int32_t> tokens,
                             std::span<const int32_t> counts) const {
  const std::string name = "plan " + to_string(plan.step_id);
  if (outstanding_.empty() || &plan != outstanding_.front().plan.get()) {
    throw std::logic_error(
        name + " is not the oldest outstanding one (" +
        (outstanding_.empty() ? std::string("none is") : "plan " + to_string(outstanding_.front().plan->step_id)) +
        "); commit each plan once, in order, to the scheduler that made it");
  }
  const auto num_samples = static_cast<size_t>(plan.num_samples);
  if (!counts.empty() && counts.size() != num_samples) {
    throw std::invalid_argument(name + " has " + to_string(num_samples) + " sampling sequences, got " +
                                to_string(counts.size()) + " counts");
  }
  const int64_t expected =
      counts.empty() ? plan.num_samples : std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (static_cast<int64_t>(tokens.size()) != expected) {
    throw std::invalid_argument(name + " samples " + to_string(expected) + " tokens, got " +
                                to_string(tokens.size()));
  }
  const auto bad = std::find_if(tokens.begin(), tokens.end(), [](int32_t token) { return token < -1; });
  if (bad != tokens.end()) {
    throw std::invalid_argument("sampled tokens must be token ids or -1 for a failed row, got " +
                                to_string(*bad) + " at index " + to_string(bad - tokens.begin()));
  }
  if (counts.empty()) return;
  const int32_t* accepted = tokens.data();
  for (size_t s = 0, sample = 0; s < plan.handles.size(); ++s) {
    if (!plan.samples[s]) continue;
    const int32_t count = counts[sample++], num_drafts = plan.num_drafts[s];
    if (count < 1 || count > 1 + num_drafts) {
      throw std::invalid_argument("handle " + to_string(plan.handles[s]) + " has " + to_string(num_drafts) +
                                  " drafts, so its count must be in 1.." + to_string(1 + num_drafts) + ", got " +
                                  to_string(count));
    }
    const auto drafts = plan.token_ids.begin() + plan.query_offsets[s + 1] - num_drafts;
    // The rows after a draft were computed with it, so nothing else may stand in its place.
    if (!std::equal(accepted, accepted + count - 1, drafts)) {
      throw std::invalid_argument("handle " + to_string(plan.handles[s]) + ": the first " +
                                  to_string(count - 1) + " of " + to_string(count) +
                                  " tokens must be its drafts");
    }
    accepted += count;
  }
}

std::vector<int32_t> Scheduler::accepted_counts(const StepPlan& plan, std::span<const int32_t> sampled) {
  if (static_cast<int64_t>(sampled.size()) != plan.num_sampled_rows) {
    throw std::invalid_argument("plan " + to_string(plan.step_id) + " samples " + to_string(plan.num_sampled_rows) +
                                " rows, got " + to_string(sampled.size()) + " tokens");
  }
  std::vector<int32_t> counts;
  counts.reserve(static_cast<size_t>(plan.num_samples));
  const int32_t* drawn = sampled.data();
  for (size_t s = 0; s < plan.handles.size(); ++s) {
    if (!plan.samples[s]) continue;
    const int32_t num_drafts = plan.num_drafts[s];
    const auto drafts = plan.token_ids.begin() + plan.query_offsets[s + 1] - num_drafts;
    const auto wrong = std::mismatch(drawn, drawn + num_drafts, drafts).first;
    counts.push_back(1 + static_cast<int32_t>(wrong - drawn));
    drawn += 1 + num_drafts;
  }
  return counts;
}

CommitReport Scheduler::commit(const StepPlan& plan, std::span<const int32_t> tokens,
                               std::span<const int32_t> counts, std::span<const Verdict> verdicts,
                               const SampledLogprobs* logprobs, double now) {
  CommitReport report;
  if (plan.empty() && tokens.empty() && counts.empty()) return report;
  check_commit(plan, tokens, counts);
  report.handles.reserve(tokens.size());
  report.tokens.reserve(tokens.size());
  report.output_index.reserve(tokens.size());
  bool any_finished = false;
  int64_t row = 0;
  int32_t index = 0;
  for (const Flight& flight : outstanding_.front().flights) {
    Sequence& sequence = *flight.sequence;
    if (!flight.is_sampled) {
      sequence.complete_step(flight.num_rows, 0, false, 0);
      continue;
    }
    const auto own = tokens.first(counts.empty() ? 1 : static_cast<size_t>(counts[static_cast<size_t>(index)]));
    tokens = tokens.subspan(own.size());
    const Verdict* verdict = !verdicts.empty() && verdicts.front().index == index ? &verdicts.front() : nullptr;
    if (verdict) verdicts = verdicts.subspan(1);
    // A failed row leaves nothing that others could start from.
    if (own.front() < 0) std::erase(sources_, &sequence);
    if (sequence.finished()) {
      sequence.complete_step(flight.num_rows, flight.num_drafts, true, 0);
    } else {
      const int64_t num_before = sequence.num_tokens();
      const auto terminal = append(sequence, own, verdict, row, logprobs, report);
      const int64_t num_accepted = std::max<int64_t>(sequence.num_tokens() - num_before - 1, 0);
      sequence.complete_step(flight.num_rows, flight.num_drafts, true, num_accepted);
      if (flight.num_drafts > 0) sequence.drafts.add(flight.num_drafts, static_cast<int64_t>(own.size()) - 1);
      if (sequence.num_tokens() > num_before) {
        if (sequence.times.first_token == 0.0) sequence.times.first_token = now;
        sequence.times.last_token = now;
      }
      if (terminal) {
        retire(sequence, *terminal);
        any_finished = true;
      }
    }
    trim_pages(sequence);
    row += 1 + flight.num_drafts;
    ++index;
  }
  if (any_finished) std::erase_if(running_, [](const Sequence* sequence) { return sequence->finished(); });
  outstanding_.pop_front();
  return report;
}

// Gives back the pages of rejected drafts.
void Scheduler::trim_pages(Sequence& sequence) noexcept {
  while (static_cast<int64_t>(sequence.pages.size()) > pages_for(sequence.num_scheduled())) {
    sequence.pages.pop_back();
  }
}

// Appends the tokens that a step has given a sequence, up to one that ends it, and returns how it ended, if it did.
// A verdict that comes after such a token is void.
std::optional<SequenceState> Scheduler::append(Sequence& sequence, std::span<const int32_t> tokens,
                                               const Verdict* verdict, int64_t first_row,
                                               const SampledLogprobs* logprobs, CommitReport& report) {
  const auto is_ended_by_verdict = [&](size_t num_kept) {
    if (!verdict || static_cast<size_t>(verdict->num_kept) != num_kept) return false;
    sequence.end_detail = verdict->detail;
    return true;
  };
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (is_ended_by_verdict(i)) return verdict->ending;
    if (tokens[i] < 0) return finished_error;
    if (sequence.state() == prefilling) sequence.transition(decoding);
    report.handles.push_back(sequence.handle());
    report.tokens.push_back(tokens[i]);
    report.output_index.push_back(static_cast<int32_t>(sequence.num_output()));
    if (sequence.logprobs && logprobs) {
      const auto row = static_cast<size_t>(first_row) + i;
      const auto begin = static_cast<size_t>(logprobs->offsets[row]);
      const auto size = static_cast<size_t>(logprobs->offsets[row + 1]) - begin;
      sequence.logprobs->add(logprobs->logprobs[row], logprobs->ranks[row], logprobs->top_ids.subspan(begin, size),
                             logprobs->top_logprobs.subspan(begin, size));
    }
    const auto terminal = sequence.append(tokens[i]);
    if (is_ended_by_verdict(i + 1)) return verdict->ending;
    if (terminal) return terminal;
  }
  return std::nullopt;
}

void Scheduler::abandon() {
  for (const Outstanding& outstanding : outstanding_) {
    for (const Flight& flight : outstanding.flights) {
      Sequence& sequence = *flight.sequence;
      sequence.forget_steps();
      sequence.release_resources();
      std::erase(sources_, &sequence);
      if (!is_running(sequence.state())) continue;  // ended, or in the plan before as well
      sequence.transition(preempted);
      std::erase(running_, &sequence);
      waiting_.emplace(sequence.handle(), &sequence);
    }
  }
  outstanding_.clear();
}

// ---- What tokens are drawn by ----

namespace {

// The rows of a sequence that has so many drafts; those after drafts as if these had been accepted. A draft of -1 is
// one that could not be drawn: of what comes after it nothing will be used, but it must not spoil the batch.
void add_rows(SamplingBatch& batch, Sequence& sequence, std::span<const int32_t> drafts, int64_t position,
              bool is_last_only) {
  SamplingState& state = *sequence.sampling;
  const int64_t output_index = position - sequence.prompt_length();
  int num_counted = 0;
  for (size_t i = 0; i <= drafts.size(); ++i) {
    const auto ahead = static_cast<int64_t>(i);
    if (!is_last_only || i == drafts.size()) batch.add(state, position + ahead, output_index + ahead);
    if (i < drafts.size() && state.counts && drafts[i] >= 0) {
      state.counts->append(drafts[i]);
      ++num_counted;
    }
  }
  for (; num_counted > 0; --num_counted) state.counts->pop();
}

}  // namespace

SamplingBatch Scheduler::sampling_batch(const StepPlan& plan) const {
  if (outstanding_.empty() || &plan != outstanding_.front().plan.get()) {
    throw std::logic_error("plan " + to_string(plan.step_id) +
                           " is not the oldest outstanding one; what its tokens are drawn by depends on the others");
  }
  SamplingBatch batch;
  batch.reserve(static_cast<size_t>(plan.num_sampled_rows));
  for (const Flight& flight : outstanding_.front().flights) {
    if (!flight.is_sampled) continue;
    Sequence& sequence = *flight.sequence;
    const int64_t position = sequence.num_tokens();
    if (sequence.finished() || !sequence.sampling) {
      for (int32_t i = 0; i <= flight.num_drafts; ++i) batch.add_idle(position + i);
      continue;
    }
    const auto s = static_cast<size_t>(&flight - outstanding_.front().flights.data());
    const auto end = static_cast<size_t>(plan.query_offsets[s + 1]);
    const std::span<const int32_t> tokens(plan.token_ids);
    const auto num_drafts = static_cast<size_t>(flight.num_drafts);
    add_rows(batch, sequence, tokens.subspan(end - num_drafts, num_drafts), position, false);
  }
  return batch;
}

SamplingBatch Scheduler::draft_batch(const Drafts& drafts) const {
  SamplingBatch batch;
  batch.reserve(drafts.handles.size());
  for (size_t i = 0; i < drafts.handles.size(); ++i) {
    Sequence* sequence = lookup(drafts.handles[i]);
    if (sequence == nullptr || !sequence->sampling) {
      throw std::invalid_argument("handle " + to_string(drafts.handles[i]) + " has no sampling parameters");
    }
    add_rows(batch, *sequence, drafts.of(i), sequence->num_tokens(), true);
  }
  return batch;
}

DecodingView Scheduler::decoding_view() const {
  DecodingView view;
  for (const Sequence* sequence : running_) {
    if (sequence->state() != SequenceState::decoding || sequence->in_flight() > 0) continue;
    view.handles.push_back(sequence->handle());
    view.slots.push_back(sequence->slot.id());
    view.num_tokens.push_back(static_cast<int32_t>(sequence->num_tokens()));
    view.newest.push_back(sequence->tokens().back());
    view.room.push_back(static_cast<int32_t>(sequence->max_length() - sequence->num_tokens() - 1));
    view.tags.push_back(sequence->tags);
    view.temperature.push_back(sequence->sampling ? sequence->sampling->spec->temperature : 0.0);
  }
  return view;
}

std::vector<int32_t> Scheduler::num_useful(const Drafts& drafts) const {
  std::vector<int32_t> counts;
  counts.reserve(drafts.handles.size());
  for (size_t i = 0; i < drafts.handles.size(); ++i) {
    counts.push_back(static_cast<int32_t>(sequence(drafts.handles[i]).num_useful(drafts.of(i))));
  }
  return counts;
}

}  // namespace deepinfer
