// Rope settings that operations share, and the table of one position for them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

struct Rotation {
  int32_t dims;
  bool interleaved;
  std::vector<double> frequencies;  // radians per position of each pair [dims / 2]
};

inline size_t table_width(const Rotation& rotation) {
  return size_t(rotation.dims) * (rotation.interleaved ? 2 : 1);
}

// Writes the row that rope.h reads: angles in double, then rounded, so that a position's row is the
// same in every batch and tier.
void fill_rotation(const Rotation& rotation, int64_t position, float* table);

}  // namespace octavo
