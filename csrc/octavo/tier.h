// The instruction-set tier of the translation unit that includes this header.
//
// Every inline function and template lives in namespace octavo::OCTAVO_TIER. Each tier is one
// translation unit with flags of its own, so a shared name would let the linker keep the widest
// tier's copy and crash a smaller CPU. Files compiled without tier flags get `common`.
#pragma once

#ifndef OCTAVO_TIER
#if defined(OCTAVO_TIER_AVX512)
#define OCTAVO_TIER tier_avx512
#elif defined(OCTAVO_TIER_AVX2)
#define OCTAVO_TIER tier_avx2
#elif defined(OCTAVO_TIER_SCALAR)
#define OCTAVO_TIER tier_scalar
#else
#define OCTAVO_TIER common
#endif
#endif

#define OCTAVO_INLINE inline __attribute__((always_inline))

// Before a loop over registers. A plain array is no register: unrolling it only costs compile time.
#if defined(OCTAVO_TIER_AVX512) || defined(OCTAVO_TIER_AVX2)
#define OCTAVO_UNROLL _Pragma("GCC unroll 8")
#else
#define OCTAVO_UNROLL _Pragma("GCC unroll 1")
#endif
