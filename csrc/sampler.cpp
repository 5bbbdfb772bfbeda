#include "sampler.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <functional>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "bound_pool.h"
#include "sampler_math.h"

namespace deepinfer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kLargestGumbel = 36.75;        // -log(-log(1 - 2^-53)), rounded up
constexpr double kSlack = 1.0 + 0x1p-32;        // covers every rounding of a bound
constexpr std::size_t kSmall = 1024;            // this many candidates are sorted rather than counted
constexpr std::size_t kBuckets = 2048;
constexpr std::size_t kMaskBits = 32;           // tokens per word of a mask
constexpr std::size_t kParallelElements = 1u << 15;  // below this waking a thread costs more than it saves

struct Candidate {
  float value;
  std::uint32_t index;
};

// Value descending, then index ascending. No short-circuits: these comparisons are unpredictable.
constexpr bool precedes(const Candidate& a, const Candidate& b) {
  return (a.value > b.value) | ((a.value == b.value) & (a.index < b.index));
}

std::string text(const char* words) { return words; }
std::string text(auto value) { return std::to_string(value); }

// The message is made of parts only if it is needed.
template <typename... Parts>
void check(bool condition, Parts... parts) {
  if (!condition) throw std::invalid_argument((text(parts) + ...));
}

void check_vocab_size(std::size_t vocab_size) {
  check(vocab_size > 0 && vocab_size <= std::numeric_limits<std::int32_t>::max(),
        "vocab_size must be in [1, 2^31), got ", vocab_size);
}

void check_ids(const char* name, std::span<const std::int32_t> ids, std::size_t vocab_size) {
  for (const std::int32_t id : ids) {
    check(id >= 0 && static_cast<std::size_t>(id) < vocab_size,
          name, " token ids must be in [0, ", vocab_size, "), got ", id);
  }
}

void check_edits(const LogitEdits& edits, std::size_t vocab_size) {
  check_ids("bias", edits.bias_ids, vocab_size);
  check_ids("seen", edits.seen_ids, vocab_size);
  check_ids("allowed", edits.allowed, vocab_size);
  check_ids("banned", edits.banned, vocab_size);
  const std::size_t mask_words = (vocab_size + kMaskBits - 1) / kMaskBits;
  check(edits.mask.empty() || edits.mask.size() == mask_words,
        "mask must have ", mask_words, " words, got ", edits.mask.size());
  for (const float bias : edits.bias) check(std::isfinite(bias), "bias must be finite, got ", bias);
  for (const std::int32_t count : edits.seen_counts) {
    check(count >= 0, "seen counts must be >= 0, got ", count);
  }
  check(std::isfinite(edits.repetition_penalty) && edits.repetition_penalty > 0.0,
        "repetition_penalty must be finite and > 0, got ", edits.repetition_penalty);
  check(std::isfinite(edits.frequency_penalty),
        "frequency_penalty must be finite, got ", edits.frequency_penalty);
  check(std::isfinite(edits.presence_penalty), "presence_penalty must be finite, got ", edits.presence_penalty);
}

void check_proposal(const SamplingRow& row) {
  if (row.proposed < 0) return;
  const auto& ids = row.proposal_ids;
  check(std::ranges::is_sorted(ids, std::ranges::less_equal{}) && std::ranges::binary_search(ids, row.proposed),
        "proposal token ids must rise and hold the proposed token ", row.proposed);
  for (const double probability : row.proposal_probabilities) {
    check(probability > 0.0 && probability <= 1.0 + 1e-9, "proposal probabilities must be in (0, 1], got ",
          probability);
  }
}

