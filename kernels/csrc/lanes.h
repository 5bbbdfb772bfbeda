// Sixteen float32 lanes: one zmm, two ymm, or an array. Every operation gives the same bits in all three.
// A Pair holds 32 neighbouring values, those at even places and those at odd ones.
// Included once per instruction set, inside that set's namespace; the includer provides <immintrin.h>.
#pragma once

#if defined(DEEPINFER_AVX512)

struct Lanes {
  __m512 v;
};
struct Pair {
  Lanes even, odd;
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
static inline Pair load_f32_pair(const float* p) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 low = _mm512_loadu_ps(p), high = _mm512_loadu_ps(p + 16);
  return {{_mm512_permutex2var_ps(low, even, high)}, {_mm512_permutex2var_ps(low, odd, high)}};
}
static inline Pair load_bf16_pair(const uint16_t* p) {
  const __m512i raw = _mm512_loadu_si512(p);
  const __m512i odd = _mm512_and_si512(raw, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return {{_mm512_castsi512_ps(_mm512_slli_epi32(raw, 16))}, {_mm512_castsi512_ps(odd)}};
}
// e4m3 as float16: one exponent bit more, so 2^-8 of the value; NaN is kept.
static inline Pair load_e4m3_unit(const uint8_t* p) {
  const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));  // in the high bytes
  const __m512i words = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_slli_epi16(odd, 8)), odd, 1);
  const __m512i nan_code = _mm512_set1_epi16(0x3f80);
  const __m512i magnitude = _mm512_and_si512(_mm512_srli_epi16(words, 1), nan_code);
  const __mmask32 is_nan = _mm512_cmpeq_epi16_mask(magnitude, nan_code);
  const __m512i kept = _mm512_mask_blend_epi16(is_nan, magnitude, _mm512_set1_epi16(0x7f80));
  const __m512i sign = _mm512_set1_epi16(static_cast<short>(0x8000));
  const __m512i half = _mm512_ternarylogic_epi32(kept, words, sign, 0xf8);  // kept | (words & sign)
  return {{_mm512_cvtph_ps(_mm512_castsi512_si256(half))},
          {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1))}};
}
// 2^n for the integer n that `biased` = n + 1.5 * 2^23 holds in its low bits.
static inline Lanes power_of_two(Lanes biased, Lanes* rest) {
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(biased.v), _mm512_set1_epi32(0x4b400000));
  const __m512i half = _mm512_srai_epi32(n, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  rest->v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(n, half), bias), 23));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, bias), 23))};
}
static inline Pair load_e2m1_pair(const uint8_t* p, float scale) {
  const __m512 table = _mm512_mul_ps(_mm512_loadu_ps(kE2m1.values), _mm512_set1_ps(scale));
  const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  // The permutation reads the low 4 bits of each lane.
  return {{_mm512_permutexvar_ps(bytes, table)}, {_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table)}};
}
// Keeps a value in its register: otherwise each use loads it again, and loads become the bottleneck.
static inline Lanes keep(Lanes a) {
  __asm__("" : "+v"(a.v));
  return a;
}
static inline float sum(Lanes a) {
  const __m256 high = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

static inline Lanes round_bf16(Lanes a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i even = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i nearest = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), even);
  const __mmask16 is_nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i rounded = _mm512_and_si512(nearest, _mm512_set1_epi32(static_cast<int>(0xffff0000u)));
  return {_mm512_castsi512_ps(_mm512_mask_blend_epi32(is_nan, rounded, _mm512_set1_epi32(0x7fc00000)))};
}
static inline float largest(Lanes a) { return _mm512_reduce_max_ps(a.v); }
// a in lanes 0-7, b in lanes 8-15.
static inline Lanes halves(float a, float b) {
  return {_mm512_mask_blend_ps(0xff00, _mm512_set1_ps(a), _mm512_set1_ps(b))};
}
// The same 16 lanes in float64.
struct Wide {
  __m512d lo, hi;
};
static inline Wide widen(Lanes a) {
  return {_mm512_cvtps_pd(_mm512_castps512_ps256(a.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))};
}
static inline Wide fma(Wide a, Wide b, Wide c) {
  return {_mm512_fmadd_pd(a.lo, b.lo, c.lo), _mm512_fmadd_pd(a.hi, b.hi, c.hi)};
}
static inline void store(double* p, Wide a) {
  _mm512_storeu_pd(p, a.lo);
  _mm512_storeu_pd(p + 8, a.hi);
}
// The sums of 16 neighbouring Lanes, by transposing while adding; the additions are those of sum().
static inline void sum_sixteen(const float* p, float* out) {
  __m512 v[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) v[i] = _mm512_loadu_ps(p + 16 * i);
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    v[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44),
                         _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    v[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x88),
                         _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xdd));
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
    v[i] = _mm512_add_ps(_mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0x44),
                         _mm512_shuffle_ps(v[2 * i], v[2 * i + 1], 0xee));
  const __m512 sums = _mm512_add_ps(_mm512_shuffle_ps(v[0], v[1], 0x88), _mm512_shuffle_ps(v[0], v[1], 0xdd));
  // Lane 4q + i holds the sum of input 4i + q.
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_ps(out, _mm512_permutexvar_ps(order, sums));
}

