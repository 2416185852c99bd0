#include "octavo/step.h"

#include <cstring>

#include "octavo/pack.h"

namespace octavo {
namespace {

constexpr size_t kMostTargets = 8;

// Less than a core's share of the last cache, more than there is time for.
constexpr size_t kMostReadAhead = size_t(1) << 20;

// The matrix that an operation multiplies by, or -1.
int32_t matrix_of(const Operation& operation) {
  if (operation.code == Opcode::Linear) return operation.ints[2];
  return operation.code == Opcode::Logits ? operation.ints[1] : -1;
}

}  // namespace

void Model::run(const StepInput& input, float* logits) { run_step(input, logits, nullptr); }

void Model::run(const StepInput& input, const LogitJobs& jobs) { run_step(input, nullptr, &jobs); }

void Model::run_step(const StepInput& input, float* logits, const LogitJobs* jobs) {
  const std::lock_guard<std::mutex> one_at_a_time(mutex_);
  profile_.measure(kTablesPart, [&] {
    check(input);
    lay_out_workspace(static_cast<uint8_t*>(workspace_.data()), input.token_count,
                      input.wanted_count < kLogitRows ? input.wanted_count : kLogitRows);
    place_tokens(input);
    fill_rotations(input);
  });
  tasks_heads_ = 0;
  for (size_t i = 0; i + 1 < program_.size();) {
    profile_.measure(size_t(program_[i].code), [&] {
      if (program_[i].code == Opcode::Linear) {
        i += run_linears(i);
      } else {
        run_operation(program_[i], needs_.widths[i], input);
        ++i;
      }
    });
  }
  run_head(input, logits, jobs);
}

// Neighbouring Linear operations (q, k and v; gate and up) run as one parallel region.
size_t Model::run_linears(size_t first) {
  LinearTarget targets[kMostTargets];
  size_t count = 0;
  for (; count < kMostTargets && program_[first + count].code == Opcode::Linear; ++count) {
    const int32_t* ints = program_[first + count].ints;
    targets[count] = LinearTarget{&matrices_[ints[2]],
                                  ints[3] < 0 ? nullptr : vectors_[ints[3]].data(), slot(ints[0]),
                                  needs_.widths[first + count],
                                  ints[4] < 0 ? nullptr : slot(ints[4])};
  }
  read_ahead(first + count);
  operators_.linear(pool_, targets, int(count), activations_);
  return count;
}

// Lets waiting threads fetch the beginning of what the program multiplies by next, from `operation`
// on, or in the next step: small steps are bound by the memory, which rests while a thread waits.
void Model::read_ahead(size_t operation) {
  while (operation < program_.size() && matrix_of(program_[operation]) < 0) ++operation;
  if (operation == program_.size()) operation = 0;
  while (matrix_of(program_[operation]) < 0) ++operation;
  const uint8_t* begin = matrices_[size_t(matrix_of(program_[operation]))].data;
  const uint8_t* end = begin;
  // Neighbours in the program are neighbours in memory when they were added in this order.
  for (; operation < program_.size(); ++operation) {
    const int32_t matrix = matrix_of(program_[operation]);
    if (matrix < 0 || matrices_[size_t(matrix)].data != end) break;
    end += matrices_[size_t(matrix)].panel_bytes * size_t(matrices_[size_t(matrix)].panels);
  }
  const size_t bytes = size_t(end - begin);
  pool_.read_ahead(begin, bytes < kMostReadAhead ? bytes : kMostReadAhead);
}

void Model::run_operation(const Operation& operation, int64_t width, const StepInput& input) {
  const int32_t* ints = operation.ints;
  const size_t tokens = input.token_count, total = tokens * size_t(width);
  switch (operation.code) {
    case Opcode::Embedding:
      operators_.embed_rows(pool_, matrices_[ints[1]], input.tokens, tokens, operation.floats[0],
                            slot(ints[0]), width);
      return;
    case Opcode::RmsNorm:
      if (ints[4] != 0) {
        return operators_.rms_norm_prepare(pool_, slot(ints[1]), vectors_[ints[2]].data(),
                                           operation.floats[0], tokens, size_t(width),
                                           slot(ints[0]), settings_.activations, activations_);
      }
      operators_.rms_norm(pool_, slot(ints[1]), vectors_[ints[2]].data(), operation.floats[0],
                          tokens, ints[3], size_t(width / ints[3]), slot(ints[0]));
      return;
    case Opcode::Prepare:
      operators_.prepare_activations(pool_, slot(ints[0]), width, tokens, width,
                                     settings_.activations, activations_);
      return;
    case Opcode::Rope: {
      const Rotation& rotation = rotations_[ints[2]];
      operators_.rope(pool_, RopeCall{slot(ints[1]), slot(ints[0]), rotation_tables_[ints[2]],
                                      table_width(rotation), tokens, ints[3],
                                      int32_t(width / ints[3]), rotation.dims,
                                      rotation.interleaved});
      return;
    }
    case Opcode::KvWrite:
      operators_.write_kv(
          pool_, KvWriteCall{&cache_, places_[ints[2]].index, slot(ints[0]), slot(ints[1]),
                             token_pages_.data() + places_[ints[2]].group * settings_.max_tokens,
                             token_slots_, tokens});
      return;
    case Opcode::Attention: return run_attention(operation, input);
    case Opcode::SiluMul:
    case Opcode::GeluMul: return run_gate(operation, tokens, size_t(width));
    case Opcode::Add:
      return operators_.add(pool_, slot(ints[1]), slot(ints[2]), total, slot(ints[0]));
    case Opcode::Linear:
    case Opcode::Logits: return;  // run_linears and run_head
  }
}

void Model::run_gate(const Operation& operation, size_t tokens, size_t width) {
  const int32_t* ints = operation.ints;
  const float* gate = slot(ints[1]);
  const float* up = slot(ints[2]);
  const bool silu = operation.code == Opcode::SiluMul;
  if (ints[3] != 0) {
    const auto run = silu ? operators_.silu_mul_prepare : operators_.gelu_mul_prepare;
    run(pool_, gate, up, tokens, width, slot(ints[0]), settings_.activations, activations_);
  } else {
    const auto run = silu ? operators_.silu_mul : operators_.gelu_mul;
    run(pool_, gate, up, tokens * width, slot(ints[0]));
  }
}

void Model::run_attention(const Operation& operation, const StepInput& input) {
  const int32_t* ints = operation.ints;
  const int32_t heads = ints[3], kv_heads = settings_.kv_heads, head_dim = settings_.head_dim;
  if (tasks_heads_ != heads) {
    tasks_.clear();
    const int32_t block = task_tokens(heads, kv_heads, head_dim);
    for (size_t row = 0; row < input.rows; ++row) {
      append_tasks(int32_t(row), input.row_starts[row],
                   input.row_starts[row + 1] - input.row_starts[row], input.past[row], kv_heads,
                   block, &tasks_);
    }
    tasks_heads_ = heads;
  }
  const KvPlace place = places_[ints[2]];
  const AttentionCall call{&cache_,
                           place.index,
                           heads,
                           kv_heads,
                           head_dim,
                           ints[4],
                           operation.floats[0],
                           operation.floats[1],
                           slot(ints[1]),
                           slot(ints[0]),
                           input.token_count,
                           settings_.activations,
                           ints[5] != 0 ? &activations_ : nullptr,
                           input.tables + place.group,
                           input.table_width,
                           size_t(groups_),
                           attention_scratch_,
                           attention_floats_,
                           split_,
                           kSplitFloats};
  operators_.attention(pool_, call, tasks_.data(), tasks_.size());
}

void Model::enable_profile(bool enabled) {
  const std::lock_guard<std::mutex> between_steps(mutex_);
  profile_.enable(enabled);
}

std::array<StepProfile::Part, kStepParts> Model::profile() {
  const std::lock_guard<std::mutex> between_steps(mutex_);
  return profile_.parts();
}

}  // namespace octavo
