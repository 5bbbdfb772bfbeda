#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <pybind11/typing.h>

#include "bindings.h"
#include "scheduler.h"
#include "step_columns.h"

namespace py = pybind11;

namespace deepinfer {

namespace {

// Never converted: numpy would truncate floats and wrap wide integers without a word.
using TokenArray = py::array_t<int32_t, 0>;
using ContiguousTokens = py::array_t<int32_t, py::array::c_style>;
using Handles = py::array_t<int64_t, py::array::c_style>;
using Floats = py::array_t<float, py::array::c_style>;
using Offsets = py::array_t<int64_t, py::array::c_style>;

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

template <class T>
py::array_t<T> to_array(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <class Array>
void make_read_only(Array& array) {
  py::detail::array_proxy(array.ptr())->flags &= ~py::detail::npy_api::NPY_ARRAY_WRITEABLE_;
}

// A read-only view of part of a log. It shows the same for as long as anybody holds it: see TokenLog.
py::array_t<int32_t> view_of_log(const TokenLog& log, int64_t begin) {
  using Buffer = std::shared_ptr<const int32_t[]>;
  const auto tokens = log.span().subspan(static_cast<size_t>(begin));
  py::capsule owner(new Buffer(log.share()), [](void* buffer) { delete static_cast<Buffer*>(buffer); });
  py::array_t<int32_t> array(static_cast<py::ssize_t>(tokens.size()), tokens.data(), owner);
  make_read_only(array);
  return array;
}

// Drafts as (handles [S] int64, counts [S] int32, tokens [S, B] int32).
struct DraftArrays {
  Handles handles;
  ContiguousTokens counts, tokens;

  Drafts drafts() const {
    if (tokens.ndim() != 2 || counts.size() != handles.size() || tokens.shape(0) != handles.size()) {
      throw std::invalid_argument("drafts must be handles [S], counts [S] and tokens [S, B]");
    }
    const auto width = static_cast<size_t>(tokens.shape(1));
    for (py::ssize_t i = 0; i < counts.size(); ++i) {
      if (counts.at(i) < 0 || static_cast<size_t>(counts.at(i)) > width) {
        throw std::invalid_argument("counts of drafts must be in 0.." + std::to_string(width) + ", got " +
                                    std::to_string(counts.at(i)));
      }
    }
    return {{handles.data(), static_cast<size_t>(handles.size())},
            {counts.data(), static_cast<size_t>(counts.size())},
            {tokens.data(), static_cast<size_t>(tokens.size())},
            width};
  }
};
using DraftTuple = std::tuple<Handles, ContiguousTokens, ContiguousTokens>;

// A read-only view of a member vector; the array keeps the owning Python object alive.
template <class Shown, class Stored>
py::array_t<Shown> view(const std::vector<Stored>& values, py::handle owner,
                        std::vector<py::ssize_t> shape = {}) {
  static_assert(sizeof(Shown) == sizeof(Stored));
  if (shape.empty()) shape = {static_cast<py::ssize_t>(values.size())};
  py::array_t<Shown> array(shape, reinterpret_cast<const Shown*>(values.data()), owner);
  make_read_only(array);
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

// Each column as an array that owns it.
py::typing::Dict<py::str, py::array> step_columns(const StepPlan& plan) {
  auto* columns = new StepColumns(columns_of(plan));
  const py::capsule owner(columns, [](void* owned) { delete static_cast<StepColumns*>(owned); });
  py::typing::Dict<py::str, py::array> arrays;
  const auto add = [&](const char* name, auto& values, std::vector<py::ssize_t> shape = {}) {
    using Value = typename std::decay_t<decltype(values)>::value_type;
    if (shape.empty()) shape = {static_cast<py::ssize_t>(values.size())};
    arrays[name] = py::array_t<Value>(shape, values.data(), owner);
  };
  const auto rows = static_cast<py::ssize_t>(plan.token_ids.size());
  add("positions", columns->positions);
  add("token_ids", columns->token_ids);
  add("seq_of_row", columns->seq_of_row);
  add("slots", columns->slots);
  add("starts", columns->starts);
  add("ends", columns->ends);
  add("block_tables", columns->block_tables, {static_cast<py::ssize_t>(plan.handles.size()), columns->table_width});
  add("context_ids", columns->context_ids, {rows, 1 + plan.token_history});
  add("sampled_rows", columns->sampled_rows);
  add("pending_rows", columns->pending_rows);
  add("pending_sources", columns->pending_sources);
  return arrays;
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
      .def_property_readonly("tags", view_of<int32_t>(&StepPlan::tags),
                             "[S] int32 what submit() was given for each sequence.")
      .def_property_readonly("token_ids", view_of<int32_t>(&StepPlan::token_ids),
                             "[N] int32 token of each row; -1 where it is still to be drawn.")
      .def_property_readonly("token_sources", view_of<int32_t>(&StepPlan::token_sources),
                             "[N] int32 for a token that is still to be drawn, which of the sampled rows of the plan "
                             "before draws it; -1 for the others.")
      .def_property_readonly(
          "any_tags", [](const StepPlan& p) { return p.any_tags; }, "Bits that the tags of some sequence have.")
      .def_property_readonly(
          "num_pending", [](const StepPlan& p) { return p.num_pending; }, "Rows of tokens still to be drawn.")
      .def_property_readonly(
          "num_sampled_rows", [](const StepPlan& p) { return p.num_sampled_rows; },
          "R, rows that yield a token: of each sampling sequence its last known row and those of its drafts.")
      .def_property_readonly(
          "lacks_pages", [](const StepPlan& p) { return p.lacks_pages; },
          "Whether somebody would have to be preempted, which waits until no plan is outstanding.")
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
          "admitted (everyone behind it waits for it), and of the completions before that one which wait for "
          "a prompt\n"
          "that another one of their request computes. Reasons: token_budget, no_free_page, running_limit,\n"
          "no_free_slot, after_preemption, shared_prompt, in_flight.")
      .def_property_readonly(
          "preempted", [](const StepPlan& p) { return p.preempted; },
          "Handles that lost their pages and slot to this step, in order.")
      .def("columns", &step_columns,
           "The rows as the columns that inputs are made of, by name: positions, token_ids [N] int64; seq_of_row, slots, "
           "starts,\n"
           "ends [N] int32, what the row's sequence has; block_tables [S, pages] int32, short ones continued with the "
           "null page;\n"
           "context_ids [N, 1 + token_history] int64, a row's token and those before it, -1 before the start; "
           "sampled_rows [R],\n"
           "pending_rows and pending_sources [P] int64. Nothing in them is shared with the plan.")
      .def("__bool__", [](const StepPlan& p) { return !p.empty(); });

  py::class_<CommitReport, std::shared_ptr<CommitReport>>(
      m, "CommitReport", "The E output tokens that a step appended, in plan order.")
      .def_property_readonly("handles", view_of<int64_t>(&CommitReport::handles), "[E] int64.")
      .def_property_readonly("tokens", view_of<int32_t>(&CommitReport::tokens), "[E] int32.")
      .def_property_readonly("output_index", view_of<int32_t>(&CommitReport::output_index),
                             "[E] int32, 0 for the first output token of its request.")
      .def("__len__", [](const CommitReport& r) { return r.tokens.size(); });
}

std::vector<Verdict> to_verdicts(const std::vector<std::tuple<int32_t, int32_t, std::string, std::string>>& given) {
  std::vector<Verdict> verdicts;
  verdicts.reserve(given.size());
  for (const auto& [index, num_kept, reason, detail] : given) {
    if (!verdicts.empty() && verdicts.back().index >= index) {
      throw std::invalid_argument("verdicts must be by rising index, got " + std::to_string(index) + " after " +
                                  std::to_string(verdicts.back().index));
    }
    verdicts.push_back({index, num_kept, parse_reason(reason), detail});
  }
  return verdicts;
}

// The columns that a sampler returns for R rows.
using LogprobColumns = std::tuple<Floats, ContiguousTokens, Offsets, ContiguousTokens, Floats>;

SampledLogprobs to_logprobs(const LogprobColumns& columns, int64_t num_rows) {
  const auto& [logprobs, ranks, offsets, ids, values] = columns;
  if (logprobs.size() != num_rows || ranks.size() != num_rows || offsets.size() != num_rows + 1 ||
      ids.size() != values.size() || offsets.at(num_rows) != ids.size()) {
    throw std::invalid_argument("logprobs must be columns of the plan's " + std::to_string(num_rows) +
                                " sampled rows");
  }
  const auto rows = static_cast<size_t>(num_rows);
  const auto total = static_cast<size_t>(ids.size());
  return {{logprobs.data(), rows}, {ranks.data(), rows}, {offsets.data(), rows + 1}, {ids.data(), total},
          {values.data(), total}};
}

void bind_verbs(py::class_<Scheduler>& c) {
  c.def(
       "check",
       [](const Scheduler& self, const std::string& request_id, const TokenArray& tokens, int64_t max_tokens,
          int64_t min_tokens) {
         SubmitOptions options;
         options.max_tokens = max_tokens;
         options.min_tokens = min_tokens;
         self.check(request_id, as_span(contiguous(tokens)), options);
       },
       py::arg("request_id"), py::arg("tokens").noconvert(), py::kw_only(), py::arg("max_tokens"),
       py::arg("min_tokens") = 0,
       "ValueError where submit() would raise one for these arguments, whatever is alive; nothing changes.")
      .def(
          "submit",
          [](Scheduler& self, std::string request_id, const TokenArray& tokens, int64_t max_tokens,
             int64_t min_tokens, std::vector<int32_t> stop_token_ids, int64_t num_completions, bool held, int32_t tags,
             const std::optional<std::shared_ptr<SamplingSpec>>& sampling, std::vector<uint64_t> seeds) {
            const SubmitOptions options{max_tokens, min_tokens, std::move(stop_token_ids), num_completions,
                                        held,       tags,       sampling.value_or(nullptr), std::move(seeds)};
            return self.submit(std::move(request_id), as_span(contiguous(tokens)), options);
          },
          py::arg("request_id"), py::arg("tokens").noconvert(), py::kw_only(), py::arg("max_tokens"),
          py::arg("min_tokens") = 0, py::arg("stop_token_ids") = std::vector<int32_t>{},
          py::arg("num_completions") = 1, py::arg("held") = false, py::arg("tags") = 0,
          py::arg("sampling") = py::none(), py::arg("seeds") = std::vector<uint64_t>{},
          "Queue a request and return its handle; handles ascend.\n\n"
          "tokens: [prompt length] int32. num_completions: how many outputs it gets, each a sequence of its own; "
          "their\n"
          "handles follow the returned one, and each ends by itself. They share the pages of the prompt as far as "
          "they can.\n"
          "A sequence ends with 'stop' at a token of stop_token_ids (kept as its last output) that is not among the\n"
          "first min_tokens outputs, or with 'length' at max_tokens outputs, max_model_len tokens or the size of the "
          "cache.\n"
          "held: wait for release(); others go on. tags: what StepPlan.tags shows. sampling, seeds (one per "
          "completion):\n"
          "what sampling_batch() is made of.\n\n"
          "ValueError, with nothing retained: id still live, empty prompt, prompt too long for max_model_len or the\n"
          "cache, negative token id, max_tokens < 1, min_tokens < 0, num_completions < 1, seeds of another number.")
      .def("find", py::overload_cast<const std::string&>(&Scheduler::find, py::const_), py::arg("request_id"),
           "The first handle of a live request; 0 if there is none of this id.")
      .def("release", &Scheduler::release, py::arg("handle"),
           "What a held sequence waited for is there. False if it is not held.")
      .def("cancel", &Scheduler::cancel, py::arg("handle"),
           "End a sequence with 'abort', in any state; the result of a step under way is dropped. False if it had\n"
           "ended already. ValueError for a handle that was never issued.")
      .def(
          "finish",
          [](Scheduler& self, Handle handle, const std::string& reason, std::string detail) {
            return self.finish(handle, parse_reason(reason), std::move(detail));
          },
          py::arg("handle"), py::arg("reason"), py::arg("detail") = "",
          "End a sequence for a reason found outside: 'stop' (its output is whole) or 'error'. detail: what "
          "finished()\n"
          "tells beside the reason. Otherwise like cancel(). RuntimeError for 'stop' on one that never ran.")
      .def(
          "schedule",
          [](Scheduler& self, const std::optional<DraftTuple>& drafts, double now) {
            const auto arrays = drafts ? std::make_optional(std::make_from_tuple<DraftArrays>(*drafts)) : std::nullopt;
            return std::const_pointer_cast<StepPlan>(self.schedule(arrays ? arrays->drafts() : Drafts{}, now));
          },
          py::arg("drafts") = py::none(), py::arg("now") = 0.0,
          "Plan the next step. At most two plans may be outstanding, RuntimeError otherwise.\n\n"
          "drafts: (handles [S] int64, counts [S] int32, tokens [S, B] int32), tokens proposed to follow the newest "
          "one of\n"
          "each sequence. They become rows as far as the plan without them leaves rows and pages and the sequence's "
          "length\n"
          "allows; those of a sequence that does not decode in this step are left out. ValueError, with nothing "
          "changed,\n"
          "for a negative token. now: seconds, for metrics().")
      .def(
          "commit",
          [](Scheduler& self, const std::shared_ptr<StepPlan>& plan, const TokenArray& tokens,
             const std::optional<TokenArray>& counts,
             const std::vector<std::tuple<int32_t, int32_t, std::string, std::string>>& verdicts,
             const std::optional<LogprobColumns>& logprobs, double now) {
            const auto sampled = contiguous(tokens);
            const auto lengths = counts ? contiguous(*counts) : ContiguousTokens(0);
            const auto columns =
                logprobs ? std::make_optional(to_logprobs(*logprobs, plan->num_sampled_rows)) : std::nullopt;
            return std::make_shared<CommitReport>(self.commit(*plan, as_span(sampled), as_span(lengths),
                                                              to_verdicts(verdicts), columns ? &*columns : nullptr,
                                                              now));
          },
          py::arg("plan"), py::arg("tokens").noconvert(), py::arg("counts").noconvert() = py::none(),
          py::kw_only(), py::arg("verdicts") = std::vector<std::tuple<int32_t, int32_t, std::string, std::string>>{},
          py::arg("logprobs") = py::none(), py::arg("now") = 0.0,
          "Apply the outcome of the oldest outstanding plan.\n\n"
          "tokens: [T] int32, those of each sampling sequence, in order; -1 ends that sequence with 'error'. counts:\n"
          "[num_samples] int32, how many tokens are each sequence's: its accepted drafts and one more; None: one "
          "each.\n"
          "Tokens after one that ends its sequence are dropped. verdicts: (index among the sampling sequences, tokens "
          "that\n"
          "count, 'stop' or 'error', detail) of sequences that are found to end with their last token that counts.\n"
          "logprobs: (logprobs, ranks, top_offsets, top_ids, top_logprobs) of the plan's R sampled rows. now: "
          "seconds.\n\n"
          "After a failed forward, finish(handle, 'error') its sequences and commit -1s. RuntimeError for a plan that "
          "is not\n"
          "the oldest outstanding one, ValueError for wrong tokens; then nothing has changed.")
      .def("abandon", &Scheduler::abandon,
           "Take back every outstanding plan; no device may run one any more. Their live sequences wait and compute "
           "again\n"
           "what they had.")
      .def(
          "finished",
          [](const Scheduler& self) {
            std::vector<std::tuple<Handle, std::string, std::string>> endings;
            for (const Ending& ending : self.finished()) {
              endings.emplace_back(ending.handle, finish_reason(ending.state), ending.detail);
            }
            return endings;
          },
          "(handle, 'stop' | 'length' | 'abort' | 'error', detail) of the sequences that have ended and are not "
          "acknowledged,\n"
          "in order. The only source of terminal events.")
      .def(
          "acknowledge",
          [](Scheduler& self, const std::vector<Handle>& handles) {
            for (const Handle handle : handles) self.acknowledge(handle);
          },
          py::arg("handles"),
          "The ends of these sequences have been taken care of: finished() names them no more, and the next\n"
          "release_deferred() forgets them. RuntimeError for a live one.")
      .def(
          "take_finished",
          [](Scheduler& self) {
            std::vector<std::pair<Handle, std::string>> events;
            for (const Ending& ending : self.finished()) {
              events.emplace_back(ending.handle, finish_reason(ending.state));
              self.acknowledge(ending.handle);
            }
            return events;
          },
          "(handle, reason) of finished(), acknowledged at once: for drivers to which nothing can happen in between.")
      .def("release_deferred", &Scheduler::release_deferred,
           "Free pages and slots of ended sequences that no step under way uses, and forget those acknowledged: their\n"
           "handles are unknown from here on. Call before schedule().")
      .def_static(
          "accepted_counts",
          [](const StepPlan& plan, const ContiguousTokens& sampled) {
            return to_array(Scheduler::accepted_counts(plan, as_span(sampled)));
          },
          py::arg("plan"), py::arg("sampled"),
          "How many tokens each sampling sequence gets, [num_samples] int32: its drafts that the rows before them have "
          "drawn,\n"
          "up to the first that they have not, and one more. sampled: [R] int32.");
}

void bind_sampling(py::class_<Scheduler>& c) {
  c.def(
       "sampling_batch",
       [](const Scheduler& self, const std::shared_ptr<StepPlan>& plan) {
         return std::make_shared<SamplingBatch>(self.sampling_batch(*plan));
       },
       py::arg("plan"),
       "What the R sampled rows of the oldest outstanding plan are drawn by, rows after drafts as if these were "
       "accepted.")
      .def(
          "draft_batch",
          [](const Scheduler& self, const Handles& handles, const ContiguousTokens& counts,
             const ContiguousTokens& tokens) {
            return std::make_shared<SamplingBatch>(self.draft_batch(DraftArrays{handles, counts, tokens}.drafts()));
          },
          py::arg("handles"), py::arg("counts"), py::arg("tokens"),
          "What the token after each sequence's newest one and so many drafts is drawn by: one row per sequence. A draft of\n"
          "-1 is none, and counts as nothing.")
      .def(
          "num_useful",
          [](const Scheduler& self, const Handles& handles, const ContiguousTokens& counts,
             const ContiguousTokens& tokens) {
            return to_array(self.num_useful(DraftArrays{handles, counts, tokens}.drafts()));
          },
          py::arg("handles"), py::arg("counts"), py::arg("tokens"),
          "How many of each sequence's drafts can be of use, [S] int32: none after a -1, after one that would end it, "
          "or\n"
          "past its length.")
      .def(
          "decoding",
          [](const Scheduler& self) { return std::make_shared<DecodingView>(self.decoding_view()); },
          "The sequences that will decode next, with nothing in flight.");
}

void bind_queries(py::class_<Scheduler>& c) {
  const auto query = [&c](const char* name, auto get, const char* doc) {
    c.def(
        name, [get](const Scheduler& self, Handle handle) { return get(self.sequence(handle)); }, py::arg("handle"),
        doc);
  };
  query(
      "tokens", [](const Sequence& s) { return view_of_log(s.tokens(), 0); },
      "All tokens, prompt and output: [num_tokens] int32, a view that stays as it is.");
  query(
      "output_tokens", [](const Sequence& s) { return view_of_log(s.tokens(), s.prompt_length()); },
      "The output tokens: [num_output] int32, a view that stays as it is.");
  query(
      "logprobs",
      [](const Sequence& s) {
        static const LogprobLog kNone;
        const LogprobLog& log = s.logprobs ? *s.logprobs : kNone;
        return py::make_tuple(to_array(log.logprobs), to_array(log.ranks), to_array(log.offsets),
                              to_array(log.top_ids), to_array(log.top_logprobs), log.cumulative);
      },
      "Those of the output tokens: (logprobs float32, ranks int32, top_offsets int64, top_ids int32, top_logprobs "
      "float32,\n"
      "their sum), copies; empty where the sequence keeps none.");
  query(
      "metrics",
      [](const Sequence& s) {
        return py::make_tuple(s.times.first_scheduled, s.times.first_token, s.times.last_token, s.num_preemptions,
                              s.drafts.num_verifications, s.drafts.drafted, s.drafts.accepted);
      },
      "(first scheduled, first token, last token: seconds, 0 for what has not happened; preemptions; verifications, "
      "and\n"
      "drafts verified and accepted by depth).");
  query("request_id", [](const Sequence& s) { return s.request_id(); }, "The id given to submit().");
  query(
      "state", [](const Sequence& s) { return std::string(label(s.state())); },
      "A value of deepinfer_core.sequence.SequenceState.");
  query("num_tokens", [](const Sequence& s) { return s.num_tokens(); }, "Tokens, prompt and output.");
  query(
      "num_computed", [](const Sequence& s) { return s.num_computed(); }, "Tokens whose KV is in the cache.");
  const auto gauge = [&c](const char* name, auto get, const char* doc) { c.def_property_readonly(name, get, doc); };
  c.def("explain", &Scheduler::explain, py::arg("handle"),
        "Why a sequence does not run, or how far it is, in a sentence with numbers.")
      .def("has_unfinished", &Scheduler::has_unfinished, "Whether any sequence is still alive.")
      .def("has_work", &Scheduler::has_work, "Whether any is that is not held.")
      .def("audit", &Scheduler::audit,
           "RuntimeError naming the first broken invariant; for tests and debugging, linear in everything held.");
  gauge(
      "num_outstanding", [](const Scheduler& s) { return s.num_outstanding(); }, "Plans that are not committed.");
  gauge(
      "num_waiting", [](const Scheduler& s) { return s.num_waiting(); },
      "Sequences waiting, preempted and held ones included.");
  gauge(
      "num_running", [](const Scheduler& s) { return s.num_running(); }, "Sequences owning pages and a slot.");
  gauge(
      "num_pages", [](const Scheduler& s) { return s.pages().num_blocks(); }, "Pages, the null page included.");
  gauge("num_free_pages", [](const Scheduler& s) { return s.pages().num_free(); }, "Pages free now.");
  gauge(
      "num_slots", [](const Scheduler& s) { return s.slots().num_blocks(); }, "Slots, the null slot included.");
  gauge("num_free_slots", [](const Scheduler& s) { return s.slots().num_free(); }, "Slots free now.");
  gauge("num_preemptions", [](const Scheduler& s) { return s.num_preemptions(); }, "Preemptions so far.");
}

using Ids = std::vector<int32_t>;

std::shared_ptr<SamplingSpec> make_spec(double temperature, int32_t top_k, double top_p, double min_p,
                                        int32_t num_logprobs, bool processed_logprobs,
                                        const std::tuple<double, double, double>& penalties, Ids bias_ids,
                                        std::vector<float> bias, Ids allowed, Ids banned, Ids early_banned,
                                        int64_t min_tokens, Ids forced) {
  if (bias_ids.size() != bias.size()) throw std::invalid_argument("bias_ids and bias must have the same length");
  auto spec = std::make_shared<SamplingSpec>();
  spec->temperature = temperature;
  spec->top_k = top_k;
  spec->top_p = top_p;
  spec->min_p = min_p;
  spec->num_logprobs = num_logprobs;
  spec->processed_logprobs = processed_logprobs;
  std::tie(spec->repetition_penalty, spec->frequency_penalty, spec->presence_penalty) = penalties;
  spec->bias_ids = std::move(bias_ids);
  spec->bias = std::move(bias);
  spec->allowed = std::move(allowed);
  spec->banned = std::move(banned);
  spec->early_banned = std::move(early_banned);
  spec->min_tokens = min_tokens;
  spec->forced = std::move(forced);
  return spec;
}

// Each column as a view; those that no row needs are left out.
py::dict columns_of(const std::shared_ptr<SamplingBatch>& batch) {
  const py::object owner = py::cast(batch);
  const auto rows = static_cast<py::ssize_t>(batch->temperature.size());
  py::dict columns;
  columns["temperature"] = view<double>(batch->temperature, owner);
  columns["top_k"] = view<int32_t>(batch->top_k, owner);
  columns["top_p"] = view<double>(batch->top_p, owner);
  columns["min_p"] = view<double>(batch->min_p, owner);
  columns["seed"] = view<uint64_t>(batch->seed, owner);
  columns["position"] = view<int64_t>(batch->position, owner);
  columns["num_logprobs"] = view<int32_t>(batch->num_logprobs, owner);
  columns["processed_logprobs"] = view<bool>(batch->processed_logprobs, owner);
  if (batch->has_forced) columns["forced"] = view<int32_t>(batch->forced, owner);
  const auto ragged = [&](const char* name, const auto& column) {
    if (column.empty()) return;
    const auto offsets = view<int64_t>(column.offsets, owner);
    const auto ids = view<int32_t>(column.ids, owner);
    if (column.values.empty()) {
      columns[name] = py::make_tuple(offsets, ids);
    } else {
      using Value = typename std::decay_t<decltype(column.values)>::value_type;
      columns[name] = py::make_tuple(offsets, ids, view<Value>(column.values, owner));
    }
  };
  ragged("bias", batch->bias);
  ragged("seen", batch->seen);
  ragged("allowed", batch->allowed);
  ragged("banned", batch->banned);
  if (!batch->seen.empty()) columns["penalties"] = view<double>(batch->penalties, owner, {rows, 3});
  return columns;
}

void bind_sampling_records(py::module_& m) {
  py::class_<DecodingView, std::shared_ptr<DecodingView>>(m, "Decoding", "S sequences that will decode next.")
      .def_property_readonly("handles", view_of<int64_t>(&DecodingView::handles), "[S] int64, rising.")
      .def_property_readonly("slots", view_of<int32_t>(&DecodingView::slots), "[S] int32 state slots.")
      .def_property_readonly("num_tokens", view_of<int32_t>(&DecodingView::num_tokens), "[S] int32 tokens known.")
      .def_property_readonly("newest", view_of<int32_t>(&DecodingView::newest), "[S] int32, the last of them.")
      .def_property_readonly("room", view_of<int32_t>(&DecodingView::room),
                             "[S] int32, drafts that can be of use: the last token needs none.")
      .def_property_readonly("tags", view_of<int32_t>(&DecodingView::tags), "[S] int32, as in StepPlan.")
      .def_property_readonly("temperature", view_of<double>(&DecodingView::temperature), "[S] float64.");
  py::class_<SamplingSpec, std::shared_ptr<SamplingSpec>>(
      m, "SamplingSpec", "How a request's tokens are drawn: numbers and ids, the same in every step.")
      .def(py::init(&make_spec), py::kw_only(), py::arg("temperature"), py::arg("top_k"), py::arg("top_p"),
           py::arg("min_p"), py::arg("num_logprobs"), py::arg("processed_logprobs"), py::arg("penalties"),
           py::arg("bias_ids"), py::arg("bias"), py::arg("allowed"), py::arg("banned"), py::arg("early_banned"),
           py::arg("min_tokens"), py::arg("forced"),
           "penalties: (repetition, frequency, presence). early_banned: in place of banned for the first min_tokens\n"
           "outputs. forced: what the output begins with.");
  py::class_<SamplingBatch, std::shared_ptr<SamplingBatch>>(m, "SamplingColumns", "What R rows are drawn by.")
      .def("columns", &columns_of,
           "The columns by name, read-only views; see deepinfer_core.interfaces.sampler.SamplingBatch.")
      .def("__len__", [](const SamplingBatch& batch) { return batch.temperature.size(); });
  m.def(
      "sampling_columns",
      [](const std::vector<std::shared_ptr<SamplingSpec>>& specs, const std::vector<uint64_t>& seeds,
         const std::vector<ContiguousTokens>& prompts, const std::vector<ContiguousTokens>& outputs) {
        if (seeds.size() != specs.size() || prompts.size() != specs.size() || outputs.size() != specs.size()) {
          throw std::invalid_argument("specs, seeds, prompts and outputs must have the same length");
        }
        auto batch = std::make_shared<SamplingBatch>();
        for (size_t i = 0; i < specs.size(); ++i) {
          SamplingState state(specs[i], seeds[i], as_span(prompts[i]));
          for (const int32_t token : as_span(outputs[i])) {
            if (state.counts) state.counts->append(token);
          }
          batch->add(state, prompts[i].size() + outputs[i].size(), outputs[i].size());
        }
        return batch;
      },
      py::arg("specs"), py::arg("seeds"), py::arg("prompts"), py::arg("outputs"),
      "What the next token of each of R requests is drawn by, made from its tokens so far, int32 each.");
}

}  // namespace

void bind_scheduler(py::module_& m) {
  bind_block_manager(m);
  bind_step_plan(m);
  bind_sampling_records(m);
  py::class_<Scheduler> scheduler(
      m, "Scheduler",
      "Continuous batching over paged KV. One step: release_deferred(), schedule(), run the plan, commit(), "
      "finished(),\n"
      "acknowledge(). Handles are the order of arrival. Every call holds the GIL for some microseconds, so threads "
      "may call\n"
      "it and take turns.");
  scheduler.def(
      py::init([](int32_t page_size, int32_t num_pages, int32_t num_slots, int32_t max_num_seqs,
                  int32_t max_num_batched_tokens, int32_t max_model_len, int32_t max_chunk_tokens,
                  int32_t token_history) {
        return std::make_unique<Scheduler>(SchedulerOptions{page_size, num_pages, num_slots, max_num_seqs,
                                                            max_num_batched_tokens, max_model_len, max_chunk_tokens,
                                                            token_history});
      }),
      py::kw_only(), py::arg("page_size") = 128, py::arg("num_pages"), py::arg("num_slots"),
      py::arg("max_num_seqs"), py::arg("max_num_batched_tokens"), py::arg("max_model_len"),
      py::arg("max_chunk_tokens"), py::arg("token_history") = 0,
      "page_size: tokens per page. num_pages, num_slots: with the null one, so at least 2. max_num_seqs:\n"
      "sequences running at once (also bounded by usable slots and max_num_batched_tokens).\n"
      "max_num_batched_tokens: rows per step. max_model_len: tokens per sequence. max_chunk_tokens: prefill\n"
      "rows per sequence and step. token_history: width of StepPlan.history. ValueError names a bad one.");
  bind_verbs(scheduler);
  bind_sampling(scheduler);
  bind_queries(scheduler);
  m.def("sequence_transitions", &transitions, "The edges (from, to) that the state of a sequence may take.");
}

}  // namespace deepinfer
