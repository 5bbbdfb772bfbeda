#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "bindings.h"
#include "philox.h"
#include "sampler.h"
#include "sampler_math.h"

namespace py = pybind11;

namespace deepinfer {
namespace {

template <typename T>
using Array = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
const T* column(const Array<T>& array, const char* name, py::ssize_t size) {
  if (array.ndim() != 1 || array.shape(0) != size) {
    throw std::invalid_argument(std::string(name) + " must have shape [" + std::to_string(size) + "], got " +
                                std::to_string(array.ndim()) + " dimensions and " + std::to_string(array.size()) +
                                " elements");
  }
  return array.data();
}

// One list per row, end to end: row i's is offsets[i]:offsets[i + 1] of each array that goes with them.
template <typename... T>
using Lists = std::optional<std::tuple<Array<std::int64_t>, Array<T>...>>;

const std::int64_t* bounds_of(const Array<std::int64_t>& offsets, const std::string& name, py::ssize_t rows,
                              py::ssize_t size) {
  const std::int64_t* bounds = column(offsets, (name + " offsets").c_str(), rows + 1);
  if (bounds[0] != 0 || bounds[rows] != size || !std::is_sorted(bounds, bounds + rows + 1)) {
    throw std::invalid_argument(name + " offsets must rise from 0 to the number of values (" + std::to_string(size) +
                                ")");
  }
  return bounds;
}

// Gives each row its part of one of the arrays.
template <typename T, typename Place>
void distribute(const Array<std::int64_t>& offsets, const Array<T>& values, const std::string& name,
                std::vector<SamplingRow>& rows, Place place) {
  const auto count = static_cast<py::ssize_t>(rows.size());
  const std::int64_t* bounds = bounds_of(offsets, name, count, values.size());
  const T* data = column(values, name.c_str(), values.size());
  for (py::ssize_t i = 0; i < count; ++i) rows[i].edits.*place = {data + bounds[i], data + bounds[i + 1]};
}

// (which [R], words [M, W]): row i's mask is words[which[i]]; -1 for a row without.
using Masks = std::tuple<Array<std::int32_t>, Array<std::int32_t>>;

// What edits the logits of a step; None where no row has any.
struct EditColumns {
  Lists<std::int32_t, float> bias;
  Lists<std::int32_t, std::int32_t> seen;
  std::optional<Array<double>> penalties;
  Lists<std::int32_t> allowed;
  Lists<std::int32_t> banned;
  std::optional<Masks> masks;

  void apply(std::vector<SamplingRow>& rows) const {
    if (bias) {
      distribute(std::get<0>(*bias), std::get<1>(*bias), "bias", rows, &LogitEdits::bias_ids);
      distribute(std::get<0>(*bias), std::get<2>(*bias), "bias", rows, &LogitEdits::bias);
    }
    if (seen.has_value() != penalties.has_value()) throw std::invalid_argument("seen and penalties go together");
    if (seen) {
      distribute(std::get<0>(*seen), std::get<1>(*seen), "seen", rows, &LogitEdits::seen_ids);
      distribute(std::get<0>(*seen), std::get<2>(*seen), "seen", rows, &LogitEdits::seen_counts);
      apply_penalties(rows);
    }
    if (allowed) distribute(std::get<0>(*allowed), std::get<1>(*allowed), "allowed", rows, &LogitEdits::allowed);
    if (banned) distribute(std::get<0>(*banned), std::get<1>(*banned), "banned", rows, &LogitEdits::banned);
    if (masks) apply_masks(rows);
  }

 private:
  void apply_masks(std::vector<SamplingRow>& rows) const {
    const auto& [which, words] = *masks;
    const std::int32_t* places = column(which, "masks", static_cast<py::ssize_t>(rows.size()));
    if (words.ndim() != 2) throw std::invalid_argument("words of masks must have shape [M, W]");
    const auto width = static_cast<std::size_t>(words.shape(1));
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (places[i] < -1 || places[i] >= words.shape(0)) {
        throw std::invalid_argument("masks must be numbers below " + std::to_string(words.shape(0)) + " or -1, got " +
                                    std::to_string(places[i]));
      }
      if (places[i] >= 0) rows[i].edits.mask = {words.data(places[i], 0), width};
    }
  }

