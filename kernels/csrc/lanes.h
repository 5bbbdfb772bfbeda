// Sixteen float32 lanes: one zmm, two ymm, or an array. Every operation gives the same bits in all three.
// Included once per instruction set, inside that set's namespace; the includer provides <immintrin.h>.
#pragma once

#if defined(DEEPINFER_AVX512)

struct Lanes {
  __m512 v;
};
static inline Lanes zero() { return {_mm512_setzero_ps()}; }
static inline Lanes splat(float a) { return {_mm512_set1_ps(a)}; }
static inline Lanes load(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline void store(float* p, Lanes a) { _mm512_storeu_ps(p, a.v); }
static inline Lanes add(Lanes a, Lanes b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline Lanes sub(Lanes a, Lanes b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline Lanes mul(Lanes a, Lanes b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline Lanes fma(Lanes a, Lanes b, Lanes c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline Lanes max(Lanes a, Lanes b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline Lanes min(Lanes a, Lanes b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline Lanes load_bf16(const uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
// 2^n for the integer n that `biased` = n + 1.5 * 2^23 holds in its low bits.
static inline Lanes power_of_two(Lanes biased, Lanes* rest) {
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(biased.v), _mm512_set1_epi32(0x4b400000));
  const __m512i half = _mm512_srai_epi32(n, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  rest->v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23))};
}
static inline Lanes load_e2m1(const uint8_t* p) {
  const __m512 table = _mm512_loadu_ps(kE2m1.values);
  const __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  // The permutation reads 4 bits per lane: the low half of a pair sees the low nibble, the high half the other.
  const __m512i codes = _mm512_or_si512(bytes, _mm512_slli_epi64(bytes, 28));
  return {_mm512_permutexvar_ps(codes, table)};
}
static inline float sum(Lanes a) {
  const __m256 high = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#elif defined(DEEPINFER_AVX2)

struct Lanes {
  __m256 lo, hi;
};
static inline Lanes zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline Lanes splat(float a) { return {_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
static inline Lanes load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, Lanes a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
static inline Lanes add(Lanes a, Lanes b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static inline Lanes sub(Lanes a, Lanes b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static inline Lanes mul(Lanes a, Lanes b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline Lanes max(Lanes a, Lanes b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static inline Lanes min(Lanes a, Lanes b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static inline __m256 load_bf16_half(const uint16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
}
static inline Lanes load_bf16(const uint16_t* p) { return {load_bf16_half(p), load_bf16_half(p + 8)}; }
static inline __m256 power_of_two_half(__m256 biased, __m256* rest) {
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(biased), _mm256_set1_epi32(0x4b400000));
  const __m256i half = _mm256_srai_epi32(n, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  *rest = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias), 23));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
}
static inline Lanes power_of_two(Lanes biased, Lanes* rest) {
  return {power_of_two_half(biased.lo, &rest->lo), power_of_two_half(biased.hi, &rest->hi)};
}
static inline __m256 load_e2m1_half(const uint8_t* p) {
  uint32_t raw;
  __builtin_memcpy(&raw, p, 4);
  const __m256i bytes = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(static_cast<int>(raw)));
  const __m256i codes = _mm256_or_si256(bytes, _mm256_slli_epi64(bytes, 28));
  const __m256 magnitude = _mm256_permutevar8x32_ps(_mm256_loadu_ps(kE2m1.values), codes);
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(_mm256_slli_epi32(codes, 28), 31), 31);
  return _mm256_or_ps(magnitude, _mm256_castsi256_ps(sign));
}
static inline Lanes load_e2m1(const uint8_t* p) { return {load_e2m1_half(p), load_e2m1_half(p + 4)}; }
static inline float sum(Lanes a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#else

struct Lanes {
  float v[16];
};
template <class F>
static inline Lanes each(F f) {
  Lanes r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}
static inline Lanes zero() { return Lanes{}; }
static inline Lanes splat(float a) {
  return each([&](int) { return a; });
}
static inline Lanes load(const float* p) {
  return each([&](int i) { return p[i]; });
}
static inline void store(float* p, Lanes a) { __builtin_memcpy(p, a.v, sizeof a.v); }
static inline Lanes add(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
static inline Lanes sub(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
static inline Lanes mul(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
static inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
// As the vector instructions: the second operand when either is NaN.
static inline Lanes max(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline Lanes min(Lanes a, Lanes b) {
  return each([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static inline Lanes load_bf16(const uint16_t* p) {
  return each([&](int i) { return from_bf16(p[i]); });
}
static inline Lanes power_of_two(Lanes biased, Lanes* rest) {
  Lanes first;
  for (int i = 0; i < 16; ++i) {
    const int32_t n = static_cast<int32_t>(to_bits(biased.v[i]) - 0x4b400000u);
    const int32_t half = n >> 1;
    first.v[i] = from_bits(static_cast<uint32_t>(half + 127) << 23);
    rest->v[i] = from_bits(static_cast<uint32_t>(n - half + 127) << 23);
  }
  return first;
}
static inline Lanes load_e2m1(const uint8_t* p) {
  return each([&](int i) { return kE2m1[(i & 1) ? p[i / 2] >> 4 : p[i / 2] & 15]; });
}
static inline float sum(Lanes a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  return a.v[0];
}

#endif

#if defined(DEEPINFER_AVX512) || defined(DEEPINFER_AVX2)

// e4m3 has the layout of float16 with a shorter exponent: shift into place and undo the bias of 2^8.
static inline Lanes load_e4m3(const uint8_t* p) {
  const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i shifted = _mm256_slli_epi16(bytes, 7);
  const __m256i nan_code = _mm256_set1_epi16(0x3f80);
  const __m256i is_nan = _mm256_cmpeq_epi16(_mm256_and_si256(shifted, nan_code), nan_code);
  const __m256i with_sign = _mm256_add_epi16(shifted, _mm256_and_si256(shifted, _mm256_set1_epi16(0x4000)));
  const __m256i half = _mm256_or_si256(with_sign, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7c00)));
#if defined(DEEPINFER_AVX512)
  return {_mm512_mul_ps(_mm512_cvtph_ps(half), _mm512_set1_ps(256.0f))};
#else
  const __m256 scale = _mm256_set1_ps(256.0f);
  return {_mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), scale),
          _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), scale)};
#endif
}

#else

static inline Lanes load_e4m3(const uint8_t* p) {
  return each([&](int i) { return kE4m3[p[i]]; });
}

#endif
