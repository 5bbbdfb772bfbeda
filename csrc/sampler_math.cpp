#include "sampler_math.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <stdexcept>

#if defined(__x86_64__) && defined(__GNUC__)
#define DEEPINFER_X86 1
#define DEEPINFER_INLINE inline __attribute__((always_inline))
#define DEEPINFER_UNROLL _Pragma("GCC unroll 8")
#else
#define DEEPINFER_INLINE inline
#define DEEPINFER_UNROLL
#endif

namespace deepinfer {

// Written once, for a compiler to vectorise; the functions further down instantiate it for each instruction set.
namespace body {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kSmallestExponent = -708.0;  // exp of less is subnormal
constexpr std::size_t kLanes = 8;

DEEPINFER_INLINE float larger(float a, float b) { return a > b ? a : b; }
DEEPINFER_INLINE float smaller(float a, float b) { return a < b ? a : b; }

// exp(max(x, -708)) for x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor polynomial of degree 13 in r, times 2^n.
DEEPINFER_INLINE double exp_nonpositive(double x) {
  const double clamped = x > kSmallestExponent ? x : kSmallestExponent;
  constexpr double kShifter = 0x1.8p52;  // adding it rounds to an integer, held in the low mantissa bits
  const double shifted = clamped * 0x1.71547652b82fep+0 + kShifter;
  const double n = shifted - kShifter;
  const double r = (clamped - n * 0x1.62e42fefa0000p-1) - n * 0x1.cf79abc9e3b3ap-40;
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const std::uint64_t exponent = (std::bit_cast<std::uint64_t>(shifted) + 1023) << 52;
  return p * std::bit_cast<double>(exponent);
}

DEEPINFER_INLINE bool block_maxima(const float* logits, std::size_t n, float* maxima) {
  constexpr std::size_t kWide = 16;
  std::uint32_t invalid[kWide] = {};
  for (; n >= kBlock; n -= kBlock, logits += kBlock) {
    float best[kWide];
    for (std::size_t lane = 0; lane < kWide; ++lane) {
      float most = logits[lane];
      std::uint32_t bad = 0;
      DEEPINFER_UNROLL for (std::size_t i = 0; i < kBlock; i += kWide) {
        most = larger(logits[i + lane], most);
        bad |= logits[i + lane] < kInfinity ? 0u : 1u;
      }
      best[lane] = most;
      invalid[lane] |= bad;
    }
    for (std::size_t lane = 0; lane < 8; ++lane) best[lane] = larger(best[lane], best[lane + 8]);
    for (std::size_t lane = 0; lane < 4; ++lane) best[lane] = larger(best[lane], best[lane + 4]);
    *maxima++ = larger(larger(best[0], best[2]), larger(best[1], best[3]));
  }
  if (n > 0) {
    *maxima = logits[0];
    for (std::size_t i = 0; i < n; ++i) {
      *maxima = larger(logits[i], *maxima);
      invalid[0] |= logits[i] < kInfinity ? 0u : 1u;
    }
  }
  return std::all_of(invalid, invalid + kWide, [](std::uint32_t flag) { return flag == 0; });
}

DEEPINFER_INLINE ValueRange value_range(const float* values, std::size_t n) {
  constexpr std::size_t kWide = 16;
  float lowest[kWide];
  float highest[kWide];
  for (std::size_t lane = 0; lane < kWide; ++lane) lowest[lane] = highest[lane] = values[0];
  std::size_t i = 0;
  for (; i + kWide <= n; i += kWide) {
    for (std::size_t lane = 0; lane < kWide; ++lane) {
      lowest[lane] = smaller(values[i + lane], lowest[lane]);
      highest[lane] = larger(values[i + lane], highest[lane]);
    }
  }
  for (; i < n; ++i) {
    lowest[0] = smaller(values[i], lowest[0]);
    highest[0] = larger(values[i], highest[0]);
  }
  return {*std::min_element(lowest, lowest + kWide), *std::max_element(highest, highest + kWide)};
}

DEEPINFER_INLINE void exp_weights(const float* logits, std::size_t n, const Weighting& weighting, double* weights) {
  const double max = weighting.max;
  const double inverse_temperature = weighting.inverse_temperature;
  for (std::size_t i = 0; i < n; ++i) {
    weights[i] = exp_nonpositive((static_cast<double>(logits[i]) - max) * inverse_temperature);
  }
}

// Sum of term(0..n), terms i, i + 8, i + 16, ... in lane i.
template <typename Term>
DEEPINFER_INLINE double sum(std::size_t n, Term term) {
  double lanes[kLanes] = {};
  double chunk[kBlock];
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t size = std::min(kBlock, n - begin);
    for (std::size_t i = 0; i < size; ++i) chunk[i] = term(begin + i);
    for (std::size_t i = size; i < kBlock; ++i) chunk[i] = 0.0;
    for (std::size_t i = 0; i < kBlock; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += chunk[i + lane];
    }
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

DEEPINFER_INLINE double sum_weights(const float* logits, std::size_t n, const Weighting& weighting) {
  const double max = weighting.max;
  const double inverse_temperature = weighting.inverse_temperature;
  return sum(n, [=](std::size_t i) __attribute__((always_inline)) {
    return exp_nonpositive((static_cast<double>(logits[i]) - max) * inverse_temperature);
  });
}

DEEPINFER_INLINE double sum_before(const float* values, const double* weights, std::size_t n, std::size_t place) {
  // Compared as double: where g++ 12 -O3 unrolls lanes, doubles selected by comparing floats come out wrong for AVX2
  // and AVX-512.
  const double value = values[place];
  const double above = sum(n, [=](std::size_t i) __attribute__((always_inline)) {
    return static_cast<double>(values[i]) > value ? weights[i] : 0.0;
  });
  const double equal = sum(place, [=](std::size_t i) __attribute__((always_inline)) {
    return static_cast<double>(values[i]) == value ? weights[i] : 0.0;
  });
  return above + equal;
}

}  // namespace body

// The passes of one instruction set, in a namespace named after it.
#define DEEPINFER_PASSES(isa, TARGET)                                                                              \
  namespace isa {                                                                                                  \
  TARGET bool block_maxima(const float* logits, std::size_t n, float* maxima) {                                    \
    return body::block_maxima(logits, n, maxima);                                                                  \
  }                                                                                                                \
  TARGET ValueRange value_range(const float* values, std::size_t n) { return body::value_range(values, n); }       \
  TARGET void exp_weights(const float* logits, std::size_t n, const Weighting& weighting, double* weights) {       \
    body::exp_weights(logits, n, weighting, weights);                                                              \
  }                                                                                                                \
  TARGET double sum_weights(const float* logits, std::size_t n, const Weighting& weighting) {                      \
    return body::sum_weights(logits, n, weighting);                                                                \
  }                                                                                                                \
  TARGET double sum_before(const float* values, const double* weights, std::size_t n, std::size_t place) {         \
    return body::sum_before(values, weights, n, place);                                                            \
  }                                                                                                                \
  constexpr RowPasses kPasses{block_maxima, value_range, exp_weights, sum_weights, sum_before,                     \
                              noise_complements_##isa};                                                            \
  }

namespace {

DEEPINFER_PASSES(plain, )
#ifdef DEEPINFER_X86
DEEPINFER_PASSES(avx2, __attribute__((target("avx2"))))
DEEPINFER_PASSES(avx512, __attribute__((target("avx512f"))))
#endif

bool is_supported(Isa isa) {
#ifdef DEEPINFER_X86
  if (isa == Isa::kAvx512) return __builtin_cpu_supports("avx512f");
  if (isa == Isa::kAvx2) return __builtin_cpu_supports("avx2");
#endif
  return isa == Isa::kPlain;
}

}  // namespace

Isa best_isa() {
  for (const Isa isa : {Isa::kAvx512, Isa::kAvx2}) {
    if (is_supported(isa)) return isa;
  }
  return Isa::kPlain;
}

const RowPasses& row_passes(Isa isa) {
  if (!is_supported(isa)) throw std::invalid_argument("this CPU lacks the instruction set asked for");
#ifdef DEEPINFER_X86
  if (isa == Isa::kAvx512) return avx512::kPasses;
  if (isa == Isa::kAvx2) return avx2::kPasses;
#endif
  return plain::kPasses;
}

}  // namespace deepinfer
