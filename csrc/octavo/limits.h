// Loops that do one thing as fast as the machine can: FMA, int8 products, reading memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/limits_types.h"
#include "octavo/simd.h"

namespace octavo {
namespace OCTAVO_TIER {

// Keeps the compiler from computing a loop's result beforehand or dropping it.
#if defined(OCTAVO_TIER_AVX512)
constexpr int kChains = 12;
OCTAVO_INLINE void hide(simd::F16& a) { asm volatile("" : "+v"(a.v)); }
OCTAVO_INLINE void hide(simd::I16& a) { asm volatile("" : "+v"(a.v)); }
#elif defined(OCTAVO_TIER_AVX2)
constexpr int kChains = 6;
OCTAVO_INLINE void hide(simd::F16& a) { asm volatile("" : "+x"(a.lo), "+x"(a.hi)); }
OCTAVO_INLINE void hide(simd::I16& a) { asm volatile("" : "+x"(a.lo), "+x"(a.hi)); }
#else
constexpr int kChains = 1;
OCTAVO_INLINE void hide(simd::F16& a) { asm volatile("" : : "r"(&a) : "memory"); }
OCTAVO_INLINE void hide(simd::I16& a) { asm volatile("" : : "r"(&a) : "memory"); }
#endif

inline double fma_loop(int64_t rounds) {
  simd::F16 chain[kChains];
  OCTAVO_UNROLL
  for (int c = 0; c < kChains; ++c) chain[c] = simd::set1(float(c));
  const simd::F16 x = simd::set1(0.999f), y = simd::set1(0.001f);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      chain[c] = simd::fma(chain[c], x, y);
      hide(chain[c]);
    }
  }
  return 2.0 * 16 * kChains * double(rounds);
}

#if defined(OCTAVO_TIER_AVX2)
// `run` maddubs are added in 16 bits before they are widened: 8 for codes up to 15, 1 for bytes.
template <int Run>
inline double maddubs_loop(int64_t rounds) {
  constexpr int kSums = 6;
  __m256i sums[kSums], x = _mm256_set1_epi8(1);
  const __m256i y = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(1);
  for (int c = 0; c < kSums; ++c) sums[c] = _mm256_setzero_si256();
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 6
    for (int c = 0; c < kSums; ++c) {
      asm volatile("" : "+x"(x));
      __m256i words = _mm256_maddubs_epi16(x, y);
#pragma GCC unroll 8
      for (int step = 1; step < Run; ++step) {
        asm volatile("" : "+x"(x));
        words = _mm256_add_epi16(words, _mm256_maddubs_epi16(x, y));
        asm volatile("" : "+x"(words));
      }
      sums[c] = _mm256_add_epi32(sums[c], _mm256_madd_epi16(words, ones));
      asm volatile("" : "+x"(sums[c]));
    }
  }
  return 2.0 * 32 * Run * kSums * double(rounds);
}

inline double byte_product_loop(int64_t rounds) { return maddubs_loop<1>(rounds); }
inline double nibble_product_loop(int64_t rounds) { return maddubs_loop<8>(rounds); }
#else
inline double byte_product_loop(int64_t rounds) {
  simd::I16 sums[kChains];
  OCTAVO_UNROLL
  for (int c = 0; c < kChains; ++c) sums[c] = simd::set1_int(c);
  alignas(64) uint8_t bytes[64] = {1, 2, 3, 4};
  alignas(64) int8_t four[4] = {1, -1, 2, -2};
  const simd::Bytes weights = simd::load_bytes(bytes);
  const simd::Quad activations = simd::load_quad(four);
  for (int64_t round = 0; round < rounds; ++round) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) {
      sums[c] = simd::dot_accumulate(sums[c], weights, activations);
      hide(sums[c]);
    }
  }
  return 2.0 * 64 * kChains * double(rounds);
}

inline double nibble_product_loop(int64_t rounds) { return byte_product_loop(rounds); }
#endif

// Four streams, each with software prefetch: one core then keeps most of its miss buffers busy.
inline double read_loop(const uint8_t* memory, size_t bytes) {
  constexpr size_t kAhead = 2048, kStep = 128;
  const size_t stream = bytes / 4 / kStep * kStep;
  simd::I16 sums[4] = {simd::zero_int(), simd::zero_int(), simd::zero_int(), simd::zero_int()};
  for (size_t offset = 0; offset < stream; offset += kStep) {
    OCTAVO_UNROLL
    for (int s = 0; s < 4; ++s) {
      const uint8_t* at = memory + size_t(s) * stream + offset;
      __builtin_prefetch(at + kAhead, 0, 3);
      __builtin_prefetch(at + kAhead + 64, 0, 3);
      sums[s] = simd::add(sums[s], simd::as_int(simd::load_bytes(at)));
      sums[s] = simd::add(sums[s], simd::as_int(simd::load_bytes(at + 64)));
    }
  }
  OCTAVO_UNROLL
  for (int s = 0; s < 4; ++s) hide(sums[s]);
  return 4.0 * double(stream);
}

constexpr LimitLoops limit_loops() {
  return LimitLoops{fma_loop, byte_product_loop, nibble_product_loop, read_loop};
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
