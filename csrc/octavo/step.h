// A loaded model on the CPU: packed weights, a lowered program, the KV cache and the workspace of a
// step. One call runs a whole step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "octavo/gemm_types.h"
#include "octavo/kv.h"
#include "octavo/memory.h"
#include "octavo/operators.h"
#include "octavo/panel.h"
#include "octavo/pool.h"
#include "octavo/profile.h"
#include "octavo/program.h"
#include "octavo/rotation.h"
#include "octavo/sample.h"
#include "octavo/top_table.h"

namespace octavo {

// The tokens of a step: sequences of consecutive tokens and their page tables.
struct StepInput {
  const int32_t* tokens;  // [token_count]
  size_t token_count;
  const int32_t* row_starts;  // [rows + 1]
  const int32_t* past;        // [rows] tokens already in the cache
  const int32_t* tables;      // [rows, table_width] physical pages: one of each group, then the next
  size_t rows;
  size_t table_width;
  const int32_t* wanted;  // [wanted_count] batch tokens whose logits are needed
  size_t wanted_count;
};

// Wanted rows that go through the head, are used and overwritten together.
constexpr size_t kLogitRows = 64;

// Partial attention states of long sequences, see attention.h (8 MiB, touched when needed).
constexpr size_t kSplitFloats = size_t(1) << 21;

struct ModelSettings {
  int threads;
  Activations activations;
  KvFormat kv_format;
  size_t max_tokens;  // of a step
  int32_t layers;
  int32_t kv_heads;
  int32_t head_dim;
};

// Build order: add_* in any order, then set_program once, then allocate_kv, then run. Everything
// throws std::invalid_argument for bad input, after which the model is as it was before the call.
// Calls may come from any thread; steps run one at a time.
class Model {
 public:
  Model(const Operators& operators, const ModelSettings& settings);

  int32_t add_matrix(const void* rows, size_t bytes, int ggml_type, int64_t channels,
                     int64_t width);
  void set_knobs(int32_t matrix, const LinearKnobs& knobs);
  int32_t add_vector(const float* values, size_t count);
  int32_t add_rotation(Rotation rotation);
  void set_program(std::vector<Operation> program);

  // Bytes of a page of all layers.
  size_t page_bytes(int32_t page_tokens) const;
  // `places` has one entry a layer. Layers of group 0 may see all tokens, those of others no more
  // than `window_tokens`, and only pages within that window are read.
  void allocate_kv(int32_t pages, int32_t page_tokens, std::vector<KvPlace> places,
                   int32_t window_tokens);
  // Gives the memory of pages [first, first + count) back to the system; their contents are lost.
  // The bytes given back.
  size_t discard_kv(int32_t first, int32_t count);
  // Backs pages [first, first + count) with memory; may run beside a step.
  void populate_kv(int32_t first, int32_t count);
  // Gives the memory of the workspace back to the system until the next step; the bytes.
  size_t discard_workspace();

  // Writes logits [wanted_count, vocabulary].
  void run(const StepInput& input, float* logits);
  // Does the jobs, whose rows are indices into `wanted`. They must have passed check_jobs.
  void run(const StepInput& input, const LogitJobs& jobs);

  const char* tier() const { return operators_.tier; }
  int threads() const { return pool_.threads(); }
  size_t vocabulary() const { return size_t(needs_.vocabulary); }
  size_t weight_bytes() const;
  size_t workspace_bytes() const { return workspace_.bytes(); }
  const KvCache& cache() const { return cache_; }

  // Starts a profile from zero, or ends it.
  void enable_profile(bool enabled);
  std::array<StepProfile::Part, kStepParts> profile();

 private:
  void plan_workspace();
  size_t lay_out_workspace(uint8_t* base, size_t tokens, size_t rows);
  void check_places(const std::vector<KvPlace>& places, int32_t window_tokens) const;
  void check_pages(int32_t first, int32_t count) const;
  void check(const StepInput& input) const;
  void check_row(const StepInput& input, size_t row) const;
  void place_tokens(const StepInput& input);
  void fill_rotations(const StepInput& input);
  void run_operation(const Operation& operation, int64_t width, const StepInput& input);
  size_t run_linears(size_t first);
  void read_ahead(size_t operation);
  void run_gate(const Operation& operation, size_t tokens, size_t width);
  void run_attention(const Operation& operation, const StepInput& input);
  void run_head(const StepInput& input, float* logits, const LogitJobs* jobs);
  void head_jobs(size_t first, size_t rows, const LogitJobs& jobs);
  void head_block(size_t rows, float* y, const LogitSink* sink);
  void run_step(const StepInput& input, float* logits, const LogitJobs* jobs);
  float* slot(int32_t index) const { return slots_[size_t(index)]; }

  const Operators& operators_;
  const ModelSettings settings_;
  Pool pool_;
  std::mutex mutex_;
  StepProfile profile_;

  Arena arena_;
  std::vector<PackedWeight> matrices_;
  std::vector<std::vector<float>> vectors_;
  std::vector<Rotation> rotations_;
  std::vector<Operation> program_;
  ProgramNeeds needs_;

  HugeBuffer kv_memory_;
  KvCache cache_;
  std::vector<KvPlace> places_;  // of layers
  int32_t groups_ = 1;
  int32_t window_tokens_ = 0;

  // Laid out anew by every step, for as many tokens as it has: nothing in it outlives a step.
  HugeBuffer workspace_;
  std::vector<float*> slots_;
  std::vector<float*> rotation_tables_;
  std::vector<int32_t> token_pages_;  // [groups][max_tokens]
  int32_t* token_slots_ = nullptr;
  int32_t* token_positions_ = nullptr;
  float* head_rows_ = nullptr;
  float* logit_rows_ = nullptr;
  float* attention_scratch_ = nullptr;
  size_t attention_floats_ = 0;
  float* split_ = nullptr;
  ActivationBuffer activations_{};
  std::unique_ptr<SampleWorkspace> sampling_;
  std::unique_ptr<TopTable> tops_;
  std::vector<AttentionTask> tasks_;
  int32_t tasks_heads_ = 0;  // heads the tasks of this step were cut for; 0: none yet
};

}  // namespace octavo
