#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include <memory>
#include <stdexcept>
#include <string>
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

std::vector<std::span<const std::int32_t>> split_banned(const Array<std::int64_t>& offsets,
                                                        const Array<std::int32_t>& ids, py::ssize_t rows) {
  const std::int64_t* bounds = column(offsets, "banned_offsets", rows + 1);
  const std::int32_t* data = column(ids, "banned_ids", ids.size());
  std::vector<std::span<const std::int32_t>> spans(rows);
  for (py::ssize_t i = 0; i < rows; ++i) {
    if (bounds[0] != 0 || bounds[i + 1] < bounds[i] || bounds[rows] != ids.size()) {
      throw std::invalid_argument("banned_offsets must rise from 0 to the number of banned_ids (" +
                                  std::to_string(ids.size()) + ")");
    }
    spans[i] = {data + bounds[i], data + bounds[i + 1]};
  }
  return spans;
}

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

py::tuple sample(Sampler& sampler, const Logits& logits, const Array<double>& temperature,
                 const Array<std::int32_t>& top_k, const Array<double>& top_p, const Array<double>& min_p,
                 const Array<std::uint64_t>& seed, const Array<std::int64_t>& position,
                 const Array<std::int32_t>& num_logprobs, const Array<std::int64_t>& banned_offsets,
                 const Array<std::int32_t>& banned_ids) {
  check_matrix(logits);
  const py::ssize_t count = logits.shape(0);
  const auto banned = split_banned(banned_offsets, banned_ids, count);
  const double* temperatures = column(temperature, "temperature", count);
  const std::int32_t* top_ks = column(top_k, "top_k", count);
  const double* top_ps = column(top_p, "top_p", count);
  const double* min_ps = column(min_p, "min_p", count);
  const std::uint64_t* seeds = column(seed, "seed", count);
  const std::int64_t* positions = column(position, "position", count);
  const std::int32_t* wanted = column(num_logprobs, "num_logprobs", count);
  std::vector<SamplingRow> rows;
  for (py::ssize_t i = 0; i < count; ++i) {
    rows.push_back({temperatures[i], top_ks[i], top_ps[i], min_ps[i], seeds[i], positions[i], banned[i], wanted[i]});
  }
  Results results(wanted, count);
  {
    const float* data = logits.data();
    const std::size_t vocab_size = static_cast<std::size_t>(logits.shape(1));
    py::gil_scoped_release release;
    sampler.sample(data, vocab_size, rows, results.rows, results.top_ids, results.top_logprobs);
  }
  return results.to_python();
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
      .def(py::init([](int num_threads, const std::string& isa) {
             return std::make_unique<Sampler>(num_threads, isa_named(isa));
           }),
           py::kw_only(), py::arg("num_threads") = 1, py::arg("isa") = "best",
           "isa: best, plain, avx2 or avx512. Neither argument changes a result.")
      .def("sample", &sample, py::arg("logits").noconvert(), py::kw_only(), py::arg("temperature"), py::arg("top_k"),
           py::arg("top_p"), py::arg("min_p"), py::arg("seed"), py::arg("position"), py::arg("num_logprobs"),
           py::arg("banned_offsets"), py::arg("banned_ids"),
           R"(Sample one token per row, without the GIL.

logits: float32 [R, V], C-contiguous. The other arguments have one entry per row: temperature, top_p, min_p
float64, top_k and num_logprobs int32 (-1: no logprobs, 0: the chosen token's, N: also the N most likely),
seed uint64, position int64. Row i must not draw banned_ids[banned_offsets[i]:banned_offsets[i + 1]].

Returns (tokens int32 [R], logprobs float32 [R], ranks int32 [R], top_offsets int64 [R + 1], top_ids int32,
top_logprobs float32). A token is -1 where nothing can be drawn: a NaN or +inf logit, or all banned or -inf.
Raises ValueError for an argument out of range.)")
      .def("score", &score, py::arg("logits").noconvert(), py::kw_only(), py::arg("token_ids"),
           py::arg("num_logprobs"),
           R"(How likely given tokens are, without the GIL: what sample() would return had it drawn them.

logits: float32 [R, V], C-contiguous. token_ids: int32 [R]. num_logprobs: int32 [R], each at least 0.
Returns and raises as sample(); a token is -1 for a row with a NaN or +inf logit, or nothing but -inf.)");
}

}  // namespace deepinfer
