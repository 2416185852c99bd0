// One vector of 16 lanes for every tier, so that the order of float operations, hence the bits of
// every result, is the same in each of them.
//
// Types: F16 = 16 floats, I16 = 16 int32, Bytes = 64 bytes, Quad = 4 signed bytes repeated over a
// vector. What the tiers agree on by bits:
//   min(a, b) = a < b ? a : b, max(a, b) = a > b ? a : b  (a NaN in either gives b);
//   to_int rounds to nearest even, out of range and NaN give INT32_MIN;
//   reduce_add and reduce_max add lane i of the lower half to lane i of the upper half,
//     16 -> 8 -> 4 -> 2 -> 1;
//   store_fp16 rounds to nearest even, saturates at +-65504 and keeps NaN;
//   of a NaN neither sign nor payload is promised;
//   products are fused only where fma or fnma is written (compile with -ffp-contract=off).
// Loads and stores need no alignment unless the name says so; *_partial touch only `count` lanes.
#pragma once

#include "tier.h"

#if defined(OCTAVO_TIER_AVX512)
#include "simd_avx512.h"
#elif defined(OCTAVO_TIER_AVX2)
#include "simd_avx2.h"
#else
#include "simd_scalar.h"
#endif

namespace octavo::OCTAVO_TIER::simd {

template <int Count>
struct ExpParts {
  F16 p[Count], n[Count];
};

// exp(x) = p * 2^n: range reduction by ln 2 in two parts and the degree-5 polynomial of Cephes'
// expf. A NaN stays in p. Step by step over all of x, for one vector alone is a long chain.
template <int Count>
OCTAVO_INLINE ExpParts<Count> exp_parts(const F16 (&x)[Count]) {
  constexpr float coefficients[] = {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f,
                                    1.6666665459e-1f, 5.0000001201e-1f};
  ExpParts<Count> parts;
  F16 r[Count];
OCTAVO_UNROLL
  for (int i = 0; i < Count; ++i) parts.n[i] = round(mul(x[i], set1(1.44269504088896341f)));
OCTAVO_UNROLL
  for (int i = 0; i < Count; ++i) r[i] = fnma(parts.n[i], set1(0.693359375f), x[i]);
OCTAVO_UNROLL
  for (int i = 0; i < Count; ++i) r[i] = fnma(parts.n[i], set1(-2.12194440e-4f), r[i]);
OCTAVO_UNROLL
  for (int i = 0; i < Count; ++i) parts.p[i] = set1(1.9875691500e-4f);
OCTAVO_UNROLL
  for (int step = 0; step < 5; ++step) {
OCTAVO_UNROLL
    for (int i = 0; i < Count; ++i) {
      parts.p[i] = fma(parts.p[i], r[i], set1(coefficients[step]));
    }
  }
OCTAVO_UNROLL
  for (int i = 0; i < Count; ++i) {
    parts.p[i] = add(fma(parts.p[i], mul(r[i], r[i]), r[i]), set1(1.0f));
  }
  return parts;
}

// exp(x) with a relative error below 2e-7. exp(-inf) = 0, exp(inf) = inf, NaN stays; results may
// be subnormal.
OCTAVO_INLINE F16 exp(F16 x) {
  // Beyond these bounds the scaled result is exactly 0 or inf; the order keeps a NaN.
  const F16 clamped[1] = {max(set1(-104.0f), min(set1(89.0f), x))};
  const ExpParts<1> parts = exp_parts(clamped);
  return scale_by_pow2(parts.p[0], parts.n[0]);
}

constexpr float least_normal_exponent = -87.0f;

// x = exp(x) to the same bits where x is in [least_normal_exponent, 0] or NaN, cheaper: the result
// is a normal number, whose exponent can be added to as an integer (to_int of a NaN adds nothing).
template <int Count>
OCTAVO_INLINE void exp_normal(F16 (&x)[Count]) {
  const ExpParts<Count> parts = exp_parts(x);
OCTAVO_UNROLL
  for (int i = 0; i < Count; ++i) {
    x[i] = as_float(add(as_int(parts.p[i]), shift_left<23>(to_int(parts.n[i]))));
  }
}

}  // namespace octavo::OCTAVO_TIER::simd
