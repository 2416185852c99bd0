// Philox4x32-10, a counter-based random number generator (Salmon, Moraes, Dror, Shaw: "Parallel
// random numbers: as easy as 1, 2, 3", SC 2011). A number depends on key and counter only, so a
// seeded draw has no state and does not care what else runs in its batch.
#pragma once

#include <array>
#include <cstdint>

namespace octavo {

using PhiloxBlock = std::array<uint32_t, 4>;

inline PhiloxBlock philox4x32_10(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {uint32_t(product1 >> 32) ^ counter[1] ^ key[0], uint32_t(product1),
               uint32_t(product0 >> 32) ^ counter[3] ^ key[1], uint32_t(product0)};
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  return counter;
}

// 64 random bits of draw number `counter` of the stream `seed`.
inline uint64_t philox_bits(uint64_t seed, uint64_t counter) {
  const PhiloxBlock block = philox4x32_10({uint32_t(counter), uint32_t(counter >> 32), 0u, 0u},
                                          {uint32_t(seed), uint32_t(seed >> 32)});
  return uint64_t(block[1]) << 32 | block[0];
}

}  // namespace octavo
