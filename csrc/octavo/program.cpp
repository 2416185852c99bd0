#include "octavo/program.h"

#include <stdexcept>
#include <string>

namespace octavo {
namespace {

constexpr int32_t kMostSlots = 4096;

class Checker {
 public:
  explicit Checker(const ProgramLimits& limits) : limits_(limits) {}

  void take(const Operation& operation) {
    index_ += 1;
    require(!done_, "an operation follows Logits");
    if (operation.code != Opcode::Linear) neighbours_.clear();
    switch (operation.code) {
      case Opcode::Embedding: return embedding(operation);
      case Opcode::RmsNorm: return rms_norm(operation);
      case Opcode::Prepare: return prepare(operation);
      case Opcode::Linear: return linear(operation);
      case Opcode::Rope: return rope(operation);
      case Opcode::KvWrite: return kv_write(operation);
      case Opcode::Attention: return attention(operation);
      case Opcode::SiluMul:
      case Opcode::GeluMul: return gate(operation);
      case Opcode::Add: return elementwise(operation);
      case Opcode::Logits: return logits(operation);
    }
    require(false, "unknown opcode");
  }

  ProgramNeeds finish() {
    require(done_, "the program has no Logits");
    return needs_;
  }

 private:
  void require(bool condition, const std::string& message) const {
    if (!condition) {
      throw std::invalid_argument("operation " + std::to_string(index_) + ": " + message);
    }
  }

  int64_t read(int32_t slot) const {
    require(slot >= 0 && size_t(slot) < current_.size() && current_[slot] > 0,
            "slot " + std::to_string(slot) + " is read before it is written");
    return current_[slot];
  }

  void write(int32_t slot, int64_t width) {
    require(slot >= 0 && slot < kMostSlots, "slot out of range");
    if (size_t(slot) >= current_.size()) {
      current_.resize(size_t(slot) + 1, 0);
      needs_.slot_widths.resize(size_t(slot) + 1, 0);
    }
    current_[slot] = width;
    if (width > needs_.slot_widths[slot]) needs_.slot_widths[slot] = width;
    if (slot == prepared_) prepared_ = -1;
    needs_.widths.push_back(width);
  }

  const ProgramLimits::Matrix& matrix(int32_t index) const {
    require(index >= 0 && size_t(index) < limits_.matrices.size(), "no such matrix");
    return limits_.matrices[index];
  }

  void vector(int32_t index, int64_t length) const {
    require(index >= 0 && size_t(index) < limits_.vectors.size(), "no such vector");
    require(limits_.vectors[index] == length, "the vector has the wrong length");
  }

  void embedding(const Operation& operation) {
    const auto& weight = matrix(operation.ints[1]);
    needs_.embedding_rows = weight.channels;
    write(operation.ints[0], weight.width);
  }

  void rms_norm(const Operation& operation) {
    const int64_t width = read(operation.ints[1]);
    const int32_t heads = operation.ints[3];
    require(heads > 0 && width % heads == 0, "heads do not divide the width");
    vector(operation.ints[2], width / heads);
    require(operation.ints[4] == 0 || heads == 1, "a norm of heads prepares nothing");
    write(operation.ints[0], width);
    if (operation.ints[4] != 0) mark_prepared(operation.ints[0], width);
  }

  void prepare(const Operation& operation) {
    const int64_t width = read(operation.ints[0]);
    needs_.widths.push_back(width);
    mark_prepared(operation.ints[0], width);
  }

  void mark_prepared(int32_t slot, int64_t width) {
    prepared_ = slot;
    if (width > needs_.linear_width) needs_.linear_width = width;
  }

