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

// exp(x) with a relative error below 2e-7: range reduction by ln 2 in two parts and the degree-5
// polynomial of Cephes' expf. exp(-inf) = 0, exp(inf) = inf, NaN stays; results may be subnormal.
OCTAVO_INLINE F16 exp(F16 x) {
  // Beyond these bounds the scaled result is exactly 0 or inf; the order keeps a NaN.
  const F16 clamped = max(set1(-104.0f), min(set1(89.0f), x));
  const F16 n = round(mul(clamped, set1(1.44269504088896341f)));
  F16 r = fnma(n, set1(0.693359375f), clamped);
  r = fnma(n, set1(-2.12194440e-4f), r);
  F16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return scale_by_pow2(p, n);
}

}  // namespace octavo::OCTAVO_TIER::simd
