#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include <mutex>

#include "bindings.h"
#include "scheduler.h"

namespace py = pybind11;

namespace deepinfer {

namespace {

// Never converted: numpy would truncate floats and wrap wide integers without a word.
using TokenArray = py::array_t<int32_t, 0>;
using DraftLists = py::typing::Dict<py::int_, py::typing::List<py::int_>>;
using ContiguousTokens = py::array_t<int32_t, py::array::c_style>;

// The scheduler as Python sees it: every call drops the GIL, then takes the lock, so threads may cancel and
// query while another one plans. The lock is never held while waiting for the GIL.
class SharedScheduler {
 public:
  explicit SharedScheduler(const SchedulerOptions& options) : scheduler_(options) {}

  template <class F>
  auto locked(F&& call) {
    py::gil_scoped_release no_gil;
    const std::lock_guard lock(mutex_);
    return call(scheduler_);
  }

 private:
  std::mutex mutex_;
  Scheduler scheduler_;
};

// A lease that keeps its manager alive, for as long as Python holds either.
class SharedLease {
 public:
  SharedLease(std::shared_ptr<BlockManager> manager, Lease lease)
      : manager_(std::move(manager)), lease_(std::move(lease)) {}
  int32_t id() const { return lease_.id(); }
  void release() { lease_.release(); }

