#include "sampler_math.h"

#include <algorithm>
#include <bit>
#include <limits>

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define DEEPINFER_ISA_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#define DEEPINFER_UNROLL _Pragma("GCC unroll 8")
#else
#define DEEPINFER_ISA_CLONES
#define DEEPINFER_UNROLL
#endif

namespace deepinfer {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kSmallestExponent = -708.0;  // exp of less is subnormal

inline float larger(float a, float b) { return a > b ? a : b; }
inline float smaller(float a, float b) { return a < b ? a : b; }

// exp(max(x, -708)) for x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor polynomial of degree 13 in r, times 2^n.
inline double exp_nonpositive(double x) {
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

}  // namespace

DEEPINFER_ISA_CLONES
bool block_maxima(const float* logits, std::size_t n, float* maxima) {
  constexpr std::size_t kLanes = 16;
  std::uint32_t invalid[kLanes] = {};
  for (; n >= kBlock; n -= kBlock, logits += kBlock) {
    float best[kLanes];
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      float most = logits[lane];
      std::uint32_t bad = 0;
      DEEPINFER_UNROLL for (std::size_t i = 0; i < kBlock; i += kLanes) {
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
  return std::all_of(invalid, invalid + kLanes, [](std::uint32_t flag) { return flag == 0; });
}

DEEPINFER_ISA_CLONES
ValueRange value_range(const float* values, std::size_t n) {
  constexpr std::size_t kLanes = 16;
  float lowest[kLanes];
  float highest[kLanes];
  for (std::size_t lane = 0; lane < kLanes; ++lane) lowest[lane] = highest[lane] = values[0];
  std::size_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
      lowest[lane] = smaller(values[i + lane], lowest[lane]);
      highest[lane] = larger(values[i + lane], highest[lane]);
    }
  }
  for (; i < n; ++i) {
    lowest[0] = smaller(values[i], lowest[0]);
    highest[0] = larger(values[i], highest[0]);
  }
  return {*std::min_element(lowest, lowest + kLanes), *std::max_element(highest, highest + kLanes)};
}

DEEPINFER_ISA_CLONES
void exp_weights(const float* logits, std::size_t n, const Weighting& weighting, double* weights) {
  const double max = weighting.max;
  const double inverse_temperature = weighting.inverse_temperature;
  for (std::size_t i = 0; i < n; ++i) {
    weights[i] = exp_nonpositive((static_cast<double>(logits[i]) - max) * inverse_temperature);
  }
}

DEEPINFER_ISA_CLONES
double sum_weights(const float* logits, std::size_t n, const Weighting& weighting) {
  constexpr std::size_t kLanes = 8;
  const double max = weighting.max;
  const double inverse_temperature = weighting.inverse_temperature;
  double lanes[kLanes] = {};
  double chunk[kBlock];
  for (std::size_t begin = 0; begin < n; begin += kBlock) {
    const std::size_t size = std::min(kBlock, n - begin);
    for (std::size_t i = 0; i < size; ++i) {
      chunk[i] = exp_nonpositive((static_cast<double>(logits[begin + i]) - max) * inverse_temperature);
    }
    for (std::size_t i = size; i < kBlock; ++i) chunk[i] = 0.0;
    for (std::size_t i = 0; i < kBlock; i += kLanes) {
      for (std::size_t lane = 0; lane < kLanes; ++lane) lanes[lane] += chunk[i + lane];
    }
  }
  return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

}  // namespace deepinfer
