// Unnormalised probabilities as integers, for sample*.cpp only.
//
// The mass of a token is exp((z - max) / temperature) rounded to a multiple of 2^-40 and kept as
// an integer number of them. Sums of masses are then exact, so neither blocks nor order nor vector
// width can change a sum, a top-p edge or a draw. The exponential is a fixed float32 sequence
// (relative error about 1e-7); whatever is less likely than 2^-41 of the best token has no mass.
// A vocabulary of less than 2^22 tokens cannot overflow a sum.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Compiles a function also for AVX2 and picks the version when the module is loaded, where the C
// library can. Both give the same bits: neither may contract a multiplication and an addition.
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define OCTAVO_VECTOR_CLONES __attribute__((target_clones("avx2", "default")))
#else
#define OCTAVO_VECTOR_CLONES
#endif

namespace octavo {

constexpr size_t kLogitBlock = 256;      // tokens handled at once
constexpr double kMassOne = 1ll << 40;     // the best token's
constexpr float kLowestExponent = -28.5f;  // exp(-28.5) is below half a unit
constexpr size_t kMaxVocabulary = 1u << 22;

inline size_t block_count(size_t vocabulary) {
  return (vocabulary + kLogitBlock - 1) / kLogitBlock;
}

inline size_t block_length(size_t block, size_t vocabulary) {
  return std::min(kLogitBlock, vocabulary - block * kLogitBlock);
}

// y = (z - max) / temperature, the exponent of a token's mass. The difference comes first, so that
// a tiny temperature cannot overflow to anything but -inf.
inline float exponent_of(float z, float max, float temperature) {
  return (z - max) / temperature;
}

// exp(y) * 2^40, for y <= 0 that is not NaN. Cody-Waite reduction and the degree 5 polynomial of
// the Cephes library's expf; reference.py does the same operations.
inline float unrounded_mass(float y) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to a whole number
  const float bounded = y < kLowestExponent ? kLowestExponent : y;
  const float shifted = bounded * 1.44269504f + kRound;
  const float n = shifted - kRound;
  float r = bounded - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  const float fraction = (p * (r * r) + r) + 1.0f;
  int32_t bits;
  std::memcpy(&bits, &shifted, sizeof bits);
  // The low bits of `shifted` hold n: this makes the float 2^(n + 40).
  const int32_t power_bits = int32_t(uint32_t(bits - 0x4B400000 + 40 + 127) << 23);
  float power;
  std::memcpy(&power, &power_bits, sizeof power);
  return y < kLowestExponent ? 0.0f : fraction * power;
}

// To the nearest whole number, ties to even, by adding 2^52; 0 where that is below `least`.
inline int64_t rounded_mass(float mass, double least) {
  constexpr double kShift = 4503599627370496.0;
  const double shifted = double(mass) + kShift;
  const double limited = shifted >= least + kShift ? shifted : kShift;
  int64_t bits;
  std::memcpy(&bits, &limited, sizeof bits);
  return bits - 0x4330000000000000ll;
}

// The loops below do one thing each, so that compilers turn them into vector code.

inline void block_exponents(const float* z, size_t length, float max, float temperature,
                            float* exponents) {
  for (size_t i = 0; i < length; ++i) exponents[i] = exponent_of(z[i], max, temperature);
}

inline void block_unrounded(const float* exponents, size_t length, float* masses) {
  for (size_t i = 0; i < length; ++i) masses[i] = unrounded_mass(exponents[i]);
}

inline int64_t block_rounded(const float* unrounded, size_t length, double least,
                             int64_t* masses) {
  for (size_t i = 0; i < length; ++i) masses[i] = rounded_mass(unrounded[i], least);
  int64_t sum = 0;
  for (size_t i = 0; i < length; ++i) sum += masses[i];
  return sum;
}

// The largest logit of every block of a row, of the row, and whether any is NaN or +inf.
struct RowSummary {
  const float* logits = nullptr;
  size_t vocabulary = 0;
  const float* block_max = nullptr;
  float max = -INFINITY;
  bool usable = true;
};

RowSummary summarise(const float* logits, size_t vocabulary, float* block_max);

// log of the sum of exp over a row that is usable and has a finite maximum.
double log_sum_exp(const RowSummary& row);

}  // namespace octavo