void check_row(const SamplingRow& row, std::size_t vocab_size) {
  check(std::isfinite(row.temperature) && row.temperature >= 0.0,
        "temperature must be finite and >= 0, got ", row.temperature);
  check(row.top_p > 0.0 && row.top_p <= 1.0, "top_p must be in (0, 1], got ", row.top_p);
  check(row.min_p >= 0.0 && row.min_p <= 1.0, "min_p must be in [0, 1], got ", row.min_p);
  check(row.position >= 0, "position must be >= 0, got ", row.position);
  check(row.num_logprobs >= -1 && row.num_logprobs <= static_cast<std::int64_t>(vocab_size),
        "num_logprobs must be in [-1, ", vocab_size, "], got ", row.num_logprobs);
  check(row.forced >= -1 && row.forced < static_cast<std::int64_t>(vocab_size),
        "forced must be in [-1, ", vocab_size, "), got ", row.forced);
  check(row.proposed >= -1 && row.proposed < static_cast<std::int64_t>(vocab_size),
        "proposed must be in [-1, ", vocab_size, "), got ", row.proposed);
  check_proposal(row);
  check_edits(row.edits, vocab_size);
}

// Finds where a prefix of candidates, in order, ends. Histograms narrow the search to a few that are sorted.
class Selector {
 public:
  explicit Selector(const RowPasses& passes) : passes_(passes) {}

  // The last candidate whose predecessors' weights sum to less than target (> 0); weights nullptr: 1 each.
  // Values: n > 0 of them, finite.
  Candidate last_kept(const float* values, const double* weights, std::size_t n, double target) {
    members_.resize(n);
    double before = 0.0;
    const auto every = [values](std::size_t i) { return Candidate{values[i], static_cast<std::uint32_t>(i)}; };
    if (n <= kSmall) {
      for (std::size_t i = 0; i < n; ++i) members_[i] = every(i);
    } else {
      before = narrow(every, passes_.value_range(values, n), weights, target, before);
    }
    for (int round = 0; round < 3 && members_.size() > kSmall; ++round) {
      const auto [low, high] = std::minmax_element(
          members_.begin(), members_.end(), [](const Candidate& a, const Candidate& b) { return a.value < b.value; });
      const auto member = [this](std::size_t i) { return members_[i]; };
      before = narrow(member, {low->value, high->value}, weights, target, before);
    }
    std::sort(members_.begin(), members_.end(), precedes);
    Candidate last = members_.front();
    for (const Candidate& member : members_) {
      if (!(before < target)) break;
      last = member;
      before += weight_of(weights, member);
    }
    return last;
  }

 private:
  static double weight_of(const double* weights, const Candidate& candidate) {
    return weights ? weights[candidate.index] : 1.0;
  }

  // Makes members_ those of candidate(0..size of members_) in the histogram bucket where the running sum, which
  // is `before` at the start, reaches the target. Returns the sum of all that precede them.
  template <typename At>
  double narrow(At candidate, ValueRange range, const double* weights, double target, double before) {
    const std::size_t n = members_.size();
    const double top = range.highest;
    const double width = top - static_cast<double>(range.lowest);
    const double scale = width > 0.0 ? (kBuckets - 1) / width : 0.0;
    const auto bucket = [top, scale](float value) { return static_cast<std::int32_t>((top - value) * scale); };
    sums_.assign(kBuckets, 0.0);
    for (std::size_t i = 0; i < n; ++i) sums_[bucket(candidate(i).value)] += weight_of(weights, candidate(i));
    std::int32_t chosen = 0;
    double preceding = before;
    for (std::int32_t b = 0; b < static_cast<std::int32_t>(kBuckets) && before < target; ++b) {
      if (sums_[b] == 0.0) continue;
      chosen = b;
      preceding = before;
      before += sums_[b];
    }
    std::size_t count = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const Candidate current = candidate(i);
      members_[count] = current;
      count += bucket(current.value) == chosen ? 1 : 0;
    }
    members_.resize(count);
    return preceding;
  }

  const RowPasses& passes_;
  std::vector<Candidate> members_;
  std::vector<double> sums_;
};

}  // namespace

// Samples one row at a time; keeps its scratch memory between rows.
class Sampler::Row {
 public:
  explicit Row(const RowPasses& passes) : passes_(passes), selector_(passes) {}

