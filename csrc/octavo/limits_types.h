// The loops of a tier that find out a machine's limits; each returns the work it did.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

struct LimitLoops {
  double (*fma)(int64_t rounds);  // floating-point operations, two an FMA
  // Integer operations, two a product. Without VNNI codes of 4 bits need fewer instructions.
  double (*byte_products)(int64_t rounds);
  double (*nibble_products)(int64_t rounds);
  double (*read)(const uint8_t* memory, size_t bytes);  // bytes
};

}  // namespace octavo
