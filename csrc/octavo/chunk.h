// How many rows a thread takes at a time.
#pragma once

#include <cstddef>

namespace octavo {

// Rows of `width` floats that make a chunk worth handing to another thread (a few microseconds).
static inline size_t row_chunk(size_t width) {
  const size_t rows = 8192 / (width > 0 ? width : 1);
  return rows > 0 ? rows : 1;
}

}  // namespace octavo
