// 16 lanes as two AVX2 registers (needs AVX2, FMA, F16C). See simd.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "fp16.h"
#include "tier.h"

namespace octavo::OCTAVO_TIER::simd {

struct F16 { __m256 lo, hi; };
struct I16 { __m256i lo, hi; };
struct Bytes { __m256i lo, hi; };
struct Quad { __m256i v; };

// All ones in the first `count` lanes of 16: a window into a run of ones followed by zeros.
OCTAVO_INLINE I16 first_lanes(int count) {
  const int bounded = count < 0 ? 0 : (count > 16 ? 16 : count);
  const __m256i limit = _mm256_set1_epi32(bounded);
  const __m256i index = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(limit, index),
          _mm256_cmpgt_epi32(limit, _mm256_add_epi32(index, _mm256_set1_epi32(8)))};
}

OCTAVO_INLINE F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
OCTAVO_INLINE F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
OCTAVO_INLINE F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
OCTAVO_INLINE F16 load_partial(const float* p, int count) {
  const I16 mask = first_lanes(count);
  return {_mm256_maskload_ps(p, mask.lo), _mm256_maskload_ps(p + 8, mask.hi)};
}
OCTAVO_INLINE void store(float* p, F16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
OCTAVO_INLINE void store_partial(float* p, F16 a, int count) {
  const I16 mask = first_lanes(count);
  _mm256_maskstore_ps(p, mask.lo, a.lo);
  _mm256_maskstore_ps(p + 8, mask.hi, a.hi);
}

OCTAVO_INLINE F16 add(F16 a, F16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F16 sub(F16 a, F16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F16 mul(F16 a, F16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F16 div(F16 a, F16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
OCTAVO_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
OCTAVO_INLINE F16 fnma(F16 a, F16 b, F16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
OCTAVO_INLINE F16 min(F16 a, F16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F16 max(F16 a, F16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
OCTAVO_INLINE F16 abs(F16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}
OCTAVO_INLINE F16 neg(F16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(sign, a.lo), _mm256_xor_ps(sign, a.hi)};
}
OCTAVO_INLINE F16 round(F16 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.lo, mode), _mm256_round_ps(a.hi, mode)};
}

// Lanes below `count` from a, the others from b.
OCTAVO_INLINE F16 select_first(int count, F16 a, F16 b) {
  const I16 mask = first_lanes(count);
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(mask.lo)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(mask.hi))};
}
// x < y ? a : b; false where x or y is NaN.
OCTAVO_INLINE F16 select_less(F16 x, F16 y, F16 a, F16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_cmp_ps(x.lo, y.lo, _CMP_LT_OQ)),
          _mm256_blendv_ps(b.hi, a.hi, _mm256_cmp_ps(x.hi, y.hi, _CMP_LT_OQ))};
}
// Bit i: not a < b in lane i, so also where either is NaN.
OCTAVO_INLINE uint32_t not_less(F16 a, F16 b) {
  const int lo = _mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_NLT_UQ));
  const int hi = _mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_NLT_UQ));
  return static_cast<uint32_t>(lo) | static_cast<uint32_t>(hi) << 8;
}