  void linear(const Operation& operation) {
    const auto& weight = matrix(operation.ints[2]);
    require(operation.ints[1] == prepared_, "Linear reads a slot that was not prepared");
    require(read(operation.ints[1]) == weight.width, "the matrix does not fit its input");
    require(operation.ints[0] != operation.ints[1], "Linear cannot work in place");
    // Neighbours run at the same time, so they must not write the same slot.
    for (const int32_t slot : neighbours_) {
      require(slot != operation.ints[0], "two neighbouring Linears write one slot");
    }
    neighbours_.push_back(operation.ints[0]);
    if (operation.ints[3] != -1) vector(operation.ints[3], weight.channels);
    if (operation.ints[4] != -1) add_residual(operation.ints[4], operation.ints[0], weight);
    write(operation.ints[0], weight.channels);
  }

  void add_residual(int32_t slot, int32_t out, const ProgramLimits::Matrix& weight) {
    require(read(slot) == weight.channels, "what a Linear adds differs in width");
    for (const int32_t written : neighbours_) {
      require(slot == out || slot != written, "a Linear adds what its neighbour writes");
    }
    neighbours_.push_back(slot);
  }

  void rope(const Operation& operation) {
    const int64_t width = read(operation.ints[1]);
    const int32_t rotation = operation.ints[2], heads = operation.ints[3];
    require(rotation >= 0 && size_t(rotation) < limits_.rotations.size(), "no such rotation");
    require(heads > 0 && width % heads == 0, "heads do not divide the width");
    require(limits_.rotations[rotation] <= width / heads, "the rotation is wider than a head");
    write(operation.ints[0], width);
  }

  void layer(int32_t index) const {
    require(index >= 0 && index < limits_.layers, "no such layer");
  }

  void kv_write(const Operation& operation) {
    const int64_t width = int64_t(limits_.kv_heads) * limits_.head_dim;
    require(read(operation.ints[0]) == width && read(operation.ints[1]) == width,
            "K or V does not fit the cache");
    layer(operation.ints[2]);
    needs_.widths.push_back(width);
  }

  void attention(const Operation& operation) {
    const int32_t heads = operation.ints[3];
    layer(operation.ints[2]);
    require(heads > 0 && heads % limits_.kv_heads == 0, "heads must be a multiple of kv heads");
    require(read(operation.ints[1]) == int64_t(heads) * limits_.head_dim, "Q has the wrong width");
    require(operation.ints[0] != operation.ints[1], "Attention cannot work in place");
    require(operation.ints[4] >= 0 && operation.floats[1] >= 0.0f, "bad window or softcap");
    if (heads > needs_.most_heads) needs_.most_heads = heads;
    const int64_t width = int64_t(heads) * limits_.head_dim;
    write(operation.ints[0], width);
    if (operation.ints[5] != 0) mark_prepared(operation.ints[0], width);
  }

  void elementwise(const Operation& operation) {
    const int64_t width = read(operation.ints[1]);
    require(width == read(operation.ints[2]), "operands differ in width");
    write(operation.ints[0], width);
  }

  void gate(const Operation& operation) {
    elementwise(operation);
    if (operation.ints[3] != 0) mark_prepared(operation.ints[0], needs_.widths.back());
  }

  void logits(const Operation& operation) {
    const auto& weight = matrix(operation.ints[1]);
    needs_.hidden = read(operation.ints[0]);
    require(needs_.hidden == weight.width, "the head does not fit its input");
    require(operation.floats[0] >= 0.0f, "bad softcap");
    needs_.vocabulary = weight.channels;
    if (needs_.hidden > needs_.linear_width) needs_.linear_width = needs_.hidden;
    needs_.widths.push_back(weight.channels);
    done_ = true;
  }

  const ProgramLimits& limits_;
  ProgramNeeds needs_;
  std::vector<int64_t> current_;  // width of each slot's value, 0 before it has one
  std::vector<int32_t> neighbours_;  // slots written by the Linears just before
  int32_t prepared_ = -1;
  int index_ = -1;
  bool done_ = false;
};

}  // namespace

ProgramNeeds check_program(const std::vector<Operation>& program, const ProgramLimits& limits) {
  Checker checker(limits);
  for (const Operation& operation : program) checker.take(operation);
  return checker.finish();
}

}  // namespace octavo
