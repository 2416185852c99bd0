// One machine register of floats, for inner loops that are laid out to the registers of a tier.
//
// AVX2 has 16 registers of 8 lanes, too few to count in vectors of 16. A group of registers holds
// the lanes of vectors in order, so that the float operations, hence the bits, are those of simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/quads.h"
#include "octavo/simd.h"
#include "octavo/tier.h"

namespace octavo {
namespace OCTAVO_TIER {

#if defined(OCTAVO_TIER_AVX2)
constexpr int kRegisterLanes = 8;
struct Register { __m256 v; };

OCTAVO_INLINE Register zero_register() { return {_mm256_setzero_ps()}; }
OCTAVO_INLINE Register repeat(float x) { return {_mm256_set1_ps(x)}; }
OCTAVO_INLINE Register load_register(const float* p) { return {_mm256_loadu_ps(p)}; }
OCTAVO_INLINE Register load_register(const Half* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
OCTAVO_INLINE Register load_register(const int8_t* p) {
  const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes))};
}
OCTAVO_INLINE void store_register(float* p, Register a) { _mm256_storeu_ps(p, a.v); }
// a * b + c
OCTAVO_INLINE Register multiply_add(Register a, Register b, Register c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
// Four floats repeated over the register.
OCTAVO_INLINE Register repeat_quad(const float* p) {
  return {_mm256_broadcast_ps(reinterpret_cast<const __m128*>(p))};
}
#else
constexpr int kRegisterLanes = 16;
using Register = simd::F16;

OCTAVO_INLINE Register zero_register() { return simd::zero(); }
OCTAVO_INLINE Register repeat(float x) { return simd::set1(x); }
OCTAVO_INLINE Register load_register(const float* p) { return simd::load(p); }
OCTAVO_INLINE Register load_register(const Half* p) { return load_element(p); }
OCTAVO_INLINE Register load_register(const int8_t* p) { return load_element(p); }
OCTAVO_INLINE void store_register(float* p, Register a) { simd::store(p, a); }
OCTAVO_INLINE Register multiply_add(Register a, Register b, Register c) {
  return simd::fma(a, b, c);
}
OCTAVO_INLINE Register repeat_quad(const float* p) {
#if defined(OCTAVO_TIER_AVX512)
  return {_mm512_broadcast_f32x4(_mm_loadu_ps(p))};
#else
  return simd::each([&](int i) { return p[i % 4]; });
#endif
}
#endif

#if defined(OCTAVO_TIER_AVX512) || defined(OCTAVO_TIER_AVX2)
// Sums of neighbouring lanes: what hadd gives in half of its time.
OCTAVO_INLINE __m256 pair_sums(__m256 a, __m256 b) {
  return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}
OCTAVO_INLINE __m256 quad_sum_of_eight(__m256 a, __m256 b, __m256 c, __m256 d) {
  const __m256 sums = pair_sums(pair_sums(a, b), pair_sums(c, d));
  return _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
#endif

// Lane i: (x0 + x1) + (x2 + x3) of the i-th of the 16 quads in `parts`.
OCTAVO_INLINE simd::F16 quad_sum(const Register (&parts)[64 / kRegisterLanes]) {
#if defined(OCTAVO_TIER_AVX512)
  const auto low = [](Register x) { return _mm512_castps512_ps256(x.v); };
  const auto high = [](Register x) { return _mm512_extractf32x8_ps(x.v, 1); };
  const auto eight = [&](Register a, Register b) {
    return quad_sum_of_eight(low(a), high(a), low(b), high(b));
  };
  const __m512 first = _mm512_castps256_ps512(eight(parts[0], parts[1]));
  return {_mm512_insertf32x8(first, eight(parts[2], parts[3]), 1)};
#elif defined(OCTAVO_TIER_AVX2)
  return {quad_sum_of_eight(parts[0].v, parts[1].v, parts[2].v, parts[3].v),
          quad_sum_of_eight(parts[4].v, parts[5].v, parts[6].v, parts[7].v)};
#else
  return simd::each([&](int i) {
    const float* x = parts[i / 4].v + i % 4 * 4;
    return (x[0] + x[1]) + (x[2] + x[3]);
  });
#endif
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
