// Noise for many tokens at once. Compilers do not find the one instruction that makes Philox fast in vectors,
// the 32 x 32 -> 64 bit product of every other lane, so it is written out. Integers only: all versions agree.
#include "sampler_math.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define DEEPINFER_X86 1
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // GCC 12 warns about its own header, GCC bug 105593
#include <immintrin.h>
#endif

namespace deepinfer {

void noise_complements_plain(const TokenNoise& noise, const std::uint32_t* ids, std::size_t n, double* out) {
  for (std::size_t i = 0; i < n; ++i) out[i] = 1.0 - noise.uniform(ids[i]);
}

#ifdef DEEPINFER_X86

// In both: one token per 64-bit lane. A lane's upper half holds whatever is left there; products ignore it.

__attribute__((target("avx2"))) void noise_complements_avx2(const TokenNoise& noise, const std::uint32_t* ids,
                                                            std::size_t n, double* out) {
  const __m256i factor0 = _mm256_set1_epi64x(0xD2511F53);
  const __m256i factor1 = _mm256_set1_epi64x(0xCD9E8D57);
  std::size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    __m256i c0 = _mm256_cvtepu32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(ids + i)));
    __m256i c1 = _mm256_set1_epi64x(noise.position_low);
    __m256i c2 = _mm256_set1_epi64x(noise.position_high);
    __m256i c3 = _mm256_set1_epi64x(noise.stream);
    std::uint32_t k0 = noise.key[0], k1 = noise.key[1];
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const __m256i product0 = _mm256_mul_epu32(c0, factor0);
      const __m256i product1 = _mm256_mul_epu32(c2, factor1);
      c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), c1), _mm256_set1_epi64x(k0));
      c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), c3), _mm256_set1_epi64x(k1));
      c1 = product1;
      c3 = product0;
    }
    const __m256i low = _mm256_and_si256(c0, _mm256_set1_epi64x(0xFFFFFFFF));
    const __m256i bits = _mm256_srli_epi64(_mm256_or_si256(_mm256_slli_epi64(c1, 32), low), 12);
    const __m256d one_to_two = _mm256_castsi256_pd(_mm256_or_si256(bits, _mm256_set1_epi64x(0x3FF0000000000000)));
    const __m256d uniform = _mm256_sub_pd(one_to_two, _mm256_set1_pd(1.0 - 0x1p-53));
    _mm256_storeu_pd(out + i, _mm256_sub_pd(_mm256_set1_pd(1.0), uniform));
  }
  noise_complements_plain(noise, ids + i, n - i, out + i);
}

__attribute__((target("avx512f"))) void noise_complements_avx512(const TokenNoise& noise, const std::uint32_t* ids,
                                                                 std::size_t n, double* out) {
  const __m512i factor0 = _mm512_set1_epi64(0xD2511F53);
  const __m512i factor1 = _mm512_set1_epi64(0xCD9E8D57);
  constexpr int kXor3 = 0x96;
  std::size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m512i c0 = _mm512_cvtepu32_epi64(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(ids + i)));
    __m512i c1 = _mm512_set1_epi64(noise.position_low);
    __m512i c2 = _mm512_set1_epi64(noise.position_high);
    __m512i c3 = _mm512_set1_epi64(noise.stream);
    std::uint32_t k0 = noise.key[0], k1 = noise.key[1];
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      const __m512i product0 = _mm512_mul_epu32(c0, factor0);
      const __m512i product1 = _mm512_mul_epu32(c2, factor1);
      c0 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product1, 32), c1, _mm512_set1_epi64(k0), kXor3);
      c2 = _mm512_ternarylogic_epi64(_mm512_srli_epi64(product0, 32), c3, _mm512_set1_epi64(k1), kXor3);
      c1 = product1;
      c3 = product0;
    }
    const __m512i low = _mm512_and_si512(c0, _mm512_set1_epi64(0xFFFFFFFF));
    const __m512i bits = _mm512_srli_epi64(_mm512_or_si512(_mm512_slli_epi64(c1, 32), low), 12);
    const __m512d one_to_two = _mm512_castsi512_pd(_mm512_or_si512(bits, _mm512_set1_epi64(0x3FF0000000000000)));
    const __m512d uniform = _mm512_sub_pd(one_to_two, _mm512_set1_pd(1.0 - 0x1p-53));
    _mm512_storeu_pd(out + i, _mm512_sub_pd(_mm512_set1_pd(1.0), uniform));
  }
  noise_complements_plain(noise, ids + i, n - i, out + i);
}

#endif

}  // namespace deepinfer
