// Vector helpers of attention and of the element-wise operators on top of simd.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/simd.h"
#include "octavo/tier.h"

namespace octavo {
namespace OCTAVO_TIER {

using Half = uint16_t;

OCTAVO_INLINE simd::F16 load_element(const Half* p) { return simd::load_fp16(p); }
OCTAVO_INLINE simd::F16 load_element(const float* p) { return simd::load(p); }
OCTAVO_INLINE simd::F16 load_element(const int8_t* p) {
#if defined(OCTAVO_TIER_AVX512)
  const __m128i codes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes))};
#elif defined(OCTAVO_TIER_AVX2)
  const auto eight = [](const int8_t* at) {
    const __m128i codes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(at));
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes));
  };
  return {eight(p), eight(p + 8)};
#else
  return simd::each([&](int i) { return float(p[i]); });
#endif
}
OCTAVO_INLINE void store_element(Half* p, simd::F16 a) { simd::store_fp16(p, a); }
OCTAVO_INLINE void store_element(float* p, simd::F16 a) { simd::store(p, a); }

// The first n <= 16 lanes; the rest reads as zero and is not written.
OCTAVO_INLINE simd::F16 take(const float* p, int n) {
  return n == 16 ? simd::load(p) : simd::load_partial(p, n);
}
OCTAVO_INLINE void put(float* p, simd::F16 a, int n) {
  if (n == 16) {
    simd::store(p, a);
  } else {
    simd::store_partial(p, a, n);
  }
}

// Lanes [begin, end) from a, the others from b; the bounds may lie outside of [0, 16].
OCTAVO_INLINE simd::F16 select_span(int begin, int end, simd::F16 a, simd::F16 b) {
  if (begin > 0) a = simd::select_first(begin, b, a);
  return end < 16 ? simd::select_first(end, a, b) : a;
}

// Where a sum of signed_dot over codes b begins, given the sum of all b.
OCTAVO_INLINE simd::I16 signed_dot_start(int32_t sum) {
#if defined(OCTAVO_TIER_AVX512)
  return simd::set1_int(-128 * sum);
#else
  (void)sum;
  return simd::zero_int();
#endif
}

// Lane i: acc + sum over j < 4 of a[4i + j] * b[j], both signed, b within +-127; exact. VNNI takes
// unsigned bytes, so it adds 128 to each a, which signed_dot_start takes back.
OCTAVO_INLINE simd::I16 signed_dot(simd::I16 acc, simd::Bytes a, simd::Quad b) {
#if defined(OCTAVO_TIER_AVX512)
  return {_mm512_dpbusd_epi32(acc.v, _mm512_xor_si512(a.v, _mm512_set1_epi8(-128)), b.v)};
#elif defined(OCTAVO_TIER_AVX2)
  // a lends its sign to b: the pair sums stay within 2 * 128 * 127 < 2^15.
  const auto add = [&](__m256i sum, __m256i x) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(x), _mm256_sign_epi8(b.v, x));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  };
  return {add(acc.lo, a.lo), add(acc.hi, a.hi)};
#else
  for (int i = 0; i < 16; ++i) {
    for (int j = 0; j < 4; ++j) acc.v[i] += int8_t(a.v[4 * i + j]) * b.v[j];
  }
  return acc;
#endif
}

// Lanes 2 i and 2 i + 1 exchanged.
OCTAVO_INLINE simd::F16 swap_pairs(simd::F16 a) {
#if defined(OCTAVO_TIER_AVX512)
  return {_mm512_permute_ps(a.v, 0xb1)};
#elif defined(OCTAVO_TIER_AVX2)
  return {_mm256_permute_ps(a.lo, 0xb1), _mm256_permute_ps(a.hi, 0xb1)};
#else
  return simd::each([&](int i) { return a.v[i ^ 1]; });
#endif
}

OCTAVO_INLINE float first_lane(simd::F16 a) {
#if defined(OCTAVO_TIER_AVX512)
  return _mm512_cvtss_f32(a.v);
#elif defined(OCTAVO_TIER_AVX2)
  return _mm256_cvtss_f32(a.lo);
#else
  return a.v[0];
#endif
}

OCTAVO_INLINE simd::F16 sigmoid(simd::F16 x) {
  const simd::F16 one = simd::set1(1.0f);
  return simd::div(one, simd::add(one, simd::exp(simd::neg(x))));
}

// c tanh(x / c), by tanh(z) = 2 sigmoid(2 z) - 1; absolute error about 1e-7 c.
OCTAVO_INLINE simd::F16 cap(simd::F16 x, float c) {
  const simd::F16 z = simd::div(simd::add(x, x), simd::set1(c));
  const simd::F16 limit = simd::set1(c);
  return simd::sub(simd::mul(simd::add(limit, limit), sigmoid(z)), limit);
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
