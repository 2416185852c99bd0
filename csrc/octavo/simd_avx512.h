// 16 lanes as one AVX-512 register (needs F, BW, VL, DQ, VNNI). See simd.h for the contract.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "fp16.h"
#include "tier.h"

namespace octavo::OCTAVO_TIER::simd {

struct F16 { __m512 v; };
struct I16 { __m512i v; };
struct Bytes { __m512i v; };
struct Quad { __m512i v; };

OCTAVO_INLINE __mmask16 first_lanes(int count) {
  return count >= 16 ? __mmask16(0xffff) : __mmask16((1u << (count < 0 ? 0 : count)) - 1u);
}

OCTAVO_INLINE F16 zero() { return {_mm512_setzero_ps()}; }
OCTAVO_INLINE F16 set1(float x) { return {_mm512_set1_ps(x)}; }
OCTAVO_INLINE F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
OCTAVO_INLINE F16 load_partial(const float* p, int count) {
  return {_mm512_maskz_loadu_ps(first_lanes(count), p)};
}
OCTAVO_INLINE void store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
OCTAVO_INLINE void store_partial(float* p, F16 a, int count) {
  _mm512_mask_storeu_ps(p, first_lanes(count), a.v);
}

OCTAVO_INLINE F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
OCTAVO_INLINE F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
OCTAVO_INLINE F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
OCTAVO_INLINE F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
OCTAVO_INLINE F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
OCTAVO_INLINE F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE F16 fnma(F16 a, F16 b, F16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
OCTAVO_INLINE F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
OCTAVO_INLINE F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
OCTAVO_INLINE F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
OCTAVO_INLINE F16 neg(F16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
OCTAVO_INLINE F16 round(F16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

// Lanes below `count` from a, the others from b.
OCTAVO_INLINE F16 select_first(int count, F16 a, F16 b) {
  return {_mm512_mask_blend_ps(first_lanes(count), b.v, a.v)};
}
// x < y ? a : b; false where x or y is NaN.
OCTAVO_INLINE F16 select_less(F16 x, F16 y, F16 a, F16 b) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(x.v, y.v, _CMP_LT_OQ), b.v, a.v)};
}
// Bit i: not a < b in lane i, so also where either is NaN.
OCTAVO_INLINE uint32_t not_less(F16 a, F16 b) {
  return _mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ);
}

OCTAVO_INLINE I16 zero_int() { return {_mm512_setzero_si512()}; }
OCTAVO_INLINE I16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
OCTAVO_INLINE I16 load_int(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE void store_int(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE I16 add(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
OCTAVO_INLINE I16 sub(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
OCTAVO_INLINE I16 mul(I16 a, I16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
OCTAVO_INLINE I16 bit_and(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int Count> OCTAVO_INLINE I16 shift_left(I16 a) { return {_mm512_slli_epi32(a.v, Count)}; }
template <int Count> OCTAVO_INLINE I16 shift_right(I16 a) { return {_mm512_srli_epi32(a.v, Count)}; }
OCTAVO_INLINE I16 to_int(F16 a) {
  return {_mm512_cvt_roundps_epi32(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
OCTAVO_INLINE F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
OCTAVO_INLINE I16 as_int(F16 a) { return {_mm512_castps_si512(a.v)}; }
OCTAVO_INLINE F16 as_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }

// p * 2^n for whole n in [-151, 129] and p in [0.5, 2]: one rounding, subnormal results included.
OCTAVO_INLINE F16 scale_by_pow2(F16 p, F16 n) { return {_mm512_scalef_ps(p.v, n.v)}; }

OCTAVO_INLINE F16 load_fp16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
OCTAVO_INLINE void store_fp16(uint16_t* p, F16 a) {
  const __m512 bounded = _mm512_max_ps(_mm512_set1_ps(-65504.0f),
                                       _mm512_min_ps(_mm512_set1_ps(65504.0f), a.v));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtps_ph(bounded, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
OCTAVO_INLINE F16 load_bf16(const uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
// Lanes must lie in [-128, 127]; others saturate.
OCTAVO_INLINE void store_int8(int8_t* p, I16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}

OCTAVO_INLINE float reduce_add(F16 a) {
  const __m256 upper = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}
OCTAVO_INLINE float reduce_max(F16 a) {
  const __m256 upper = _mm512_extractf32x8_ps(a.v, 1);
  const __m256 eight = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
OCTAVO_INLINE int32_t reduce_add(I16 a) { return _mm512_reduce_add_epi32(a.v); }

OCTAVO_INLINE Bytes load_bytes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
OCTAVO_INLINE void store_bytes(uint8_t* p, Bytes a) { _mm512_storeu_si512(p, a.v); }
OCTAVO_INLINE Bytes low_nibbles(Bytes a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
OCTAVO_INLINE Bytes high_nibbles(Bytes a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
OCTAVO_INLINE I16 as_int(Bytes a) { return {a.v}; }
OCTAVO_INLINE Bytes as_bytes(I16 a) { return {a.v}; }
OCTAVO_INLINE Quad load_quad(const int8_t* p) {
  int32_t four;
  __builtin_memcpy(&four, p, sizeof four);
  return {_mm512_set1_epi32(four)};
}
// Lane i: acc + sum over b < 4 of weights[4i + b] (unsigned) * activations[b] (signed), exact.
OCTAVO_INLINE I16 dot_accumulate(I16 acc, Bytes weights, Quad activations) {
  return {_mm512_dpbusd_epi32(acc.v, weights.v, activations.v)};
}

}  // namespace octavo::OCTAVO_TIER::simd