  SampledRow sample(const float* logits, std::size_t vocab_size, const SamplingRow& row, std::int32_t* top_ids,
                    float* top_logprobs) {
    const bool wants_logprobs = row.num_logprobs >= 0;
    Report report;
    bool is_drawable = scan(logits, vocab_size);
    if (is_drawable && wants_logprobs && !row.processed_logprobs) {
      report = report_all({max_, 1.0});
      most_likely(report, row.num_logprobs, top_ids, top_logprobs);
    }
    if (is_drawable && !row.edits.empty()) is_drawable = edit(row.edits) || row.forced >= 0;
    if (!is_drawable) {
      no_likely(row.num_logprobs, top_ids, top_logprobs);
      return {-1, kNaN, 0};
    }
    const std::int32_t token = choose(row);
    if (!wants_logprobs) return {token, kNaN, 0};
    if (row.processed_logprobs) {
      report = report_drawn_from(row);
      most_likely(report, row.num_logprobs, top_ids, top_logprobs);
    }
    const std::int32_t place = rank(report.logits, token);
    // A drawn token is one of the kept, however the sums at the boundary are rounded.
    const bool is_kept = row.forced < 0 || static_cast<std::size_t>(place) <= report.num_kept;
    return {token, is_kept ? report.logprob(report.logits[token]) : -kInfinity, place};
  }

  Proposal propose(const float* logits, std::size_t vocab_size, const SamplingRow& row, std::int32_t max_candidates) {
    if (!scan(logits, vocab_size)) return {};
    if (!row.edits.empty() && !edit(row.edits) && row.forced < 0) return {};
    if (row.forced >= 0) return {row.forced, {row.forced}, {1.0}};
    const std::uint32_t first = argmax();
    if (row.temperature == 0.0) return {static_cast<std::int32_t>(first), {static_cast<std::int32_t>(first)}, {1.0}};
    SamplingRow narrowed = row;
    if (max_candidates > 0) narrowed.top_k = has_top_k(row) ? std::min(row.top_k, max_candidates) : max_candidates;
    set_weighting(row.temperature);
    const double total = gather_kept(narrowed);
    const TokenNoise noise(row.seed, static_cast<std::uint64_t>(row.position), Stream::kDraft);
    start_draw(noise, first);
    draw_from_candidates(noise);
    Proposal proposal{static_cast<std::int32_t>(best_token_), {ids_.begin(), ids_.begin() + count_}, {}};
    for (std::size_t i = 0; i < count_; ++i) proposal.probabilities.push_back(weights_[i] / total);
    return proposal;
  }

  SampledRow score(const float* logits, std::size_t vocab_size, std::int32_t token, std::int32_t num_logprobs,
                   std::int32_t* top_ids, float* top_logprobs) {
    if (!scan(logits, vocab_size)) {
      no_likely(num_logprobs, top_ids, top_logprobs);
      return {-1, kNaN, 0};
    }
    const Report report = report_all({max_, 1.0});
    most_likely(report, num_logprobs, top_ids, top_logprobs);
    return {token, report.logprob(logits[token]), rank(logits, token)};
  }

 private:
  // Takes a row in: its block maxima and its maximum. False when it has nothing that can be chosen.
  bool scan(const float* logits, std::size_t n) {
    logits_ = logits;
    n_ = n;
    maxima_.resize(num_blocks(n));
    if (!passes_.block_maxima(logits, n, maxima_.data())) return false;
    max_ = *std::max_element(maxima_.begin(), maxima_.end());
    return max_ > -kInfinity;
  }

  std::size_t block_size(std::size_t block) const { return std::min(kBlock, n_ - block * kBlock); }

  // --- edits: on a copy of the row; only the maxima of blocks that change are computed anew ---