#elif defined(DEEPINFER_AVX2)

struct Lanes {
  __m256 lo, hi;
};
struct Pair {
  Lanes even, odd;
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
static inline Pair load_f32_pair(const float* p) {
  Pair r;
  for (int i = 0; i < 2; ++i) {
    const __m256 a = _mm256_loadu_ps(p + 16 * i), b = _mm256_loadu_ps(p + 16 * i + 8);
    const __m256 even = _mm256_shuffle_ps(a, b, 0x88), odd = _mm256_shuffle_ps(a, b, 0xdd);
    (i ? r.even.hi : r.even.lo) = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(even), 0xd8));
    (i ? r.odd.hi : r.odd.lo) = _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(odd), 0xd8));
  }
  return r;
}
static inline Pair load_bf16_pair(const uint16_t* p) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256i lo = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i hi = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 16));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(lo, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(lo, mask)), _mm256_castsi256_ps(_mm256_and_si256(hi, mask))}};
}
// e4m3 in the high byte of each word, as float16: one exponent bit more, so 2^-8 of the value; NaN is kept.
static inline __m256i half_of_e4m3(__m256i words) {
  const __m256i magnitude = _mm256_and_si256(_mm256_srli_epi16(words, 1), _mm256_set1_epi16(0x3f80));
  const __m256i is_nan = _mm256_cmpeq_epi16(magnitude, _mm256_set1_epi16(0x3f80));
  const __m256i exponent = _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7c00));
  const __m256i sign = _mm256_and_si256(words, _mm256_set1_epi16(static_cast<short>(0x8000)));
  return _mm256_or_si256(_mm256_or_si256(magnitude, exponent), sign);
}
static inline Lanes load_half(__m256i half) {
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
static inline Pair load_e4m3_unit(const uint8_t* p) {
  const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {load_half(half_of_e4m3(_mm256_slli_epi16(words, 8))), load_half(half_of_e4m3(words))};
}
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
// Codes in the low 4 bits of each lane; the magnitude is looked up, the sign moved to the top.
static inline __m256 decode_e2m1(__m256i codes, __m256 table) {
  const __m256i sign = _mm256_slli_epi32(_mm256_srli_epi32(codes, 3), 31);
  return _mm256_xor_ps(_mm256_permutevar8x32_ps(table, codes), _mm256_castsi256_ps(sign));
}
static inline Pair load_e2m1_pair(const uint8_t* p, float scale) {
  const __m256 table = _mm256_mul_ps(_mm256_loadu_ps(kE2m1.values), _mm256_set1_ps(scale));
  const __m256i lo = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i hi = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)));
  return {{decode_e2m1(lo, table), decode_e2m1(hi, table)},
          {decode_e2m1(_mm256_srli_epi32(lo, 4), table), decode_e2m1(_mm256_srli_epi32(hi, 4), table)}};
}
struct Wide {
  __m256d v[4];
};
static inline Wide widen(Lanes a) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}
static inline Wide fma(Wide a, Wide b, Wide c) {
  for (int i = 0; i < 4; ++i) c.v[i] = _mm256_fmadd_pd(a.v[i], b.v[i], c.v[i]);
  return c;
}
static inline void store(double* p, Wide a) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, a.v[i]);
}
static inline __m256 round_bf16_half(__m256 a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i even = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i nearest = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), even);
  const __m256i rounded = _mm256_and_si256(nearest, _mm256_set1_epi32(static_cast<int>(0xffff0000u)));
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000));
  return _mm256_blendv_ps(_mm256_castsi256_ps(rounded), nan, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
}
static inline Lanes round_bf16(Lanes a) { return {round_bf16_half(a.lo), round_bf16_half(a.hi)}; }
static inline float largest(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
static inline Lanes halves(float a, float b) { return {_mm256_set1_ps(a), _mm256_set1_ps(b)}; }
static inline Lanes keep(Lanes a) { return a; }
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
struct Pair {
  Lanes even, odd;
};
template <class F>
static inline Lanes each(F f) {
  Lanes r;
  for (int i = 0; i < 16; ++i) r.v[i] = f(i);
  return r;
}
template <class F>
static inline Pair each_pair(F f) {
  return {each([&](int i) { return f(2 * i); }), each([&](int i) { return f(2 * i + 1); })};
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
static inline Pair load_f32_pair(const float* p) {
  return each_pair([&](int k) { return p[k]; });
}
static inline Pair load_bf16_pair(const uint16_t* p) {
  return each_pair([&](int k) { return from_bf16(p[k]); });
}
static inline Pair load_e4m3_unit(const uint8_t* p) {
  return each_pair([&](int k) { return kE4m3[p[k]] * 0x1p-8f; });
}
static inline Pair load_e2m1_pair(const uint8_t* p, float scale) {
  return each_pair([&](int k) { return kE2m1[(p[k / 2] >> (k % 2 * 4)) & 15] * scale; });
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
struct Wide {
  double v[16];
};
static inline Wide widen(Lanes a) {
  Wide r;
  for (int i = 0; i < 16; ++i) r.v[i] = static_cast<double>(a.v[i]);
  return r;
}
static inline Wide fma(Wide a, Wide b, Wide c) {
  for (int i = 0; i < 16; ++i) c.v[i] = __builtin_fma(a.v[i], b.v[i], c.v[i]);
  return c;
}
static inline void store(double* p, Wide a) { __builtin_memcpy(p, a.v, sizeof a.v); }
static inline Lanes round_bf16(Lanes a) {
  return each([&](int i) { return a.v[i] != a.v[i] ? kNaN : round_to_bf16(a.v[i]); });
}
static inline float largest(Lanes a) {
  float value = a.v[0];
  for (int i = 1; i < 16; ++i) value = a.v[i] > value ? a.v[i] : value;
  return value;
}
static inline Lanes halves(float a, float b) {
  return each([&](int i) { return i < 8 ? a : b; });
}
static inline Lanes keep(Lanes a) { return a; }
static inline float sum(Lanes a) {
  for (int width = 8; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) a.v[i] += a.v[i + width];
  return a.v[0];
}

#endif

// 32 e4m3 codes with the e8m0 code of their scale.
static inline Pair load_e4m3_pair(const uint8_t* p, uint8_t scale) {
  Pair value = load_e4m3_unit(p);
  if (__builtin_expect(scale > 246, 0)) {  // 2^8 times the scale overflows where the values do not
    value = {mul(value.even, splat(256.0f)), mul(value.odd, splat(256.0f))};
    return {mul(value.even, splat(kE8m0[scale])), mul(value.odd, splat(kE8m0[scale]))};
  }
  const Lanes factor = splat(kE8m0[scale] * 256.0f);
  return {mul(value.even, factor), mul(value.odd, factor)};
}

#if !defined(DEEPINFER_AVX512)
static inline void sum_sixteen(const float* p, float* out) {
  for (int i = 0; i < 16; ++i) out[i] = sum(load(p + 16 * i));
}
#endif
