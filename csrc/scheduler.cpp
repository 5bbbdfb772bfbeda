#include "scheduler.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>

namespace deepinfer {

namespace {

using enum SequenceState;
using std::to_string;

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
  if (live_ids_.contains(request_id)) refuse("a request with this id is still alive; choose another id");
  if (prompt.empty()) refuse("the prompt is empty; give at least one token");
  if (limits.max_tokens < 1) refuse("max_tokens must be at least 1, got " + to_string(limits.max_tokens));
  if (limits.num_samples < 1) refuse("num_samples must be at least 1, got " + to_string(limits.num_samples));
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
                         const SubmitOptions& limits) {
  check(request_id, prompt, limits);
  const auto length = static_cast<int64_t>(prompt.size());
  const Handle first = next_handle_;
  const int64_t max_length = length + std::min(limits.max_tokens, length_limit_ - length);
  const SequenceLimits own{max_length, limits.min_tokens, limits.stop_token_ids};
  for (; next_handle_ < first + limits.num_samples; ++next_handle_) {
    const Handle group = limits.num_samples > 1 ? first : 0;
    auto sequence = std::make_unique<Sequence>(next_handle_, request_id, prompt, own, group);
    waiting_.emplace(next_handle_, sequence.get());
    sequences_.emplace(next_handle_, std::move(sequence));
  }
  live_ids_.emplace(std::move(request_id), limits.num_samples);
  return first;
}

Sequence* Scheduler::find(Handle handle) const noexcept {
  const auto it = sequences_.find(handle);
  return it == sequences_.end() ? nullptr : it->second.get();
}

const Sequence& Scheduler::sequence(Handle handle) const {
  if (const Sequence* sequence = find(handle)) return *sequence;
  throw std::invalid_argument("handle " + to_string(handle) +
                              " is unknown: never issued, or forgotten after its request ended");
}

bool Scheduler::cancel(Handle handle) { return finish(handle, finished_aborted); }

bool Scheduler::finish(Handle handle, SequenceState terminal) {
  Sequence* sequence = find(handle);
  if (sequence == nullptr || sequence->finished()) {
    if (handle < 1 || handle >= next_handle_) {
      throw std::invalid_argument("handle " + to_string(handle) + " was never issued");
    }
    return false;
  }
  const SequenceState before = sequence->state();
  retire(*sequence, terminal);
  if (is_running(before)) {
    std::erase(running_, sequence);
  } else {
    waiting_.erase(handle);
  }
  return true;
}

void Scheduler::retire(Sequence& sequence, SequenceState terminal) {
  sequence.transition(terminal);
  const auto id = live_ids_.find(sequence.request_id());
  if (--id->second == 0) live_ids_.erase(id);
  retired_.push_back(&sequence);
  unreported_.push_back(&sequence);
}

std::vector<std::pair<Handle, SequenceState>> Scheduler::take_finished() {
  std::vector<std::pair<Handle, SequenceState>> events;
  events.reserve(unreported_.size());
  for (Sequence* sequence : unreported_) {
    sequence->reported = true;
    events.emplace_back(sequence->handle(), sequence->state());
  }
  unreported_.clear();
  return events;
}

void Scheduler::release_deferred() {
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

std::shared_ptr<const StepPlan> Scheduler::schedule(const Drafts& drafts) {
  if (outstanding_) {
    throw std::logic_error("plan " + to_string(outstanding_->step_id) +
                           " is still outstanding; commit it before scheduling another step");
  }
  for (const auto& [handle, tokens] : drafts) {
    for (const int32_t token : tokens) {
      if (token < 0) {
        throw std::invalid_argument("drafts must be token ids, got " + to_string(token) + " for handle " +
                                    to_string(handle));
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
  const auto plan = build_plan(step);
  // An empty plan has nothing to commit, so a caller may drop it and poll again.
  if (!plan->empty()) outstanding_ = plan;
  return plan;
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
  for (Sequence* sequence : running_in(decoding)) {
    if (sequence->state() != decoding) continue;  // preempted for a row before it
    if (make_room(*sequence, step)) select(*sequence, 1, step);
  }
}

// Before prefills: each takes a single row, and the next step is too late for it.
void Scheduler::select_forks(Step& step) {
  Claims claims = sources_.empty() ? Claims{} : running_claims();
  for (const Sequence* source : sources_) {
    auto it = waiting_.lower_bound(source->group());
    while (it != waiting_.end() && it->second->group() == source->group()) {
      Sequence& sample = *it->second;
      if (sample.state() != SequenceState::waiting) {  // preempted: it has tokens of its own
        ++it;
        continue;
      }
      if (!step.preempted.empty() || step.budget == 0 || admission_obstacle(1, claims)) break;
      claim_fork(sample, claims);
      it = waiting_.erase(it);
      fork(*source, sample, step);
      --claims.pages;  // the one that it has now
    }
  }
  give_up_ended_sources();
  sources_.clear();
}

void Scheduler::fork(const Sequence& source, Sequence& sample, Step& step) {
  const int64_t computed = sample.prompt_length() - 1;
  const auto num_shared = static_cast<size_t>(computed / options_.page_size);
  run(sample);
  for (size_t i = 0; i < num_shared; ++i) sample.pages.push_back(pages_.pin(source.pages[i].id()));
  sample.adopt(computed);
  select(sample, 1, step);
  for (const int32_t slot : {source.slot.id(), sample.slot.id()}) step.slot_copies.push_back(slot);
  if (computed % options_.page_size == 0) return;  // its own page starts with the token that it computes
  for (const Sequence* sequence : {&source, &std::as_const(sample)}) {
    step.page_copies.push_back(sequence->pages[num_shared].id());
  }
}

void Scheduler::select_prefills(Step& step, std::vector<Sequence*> prefills) {
  std::sort(prefills.begin(), prefills.end(), more_computed);
  for (Sequence* sequence : prefills) {
    if (sequence->state() != prefilling) continue;  // preempted for a row before it
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
  std::vector<Wish> wishes;
  if (drafts.empty()) return;
  for (Selection& selection : step.selected) {
    const Sequence& sequence = *selection.sequence;
    const auto found = drafts.find(sequence.handle());
    if (sequence.state() != decoding || found == drafts.end()) continue;
    // Beside the drafts there is a token of the last row's own.
    const auto useful = static_cast<size_t>(sequence.max_length() - sequence.num_tokens() - 1);
    const std::span<const int32_t> tokens(found->second);
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
void Scheduler::claim_fork(const Sequence& sample, Claims& claims) const noexcept {
  ++claims.places;
  claims.pages += 1 + expected_growth(sample, pages_for(sample.prompt_length()));
}

// Whether another sample is computing the prompt that this one, which never ran, can start from.
bool Scheduler::awaits_prompt(const Sequence& sequence) const noexcept {
  if (sequence.group() == 0 || sequence.state() != waiting || sequence.prompt_length() == 1) return false;
  auto it = std::lower_bound(running_.begin(), running_.end(), sequence.group(),
                             [](const Sequence* s, Handle handle) { return s->handle() < handle; });
  for (; it != running_.end() && (*it)->group() == sequence.group(); ++it) {
    if ((*it)->num_output() == 0) return true;
  }
  return false;
}

// Whether others can start from what this sequence holds: it has computed exactly its prompt.
bool Scheduler::is_awaited(const Sequence& sequence) const noexcept {
  const int64_t length = sequence.prompt_length();
  if (sequence.group() == 0 || length == 1 || sequence.num_computed() != length || sequence.num_output() != 1) {
    return false;
  }
  auto it = waiting_.lower_bound(sequence.group());
  for (; it != waiting_.end() && it->second->group() == sequence.group(); ++it) {
    if (it->second->state() == waiting) return true;
  }
  return false;
}

// Keeps the first of a request's samples that others can start from.
void Scheduler::note_source(Sequence& sequence) {
  const auto is_sibling = [&](const Sequence* source) { return source->group() == sequence.group(); };
  if (is_awaited(sequence) && std::none_of(sources_.begin(), sources_.end(), is_sibling)) {
    sources_.push_back(&sequence);
  }
}

// Nobody computes with what these hold, so it is the first to go. False if there is none.
bool Scheduler::give_up_ended_sources() noexcept {
  return std::erase_if(sources_, [](Sequence* source) {
           if (!source->finished()) return false;
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

// Preempts until the sequence can compute one token. False if that took the sequence itself, or if it runs
// alone: then only deferred pages are missing, and they come back without any work lost.
bool Scheduler::make_room(Sequence& sequence, Step& step) {
  while (computable_tokens(sequence) == 0) {
    if (give_up_ended_sources()) continue;
    if (running_.size() == 1) {
      step.skipped.emplace_back(sequence.handle(), SkipReason::no_free_page);
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
  victim.release_resources();
  std::erase(running_, &victim);
  waiting_.emplace(victim.handle(), &victim);
  step.preempted.push_back(victim.handle());
  ++num_preemptions_;
}

std::shared_ptr<StepPlan> Scheduler::build_plan(const Step& step) {
  auto plan = std::make_shared<StepPlan>();
  const size_t num_seqs = step.selected.size();
  size_t table_length = 0;
  for (const Selection& selection : step.selected) table_length += selection.sequence->pages.size();
  const auto num_rows = static_cast<size_t>(options_.max_num_batched_tokens - step.budget);
  plan->step_id = next_step_id_++;
  plan->token_history = options_.token_history;
  plan->handles.reserve(num_seqs);
  for (auto* column :
       {&plan->slots, &plan->starts, &plan->num_tokens, &plan->new_pages, &plan->num_drafts})
    column->reserve(num_seqs);
  plan->is_decode.reserve(num_seqs);
  plan->samples.reserve(num_seqs);
  plan->block_table_offsets.reserve(num_seqs + 1);
  plan->query_offsets.reserve(num_seqs + 1);
  plan->block_table.reserve(table_length);
  plan->token_ids.reserve(num_rows);
  plan->positions.reserve(num_rows);
  plan->history.reserve(num_seqs * static_cast<size_t>(options_.token_history));
  plan->block_table_offsets.push_back(0);
  plan->query_offsets.push_back(0);

  in_flight_.clear();
  for (const Selection& selection : step.selected) {
    append_to_plan(*plan, selection);
    selection.sequence->begin_step(selection.num_tokens, static_cast<int64_t>(selection.drafts.size()));
    in_flight_.push_back(selection.sequence);
  }
  plan->page_copies = step.page_copies;
  plan->slot_copies = step.slot_copies;
  plan->skipped = step.skipped;
  plan->preempted = step.preempted;
  return plan;
}

void Scheduler::append_to_plan(StepPlan& plan, const Selection& selection) const {
  const Sequence& sequence = *selection.sequence;
  const std::vector<int32_t>& tokens = sequence.tokens();
  const int64_t start = sequence.num_scheduled();
  const int64_t end = start + selection.num_tokens;
  const int64_t known = end - static_cast<int64_t>(selection.drafts.size());
  const bool samples = known == sequence.num_tokens();
  plan.handles.push_back(sequence.handle());
  plan.slots.push_back(sequence.slot.id());
  plan.starts.push_back(static_cast<int32_t>(start));
  plan.num_tokens.push_back(static_cast<int32_t>(selection.num_tokens));
  plan.new_pages.push_back(selection.new_pages);
  plan.is_decode.push_back(sequence.state() == SequenceState::decoding);
  plan.samples.push_back(samples);
  plan.num_samples += samples;
  plan.num_drafts.push_back(static_cast<int32_t>(selection.drafts.size()));
  for (const Lease& page : sequence.pages) plan.block_table.push_back(page.id());
  plan.block_table_offsets.push_back(static_cast<int32_t>(plan.block_table.size()));
  plan.token_ids.insert(plan.token_ids.end(), tokens.begin() + start, tokens.begin() + known);
  plan.token_ids.insert(plan.token_ids.end(), selection.drafts.begin(), selection.drafts.end());
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
  if (&plan != outstanding_.get()) {
    throw std::logic_error(
        name + " is not the outstanding one (" +
        (outstanding_ ? "plan " + to_string(outstanding_->step_id) : std::string("none is")) +
        "); commit each plan once, to the scheduler that made it");
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

CommitReport Scheduler::commit(const StepPlan& plan, std::span<const int32_t> tokens,
                               std::span<const int32_t> counts) {
  CommitReport report;
  if (plan.empty() && tokens.empty() && counts.empty()) return report;
  check_commit(plan, tokens, counts);
  report.handles.reserve(tokens.size());
  report.tokens.reserve(tokens.size());
  report.output_index.reserve(tokens.size());
  bool any_finished = false;
  for (size_t i = 0, sample = 0; i < in_flight_.size(); ++i) {
    Sequence& sequence = *in_flight_[i];
    std::span<const int32_t> own;
    if (plan.samples[i]) {
      own = tokens.first(counts.empty() ? 1 : static_cast<size_t>(counts[sample]));
      tokens = tokens.subspan(own.size());
      ++sample;
    }
    if (sequence.finished() || own.empty()) {
      sequence.complete_step(0);
    } else if (const auto terminal = append(sequence, own, report)) {
      retire(sequence, *terminal);
      any_finished = true;
    }
    if (!own.empty()) note_source(sequence);
    // Pages of rejected drafts.
    while (static_cast<int64_t>(sequence.pages.size()) > pages_for(sequence.num_computed())) {
      sequence.pages.pop_back();
    }
  }
  if (any_finished) std::erase_if(running_, [](const Sequence* sequence) { return sequence->finished(); });
  in_flight_.clear();
  outstanding_.reset();
  return report;
}

// Appends the tokens that a step has given a sequence, up to one that ends it, and returns how it ended, if it did.
std::optional<SequenceState> Scheduler::append(Sequence& sequence, std::span<const int32_t> tokens,
                                               CommitReport& report) {
  std::optional<SequenceState> terminal;
  int64_t num_appended = 0;
  for (const int32_t token : tokens) {
    if (terminal) break;
    if (token < 0) {
      terminal = finished_error;
      break;
    }
    if (sequence.state() == SequenceState::prefilling) sequence.transition(SequenceState::decoding);
    report.handles.push_back(sequence.handle());
    report.tokens.push_back(token);
    report.output_index.push_back(static_cast<int32_t>(sequence.num_output()));
    terminal = sequence.append(token);
    ++num_appended;
  }
  sequence.complete_step(std::max<int64_t>(num_appended - 1, 0));
  return terminal;
}

}  // namespace deepinfer