  bool edit(const LogitEdits& edits) {
    if (edits.allowed.empty()) {
      edited_.assign(logits_, logits_ + n_);
    } else {
      edited_.assign(n_, -kInfinity);
      for (const std::int32_t id : edits.allowed) edited_[id] = logits_[id];
    }
    is_stale_.assign(maxima_.size(), edits.allowed.empty() ? 0 : 1);
    for (std::size_t i = 0; i < edits.bias_ids.size(); ++i) {
      replace(edits.bias_ids[i], [bias = edits.bias[i]](double logit) { return logit + bias; });
    }
    penalise(edits);
    for (const std::int32_t id : edits.banned) replace(id, [](double) { return -kInfinity; });
    mask(edits.mask);
    logits_ = edited_.data();
    for (std::size_t block = 0; block < maxima_.size(); ++block) {
      if (is_stale_[block]) passes_.block_maxima(logits_ + block * kBlock, block_size(block), &maxima_[block]);
    }
    max_ = *std::max_element(maxima_.begin(), maxima_.end());
    return max_ > -kInfinity;
  }

  void penalise(const LogitEdits& edits) {
    const double repetition = edits.repetition_penalty;
    for (std::size_t i = 0; i < edits.seen_ids.size(); ++i) {
      const double count = edits.seen_counts[i];
      const double taken = edits.frequency_penalty * count + (count > 0 ? edits.presence_penalty : 0.0);
      replace(edits.seen_ids[i], [repetition, taken](double logit) {
        return (logit > 0.0 ? logit / repetition : logit * repetition) - taken;
      });
    }
  }

  void mask(std::span<const std::int32_t> words) {
    for (std::size_t word = 0; word < words.size(); ++word) {
      const auto bits = static_cast<std::uint32_t>(words[word]);
      if (bits == ~0u) continue;
      const std::size_t begin = word * kMaskBits;
      const std::size_t count = std::min(kMaskBits, n_ - begin);
      float* const values = edited_.data() + begin;
      for (std::size_t bit = 0; bit < count; ++bit) values[bit] = bits >> bit & 1u ? values[bit] : -kInfinity;
      is_stale_[begin / kBlock] = 1;
    }
  }

  template <typename Change>
  void replace(std::size_t id, Change change) {
    const double logit = std::min<double>(change(edited_[id]), std::numeric_limits<float>::max());
    edited_[id] = static_cast<float>(logit);
    is_stale_[id / kBlock] = 1;
  }

  // --- the choice ---

  std::int32_t choose(const SamplingRow& row) {
    const std::uint32_t first = argmax();
    set_weighting(row.temperature);
    if (row.forced >= 0) return row.forced;
    if (row.temperature == 0.0) return static_cast<std::int32_t>(first);
    if (row.proposed >= 0) return verify(row);
    const TokenNoise noise(row.seed, static_cast<std::uint64_t>(row.position), Stream::kSample);
    start_draw(noise, first);
    if (has_filters(row)) {
      draw_filtered(row, noise, first);
    } else {
      draw_from_all(noise);
    }
    return static_cast<std::int32_t>(best_token_);
  }

  // Beyond this bound every logit but the largest has weight 0 anyway, and the inverse stays finite.
  void set_weighting(double temperature) {
    weighting_ = {max_, temperature == 0.0 ? 1.0 : 1.0 / std::max(temperature, 1e-300)};
  }

  bool has_top_k(const SamplingRow& row) const { return row.top_k > 0 && static_cast<std::size_t>(row.top_k) < n_; }

  bool has_filters(const SamplingRow& row) const {
    return row.temperature != 0.0 && (has_top_k(row) || row.top_p < 1.0 || row.min_p > 0.0);
  }

  // The best of a superset of the kept tokens is the best of the kept ones if it is one of them, which costs
  // less to find out than where top-p ends. Only otherwise are the candidates cut to the kept ones.
  void draw_filtered(const SamplingRow& row, const TokenNoise& noise, std::uint32_t first) {
    const double target = row.top_p * gather_candidates(row);
    draw_from_candidates(noise);
    if (is_kept(best_token_, row, target)) return;
    cut_to_kept(row, target);
    start_draw(noise, first);
    draw_from_candidates(noise);
  }

  std::uint32_t argmax() const {
    const std::size_t block = std::find(maxima_.begin(), maxima_.end(), max_) - maxima_.begin();
    const float* begin = logits_ + block * kBlock;
    return static_cast<std::uint32_t>(std::find(begin, begin + block_size(block), max_) - logits_);
  }

