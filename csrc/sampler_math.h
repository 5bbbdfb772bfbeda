// Passes over a row of logits, vectorised for several instruction sets. Each is elementwise or has a fixed lane
// order, and no operation is contracted, so the bits are the same on all of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "philox.h"

namespace deepinfer {

// Logits are scanned in blocks; the maximum of each lets later passes skip most of the row.
inline constexpr std::size_t kBlock = 128;

inline std::size_t num_blocks(std::size_t n) { return (n + kBlock - 1) / kBlock; }

struct ValueRange {
  float lowest;
  float highest;
};

// How a logit becomes an unnormalised probability: exp((logit - max) / temperature).
struct Weighting {
  double max;
  double inverse_temperature;

  double scaled(float logit) const { return (static_cast<double>(logit) - max) * inverse_temperature; }
};

enum class Isa { kPlain, kAvx2, kAvx512 };

struct RowPasses {
  // Writes the maximum of each block. False, and the maxima are meaningless, when some logit is NaN or +inf.
  bool (*block_maxima)(const float* logits, std::size_t n, float* maxima);

  // Range of n > 0 values, none of them NaN.
  ValueRange (*value_range)(const float* values, std::size_t n);

  // weights[i] = exp of the scaled logit, within 2 units in the last place. Anything below exp(-708), -inf
  // included, gets exp(-708): too small to matter in a sum that is at least 1, or to win a draw.
  void (*exp_weights)(const float* logits, std::size_t n, const Weighting& weighting, double* weights);

  // Sum of the weights of all n logits, in 8 interleaved lanes.
  double (*sum_weights)(const float* logits, std::size_t n, const Weighting& weighting);

  // Sum of the weights of the candidates that come before `place` in the order (value descending, place
  // ascending), in 8 interleaved lanes.
  double (*sum_before)(const float* values, const double* weights, std::size_t n, std::size_t place);

  // complements[i] = 1 - noise.uniform(ids[i]), exact.
  void (*noise_complements)(const TokenNoise& noise, const std::uint32_t* ids, std::size_t n, double* complements);
};

// The fastest instruction set that this CPU has.
Isa best_isa();

// Throws std::invalid_argument if this CPU lacks the instruction set.
const RowPasses& row_passes(Isa isa);

// Philox in vectors, see sampler_noise.cpp; on other machines all three are the plain one.
void noise_complements_plain(const TokenNoise& noise, const std::uint32_t* ids, std::size_t n, double* complements);
void noise_complements_avx2(const TokenNoise& noise, const std::uint32_t* ids, std::size_t n, double* complements);
void noise_complements_avx512(const TokenNoise& noise, const std::uint32_t* ids, std::size_t n, double* complements);

}  // namespace deepinfer
