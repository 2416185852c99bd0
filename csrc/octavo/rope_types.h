// What a call of rope is given; shared by all tiers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

struct RopeCall {
  const float* x;      // [tokens, heads * head_dim]
  float* out;          // the same shape, may be x
  const float* table;  // a row a token, see rope.h
  size_t table_stride;
  size_t tokens;
  int32_t heads;
  int32_t head_dim;
  int32_t dims;  // even; the first dims of a head rotate
  bool interleaved;
};

}  // namespace octavo
