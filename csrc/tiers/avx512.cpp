// The kernels compiled for AVX-512 with VNNI.
#define OCTAVO_TIER_AVX512 1
#include "octavo/tier_table.h"

namespace octavo {

const Operators& avx512_operators() {
  static constexpr Operators table = OCTAVO_TIER::make_operators("avx512-vnni");
  return table;
}

}  // namespace octavo
