// Quantisers of activations and cache records.
#pragma once

#include <cstdint>

namespace deepinfer {

// Element format, scale format and values per scale.
enum class Codec : int { fp8_e8m0_32 = 0, fp4_e4m3_16 = 1, fp4_e8m0_32 = 2 };

constexpr int64_t codec_group(Codec codec) { return codec == Codec::fp4_e4m3_16 ? 16 : 32; }
constexpr int64_t codec_data_bytes(Codec codec, int64_t D) { return codec == Codec::fp8_e8m0_32 ? D : D / 2; }
constexpr int64_t codec_record_bytes(Codec codec, int64_t D) {
  return codec_data_bytes(codec, D) + D / codec_group(codec);
}

// D is a multiple of the codec's group. Values are bf16 numbers held in float32.
void quantize_dequantize_row(Codec codec, float* values, int64_t D);  // in place
void pack_row(Codec codec, const float* values, int64_t D, uint8_t* record);
void unpack_row(Codec codec, const uint8_t* record, int64_t D, float* values);

}  // namespace deepinfer
