// Builds the table of the tier whose translation unit includes this.
#pragma once

#include "octavo/attention.h"
#include "octavo/elementwise.h"
#include "octavo/gemm.h"
#include "octavo/kv_write.h"
#include "octavo/limits.h"
#include "octavo/norm.h"
#include "octavo/operators.h"
#include "octavo/rope.h"

namespace octavo {
namespace OCTAVO_TIER {

constexpr Operators make_operators(const char* tier) {
  Operators table{};
  table.tier = tier;
  table.rms_norm = rms_norm;
  table.rope = rope;
  table.write_kv = write_kv;
  table.attention = attention;
  table.add = add;
  table.rms_norm_prepare = rms_norm_prepare;
  table.silu_mul = gate_mul<Silu>;
  table.gelu_mul = gate_mul<Gelu>;
  table.silu_mul_prepare = gate_mul_prepare<Silu>;
  table.gelu_mul_prepare = gate_mul_prepare<Gelu>;
  table.prepare_activations = prepare_activations;
  table.linear = linear;
  table.embed_rows = embed_rows;
  table.limits = limit_loops();
  return table;
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