  void apply_penalties(std::vector<SamplingRow>& rows) const {
    const auto count = static_cast<py::ssize_t>(rows.size());
    if (penalties->ndim() != 2 || penalties->shape(0) != count || penalties->shape(1) != 3) {
      throw std::invalid_argument("penalties must have shape [" + std::to_string(count) + ", 3]");
    }
    for (py::ssize_t i = 0; i < count; ++i) {
      rows[i].edits.repetition_penalty = penalties->at(i, 0);
      rows[i].edits.frequency_penalty = penalties->at(i, 1);
      rows[i].edits.presence_penalty = penalties->at(i, 2);
    }
  }
};

using Logits = py::array_t<float, py::array::c_style>;

void check_matrix(const Logits& logits) {
  if (logits.ndim() != 2) {
    throw std::invalid_argument("logits must have shape [rows, vocab_size], got " + std::to_string(logits.ndim()) +
                                " dimensions");
  }
}

// Where the results of some rows go, and what Python gets of them.
class Results {
 public:
  Results(const std::int32_t* num_logprobs, py::ssize_t count) : rows(count), offsets_(count + 1) {
    std::int64_t total = 0;
    for (py::ssize_t i = 0; i < count; ++i) {
      offsets_.mutable_at(i) = total;
      total += std::max(num_logprobs[i], 0);
    }
    offsets_.mutable_at(count) = total;
    ids_ = Array<std::int32_t>(total);
    logprobs_ = Array<float>(total);
    for (py::ssize_t i = 0; i < count; ++i) {
      top_ids.push_back(ids_.mutable_data() + offsets_.at(i));
      top_logprobs.push_back(logprobs_.mutable_data() + offsets_.at(i));
    }
  }

  py::tuple to_python() const {
    const auto count = static_cast<py::ssize_t>(rows.size());
    Array<std::int32_t> tokens(count);
    Array<float> logprobs(count);
    Array<std::int32_t> ranks(count);
    for (py::ssize_t i = 0; i < count; ++i) {
      tokens.mutable_at(i) = rows[i].token;
      logprobs.mutable_at(i) = rows[i].logprob;
      ranks.mutable_at(i) = rows[i].rank;
    }
    return py::make_tuple(tokens, logprobs, ranks, offsets_, ids_, logprobs_);
  }

  std::vector<SampledRow> rows;
  std::vector<std::int32_t*> top_ids;
  std::vector<float*> top_logprobs;

 private:
  Array<std::int64_t> offsets_;
  Array<std::int32_t> ids_;
  Array<float> logprobs_;
};

// What every row has.
struct RowColumns {
  const Array<double>& temperature;
  const Array<std::int32_t>& top_k;
  const Array<double>& top_p;
  const Array<double>& min_p;
  const Array<std::uint64_t>& seed;
  const Array<std::int64_t>& position;
  const std::optional<Array<std::int32_t>>& forced;

