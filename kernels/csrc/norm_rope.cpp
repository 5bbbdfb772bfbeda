#include <cmath>
#include <cstring>

#include "linear.h"

namespace deepinfer {
namespace {

void load(Input x, int64_t offset, float* out, int64_t n) {
  if (x.is_f32)
    std::memcpy(out, static_cast<const float*>(x.data) + offset, n * sizeof(float));
  else
    widen(static_cast<const bf16*>(x.data) + offset, out, n);
}

void rotate(const bf16* x, const float* cos, const float* sin, float sign, int64_t half, bf16* out) {
  for (int64_t i = 0; i < half; ++i) {
    const float real = from_bf16(x[2 * i]), imag = from_bf16(x[2 * i + 1]), s = sign * sin[i];
    out[2 * i] = to_bf16(real * cos[i] - imag * s);
    out[2 * i + 1] = to_bf16(real * s + imag * cos[i]);
  }
}

void rotate_half_split(const bf16* x, const float* cos, const float* sin, int64_t half, bf16* out) {
  for (int64_t i = 0; i < half; ++i) {
    const float real = from_bf16(x[i]), imag = from_bf16(x[half + i]);
    out[i] = to_bf16(real * cos[i] - imag * sin[i]);
    out[half + i] = to_bf16(real * sin[i] + imag * cos[i]);
  }
}

}  // namespace

void rms_norm(Input x, Input weight, float eps, bf16* out, int64_t N, int64_t D) {
  Buffer<float> scale(D);
  load(weight, 0, scale.data(), D);
  parallel_for(N, 4 * D, [&](int64_t n) {
    Buffer<float> row(D);
    load(x, n * D, row.data(), D);
    const float mean = core().dot(row.data(), row.data(), D) / static_cast<float>(D);
    const float rstd = 1.0f / std::sqrt(mean + eps);
    for (int64_t i = 0; i < D; ++i) out[n * D + i] = to_bf16(row[i] * rstd * scale[i]);
  });
}

void rope_table(const int64_t* positions, const float* inv_freq, float* cos, float* sin, int64_t N,
                int64_t half) {
  parallel_for(N, 64 * half, [&](int64_t n) {
    const float position = static_cast<float>(positions[n]);
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position * inv_freq[i]);
      cos[n * half + i] = static_cast<float>(std::cos(angle));
      sin[n * half + i] = static_cast<float>(std::sin(angle));
    }
  });
}

void apply_rope(const bf16* x, const float* cos, const float* sin, bool inverse, bf16* out, int64_t N,
                int64_t H, int64_t D, int64_t half) {
  const int64_t plain = D - 2 * half;
  const float sign = inverse ? -1.0f : 1.0f;
  parallel_for(N * H, D, [&](int64_t i) {
    std::memcpy(out + i * D, x + i * D, plain * sizeof(bf16));
    const int64_t n = i / H;
    rotate(x + i * D + plain, cos + n * half, sin + n * half, sign, half, out + i * D + plain);
  });
}

void apply_rope_half_split(const bf16* x, const float* cos, const float* sin, bf16* out, int64_t N, int64_t H,
                           int64_t D, int64_t half) {
  parallel_for(N * H, D, [&](int64_t i) {
    const int64_t n = i / H, turned = 2 * half;
    rotate_half_split(x + i * D, cos + n * half, sin + n * half, half, out + i * D);
    std::memcpy(out + i * D + turned, x + i * D + turned, (D - turned) * sizeof(bf16));
  });
}

}  // namespace deepinfer
