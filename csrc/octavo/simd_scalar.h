// 16 lanes as a plain array: the oracle of the other tiers and the fallback of other machines.
// See simd.h for the contract.
#pragma once

#include <cstdint>

#include "fp16.h"
#include "tier.h"

namespace octavo::OCTAVO_TIER::simd {

struct F16 { float v[16]; };
struct I16 { int32_t v[16]; };
struct Bytes { uint8_t v[64]; };
struct Quad { int8_t v[4]; };

template <class Function> OCTAVO_INLINE F16 each(Function f) {
  F16 result;
  for (int i = 0; i < 16; ++i) result.v[i] = f(i);
  return result;
}
template <class Function> OCTAVO_INLINE I16 each_int(Function f) {
  I16 result;
  for (int i = 0; i < 16; ++i) result.v[i] = f(i);
  return result;
}

OCTAVO_INLINE float min_lane(float a, float b) { return a < b ? a : b; }
OCTAVO_INLINE float max_lane(float a, float b) { return a > b ? a : b; }
OCTAVO_INLINE float round_lane(float a) {
  // From 2^23 on every float is whole; below, adding 2^23 rounds to nearest even.
  const float magnitude = __builtin_fabsf(a);
  if (!(magnitude < 0x1p23f)) return a;
  return __builtin_copysignf((magnitude + 0x1p23f) - 0x1p23f, a);
}
OCTAVO_INLINE int32_t to_int_lane(float a) {
  const float whole = round_lane(a);
  if (!(whole >= -0x1p31f && whole < 0x1p31f)) return INT32_MIN;
  return static_cast<int32_t>(whole);
}
// Wrapping arithmetic, as vector registers do it.
OCTAVO_INLINE int32_t wrap(uint32_t a) { return static_cast<int32_t>(a); }
OCTAVO_INLINE uint32_t raw(int32_t a) { return static_cast<uint32_t>(a); }

OCTAVO_INLINE F16 set1(float x) { return each([&](int) { return x; }); }
OCTAVO_INLINE F16 zero() { return set1(0.0f); }
OCTAVO_INLINE F16 load(const float* p) { return each([&](int i) { return p[i]; }); }
OCTAVO_INLINE F16 load_partial(const float* p, int count) {
  return each([&](int i) { return i < count ? p[i] : 0.0f; });
}
OCTAVO_INLINE void store(float* p, F16 a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
OCTAVO_INLINE void store_partial(float* p, F16 a, int count) {
  for (int i = 0; i < 16 && i < count; ++i) p[i] = a.v[i];
}

OCTAVO_INLINE F16 add(F16 a, F16 b) { return each([&](int i) { return a.v[i] + b.v[i]; }); }
OCTAVO_INLINE F16 sub(F16 a, F16 b) { return each([&](int i) { return a.v[i] - b.v[i]; }); }
OCTAVO_INLINE F16 mul(F16 a, F16 b) { return each([&](int i) { return a.v[i] * b.v[i]; }); }
OCTAVO_INLINE F16 div(F16 a, F16 b) { return each([&](int i) { return a.v[i] / b.v[i]; }); }
OCTAVO_INLINE F16 sqrt(F16 a) { return each([&](int i) { return __builtin_sqrtf(a.v[i]); }); }
OCTAVO_INLINE F16 fma(F16 a, F16 b, F16 c) {
  return each([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
OCTAVO_INLINE F16 fnma(F16 a, F16 b, F16 c) {
  return each([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
OCTAVO_INLINE F16 min(F16 a, F16 b) {
  return each([&](int i) { return min_lane(a.v[i], b.v[i]); });
}
OCTAVO_INLINE F16 max(F16 a, F16 b) {
  return each([&](int i) { return max_lane(a.v[i], b.v[i]); });
}
OCTAVO_INLINE F16 abs(F16 a) { return each([&](int i) { return __builtin_fabsf(a.v[i]); }); }
OCTAVO_INLINE F16 neg(F16 a) { return each([&](int i) { return -a.v[i]; }); }
OCTAVO_INLINE F16 round(F16 a) { return each([&](int i) { return round_lane(a.v[i]); }); }

// Lanes below `count` from a, the others from b.
OCTAVO_INLINE F16 select_first(int count, F16 a, F16 b) {
  return each([&](int i) { return i < count ? a.v[i] : b.v[i]; });
}
// x < y ? a : b; false where x or y is NaN.
OCTAVO_INLINE F16 select_less(F16 x, F16 y, F16 a, F16 b) {
  return each([&](int i) { return x.v[i] < y.v[i] ? a.v[i] : b.v[i]; });
}

OCTAVO_INLINE I16 set1_int(int32_t x) { return each_int([&](int) { return x; }); }
// Bit i: not a < b in lane i, so also where either is NaN.
OCTAVO_INLINE uint32_t not_less(F16 a, F16 b) {
  uint32_t lanes = 0;
  for (int i = 0; i < 16; ++i) lanes |= static_cast<uint32_t>(!(a.v[i] < b.v[i])) << i;
  return lanes;
}

OCTAVO_INLINE I16 zero_int() { return set1_int(0); }
OCTAVO_INLINE I16 load_int(const int32_t* p) { return each_int([&](int i) { return p[i]; }); }
OCTAVO_INLINE void store_int(int32_t* p, I16 a) {
  for (int i = 0; i < 16; ++i) p[i] = a.v[i];
}
OCTAVO_INLINE I16 add(I16 a, I16 b) {
  return each_int([&](int i) { return wrap(raw(a.v[i]) + raw(b.v[i])); });
}
OCTAVO_INLINE I16 sub(I16 a, I16 b) {
  return each_int([&](int i) { return wrap(raw(a.v[i]) - raw(b.v[i])); });
}
OCTAVO_INLINE I16 mul(I16 a, I16 b) {
  return each_int([&](int i) { return wrap(raw(a.v[i]) * raw(b.v[i])); });
}
OCTAVO_INLINE I16 bit_and(I16 a, I16 b) {
  return each_int([&](int i) { return a.v[i] & b.v[i]; });
}
template <int Count> OCTAVO_INLINE I16 shift_left(I16 a) {
  return each_int([&](int i) { return wrap(raw(a.v[i]) << Count); });
}
template <int Count> OCTAVO_INLINE I16 shift_right(I16 a) {
  return each_int([&](int i) { return wrap(raw(a.v[i]) >> Count); });
}
OCTAVO_INLINE I16 to_int(F16 a) { return each_int([&](int i) { return to_int_lane(a.v[i]); }); }
OCTAVO_INLINE F16 to_float(I16 a) {
  return each([&](int i) { return static_cast<float>(a.v[i]); });
}
OCTAVO_INLINE I16 as_int(F16 a) { return each_int([&](int i) { return wrap(float_bits(a.v[i])); }); }
OCTAVO_INLINE F16 as_float(I16 a) {
  return each([&](int i) { return float_from_bits(raw(a.v[i])); });
}

OCTAVO_INLINE float scale_lane_by_pow2(float p, float n) {
  const int32_t exponent = to_int_lane(n);
  const int32_t first = exponent >> 1;
  const uint32_t second = raw(exponent) - raw(first);
  return (p * float_from_bits((raw(first) + 127u) << 23)) * float_from_bits((second + 127u) << 23);
}
// p * 2^n for whole n in [-151, 129] and p in [0.5, 2]: one rounding, subnormal results included.
// Two factors keep every exponent in range; the first product is exact.
OCTAVO_INLINE F16 scale_by_pow2(F16 p, F16 n) {
  return each([&](int i) { return scale_lane_by_pow2(p.v[i], n.v[i]); });
}

OCTAVO_INLINE F16 load_fp16(const uint16_t* p) {
  return each([&](int i) { return fp16_to_float(p[i]); });
}
OCTAVO_INLINE void store_fp16(uint16_t* p, F16 a) {
  for (int i = 0; i < 16; ++i) {
    p[i] = float_to_fp16(max_lane(-65504.0f, min_lane(65504.0f, a.v[i])));
  }
}
OCTAVO_INLINE F16 load_bf16(const uint16_t* p) {
  return each([&](int i) { return bf16_to_float(p[i]); });
}
// Lanes must lie in [-128, 127]; others saturate.
OCTAVO_INLINE void store_int8(int8_t* p, I16 a) {
  for (int i = 0; i < 16; ++i) {
    p[i] = static_cast<int8_t>(a.v[i] < -128 ? -128 : (a.v[i] > 127 ? 127 : a.v[i]));
  }
}

OCTAVO_INLINE float reduce_add(F16 a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = a.v[i] + a.v[i + half];
  }
  return a.v[0];
}
OCTAVO_INLINE float reduce_max(F16 a) {
  for (int half = 8; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) a.v[i] = max_lane(a.v[i], a.v[i + half]);
  }
  return a.v[0];
}
OCTAVO_INLINE int32_t reduce_add(I16 a) {
  uint32_t sum = 0;
  for (int i = 0; i < 16; ++i) sum += raw(a.v[i]);
  return wrap(sum);
}

OCTAVO_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes result;
  __builtin_memcpy(result.v, p, 64);
  return result;
}
OCTAVO_INLINE void store_bytes(uint8_t* p, Bytes a) { __builtin_memcpy(p, a.v, 64); }
OCTAVO_INLINE Bytes low_nibbles(Bytes a) {
  for (int i = 0; i < 64; ++i) a.v[i] = static_cast<uint8_t>(a.v[i] & 15);
  return a;
}
OCTAVO_INLINE Bytes high_nibbles(Bytes a) {
  for (int i = 0; i < 64; ++i) a.v[i] = static_cast<uint8_t>(a.v[i] >> 4);
  return a;
}
// Byte 4i + b becomes bits 8b..8b+7 of lane i on every machine.
OCTAVO_INLINE I16 as_int(Bytes a) {
  return each_int([&](int i) {
    const uint8_t* b = a.v + 4 * i;
    return wrap(b[0] | raw(b[1]) << 8 | raw(b[2]) << 16 | raw(b[3]) << 24);
  });
}
OCTAVO_INLINE Bytes as_bytes(I16 a) {
  Bytes result;
  for (int i = 0; i < 64; ++i) result.v[i] = static_cast<uint8_t>(raw(a.v[i / 4]) >> i % 4 * 8);
  return result;
}
OCTAVO_INLINE Quad load_quad(const int8_t* p) { return {{p[0], p[1], p[2], p[3]}}; }
// Lane i: acc + sum over b < 4 of weights[4i + b] (unsigned) * activations[b] (signed), exact.
OCTAVO_INLINE I16 dot_accumulate(I16 acc, Bytes weights, Quad activations) {
  for (int i = 0; i < 16; ++i) {
    for (int b = 0; b < 4; ++b) acc.v[i] += weights.v[4 * i + b] * activations.v[b];
  }
  return acc;
}

}  // namespace octavo::OCTAVO_TIER::simd