  std::vector<SamplingRow> rows(py::ssize_t count) const {
    const double* temperatures = column(temperature, "temperature", count);
    const std::int32_t* top_ks = column(top_k, "top_k", count);
    const double* top_ps = column(top_p, "top_p", count);
    const double* min_ps = column(min_p, "min_p", count);
    const std::uint64_t* seeds = column(seed, "seed", count);
    const std::int64_t* positions = column(position, "position", count);
    const std::int32_t* forced_ids = forced ? column(*forced, "forced", count) : nullptr;
    std::vector<SamplingRow> rows(static_cast<std::size_t>(count));
    for (py::ssize_t i = 0; i < count; ++i) {
      rows[i].temperature = temperatures[i];
      rows[i].top_k = top_ks[i];
      rows[i].top_p = top_ps[i];
      rows[i].min_p = min_ps[i];
      rows[i].seed = seeds[i];
      rows[i].position = positions[i];
      if (forced_ids) rows[i].forced = forced_ids[i];
    }
    return rows;
  }
};

using Proposals = std::optional<
    std::tuple<Array<std::int32_t>, Array<std::int64_t>, Array<std::int32_t>, Array<double>>>;

void apply_proposals(const Proposals& proposals, std::vector<SamplingRow>& rows) {
  if (!proposals) return;
  const auto& [tokens, offsets, ids, probabilities] = *proposals;
  const auto count = static_cast<py::ssize_t>(rows.size());
  const std::int32_t* proposed = column(tokens, "proposed tokens", count);
  const std::int64_t* bounds = bounds_of(offsets, "proposed", count, ids.size());
  const std::int32_t* ids_data = column(ids, "proposed ids", ids.size());
  const double* data = column(probabilities, "proposed probabilities", ids.size());
  for (py::ssize_t i = 0; i < count; ++i) {
    rows[i].proposed = proposed[i];
    rows[i].proposal_ids = {ids_data + bounds[i], ids_data + bounds[i + 1]};
    rows[i].proposal_probabilities = {data + bounds[i], data + bounds[i + 1]};
  }
}

py::tuple sample(Sampler& sampler, const Logits& logits, const Array<double>& temperature,
                 const Array<std::int32_t>& top_k, const Array<double>& top_p, const Array<double>& min_p,
                 const Array<std::uint64_t>& seed, const Array<std::int64_t>& position,
                 const Array<std::int32_t>& num_logprobs, const std::optional<Array<bool>>& processed_logprobs,
                 const std::optional<Array<std::int32_t>>& forced, const Lists<std::int32_t, float>& bias,
                 const Lists<std::int32_t, std::int32_t>& seen, const std::optional<Array<double>>& penalties,
                 const Lists<std::int32_t>& allowed, const Lists<std::int32_t>& banned,
                 const std::optional<Masks>& masks, const Proposals& proposed) {
  check_matrix(logits);
  const py::ssize_t count = logits.shape(0);
  const std::int32_t* wanted = column(num_logprobs, "num_logprobs", count);
  const bool* processed = processed_logprobs ? column(*processed_logprobs, "processed_logprobs", count) : nullptr;
  auto rows = RowColumns{temperature, top_k, top_p, min_p, seed, position, forced}.rows(count);
  for (py::ssize_t i = 0; i < count; ++i) {
    rows[i].num_logprobs = wanted[i];
    rows[i].processed_logprobs = processed && processed[i];
  }
  const EditColumns edits{bias, seen, penalties, allowed, banned, masks};
  edits.apply(rows);
  apply_proposals(proposed, rows);
  Results results(wanted, count);
  {
    const float* data = logits.data();
    const std::size_t vocab_size = static_cast<std::size_t>(logits.shape(1));
    py::gil_scoped_release release;
    sampler.sample(data, vocab_size, rows, results.rows, results.top_ids, results.top_logprobs);
  }
  return results.to_python();
}

py::tuple propose(Sampler& sampler, const Logits& logits, std::int32_t max_candidates,
                  const Array<double>& temperature, const Array<std::int32_t>& top_k, const Array<double>& top_p,
                  const Array<double>& min_p, const Array<std::uint64_t>& seed, const Array<std::int64_t>& position,
                  const std::optional<Array<std::int32_t>>& forced, const Lists<std::int32_t, float>& bias,
                  const Lists<std::int32_t, std::int32_t>& seen, const std::optional<Array<double>>& penalties,
                  const Lists<std::int32_t>& allowed, const Lists<std::int32_t>& banned,
                  const std::optional<Masks>& masks) {
  check_matrix(logits);
  const py::ssize_t count = logits.shape(0);
  auto rows = RowColumns{temperature, top_k, top_p, min_p, seed, position, forced}.rows(count);
  const EditColumns edits{bias, seen, penalties, allowed, banned, masks};
  edits.apply(rows);
  std::vector<Proposal> results(rows.size());
  {
    const float* data = logits.data();
    const std::size_t vocab_size = static_cast<std::size_t>(logits.shape(1));
    py::gil_scoped_release release;
    sampler.propose(data, vocab_size, rows, max_candidates, results);
  }
  Array<std::int32_t> tokens(count);
  Array<std::int64_t> offsets(count + 1);
  offsets.mutable_at(0) = 0;
  for (py::ssize_t i = 0; i < count; ++i) {
    tokens.mutable_at(i) = results[i].token;
    offsets.mutable_at(i + 1) = offsets.at(i) + static_cast<std::int64_t>(results[i].ids.size());
  }
  Array<std::int32_t> ids(offsets.at(count));
  Array<double> probabilities(offsets.at(count));
  for (py::ssize_t i = 0; i < count; ++i) {
    std::ranges::copy(results[i].ids, ids.mutable_data() + offsets.at(i));
    std::ranges::copy(results[i].probabilities, probabilities.mutable_data() + offsets.at(i));
  }
  return py::make_tuple(tokens, offsets, ids, probabilities);
}

py::tuple score(Sampler& sampler, const Logits& logits, const Array<std::int32_t>& token_ids,
                const Array<std::int32_t>& num_logprobs) {
  check_matrix(logits);
  const auto count = static_cast<std::size_t>(logits.shape(0));
  const std::span tokens{column(token_ids, "token_ids", logits.shape(0)), count};
  const std::span wanted{column(num_logprobs, "num_logprobs", logits.shape(0)), count};
  Results results(wanted.data(), logits.shape(0));
  {
    const float* data = logits.data();
    const std::size_t vocab_size = static_cast<std::size_t>(logits.shape(1));
    py::gil_scoped_release release;
    sampler.score(data, vocab_size, tokens, wanted, results.rows, results.top_ids, results.top_logprobs);
  }
  return results.to_python();
}

Isa isa_named(const std::string& name) {
  if (name == "best") return best_isa();
  if (name == "plain") return Isa::kPlain;
  if (name == "avx2") return Isa::kAvx2;
  if (name == "avx512") return Isa::kAvx512;
  throw std::invalid_argument("isa must be best, plain, avx2 or avx512, got " + name);
}

Array<double> uniform_noise(std::uint64_t seed, std::uint64_t position, const Array<std::uint32_t>& token_ids) {
  const std::uint32_t* ids = column(token_ids, "token_ids", token_ids.size());
  const TokenNoise noise(seed, position, Stream::kSample);
  Array<double> out(token_ids.size());
  for (py::ssize_t i = 0; i < token_ids.size(); ++i) out.mutable_at(i) = noise.uniform(ids[i]);
  return out;
}

}  // namespace

