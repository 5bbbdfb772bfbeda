// Breaks one invariant at a time behind the scheduler's back; audit() must name each. Built by
// test_native_audit.py from plain C++20 sources: no Python, no torch.
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "scheduler.h"

namespace deepinfer {

static_assert(!std::is_copy_constructible_v<Lease> && !std::is_copy_assignable_v<Lease>);
static_assert(std::is_nothrow_move_constructible_v<Lease> && std::is_nothrow_move_assignable_v<Lease>);
static_assert(!std::is_copy_constructible_v<BlockManager> && !std::is_move_constructible_v<BlockManager>);

struct TestAccess {
  static BlockManager& pages(Scheduler& s) { return s.pages_; }
  static auto& running(Scheduler& s) { return s.running_; }
  static auto& waiting(Scheduler& s) { return s.waiting_; }
  static auto& sources(Scheduler& s) { return s.sources_; }
  static auto& unreported(Scheduler& s) { return s.unreported_; }
  static auto& live_ids(Scheduler& s) { return s.live_ids_; }
  static Sequence& sequence(Scheduler& s, Handle handle) { return *s.sequences_.at(handle); }
  static int64_t& computed(Sequence& s) { return s.num_computed_; }
  static int64_t& in_flight(Sequence& s) { return s.in_flight_; }
  static SequenceState& state(Sequence& s) { return s.state_; }
  static TokenLog& tokens(Sequence& s) { return s.tokens_; }
  static void drop_token(Sequence& s) { --s.tokens_.size_; }
  static int32_t& ref_count(BlockManager& m, int32_t id) { return m.nodes_[id].ref_count; }
  static int32_t& next(BlockManager& m, int32_t id) { return m.nodes_[id].next; }
  static int32_t& head(BlockManager& m) { return m.head_; }
  static int32_t& num_free(BlockManager& m) { return m.num_free_; }
};

}  // namespace deepinfer

using namespace deepinfer;
using A = TestAccess;

