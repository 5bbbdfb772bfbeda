// Counter-based random numbers: Philox4x32-10.
//
// Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
// A pure function of (counter, key): no state, so a draw can depend on nothing but what names it.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace deepinfer {

using PhiloxCounter = std::array<std::uint32_t, 4>;
using PhiloxKey = std::array<std::uint32_t, 2>;

constexpr PhiloxCounter philox4x32(PhiloxCounter counter, PhiloxKey key) {
  auto [c0, c1, c2, c3] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53u} * c0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t next0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    const std::uint32_t next2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(product1);
    c3 = static_cast<std::uint32_t>(product0);
    c0 = next0;
    c2 = next2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) ==
                  PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
              "Philox4x32-10 must give the published known answer");

// What a random number is for; part of its counter, so that two uses never share noise.
enum class Stream : std::uint32_t { kSample = 0, kDraft = 1, kAccept = 2, kReplace = 3 };

// One request's noise at one absolute position: a uniform number per token id.
struct TokenNoise {
  PhiloxKey key;
  std::uint32_t position_low;
  std::uint32_t position_high;
  std::uint32_t stream;

  constexpr TokenNoise(std::uint64_t seed, std::uint64_t position, Stream use)
      : key{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        position_low(static_cast<std::uint32_t>(position)),
        position_high(static_cast<std::uint32_t>(position >> 32)),
        stream(static_cast<std::uint32_t>(use)) {}

  // Uniform in the open interval (0, 1), 52 random bits: the exact double (bits + 1/2) / 2^52.
  constexpr double uniform(std::uint32_t token) const {
    const PhiloxCounter words = philox4x32({token, position_low, position_high, stream}, key);
    const std::uint64_t bits = (std::uint64_t{words[1]} << 20) | (words[0] >> 12);
    const double one_to_two = std::bit_cast<double>(bits | 0x3FF0000000000000u);  // 1 + bits / 2^52
    return one_to_two - (1.0 - 0x1p-53);
  }
};

}  // namespace deepinfer
