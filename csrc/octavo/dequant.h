// GGUF block formats taken apart: unsigned codes plus a scale (and minimum) per group.
//
// Block layouts are those of the GGUF specification (ggml-org/ggml, docs/gguf.md and its reference
// Python package); the type numbers are the file format's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "panel.h"

namespace octavo {

constexpr int largest_block_elements = 256;

struct BlockFormat {
  PanelFormat panel;
  int block_elements;
  int block_bytes;
  // Scales are products of two factors that need not fit fp16: a tensor-wide power of two is
  // taken out. Others keep the file's fp16 bits.
  bool folded_scales;
  // Codes [block_elements], scales and minimums [block_elements / panel.group]; minimums are
  // written only by affine formats: weight = scale * code + minimum. Null for float formats.
  void (*decode)(const uint8_t* block, uint8_t* codes, float* scales, float* minimums);
};

// Null when the type is not supported.
const BlockFormat* find_block_format(int ggml_type);

}  // namespace octavo
