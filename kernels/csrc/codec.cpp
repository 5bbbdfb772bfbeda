#include "codec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "linear.h"
#include "numbers.h"
#include "ops.h"
#include "parallel.h"

namespace deepinfer {
namespace {

constexpr int64_t kLargestGroup = 32;

// Nearest e4m3 value, ties to even, saturating at 448.
inline float round_e4m3(float value) {
  const float clamped = std::min(std::max(value, -448.0f), 448.0f);
  const uint32_t bits = to_bits(clamped), sign = bits & 0x80000000u, size = bits ^ sign;
  const uint32_t normal = (size + 0x7ffffu + ((size >> 20) & 1u)) & 0xfff00000u;
  constexpr float kMagic = 0x1.8p14f;  // its last place is 2^-9, the spacing of subnormals
  const uint32_t subnormal = to_bits((from_bits(size) + kMagic) - kMagic);
  return from_bits((size < to_bits(0x1p-6f) ? subnormal : normal) | sign);
}

inline uint8_t encode_e4m3(float rounded) {
  const uint32_t bits = to_bits(rounded), size = bits & 0x7fffffffu;
  uint32_t code = (size >> 20) - (120u << 3);
  if (size < to_bits(0x1p-6f)) code = static_cast<uint32_t>(from_bits(size) * 512.0f);
  if (size > to_bits(448.0f)) code = 0x7f;  // NaN
  return static_cast<uint8_t>(code | (bits >> 31 << 7));
}

// Nearest e2m1 code, ties to the even code, saturating at 6.
inline uint8_t encode_e2m1(float value) {
  const float size = std::abs(value);
  const uint32_t code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) + (size > 2.5f) +
                        (size >= 3.5f) + (size > 5.0f);
  return static_cast<uint8_t>(code | (to_bits(value) >> 31 << 3));
}

inline float largest(const float* values, int64_t n) {
  int32_t bits = 0;  // magnitudes order as integers
  for (int64_t i = 0; i < n; ++i)
    bits = std::max(bits, static_cast<int32_t>(to_bits(values[i]) & 0x7fffffffu));
  return from_bits(static_cast<uint32_t>(bits));
}

// Multiplying by the reciprocal is how the published quantiser divides.
// e8m0 code of 2^ceil(log2(value)) for a normal positive value, from its bits.
inline uint8_t ceil_e8m0(float value) {
  const uint32_t bits = to_bits(value);
  return static_cast<uint8_t>(std::min((bits >> 23) + ((bits & 0x7fffffu) != 0), 254u));
}

inline uint8_t scale_code(Codec codec, float amax) {
  switch (codec) {
    case Codec::fp8_e8m0_32:
      return ceil_e8m0(std::max(amax, 1e-4f) * (1.0f / 448.0f));
    case Codec::fp4_e8m0_32:
      return ceil_e8m0(std::max(amax, 6.0f * 0x1p-126f) * (1.0f / 6.0f));
    case Codec::fp4_e4m3_16:
      return encode_e4m3(round_e4m3(std::max(amax, 6.0f * 0x1p-9f) / 6.0f));
  }
  return 0;
}

inline float scale_value(Codec codec, uint8_t code) {
  return codec == Codec::fp4_e4m3_16 ? kE4m3[code] : kE8m0[code];
}

// The values of one group over its scale. Dividing by a power of two is multiplying by another one.
inline void divide(Codec codec, const float* x, uint8_t code, float* out) {
  const int64_t group = codec_group(codec);
  if (codec == Codec::fp4_e4m3_16) {
    for (int64_t i = 0; i < group; ++i) out[i] = x[i] / kE4m3[code];
  } else {
    const float inverse = kE8m0[254 - code];
    for (int64_t i = 0; i < group; ++i) out[i] = x[i] * inverse;
  }
}

}  // namespace

void quantize_dequantize_row(Codec codec, float* values, int64_t D) {
  const int64_t group = codec_group(codec);
  for (int64_t start = 0; start < D; start += group) {
    float* x = values + start;
    const uint8_t code = scale_code(codec, largest(x, group));
    const float scale = scale_value(codec, code);
    divide(codec, x, code, x);
    if (codec == Codec::fp8_e8m0_32)
      for (int64_t i = 0; i < group; ++i) x[i] = round_e4m3(x[i]) * scale;
    else
      for (int64_t i = 0; i < group; ++i) x[i] = kE2m1[encode_e2m1(x[i])] * scale;
  }
}

void pack_row(Codec codec, const float* values, int64_t D, uint8_t* record) {
  const int64_t group = codec_group(codec);
  uint8_t* scales = record + codec_data_bytes(codec, D);
  for (int64_t start = 0; start < D; start += group) {
    float x[kLargestGroup];
    const uint8_t code = scale_code(codec, largest(values + start, group));
    scales[start / group] = code;
    divide(codec, values + start, code, x);
    if (codec == Codec::fp8_e8m0_32)
      for (int64_t i = 0; i < group; ++i) record[start + i] = encode_e4m3(round_e4m3(x[i]));
    else
      for (int64_t i = 0; i < group; i += 2)
        record[(start + i) / 2] = static_cast<uint8_t>(encode_e2m1(x[i]) | (encode_e2m1(x[i + 1]) << 4));
  }
}

void unpack_row(Codec codec, const uint8_t* record, int64_t D, float* values) {
  const uint8_t* scales = record + codec_data_bytes(codec, D);
  if (codec == Codec::fp8_e8m0_32) {
    for (int64_t i = 0; i < D; ++i) values[i] = kE4m3[record[i]] * kE8m0[scales[i / 32]];
    return;
  }
  const int64_t group = codec_group(codec);
  for (int64_t i = 0; i < D; i += 2) {
    const float scale = scale_value(codec, scales[i / group]);
    values[i] = kE2m1[record[i / 2] & 15] * scale;
    values[i + 1] = kE2m1[record[i / 2] >> 4] * scale;
  }
}

void quantize_dequantize(const bf16* x, Codec codec, bf16* out, int64_t N, int64_t D) {
  parallel_for(N, 8 * D, [&](int64_t n) {
    Buffer<float> row(D);
    widen(x + n * D, row.data(), D);
    quantize_dequantize_row(codec, row.data(), D);
    narrow(row.data(), out + n * D, D);
  });
}

void pack_kv(const bf16* x, Codec codec, uint8_t* records, int64_t N, int64_t D) {
  parallel_for(N, 8 * D, [&](int64_t n) {
    Buffer<float> row(D);
    widen(x + n * D, row.data(), D);
    pack_row(codec, row.data(), D, records + n * codec_record_bytes(codec, D));
  });
}

void unpack_kv(const uint8_t* records, Codec codec, bf16* out, int64_t N, int64_t D) {
  parallel_for(N, 8 * D, [&](int64_t n) {
    Buffer<float> row(D);
    unpack_row(codec, records + n * codec_record_bytes(codec, D), D, row.data());
    narrow(row.data(), out + n * D, D);
  });
}

void store_records(uint8_t* cache, const int64_t* slots, const uint8_t* records, int64_t N, int64_t bytes) {
  for (int64_t n = 0; n < N; ++n)
    if (slots[n] >= 0) std::memcpy(cache + slots[n] * bytes, records + n * bytes, bytes);
}

}  // namespace deepinfer