namespace {

constexpr Handle kDecoding = 1, kPrefilling = 2, kWaiting = 3, kFinished = 4;
int failures = 0;

void expect(bool truth, const std::string& what) {
  if (truth) return;
  std::printf("FAILED: %s\n", what.c_str());
  ++failures;
}

std::string audit_of(const Scheduler& scheduler) {
  try {
    scheduler.audit();
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

// One request in each kind of state, no plan outstanding.
void populate(Scheduler& scheduler) {
  const std::vector<int32_t> prompt(10, 1);
  const std::vector<int32_t> sampled{5};
  scheduler.submit("decoding", std::span(prompt).first(3),
                   {.max_tokens = 9, .min_tokens = 0, .stop_token_ids = {}});
  scheduler.commit(*scheduler.schedule(), sampled);
  scheduler.submit("prefilling", prompt, {.max_tokens = 9, .min_tokens = 0, .stop_token_ids = {}});
  scheduler.submit("waiting", prompt, {.max_tokens = 9, .min_tokens = 0, .stop_token_ids = {}});
  scheduler.submit("finished", prompt, {.max_tokens = 9, .min_tokens = 0, .stop_token_ids = {}});
  scheduler.cancel(kFinished);
  scheduler.commit(*scheduler.schedule(), sampled);
}

void expect_named(const std::string& expected, const std::function<void(Scheduler&)>& damage) {
  SchedulerOptions options{.page_size = 4,
                           .num_pages = 12,
                           .num_slots = 4,
                           .max_num_seqs = 2,
                           .max_num_batched_tokens = 6,
                           .max_model_len = 40,
                           .max_chunk_tokens = 5,
                           .token_history = 0};
  // Never destroyed: what was damaged on purpose cannot be taken apart again.
  auto& scheduler = *new Scheduler(options);
  populate(scheduler);
  expect(audit_of(scheduler).empty(), "audit of an untouched scheduler: " + audit_of(scheduler));
  damage(scheduler);
  const std::string found = audit_of(scheduler);
  expect(found.find(expected) != std::string::npos,
         "expected '" + expected + "', audit said '" + found + "'");
}

void audit_names_every_damage() {
  expect_named("the null block is owned", [](Scheduler& s) { A::ref_count(A::pages(s), 0) = 1; });
  expect_named("negative reference count", [](Scheduler& s) { A::ref_count(A::pages(s), 1) = -1; });
  expect_named("both free and owned", [](Scheduler& s) { A::next(A::pages(s), A::head(A::pages(s))) = 1; });
  expect_named("the free queue links", [](Scheduler& s) {
    A::next(A::pages(s), A::head(A::pages(s))) = A::head(A::pages(s));  // a cycle must not hang it
  });
  expect_named("the free queue links", [](Scheduler& s) { ++A::num_free(A::pages(s)); });
  expect_named("references, but requests hold", [](Scheduler& s) { new Lease(A::pages(s).allocate()); });
  expect_named("holds 1 pages for 5", [](Scheduler& s) { A::sequence(s, kPrefilling).pages.pop_back(); });
  expect_named("wrong about its slot", [](Scheduler& s) { A::sequence(s, kDecoding).slot.release(); });
  expect_named("in flight, the outstanding plans have 0", [](Scheduler& s) {
    --A::computed(A::sequence(s, kDecoding));
    ++A::in_flight(A::sequence(s, kDecoding));
    A::drop_token(A::sequence(s, kDecoding));
  });
  expect_named("computed and 0 in flight", [](Scheduler& s) { A::computed(A::sequence(s, kDecoding)) = 99; });
  expect_named("decodes with 2", [](Scheduler& s) { A::tokens(A::sequence(s, kDecoding)).push_back(1); });
  expect_named("over its limit of 12", [](Scheduler& s) { 
    for (int i = 0; i < 9; ++i) A::tokens(A::sequence(s, kDecoding)).push_back(1);
  });
  expect_named("waits, but has progress", [](Scheduler& s) {
    Sequence& waiting = A::sequence(s, kWaiting);
    A::computed(waiting) = 1;
    waiting.pages.push_back(A::pages(s).allocate());
  });
  expect_named("is in the running queue",
               [](Scheduler& s) { A::state(A::sequence(s, kDecoding)) = SequenceState::preempted; });
  expect_named("is in the waiting queue",
               [](Scheduler& s) { A::state(A::sequence(s, kWaiting)) = SequenceState::decoding; });
  expect_named("running queue is out of order",
               [](Scheduler& s) { std::swap(A::running(s)[0], A::running(s)[1]); });
  expect_named("requests run, the limit is 2",
               [](Scheduler& s) { A::running(s).push_back(&A::sequence(s, kWaiting)); });
  expect_named("do not add up", [](Scheduler& s) { A::running(s).pop_back(); });
  expect_named("do not add up", [](Scheduler& s) { A::waiting(s).clear(); });
  expect_named("live by their ids", [](Scheduler& s) { A::live_ids(s).erase("waiting"); });
  expect_named("is to be forked", [](Scheduler& s) {
    A::sources(s).push_back(&A::sequence(s, kPrefilling));
  });
  expect_named("shares page", [](Scheduler& s) {
    Sequence &decoding = A::sequence(s, kDecoding), &prefilling = A::sequence(s, kPrefilling);
    prefilling.pages.back() = A::pages(s).pin(decoding.pages.back().id());
  });
  expect_named("two terminal events",
               [](Scheduler& s) { A::unreported(s).push_back(A::unreported(s).front()); });
  expect_named("terminal event lost", [](Scheduler& s) { A::unreported(s).clear(); });
}

void leases_move_and_never_copy() {
  BlockManager manager(4);
  Lease first = manager.allocate(), second = manager.allocate();
  first = std::move(second);  // gives block 1 back
  expect(manager.num_free() == 2 && first.id() == 2 && !second, "move assignment returns what it replaces");
  Lease& self = first;
  first = std::move(self);
  expect(first.id() == 2 && manager.ref_count(2) == 1, "self-assignment keeps the lease");
  std::vector<Lease> table;
  table.push_back(manager.allocate());
  table.push_back(manager.allocate());
  const int32_t last = table.back().id();
  release_table(table);
  expect(table.empty() && manager.allocate().id() == last, "a table is freed from its tail");
}

void illegal_transitions_throw() {
  const std::vector<int32_t> prompt{1};
  Sequence sequence(1, "a", prompt, {});
  try {
    sequence.transition(SequenceState::decoding);
    expect(false, "waiting -> decoding must throw");
  } catch (const std::logic_error& error) {
    expect(std::string(error.what()) == "request 'a' cannot go from waiting to decoding", error.what());
  }
  expect(sequence.state() == SequenceState::waiting, "a refused transition changes nothing");
}

}  // namespace

int main() {
  audit_names_every_damage();
  leases_move_and_never_copy();
  illegal_transitions_throw();
  return failures == 0 ? 0 : 1;
}