  // --- filters, on candidates: values_, ids_ and weights_, count_ of each, ids ascending ---

  // Candidates: exactly those that top-k keeps, or all that top-p and min-p might keep. Returns the sum of the
  // weights that top-p is a share of; 0 if top-p is off.
  double gather_candidates(const SamplingRow& row) {
    double total = 0.0;
    if (has_top_k(row)) {
      keep_top_k(row.top_k);
      if (row.top_p < 1.0) total = passes_.sum_weights(values_.data(), count_, weighting_);
    } else {
      if (row.top_p < 1.0) total = passes_.sum_weights(logits_, n_, weighting_);
      gather(lowest_possible(row, total));
    }
    weights_.resize(std::max(weights_.size(), count_));
    passes_.exp_weights(values_.data(), count_, weighting_, weights_.data());
    return total;
  }

  bool is_kept(std::uint32_t token, const SamplingRow& row, double target) const {
    const std::uint32_t* end = ids_.data() + count_;
    const std::size_t place = std::lower_bound(ids_.data(), end, token) - ids_.data();
    if (weights_[place] < row.min_p) return false;
    return row.top_p == 1.0 || passes_.sum_before(values_.data(), weights_.data(), count_, place) < target;
  }

  void cut_to_kept(const SamplingRow& row, double target) {
    Candidate last{-kInfinity, 0};
    if (row.top_p < 1.0) last = selector_.last_kept(values_.data(), weights_.data(), count_, target);
    compact([last, weights = weights_.data(), min_p = row.min_p](Candidate candidate) {
      return !precedes(last, candidate) & (weights[candidate.index] >= min_p);
    });
    passes_.exp_weights(values_.data(), count_, weighting_, weights_.data());
  }

  // A logit that no token kept by top-p or min-p is below. For top-p: were a token with weight
  // <= (1 - top_p) * total / n kept, those at or after it would weigh too little for it to be needed.
  float lowest_possible(const SamplingRow& row, double total) const {
    const double tail = (1.0 - row.top_p) * total / static_cast<double>(n_);
    const double weight = std::max(tail, row.min_p);
    if (weight <= 0.0) return std::numeric_limits<float>::lowest();
    const double logit = max_ + (std::log(weight) - 1e-3) / weighting_.inverse_temperature;
    return std::max(std::nextafter(static_cast<float>(std::max(logit, -3e38)), -kInfinity),
                    std::numeric_limits<float>::lowest());
  }

  // Candidates with logit >= threshold (which is finite, so -inf never gets in).
  void gather(float threshold) {
    values_.resize(n_);
    ids_.resize(n_);
    count_ = 0;
    for (std::size_t block = 0; block < maxima_.size(); ++block) {
      if (maxima_[block] < threshold) continue;
      const std::size_t end = block * kBlock + block_size(block);
      for (std::size_t i = block * kBlock; i < end; ++i) {
        values_[count_] = logits_[i];
        ids_[count_] = static_cast<std::uint32_t>(i);
        count_ += logits_[i] >= threshold ? 1 : 0;
      }
    }
  }

  void keep_top_k(std::size_t k) {
    float threshold = std::numeric_limits<float>::lowest();
    if (k < maxima_.size()) {  // the k-th largest block maximum: at least k logits reach it
      sorted_maxima_ = maxima_;
      std::nth_element(sorted_maxima_.begin(), sorted_maxima_.begin() + (k - 1), sorted_maxima_.end(),
                       std::greater<>());
      threshold = std::max(threshold, sorted_maxima_[k - 1]);
    }
    gather(threshold);
    if (count_ <= k) return;
    const Candidate last = selector_.last_kept(values_.data(), nullptr, count_, static_cast<double>(k));
    compact([last](Candidate candidate) { return !precedes(last, candidate); });
  }

