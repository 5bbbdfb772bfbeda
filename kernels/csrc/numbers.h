// Number formats of the model, one value at a time: bf16, e4m3, e2m1, e8m0.
#pragma once

#include <bit>
#include <cstdint>

namespace deepinfer {

constexpr float kNaN = std::bit_cast<float>(0x7fc00000u);

static constexpr float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
static constexpr uint32_t to_bits(float value) { return std::bit_cast<uint32_t>(value); }

static constexpr float from_bf16(uint16_t value) { return from_bits(static_cast<uint32_t>(value) << 16); }

// Round to nearest even; NaN stays NaN.
static constexpr uint16_t to_bf16(float value) {
  const uint32_t bits = to_bits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static constexpr float round_to_bf16(float value) { return from_bf16(to_bf16(value)); }

// 2^(code - 127); code 0 is a float32 subnormal, code 255 is NaN.
static constexpr float from_e8m0(uint8_t code) {
  if (code == 255) return kNaN;
  return code == 0 ? from_bits(0x00400000u) : from_bits(static_cast<uint32_t>(code) << 23);
}

// Sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities, 0x7f and 0xff are NaN.
static constexpr float from_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  float value =
      magnitude < 8 ? static_cast<float>(magnitude) * 0x1p-9f : from_bits((magnitude << 20) + (120u << 23));
  if (magnitude == 0x7f) value = kNaN;
  return (code & 0x80u) ? -value : value;
}

// Sign and one of 0, 0.5, 1, 1.5, 2, 3, 4, 6.
static constexpr float from_e2m1(uint8_t code) {
  constexpr float kMagnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = kMagnitudes[code & 7u];
  return (code & 8u) ? -value : value;
}

// Tables are private to each file, so that code built for one instruction set shares no symbol with another.
template <int N>
struct Table {
  float values[N];
  constexpr float operator[](int code) const { return values[code]; }
};

template <int N>
static constexpr Table<N> table_of(float (*decode)(uint8_t)) {
  Table<N> table{};
  for (int code = 0; code < N; ++code) table.values[code] = decode(static_cast<uint8_t>(code));
  return table;
}

static constexpr Table<256> kE8m0 = table_of<256>(from_e8m0);
static constexpr Table<256> kE4m3 = table_of<256>(from_e4m3);
static constexpr Table<16> kE2m1 = table_of<16>(from_e2m1);

}  // namespace deepinfer