 private:
  std::shared_ptr<BlockManager> manager_;
  Lease lease_;
};

ContiguousTokens contiguous(const TokenArray& tokens) {
  if (tokens.ndim() != 1) {
    throw std::invalid_argument("tokens must have one dimension, got " + std::to_string(tokens.ndim()));
  }
  return ContiguousTokens(tokens);
}

std::span<const int32_t> as_span(const ContiguousTokens& tokens) {
  return {tokens.data(), static_cast<size_t>(tokens.size())};
}

py::array_t<int32_t> to_array(const std::vector<int32_t>& values) {
  return py::array_t<int32_t>(static_cast<py::ssize_t>(values.size()), values.data());
}

// A read-only view of a member vector; the array keeps the owning Python object alive.
template <class Shown, class Stored>
py::array_t<Shown> view(const std::vector<Stored>& values, py::handle owner,
                        std::vector<py::ssize_t> shape = {}) {
  static_assert(sizeof(Shown) == sizeof(Stored));
  if (shape.empty()) shape = {static_cast<py::ssize_t>(values.size())};
  py::array_t<Shown> array(shape, reinterpret_cast<const Shown*>(values.data()), owner);
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
  return array;
}

template <class Shown, class Owner, class Stored>
auto view_of(std::vector<Stored> Owner::* member) {
  return [member](const std::shared_ptr<Owner>& owner) {
    return view<Shown>((*owner).*member, py::cast(owner));
  };
}

// A member of pairs as [C, 2].
template <class Owner>
auto pairs_of(std::vector<int32_t> Owner::* member) {
  return [member](const std::shared_ptr<Owner>& owner) {
    const auto& values = (*owner).*member;
    return view<int32_t>(values, py::cast(owner), {static_cast<py::ssize_t>(values.size() / 2), 2});
  };
}

SequenceState parse_reason(const std::string& reason) {
  if (reason == "stop") return SequenceState::finished_stop;
  if (reason == "error") return SequenceState::finished_error;
  throw std::invalid_argument("reason must be 'stop' or 'error', got '" + reason +
                              "'; use cancel() to abort");
}

std::vector<std::pair<std::string, std::string>> transitions() {
  std::vector<std::pair<std::string, std::string>> edges;
  for (int from = 0; from < kNumSequenceStates; ++from) {
    for (int to = 0; to < kNumSequenceStates; ++to) {
      const auto source = static_cast<SequenceState>(from), target = static_cast<SequenceState>(to);
      if (may_follow(source, target)) edges.emplace_back(label(source), label(target));
    }
  }
  return edges;
}

void bind_block_manager(py::module_& m) {
  py::class_<SharedLease>(m, "Lease", "One reference to one block; given back by release() or destruction.")
      .def_property_readonly("id", &SharedLease::id, "The leased block, or 0 once released.")
      .def("release", &SharedLease::release, "Give the reference back now; a second call does nothing.");

  py::class_<BlockManager, std::shared_ptr<BlockManager>>(
      m, "BlockManager",
      "Reference-counted blocks 1 .. num_blocks - 1 (0 is the null block); the longest free is reused first.")
      .def(py::init<int32_t>(), py::arg("num_blocks"))
      .def(
          "allocate",
          [](const std::shared_ptr<BlockManager>& self) { return SharedLease(self, self->allocate()); },
          "Lease a free block. RuntimeError when none is free.")
      .def(
          "pin",
          [](const std::shared_ptr<BlockManager>& self, int32_t id) {
            return SharedLease(self, self->pin(id));
          },
          py::arg("block_id"),
          "One more reference to an owned block. ValueError when it is free or no block.")
      .def("ref_count", &BlockManager::ref_count, py::arg("block_id"), "References to a block.")
      .def_property_readonly("num_blocks", &BlockManager::num_blocks, "Blocks, the null block included.")
      .def_property_readonly("num_free", &BlockManager::num_free, "Blocks free now.")
      .def("audit", &BlockManager::audit, "RuntimeError naming the first broken invariant.");
}

void bind_step_plan(py::module_& m) {
  py::class_<StepPlan, std::shared_ptr<StepPlan>>(
      m, "StepPlan",
      "What one step computes: S sequences with N rows (tokens) in all, decode rows first. Immutable; the "
      "arrays\n"
      "are read-only views that keep the plan alive. False when there is nothing to do.")
      .def_property_readonly(
          "step_id", [](const StepPlan& p) { return p.step_id; }, "Number of the step.")
      .def_property_readonly(
          "num_seqs", [](const StepPlan& p) { return p.handles.size(); }, "S.")
      .def_property_readonly(
          "num_rows", [](const StepPlan& p) { return p.token_ids.size(); }, "N.")
      .def_property_readonly(
          "num_samples", [](const StepPlan& p) { return p.num_samples; }, "Sequences that yield a token.")
      .def_property_readonly("handles", view_of<int64_t>(&StepPlan::handles), "[S] int64, one per sequence.")
      .def_property_readonly("slots", view_of<int32_t>(&StepPlan::slots),
                             "[S] int32 state slots, each at least 1.")
      .def_property_readonly("starts", view_of<int32_t>(&StepPlan::starts),
                             "[S] int32 position of the first row; 0 means that the slot's content is stale.")
      .def_property_readonly("num_tokens", view_of<int32_t>(&StepPlan::num_tokens),
                             "[S] int32 rows, at least 1.")
      .def_property_readonly("num_drafts", view_of<int32_t>(&StepPlan::num_drafts),
                             "[S] int32 how many of the last rows are drafts; 0 for prefill rows.")
      .def_property_readonly("is_decode", view_of<bool>(&StepPlan::is_decode),
                             "[S] bool, true for decode rows.")
      .def_property_readonly("samples", view_of<bool>(&StepPlan::samples),
                             "[S] bool, whether the sequence yields tokens: of its last 1 + num_drafts rows.")
      .def_property_readonly("new_pages", view_of<int32_t>(&StepPlan::new_pages),
                             "[S] int32 pages that this step added at the end of the sequence's table.")
      .def_property_readonly("block_table_offsets", view_of<int32_t>(&StepPlan::block_table_offsets),
                             "[S + 1] int32 bounds of each sequence's part of block_table.")
      .def_property_readonly(
          "block_table", view_of<int32_t>(&StepPlan::block_table),
          "int32 page ids covering positions 0 .. starts + num_tokens - 1 of each sequence.")
      .def_property_readonly("token_ids", view_of<int32_t>(&StepPlan::token_ids),
                             "[N] int32 token of each row.")
      .def_property_readonly("positions", view_of<int32_t>(&StepPlan::positions),
                             "[N] int32 position of each row.")
      .def_property_readonly("query_offsets", view_of<int32_t>(&StepPlan::query_offsets),
                             "[S + 1] int32 bounds of each sequence's rows.")
      .def_property_readonly(
          "history",
          [](const std::shared_ptr<StepPlan>& plan) {
            const auto rows = static_cast<py::ssize_t>(plan->handles.size());
            return view<int32_t>(plan->history, py::cast(plan), {rows, plan->token_history});
          },
          "[S, token_history] int32 tokens just before each chunk, -1 before position 0.")
      .def_property_readonly("page_copies", pairs_of(&StepPlan::page_copies),
                             "[C, 2] int32 pages (from, to), to be copied before any row is computed.")
      .def_property_readonly("slot_copies", pairs_of(&StepPlan::slot_copies),
                             "[C, 2] int32 state slots (from, to), to be copied before any row is computed.")
      .def_property_readonly(
          "skipped",
          [](const StepPlan& p) {
            std::vector<std::pair<Handle, std::string>> skipped;
            for (const auto& [handle, reason] : p.skipped) skipped.emplace_back(handle, label(reason));
            return skipped;
          },
          "(handle, reason) of each running request without rows, and of the first waiting request that was "
          "not\n"
          "admitted (everyone behind it waits for it), and of the samples before that one which wait for a "
          "prompt\n"
          "that another sample of their request computes. Reasons: token_budget, no_free_page, running_limit,\n"
          "no_free_slot, after_preemption, shared_prompt.")
      .def_property_readonly(
          "preempted", [](const StepPlan& p) { return p.preempted; },
          "Handles that lost their pages and slot to this step, in order.")
      .def("__bool__", [](const StepPlan& p) { return !p.empty(); });

  py::class_<CommitReport, std::shared_ptr<CommitReport>>(
      m, "CommitReport", "The E output tokens that a step appended, in plan order.")
      .def_property_readonly("handles", view_of<int64_t>(&CommitReport::handles), "[E] int64.")
      .def_property_readonly("tokens", view_of<int32_t>(&CommitReport::tokens), "[E] int32.")
      .def_property_readonly("output_index", view_of<int32_t>(&CommitReport::output_index),
                             "[E] int32, 0 for the first output token of its request.")
      .def("__len__", [](const CommitReport& r) { return r.tokens.size(); });
}

void bind_verbs(py::class_<SharedScheduler>& c) {
  c.def(
       "check",
       [](SharedScheduler& self, const std::string& request_id, const TokenArray& tokens, int64_t max_tokens,
          int64_t min_tokens) {
         const auto prompt = contiguous(tokens);
         const SubmitOptions limits{max_tokens, min_tokens, {}, 1};
         self.locked([&](Scheduler& s) { s.check(request_id, as_span(prompt), limits); });
       },
       py::arg("request_id"), py::arg("tokens").noconvert(), py::kw_only(), py::arg("max_tokens"),
       py::arg("min_tokens") = 0, "ValueError where submit() would raise one; nothing changes.")
      .def(
       "submit",
       [](SharedScheduler& self, std::string request_id, const TokenArray& tokens, int64_t max_tokens,
          int64_t min_tokens, std::vector<int32_t> stop_token_ids, int64_t num_samples) {
         const auto prompt = contiguous(tokens);
         const SubmitOptions limits{max_tokens, min_tokens, std::move(stop_token_ids), num_samples};
         return self.locked(
             [&](Scheduler& s) { return s.submit(std::move(request_id), as_span(prompt), limits); });
       },
       py::arg("request_id"), py::arg("tokens").noconvert(), py::kw_only(), py::arg("max_tokens"),
       py::arg("min_tokens") = 0, py::arg("stop_token_ids") = std::vector<int32_t>{}, py::arg("num_samples") = 1,
       "Queue a request and return its handle; handles ascend. num_samples: how many outputs it gets, each a\n"
       "sequence of its own; their handles follow the returned one, and each ends by itself. They share the "
       "pages of\n"
       "the prompt as far as they can. tokens: [prompt length] int32. A sample ends\n"
       "with 'stop' at a token of stop_token_ids (kept as its last output) that is not among the first "
       "min_tokens\n"
       "outputs, or with 'length' at max_tokens outputs, max_model_len tokens or the size of the cache.\n"
       "ValueError, with nothing retained: id still live, empty prompt, prompt too long for max_model_len or "
       "the\n"
       "cache, negative token id, max_tokens < 1, min_tokens < 0, num_samples < 1.")
      .def(
          "cancel",
          [](SharedScheduler& self, Handle handle) {
            return self.locked([&](Scheduler& s) { return s.cancel(handle); });
          },
          py::arg("handle"),
          "End a request with 'abort', in any state; the result of a step under way is dropped. False if it "
          "had\n"
          "ended already. ValueError for a handle that was never issued.")
      .def(
          "finish",
          [](SharedScheduler& self, Handle handle, const std::string& reason) {
            const SequenceState terminal = parse_reason(reason);
            return self.locked([&](Scheduler& s) { return s.finish(handle, terminal); });
          },
          py::arg("handle"), py::arg("reason"),
          "End a request for a reason found outside: 'stop' (a stop string) or 'error'. Otherwise like "
          "cancel().\n"
          "RuntimeError for 'stop' on a request that never ran.")
      .def(
          "schedule",
          [](SharedScheduler& self, const std::optional<DraftLists>& lists) {
            const Drafts drafts = lists ? lists->cast<Drafts>() : Drafts{};
            return std::const_pointer_cast<StepPlan>(
                self.locked([&](Scheduler& s) { return s.schedule(drafts); }));
          },
          py::arg("drafts") = py::none(),
          "Plan the next step. A plan with rows must be committed before the next call (RuntimeError "
          "otherwise).\n"
          "drafts: by handle, tokens proposed to follow a request's newest one. They become rows as far as the "
          "plan\n"
          "without them leaves rows and pages and the request's length allows; those of a request that does not\n"
          "decode in this step are left out. ValueError, with nothing changed, for a negative token.")
      .def(
          "commit",
          [](SharedScheduler& self, const std::shared_ptr<StepPlan>& plan, const TokenArray& tokens,
             const std::optional<TokenArray>& counts) {
            const auto sampled = contiguous(tokens);
            const auto lengths = counts ? contiguous(*counts) : ContiguousTokens(0);
            return std::make_shared<CommitReport>(
                self.locked([&](Scheduler& s) { return s.commit(*plan, as_span(sampled), as_span(lengths)); }));
          },
          py::arg("plan"), py::arg("tokens").noconvert(), py::arg("counts").noconvert() = py::none(),
          "Apply the outcome of a plan. tokens: [T] int32, those of each sampling sequence, in order; -1 ends "
          "that\n"
          "request with 'error'. counts: [num_samples] int32, how many tokens are each sequence's: its accepted\n"
          "drafts and one more; None: one each. Tokens after one that ends its request are dropped. After a failed forward, finish(handle, 'error') its requests and "
          "commit\n"
          "-1s. RuntimeError for a plan that is not the outstanding one, ValueError for wrong tokens; then "
          "nothing\n"
          "has changed.")
      .def(
          "take_finished",
          [](SharedScheduler& self) {
            std::vector<std::pair<Handle, std::string>> events;
            for (const auto& [handle, state] : self.locked([](Scheduler& s) { return s.take_finished(); })) {
              events.emplace_back(handle, finish_reason(state));
            }
            return events;
          },
          "(handle, 'stop' | 'length' | 'abort' | 'error') of the requests that ended since the last call, "
          "in\n"
          "order. The only source of terminal events: each handle appears exactly once.")
      .def(
          "release_deferred",
          [](SharedScheduler& self) { self.locked([](Scheduler& s) { s.release_deferred(); }); },
          "Free pages and slots of ended requests, and forget those that take_finished() has returned: "
          "their\n"
          "handles are unknown from here on. Call before schedule().");
}

void bind_queries(py::class_<SharedScheduler>& c) {
  const auto query = [&c](const char* name, auto get, const char* doc) {
    c.def(
        name,
        [get](SharedScheduler& self, Handle handle) {
          return self.locked([&](Scheduler& s) { return get(s.sequence(handle)); });
        },
        py::arg("handle"), doc);
  };
  const auto gauge = [&c](const char* name, auto get, const char* doc) {
    c.def_property_readonly(
        name, [get](SharedScheduler& self) { return self.locked([&](Scheduler& s) { return get(s); }); },
        doc);
  };
  c.def(
       "tokens",
       [](SharedScheduler& self, Handle handle) {
         return to_array(self.locked([&](Scheduler& s) { return s.sequence(handle).tokens(); }));
       },
       py::arg("handle"), "A copy of all tokens, prompt and output: [num_tokens] int32.")
      .def(
          "output_tokens",
          [](SharedScheduler& self, Handle handle) {
            return to_array(self.locked([&](Scheduler& s) {
              const Sequence& sequence = s.sequence(handle);
              return std::vector<int32_t>(sequence.tokens().begin() + sequence.prompt_length(),
                                          sequence.tokens().end());
            }));
          },
          py::arg("handle"), "A copy of the output tokens: [num_output] int32.")
      .def(
          "explain",
          [](SharedScheduler& self, Handle handle) {
            return self.locked([&](Scheduler& s) { return s.explain(handle); });
          },
          py::arg("handle"), "Why a request does not run, or how far it is, in a sentence with numbers.")
      .def(
          "has_unfinished",
          [](SharedScheduler& self) { return self.locked([](Scheduler& s) { return s.has_unfinished(); }); },
          "Whether any request is still alive.")
      .def(
          "audit", [](SharedScheduler& self) { self.locked([](Scheduler& s) { s.audit(); }); },
          "RuntimeError naming the first broken invariant; for tests and debugging, linear in everything "
          "held.");
  query("request_id", [](const Sequence& s) { return s.request_id(); }, "The id given to submit().");
  query(
      "state", [](const Sequence& s) { return std::string(label(s.state())); },
      "A value of deepinfer_core.sequence.SequenceState.");
  query("num_tokens", [](const Sequence& s) { return s.num_tokens(); }, "Tokens, prompt and output.");
  query(
      "num_computed", [](const Sequence& s) { return s.num_computed(); }, "Tokens whose KV is in the cache.");
  gauge(
      "num_waiting", [](const Scheduler& s) { return s.num_waiting(); },
      "Requests waiting, preempted included.");
  gauge(
      "num_running", [](const Scheduler& s) { return s.num_running(); },
      "Requests holding pages and a slot.");
  gauge(
      "num_pages", [](const Scheduler& s) { return s.pages().num_blocks(); },
      "Pages, the null page included.");
  gauge("num_free_pages", [](const Scheduler& s) { return s.pages().num_free(); }, "Pages free now.");
  gauge(
      "num_slots", [](const Scheduler& s) { return s.slots().num_blocks(); },
      "Slots, the null slot included.");
  gauge("num_free_slots", [](const Scheduler& s) { return s.slots().num_free(); }, "Slots free now.");
  gauge("num_preemptions", [](const Scheduler& s) { return s.num_preemptions(); }, "Preemptions so far.");
}

}  // namespace

void bind_scheduler(py::module_& m) {
  bind_block_manager(m);
  bind_step_plan(m);
  py::class_<SharedScheduler> scheduler(
      m, "Scheduler",
      "Continuous batching over paged KV. One step: release_deferred(), schedule(), run the plan, commit(),\n"
      "take_finished(). Handles are the order of arrival. Threads may call it concurrently; no call holds "
      "the GIL.");
  scheduler.def(
      py::init([](int32_t page_size, int32_t num_pages, int32_t num_slots, int32_t max_num_seqs,
                  int32_t max_num_batched_tokens, int32_t max_model_len, int32_t max_chunk_tokens,
                  int32_t token_history) {
        return std::make_unique<SharedScheduler>(
            SchedulerOptions{page_size, num_pages, num_slots, max_num_seqs, max_num_batched_tokens,
                             max_model_len, max_chunk_tokens, token_history});
      }),
      py::kw_only(), py::arg("page_size") = 128, py::arg("num_pages"), py::arg("num_slots"),
      py::arg("max_num_seqs"), py::arg("max_num_batched_tokens"), py::arg("max_model_len"),
      py::arg("max_chunk_tokens"), py::arg("token_history") = 0,
      "page_size: tokens per page. num_pages, num_slots: with the null one, so at least 2. max_num_seqs:\n"
      "requests running at once (also bounded by usable slots and max_num_batched_tokens).\n"
      "max_num_batched_tokens: rows per step. max_model_len: tokens per request. max_chunk_tokens: prefill\n"
      "rows per request and step. token_history: width of StepPlan.history. ValueError names a bad one.");
  bind_verbs(scheduler);
  bind_queries(scheduler);
  m.def("sequence_transitions", &transitions, "The edges (from, to) that the state of a request may take.");
}

}  // namespace deepinfer
