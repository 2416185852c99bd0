#include "octavo/rotation.h"

#include <cmath>

namespace octavo {

void fill_rotation(const Rotation& rotation, int64_t position, float* table) {
  const int32_t dims = rotation.dims;
  for (int32_t pair = 0; pair < dims / 2; ++pair) {
    const double angle = double(position) * rotation.frequencies[size_t(pair)];
    const float cosine = float(std::cos(angle)), sine = float(std::sin(angle));
    if (rotation.interleaved) {
      table[2 * pair] = cosine;
      table[2 * pair + 1] = cosine;
      table[dims + 2 * pair] = -sine;
      table[dims + 2 * pair + 1] = sine;
    } else {
      table[pair] = cosine;
      table[dims / 2 + pair] = sine;
    }
  }
}

}  // namespace octavo
