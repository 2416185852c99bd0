// Builds the table of the tier whose translation unit includes this.
#pragma once

#include "octavo/attention.h"
#include "octavo/elementwise.h"
#include "octavo/norm.h"
#include "octavo/operators.h"
#include "octavo/rope.h"

namespace octavo {
namespace OCTAVO_TIER {

constexpr Operators make_operators(const char* tier) {
  return Operators{tier, rms_norm, rope, write_kv, attention, add, silu_mul, gelu_mul, softcap};
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