  // Keeps the candidates (value and place among the candidates) for which keep says so.
  template <typename Keep>
  void compact(Keep keep) {
    float* values = values_.data();
    std::uint32_t* ids = ids_.data();
    std::size_t count = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const bool kept = keep(Candidate{values[i], static_cast<std::uint32_t>(i)});
      values[count] = values[i];
      ids[count] = ids[i];
      count += kept ? 1 : 0;
    }
    count_ = count;
  }

  // Candidates become exactly the kept tokens; returns the sum of their weights.
  double gather_kept(const SamplingRow& row) {
    if (has_filters(row)) {
      cut_to_kept(row, row.top_p * gather_candidates(row));
    } else {
      gather(std::numeric_limits<float>::lowest());
      weights_.resize(std::max(weights_.size(), count_));
      passes_.exp_weights(values_.data(), count_, weighting_, weights_.data());
    }
    return std::accumulate(weights_.begin(), weights_.begin() + count_, 0.0);
  }

  // --- a proposed token ---

  std::int32_t verify(const SamplingRow& row) {
    const double total = gather_kept(row);
    const auto proposed = static_cast<std::uint32_t>(row.proposed);
    const auto end = ids_.begin() + count_;
    const auto found = std::lower_bound(ids_.begin(), end, proposed);
    const double p = found == end || *found != proposed ? 0.0 : weights_[found - ids_.begin()] / total;
    const auto place = std::ranges::lower_bound(row.proposal_ids, row.proposed) - row.proposal_ids.begin();
    const TokenNoise noise(row.seed, static_cast<std::uint64_t>(row.position), Stream::kAccept);
    if (noise.uniform(0) * row.proposal_probabilities[place] < p) return row.proposed;
    return replace_proposed(row, total);
  }

  // The candidate with the largest log(p - q) + Gumbel noise. None at all is left by rounding only: p equals q.
  std::int32_t replace_proposed(const SamplingRow& row, double total) {
    const TokenNoise noise(row.seed, static_cast<std::uint64_t>(row.position), Stream::kReplace);
    best_token_ = static_cast<std::uint32_t>(row.proposed);
    best_score_ = -std::numeric_limits<double>::infinity();
    double bound = -best_score_;
    double complements[kBlock];
    std::size_t q = 0;
    for (std::size_t begin = 0; begin < count_; begin += kBlock) {
      const std::size_t size = std::min(kBlock, count_ - begin);
      passes_.noise_complements(noise, &ids_[begin], size, complements);
      for (std::size_t i = 0; i < size; ++i) {
        const auto id = static_cast<std::int32_t>(ids_[begin + i]);
        while (q < row.proposal_ids.size() && row.proposal_ids[q] < id) ++q;
        const bool is_listed = q < row.proposal_ids.size() && row.proposal_ids[q] == id;
        const double excess = weights_[begin + i] / total - (is_listed ? row.proposal_probabilities[q] : 0.0);
        if (excess <= 0.0 || complements[i] > excess * bound) continue;  // as in draw_from
        const double score = std::log(excess) + gumbel(1.0 - complements[i]);
        if (score <= best_score_) continue;
        best_score_ = score;
        best_token_ = static_cast<std::uint32_t>(id);
        bound = std::exp(-best_score_) * kSlack;
      }
    }
    return static_cast<std::int32_t>(best_token_);
  }

  // --- the draw: argmax of scaled logit + Gumbel noise ---

  void start_draw(const TokenNoise& noise, std::uint32_t token) {
    best_token_ = token;
    best_score_ = gumbel(noise.uniform(token));
  }

  static double gumbel(double uniform) { return -std::log(-std::log(uniform)); }

  void draw_from_all(const TokenNoise& noise) {
    std::uint32_t ids[kBlock];
    double weights[kBlock];
    for (std::size_t block = 0; block < maxima_.size(); ++block) {
      if (weighting_.scaled(maxima_[block]) + kLargestGumbel < best_score_) continue;
      const float* logits = logits_ + block * kBlock;
      std::iota(ids, ids + kBlock, static_cast<std::uint32_t>(block * kBlock));
      passes_.exp_weights(logits, block_size(block), weighting_, weights);
      draw_from(noise, logits, ids, weights, block_size(block));
    }
  }

  void draw_from_candidates(const TokenNoise& noise) {
    for (std::size_t i = 0; i < count_; i += kBlock) {
      draw_from(noise, &values_[i], &ids_[i], &weights_[i], std::min(kBlock, count_ - i));
    }
  }

  // x + gumbel(u) >= best means -log(u) <= exp(x) * exp(-best), and 1 - u <= -log(u): so most candidates
  // are ruled out by one comparison, and the logarithms are taken for a handful.
  void draw_from(const TokenNoise& noise, const float* logits, const std::uint32_t* ids, const double* weights,
                 std::size_t n) {
    double complements[kBlock];
    passes_.noise_complements(noise, ids, n, complements);
    double bound = std::exp(-best_score_) * kSlack;
    for (std::size_t i = 0; i < n; ++i) {
      if (complements[i] > weights[i] * bound) continue;
      const double score = weighting_.scaled(logits[i]) + gumbel(1.0 - complements[i]);
      if (score > best_score_ || (score == best_score_ && ids[i] < best_token_)) {
        best_score_ = score;
        best_token_ = ids[i];
        bound = std::exp(-best_score_) * kSlack;
      }
    }
  }

  // --- logprobs ---

  // A distribution: log-softmax of the scaled logits, of which only the first num_kept in the order count.
  struct Report {
    const float* logits;
    Weighting weighting;
    double log_sum;
    std::size_t num_kept;

    float logprob(float logit) const { return static_cast<float>(weighting.scaled(logit) - log_sum); }
  };

  Report report_all(const Weighting& weighting) const {
    return {logits_, weighting, std::log(passes_.sum_weights(logits_, n_, weighting)), n_};
  }

  Report report_drawn_from(const SamplingRow& row) {
    if (max_ == -kInfinity) return {logits_, {0.0, 1.0}, 0.0, 0};  // a forced token where nothing can be drawn
    if (!has_filters(row)) return report_all(weighting_);
    cut_to_kept(row, row.top_p * gather_candidates(row));
    return {logits_, weighting_, std::log(passes_.sum_weights(values_.data(), count_, weighting_)), count_};
  }

  std::int32_t rank(const float* logits, std::int32_t token) const {
    const float value = logits[token];
    std::int32_t before = 0;
    for (std::size_t i = 0; i < n_; ++i) before += logits[i] > value ? 1 : 0;
    for (std::int32_t i = 0; i < token; ++i) before += logits[i] == value ? 1 : 0;
    return before + 1;
  }

  static void no_likely(std::int32_t count, std::int32_t* top_ids, float* top_logprobs) {
    std::fill_n(top_ids, std::max(count, 0), -1);
    std::fill_n(top_logprobs, std::max(count, 0), kNaN);
  }

  void most_likely(const Report& report, std::size_t count, std::int32_t* top_ids, float* top_logprobs) {
    if (count == 0) return;
    keep_top_k(count);
    order_.resize(count_);
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = {values_[i], ids_[i]};
    std::sort(order_.begin(), order_.end(), precedes);
    // Fewer finite logits than asked for: the lowest ids of those at -inf complete the list.
    for (std::uint32_t id = 0; order_.size() < count; ++id) {
      if (logits_[id] == -kInfinity) order_.push_back({-kInfinity, id});
    }
    for (std::size_t i = 0; i < count; ++i) {
      top_ids[i] = static_cast<std::int32_t>(order_[i].index);
      top_logprobs[i] = i < report.num_kept ? report.logprob(order_[i].value) : -kInfinity;
    }
  }

  const RowPasses& passes_;
  const float* logits_ = nullptr;
  std::size_t n_ = 0;
  float max_ = 0.0f;
  Weighting weighting_{0.0, 1.0};
  double best_score_ = 0.0;
  std::uint32_t best_token_ = 0;
  std::size_t count_ = 0;
  std::vector<float> maxima_, sorted_maxima_, edited_, values_;
  std::vector<std::uint8_t> is_stale_;  // by block
  std::vector<std::uint32_t> ids_;
  std::vector<double> weights_;
  std::vector<Candidate> order_;
  Selector selector_;
};

