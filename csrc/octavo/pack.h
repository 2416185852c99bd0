// From the rows of a GGUF tensor to weight panels. See panel.h for the layout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory.h"
#include "panel.h"
#include "pool.h"

namespace octavo {

enum class PackStatus {
  Ok,
  UnknownType,
  // The width is no multiple of the format's block, or a side is not positive.
  BadShape,
  // `bytes` is not what the type and shape need.
  WrongSize,
};

// Bytes of one row of `width` elements; 0 when the type is unknown or the width does not fit it.
size_t row_bytes(int ggml_type, int64_t width);

// Packs a row-major tensor [channels, width] of raw GGUF blocks into memory of the arena. `packed`
// is written only on success. Throws std::bad_alloc.
PackStatus pack(Pool& pool, Arena& arena, const void* rows, size_t bytes, int ggml_type,
                int64_t channels, int64_t width, PackedWeight& packed);

}  // namespace octavo
