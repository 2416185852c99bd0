// A head's K, V or query as signed 8-bit codes with one scale.
#pragma once

#include <cstdint>

#include "octavo/quads.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

struct HeadCodes {
  float scale;
  int32_t sum;  // of the codes
};

// x ~ scale * code, scale = amax / 127, codes rounded to nearest even, head_dim a multiple of 16.
// As with activations, a NaN or infinity gives scale NaN and zero codes, and an amax below 2^-100
// counts as zero, for its reciprocal would overflow.
inline HeadCodes quantize_head(const float* x, int head_dim, int8_t* codes) {
  const simd::F16 zero = simd::zero();
  simd::F16 magnitude = zero, poisoned = zero;
  for (int d = 0; d < head_dim; d += 16) {
    const simd::F16 value = simd::load(x + d);
    magnitude = simd::max(magnitude, simd::abs(value));
    // 0 for finite values, else NaN: max may lose a NaN, this sum cannot.
    poisoned = simd::add(poisoned, simd::mul(value, zero));
  }
  const float amax = simd::reduce_max(magnitude), poison = simd::reduce_add(poisoned);
  const bool usable = amax >= 0x1p-100f && poison == 0.0f;
  const simd::F16 factor = simd::set1(usable ? 127.0f / amax : 0.0f);
  simd::I16 sum = simd::zero_int();
  for (int d = 0; d < head_dim; d += 16) {
    const simd::I16 code =
        usable ? simd::to_int(simd::mul(simd::load(x + d), factor)) : simd::zero_int();
    simd::store_int8(codes + d, code);
    sum = simd::add(sum, code);
  }
  return HeadCodes{usable ? amax / 127.0f : 0.0f + poison, simd::reduce_add(sum)};
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
