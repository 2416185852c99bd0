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

// Each four lanes (a0 + a1, a2 + a3, b0 + b1, b2 + b3): hadd in half of its time.
OCTAVO_INLINE Register neighbour_sums(Register a, Register b) {
#if defined(OCTAVO_TIER_AVX512)
  return {_mm512_add_ps(_mm512_shuffle_ps(a.v, b.v, 0x88), _mm512_shuffle_ps(a.v, b.v, 0xdd))};
#elif defined(OCTAVO_TIER_AVX2)
  return {_mm256_add_ps(_mm256_shuffle_ps(a.v, b.v, 0x88), _mm256_shuffle_ps(a.v, b.v, 0xdd))};
#else
  return simd::each([&](int i) {
    const float* x = (i % 4 < 2 ? a : b).v + i / 4 * 4 + i % 2 * 2;
    return x[0] + x[1];
  });
#endif
}

// Lane i: (x0 + x1) + (x2 + x3) of the i-th of 16 quads, given the neighbour_sums of the registers
// that hold them, two by two.
OCTAVO_INLINE simd::F16 quad_sum(const Register (&halves)[32 / kRegisterLanes]) {
#if defined(OCTAVO_TIER_AVX512)
  const __m512i order =
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  return {_mm512_permutexvar_ps(order, neighbour_sums(halves[0], halves[1]).v)};
#elif defined(OCTAVO_TIER_AVX2)
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return {_mm256_permutevar8x32_ps(neighbour_sums(halves[0], halves[1]).v, order),
          _mm256_permutevar8x32_ps(neighbour_sums(halves[2], halves[3]).v, order)};
#else
  const Register sums = neighbour_sums(halves[0], halves[1]);
  return simd::each([&](int i) { return sums.v[i % 4 * 4 + i / 4]; });
#endif
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
