// A lowered model program: operations over numbered activation slots and weights.
//
// compute/kernels/cpu/lower.py writes these records; keep both in step. A slot holds a matrix
// [tokens, width]; the width is that of the operation which wrote it last. An operation whose
// `prepares` is 1 does the work of a Prepare of its output as well.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

enum class Opcode : int32_t {
  Embedding = 0,  // out, matrix | scale
  RmsNorm = 1,    // out, x, vector, heads, prepares | eps
  Prepare = 2,    // x: the Linear operations that follow read this slot
  Linear = 3,     // out, x, matrix, bias vector or -1, slot to add or -1
  Rope = 4,       // out, x, rotation, heads
  KvWrite = 5,    // k, v, layer
  Attention = 6,  // out, q, layer, heads, window, prepares | scale, softcap
  SiluMul = 7,    // out, gate, up, prepares
  GeluMul = 8,    // out, gate, up, prepares
  Add = 9,        // out, a, b
  Logits = 10,    // x, matrix | softcap; the last operation, and the only one of its kind
};

constexpr size_t kOpcodes = 11;
constexpr int kOperationInts = 6;
constexpr int kOperationFloats = 2;

struct Operation {
  Opcode code;
  int32_t ints[kOperationInts];
  float floats[kOperationFloats];
};
static_assert(sizeof(Operation) == 36, "compute/kernels/cpu/lower.py writes this layout");

// What a program may refer to.
struct ProgramLimits {
  struct Matrix {
    int64_t channels;
    int64_t width;
  };
  std::vector<Matrix> matrices;
  std::vector<int64_t> vectors;  // lengths
  std::vector<int32_t> rotations;  // dims
  int32_t layers;
  int32_t kv_heads;
  int32_t head_dim;
};

// What a checked program needs.
struct ProgramNeeds {
  std::vector<int64_t> slot_widths;  // largest width each slot ever has
  std::vector<int64_t> widths;       // of the value each operation writes (or reads, if it writes none)
  int64_t linear_width = 0;          // widest matrix that is multiplied
  int64_t embedding_rows = 0;
  int64_t hidden = 0;      // width of the Logits input
  int64_t vocabulary = 0;  // rows of the Logits matrix
  int32_t most_heads = 0;  // of any Attention
};

// Walks the program once. Throws std::invalid_argument naming the operation at fault: an index out
// of range, a slot read before it was written, widths that do not fit, a missing Prepare.
ProgramNeeds check_program(const std::vector<Operation>& program, const ProgramLimits& limits);

}  // namespace octavo
