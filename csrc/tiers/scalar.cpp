// The kernels compiled for any machine.
#define OCTAVO_TIER_SCALAR 1
#include "octavo/tier_table.h"

namespace octavo {

const Operators& scalar_operators() {
  static constexpr Operators table = OCTAVO_TIER::make_operators("scalar");
  return table;
}

}  // namespace octavo