void bind_sampler(py::module_& m) {
  m.def("philox4x32", &philox4x32, py::arg("counter"), py::arg("key"),
        "Philox4x32-10: four uint32 from a counter of four and a key of two.");
  m.def("uniform_noise", &uniform_noise, py::arg("seed"), py::arg("position"), py::arg("token_ids"),
        "The uniforms in (0, 1), float64 [N], behind the Gumbel noise of these token ids at this position.");
  py::class_<Sampler>(m, "Sampler", "Draws one token per row of logits; see csrc/sampler.h for the exact rules.")
      .def(py::init([](std::optional<int> num_threads, const std::string& isa) {
             return std::make_unique<Sampler>(num_threads, isa_named(isa));
           }),
           py::kw_only(), py::arg("num_threads") = py::none(), py::arg("isa") = "best",
           R"(num_threads: of a pool of its own, for calls where no HostPool is entered; None: one per usable CPU, which all
such samplers share. isa: best, plain, avx2 or avx512. Neither argument changes a result.)")
      .def("sample", &sample, py::arg("logits").noconvert(), py::kw_only(), py::arg("temperature"), py::arg("top_k"),
           py::arg("top_p"), py::arg("min_p"), py::arg("seed"), py::arg("position"), py::arg("num_logprobs"),
           py::arg("processed_logprobs") = py::none(), py::arg("forced") = py::none(), py::arg("bias") = py::none(),
           py::arg("seen") = py::none(), py::arg("penalties") = py::none(), py::arg("allowed") = py::none(),
           py::arg("banned") = py::none(), py::arg("masks") = py::none(), py::arg("proposed") = py::none(),
           R"(Sample one token per row, without the GIL.

logits: float32 [R, V], C-contiguous. The other arguments have one entry per row: temperature, top_p, min_p
float64, top_k and num_logprobs int32 (-1: no logprobs, 0: the chosen token's, N: also the N most likely),
seed uint64, position int64, processed_logprobs bool, forced int32 (the token to report as drawn, -1: draw),
penalties float64 [R, 3] (repetition, frequency, presence).

bias, seen, allowed and banned are tuples (offsets int64 [R + 1], ids int32, ...): row i's ids, all distinct, are
ids[offsets[i]:offsets[i + 1]]. bias has also float32 values, seen also int32 counts; penalties and seen go
together. Without allowed ids a row may draw any. See LogitEdits for what they do.

masks: (which int32 [R], words int32 [M, ceil(V / 32)]): bit t % 32 of words[which[i], t // 32] is set for a token t that
row i may draw; -1 for a row without.

proposed is a tuple (tokens int32 [R], -1 for none; offsets int64 [R + 1]; ids int32, rising; probabilities float64),
the tokens to accept or replace and the distributions they were drawn from, as propose() returns them.

Returns (tokens int32 [R], logprobs float32 [R], ranks int32 [R], top_offsets int64 [R + 1], top_ids int32,
top_logprobs float32). A token is -1 where nothing can be drawn: a NaN or +inf logit, or nothing left but -inf.
Raises ValueError for an argument out of range.)")
      .def("propose", &propose, py::arg("logits").noconvert(), py::kw_only(), py::arg("max_candidates"),
           py::arg("temperature"), py::arg("top_k"), py::arg("top_p"), py::arg("min_p"), py::arg("seed"),
           py::arg("position"), py::arg("forced") = py::none(), py::arg("bias") = py::none(),
           py::arg("seen") = py::none(), py::arg("penalties") = py::none(), py::arg("allowed") = py::none(),
           py::arg("banned") = py::none(), py::arg("masks") = py::none(),
           R"(Draw drafts for sample() to accept or replace, with noise of their own, without the GIL.

Arguments as for sample(). max_candidates: draw from so many of the most likely tokens at most; 0: no limit.
Returns (tokens int32 [R], offsets int64 [R + 1], ids int32, probabilities float64): what sample() takes as proposed.
A token is -1, and its list empty, where nothing can be drawn.)")
      .def("score", &score, py::arg("logits").noconvert(), py::kw_only(), py::arg("token_ids"),
           py::arg("num_logprobs"),
           R"(How likely given tokens are, without the GIL: what sample() would return had it drawn them.

logits: float32 [R, V], C-contiguous. token_ids: int32 [R]. num_logprobs: int32 [R], each at least 0.
Returns and raises as sample(); a token is -1 for a row with a NaN or +inf logit, or nothing but -inf.)");
}

}  // namespace deepinfer