Sampler::Sampler(std::optional<int> num_threads, Isa isa) : passes_(row_passes(isa)) {
  if (!num_threads) return;
  check(*num_threads >= 1, "num_threads must be >= 1, got ", *num_threads);
  own_ = std::make_unique<ThreadPool>(*num_threads);
}

Sampler::~Sampler() = default;

// Calls work(a worker's Row, row number) once per row, on as many threads as that many rows are worth. What any call
// throws ends its worker and is thrown here.
template <typename Work>
void Sampler::for_each_row(std::size_t num_rows, std::size_t vocab_size, Work work) {
  const std::lock_guard lock(mutex_);
  const HostPool* const bound = bound_pool();
  const HostPool pool = bound != nullptr ? *bound : own_ ? own_->as_host_pool(nullptr) : default_pool();
  const std::size_t useful = std::min(num_rows, num_rows * vocab_size / kParallelElements);
  const std::size_t count = std::clamp<std::size_t>(useful, 1, static_cast<std::size_t>(pool.num_threads));
  while (workers_.size() < count) workers_.push_back(std::make_unique<Row>(passes_));
  std::atomic<std::size_t> next{0};
  std::vector<std::exception_ptr> failures(count);
  const auto run = [&](std::size_t worker) {
    try {
      for (std::size_t i = next++; i < num_rows; i = next++) work(*workers_[worker], i);
    } catch (...) {
      failures[worker] = std::current_exception();
    }
  };
  const auto unit = [](const void* context, std::int64_t worker) {
    (*static_cast<const decltype(run)*>(context))(static_cast<std::size_t>(worker));
  };
  if (count == 1) {
    run(0);
  } else {
    pool.parallel_for(pool.self, static_cast<std::int64_t>(count), unit, &run);
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

void Sampler::sample(const float* logits, std::size_t vocab_size, std::span<const SamplingRow> rows,
                     std::span<SampledRow> results, std::span<std::int32_t* const> top_ids,
                     std::span<float* const> top_logprobs) {
  check_vocab_size(vocab_size);
  for (const SamplingRow& row : rows) check_row(row, vocab_size);
  for_each_row(rows.size(), vocab_size, [&](Row& worker, std::size_t i) {
    results[i] = worker.sample(logits + i * vocab_size, vocab_size, rows[i], top_ids[i], top_logprobs[i]);
  });
}

void Sampler::propose(const float* logits, std::size_t vocab_size, std::span<const SamplingRow> rows,
                      std::int32_t max_candidates, std::span<Proposal> results) {
  check_vocab_size(vocab_size);
  check(max_candidates >= 0, "max_candidates must be >= 0, got ", max_candidates);
  for (const SamplingRow& row : rows) check_row(row, vocab_size);
  for_each_row(rows.size(), vocab_size, [&](Row& worker, std::size_t i) {
    results[i] = worker.propose(logits + i * vocab_size, vocab_size, rows[i], max_candidates);
  });
}

void Sampler::score(const float* logits, std::size_t vocab_size, std::span<const std::int32_t> tokens,
                    std::span<const std::int32_t> num_logprobs, std::span<SampledRow> results,
                    std::span<std::int32_t* const> top_ids, std::span<float* const> top_logprobs) {
  check_vocab_size(vocab_size);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    check(tokens[i] >= 0 && static_cast<std::size_t>(tokens[i]) < vocab_size,
          "token ids must be in [0, ", vocab_size, "), got ", tokens[i]);
    check(num_logprobs[i] >= 0 && static_cast<std::size_t>(num_logprobs[i]) <= vocab_size,
          "num_logprobs must be in [0, ", vocab_size, "], got ", num_logprobs[i]);
  }
  for_each_row(tokens.size(), vocab_size, [&](Row& worker, std::size_t i) {
    results[i] = worker.score(logits + i * vocab_size, vocab_size, tokens[i], num_logprobs[i], top_ids[i],
                              top_logprobs[i]);
  });
}

}  // namespace deepinfer
