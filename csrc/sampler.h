// Logits to tokens: penalties, bias, masks, temperature, top-k, top-p, min-p, logprobs. No torch, no sorting of the vocabulary.
//
// A row's result depends on that row alone, bit for bit: fixed summation orders, and noise that is a pure
// function of (seed, absolute position, token id).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sampler_math.h"
#include "thread_pool.h"

namespace deepinfer {

// What is done to a row's logits before anything is drawn, in this order; the ids of each list are distinct.
//
//   1. bias: logit += bias[i] for bias_ids[i];
//   2. repetition, over seen_ids: a positive logit is divided by the penalty, any other multiplied;
//   3. frequency and presence, over seen_ids: logit -= frequency * count + (count > 0 ? presence : 0);
//   4. mask: unless it is empty, only tokens in allowed stay; tokens in banned never do; unless mask is empty, only
//      tokens t with bit t % 32 of mask[t / 32] set stay.
//
// Computed in double; rounded to float after the bias and after the penalties. What overflows upwards becomes the
// largest float, what overflows downwards -inf.
struct LogitEdits {
  std::span<const std::int32_t> bias_ids;
  std::span<const float> bias;
  std::span<const std::int32_t> seen_ids;     // tokens of the output and, for repetition, of the prompt
  std::span<const std::int32_t> seen_counts;  // how often each is in the output
  double repetition_penalty = 1.0;
  double frequency_penalty = 0.0;
  double presence_penalty = 0.0;
  std::span<const std::int32_t> allowed;
  std::span<const std::int32_t> banned;
  std::span<const std::int32_t> mask;  // [ceil(V / 32)]; bits beyond V mean nothing

  bool empty() const {
    return bias_ids.empty() && seen_ids.empty() && allowed.empty() && banned.empty() && mask.empty();
  }
};

// One row's request. "Order" below means: logit descending, then token id ascending.
//
// First the edits. Then temperature 0 takes the first token in the order. Otherwise, over the tokens not at -inf:
//   1. weight w = exp((logit - max) / temperature);
//   2. top-k keeps the first k in the order (k <= 0: all);
//   3. top-p keeps a token while the weights before it in the order sum to less than top_p of all that is left;
//   4. min-p keeps w >= min_p (the largest w is 1);
//   5. the token with the largest (logit - max) / temperature + Gumbel noise is drawn, ties to the lowest id.
// The first token in the order always stays.
struct SamplingRow {
  double temperature = 1.0;
  std::int32_t top_k = 0;
  double top_p = 1.0;
  double min_p = 0.0;
  std::uint64_t seed = 0;
  std::int64_t position = 0;              // absolute position of the token being drawn
  LogitEdits edits;
  std::int32_t forced = -1;               // the token to report as drawn; -1: draw
  std::int32_t num_logprobs = -1;         // -1: none; 0: the chosen token's; N: also the N most likely
  bool processed_logprobs = false;        // of what is drawn from, not of the logits as given
  std::int32_t proposed = -1;             // a token drawn from `proposal`, to be accepted or replaced; -1: none
  std::span<const std::int32_t> proposal_ids;      // rising
  std::span<const double> proposal_probabilities;  // above 0, 1 in sum
};

// With a proposed token x, drawn with probability q(x), and p the distribution that the row draws from: x is the row's
// token with probability min(1, p(x) / q(x)), and otherwise the token is drawn with probabilities in proportion to
// max(p - q, 0). So it is distributed as p. The noise is the streams kAccept's and kReplace's.

// What is drawn. token is -1 when nothing can be: a NaN or +inf logit, or nothing left but -inf. A forced token needs
// something left only of the logits as given.
//
// Raw logprobs are the log-softmax of the logits as given: before edits, temperature and filters. Processed ones are
// of the distribution that is drawn from, -inf for what a filter or the mask leaves out; at temperature 0, which has
// no filters, of the edited logits.
struct SampledRow {
  std::int32_t token = -1;
  float logprob;                          // NaN when not asked for
  std::int32_t rank = 0;                  // 1 + number of tokens before it in the order; 0 when not asked for
};

// A token, and what it was drawn from. token is -1, and the lists are empty, when nothing can be drawn.
struct Proposal {
  std::int32_t token = -1;
  std::vector<std::int32_t> ids;  // rising
  std::vector<double> probabilities;
};

class Sampler {
 public:
  // Rows are shared out among the threads of the pool that is bound to the calling thread. Where none is, of a pool of
  // num_threads (at least 1) of the sampler's own, or without that number of the default one. Neither the pool nor isa
  // changes a result. Throws std::invalid_argument if this CPU lacks the instruction set.
  explicit Sampler(std::optional<int> num_threads = {}, Isa isa = best_isa());
  ~Sampler();

  // logits: [rows.size(), vocab_size], contiguous. results: [rows.size()].
  // top_ids and top_logprobs: for each row the place of its num_logprobs entries (-1 and NaN for a failed row).
  // Calls are serialised. Throws std::invalid_argument when an argument is out of range.
  void sample(const float* logits, std::size_t vocab_size, std::span<const SamplingRow> rows,
              std::span<SampledRow> results, std::span<std::int32_t* const> top_ids,
              std::span<float* const> top_logprobs);

  // Draws drafts: as sample(), but with the noise of the stream kDraft, and from the first max_candidates tokens in
  // the order at most (0: no limit). num_logprobs, proposed and what belongs to them play no part.
  void propose(const float* logits, std::size_t vocab_size, std::span<const SamplingRow> rows,
               std::int32_t max_candidates, std::span<Proposal> results);

  // How likely given tokens are, instead of drawing them: as sample() would report them had it drawn tokens[i].
  // num_logprobs: [tokens.size()], each at least 0. Results and failed rows as for sample().
  void score(const float* logits, std::size_t vocab_size, std::span<const std::int32_t> tokens,
             std::span<const std::int32_t> num_logprobs, std::span<SampledRow> results,
             std::span<std::int32_t* const> top_ids, std::span<float* const> top_logprobs);

 private:
  class Row;
  template <typename Work>
  void for_each_row(std::size_t num_rows, std::size_t vocab_size, Work work);

  const RowPasses& passes_;
  std::unique_ptr<ThreadPool> own_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Row>> workers_;  // as many as ever ran at once
};

}  // namespace deepinfer