OCTAVO_INLINE I16 zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
OCTAVO_INLINE I16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
OCTAVO_INLINE I16 load_int(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
OCTAVO_INLINE void store_int(int32_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}
OCTAVO_INLINE I16 add(I16 a, I16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I16 sub(I16 a, I16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I16 mul(I16 a, I16 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
OCTAVO_INLINE I16 bit_and(I16 a, I16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
template <int Count> OCTAVO_INLINE I16 shift_left(I16 a) {
  return {_mm256_slli_epi32(a.lo, Count), _mm256_slli_epi32(a.hi, Count)};
}
template <int Count> OCTAVO_INLINE I16 shift_right(I16 a) {
  return {_mm256_srli_epi32(a.lo, Count), _mm256_srli_epi32(a.hi, Count)};
}
// The conversion follows MXCSR, whose default rounding (nearest even) the engine never changes.
OCTAVO_INLINE I16 to_int(F16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
OCTAVO_INLINE F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
OCTAVO_INLINE I16 as_int(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
OCTAVO_INLINE F16 as_float(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }

OCTAVO_INLINE __m256 scale_by_pow2(__m256 p, __m256 n) {
  const __m256i exponent = _mm256_cvtps_epi32(n);
  const __m256i first = _mm256_srai_epi32(exponent, 1);
  const __m256i second = _mm256_sub_epi32(exponent, first);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256 a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, a), b);
}
// p * 2^n for whole n in [-151, 129] and p in [0.5, 2]: one rounding, subnormal results included.
// Two factors keep every exponent in range; the first product is exact.
OCTAVO_INLINE F16 scale_by_pow2(F16 p, F16 n) {
  return {scale_by_pow2(p.lo, n.lo), scale_by_pow2(p.hi, n.hi)};
}

OCTAVO_INLINE F16 load_fp16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
OCTAVO_INLINE void store_fp16(uint16_t* p, F16 a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  const F16 bounded = max(set1(-65504.0f), min(set1(65504.0f), a));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(bounded.lo, mode));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(bounded.hi, mode));
}
OCTAVO_INLINE F16 load_bf16(const uint16_t* p) {
  const __m256i lo = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  const __m256i hi =
      _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)));
  return as_float(shift_left<16>(I16{lo, hi}));
}
// Lanes must lie in [-128, 127]; others saturate.
OCTAVO_INLINE void store_int8(int8_t* p, I16 a) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

OCTAVO_INLINE float reduce_add(F16 a) {
  const __m256 eight = _mm256_add_ps(a.lo, a.hi);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
OCTAVO_INLINE float reduce_max(F16 a) {
  const __m256 eight = _mm256_max_ps(a.lo, a.hi);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
OCTAVO_INLINE int32_t reduce_add(I16 a) {
  const __m256i eight = _mm256_add_epi32(a.lo, a.hi);
  const __m128i four =
      _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

OCTAVO_INLINE Bytes load_bytes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
OCTAVO_INLINE void store_bytes(uint8_t* p, Bytes a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.hi);
}
OCTAVO_INLINE Bytes low_nibbles(Bytes a) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(a.lo, mask), _mm256_and_si256(a.hi, mask)};
}
OCTAVO_INLINE Bytes high_nibbles(Bytes a) {
  return low_nibbles({_mm256_srli_epi16(a.lo, 4), _mm256_srli_epi16(a.hi, 4)});
}
OCTAVO_INLINE I16 as_int(Bytes a) { return {a.lo, a.hi}; }
OCTAVO_INLINE Bytes as_bytes(I16 a) { return {a.lo, a.hi}; }
OCTAVO_INLINE Quad load_quad(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return {_mm256_set1_epi32(four)};
}
OCTAVO_INLINE __m256i dot_accumulate(__m256i acc, __m256i weights, __m256i activations) {
  const __m256i byte = _mm256_set1_epi16(0xff);
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(weights, byte),
                                         _mm256_srai_epi16(_mm256_slli_epi16(activations, 8), 8));
  const __m256i odd =
      _mm256_madd_epi16(_mm256_srli_epi16(weights, 8), _mm256_srai_epi16(activations, 8));
  return _mm256_add_epi32(acc, _mm256_add_epi32(even, odd));
}
// Lane i: acc + sum over b < 4 of weights[4i + b] (unsigned) * activations[b] (signed), exact.
// Products are taken in 16-bit halves because maddubs would saturate above 7-bit weights.
OCTAVO_INLINE I16 dot_accumulate(I16 acc, Bytes weights, Quad activations) {
  return {dot_accumulate(acc.lo, weights.lo, activations.v),
          dot_accumulate(acc.hi, weights.hi, activations.v)};
}

}  // namespace octavo::OCTAVO_TIER::simd
