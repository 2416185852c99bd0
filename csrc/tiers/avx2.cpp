// The kernels compiled for AVX2, FMA and F16C.
#define OCTAVO_TIER_AVX2 1
#include "octavo/tier_table.h"

namespace octavo {

const Operators& avx2_operators() {
  static constexpr Operators table = OCTAVO_TIER::make_operators("avx2");
  return table;
}

}  // namespace octavo
