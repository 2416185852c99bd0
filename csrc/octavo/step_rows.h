// Rows of running sequences, which stay from step to step, and the step that is made of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "octavo/sample.h"
#include "octavo/step.h"

namespace octavo {

// What a sequence wants of its draws. `job` is one but for its row, counter and ranges of ids.
struct RowSettings {
  LogitJob job{};
  std::vector<int32_t> bias_ids;
  std::vector<float> bias_values;
  std::vector<int32_t> stop_ids;  // banned until `min_tokens` have been drawn
  std::vector<int32_t> prompt;    // what penalties look at, and nothing without any
  std::vector<int32_t> output;
  int64_t prompt_tokens = 0;
  int64_t min_tokens = 0;
};

// Part of a sequence: `tokens` from position `start` on. `targets` are the tokens that its first
// positions score, with `top` alternatives; its last position draws if it is told to.
struct ChunkRow {
  int64_t row = 0;
  int64_t start = 0;
  std::vector<int32_t> tokens;
  bool draws = false;
  std::vector<int32_t> targets;
  int32_t top = 0;
};

// Borrowed columns: rows that compute their last token, at that position, and draw the next one.
struct DecodeColumns {
  const int64_t* rows;
  const int64_t* starts;
  const int64_t* tokens;
  size_t count;
};

// A step is put together by `gather`, run by somebody and ended by `remember`. A step that was
// gathered again, run or not, is the same step: the draws of one do not see themselves. Everything
// throws std::invalid_argument for bad input and leaves the rows as they were.
class StepRows {
 public:
  StepRows(size_t rows, size_t table_width, size_t vocabulary);

  void seat(int64_t row, RowSettings settings);
  void vacate(int64_t row);  // nobody need have it
  // Pages in the order of positions from entry `start` of the row's table on.
  void append(int64_t row, int64_t start, const std::vector<int32_t>& pages);

  // The rows that decode come first. The jobs are in the order of their tokens.
  void gather(const DecodeColumns& decodes, const std::vector<ChunkRow>& chunks);
  StepInput input() const;
  LogitJobs jobs();
  // Keeps what was drawn where penalties look at it.
  void remember();

 private:
  struct Row {
    bool is_seated = false;
    bool looks_back = false;  // its draws depend on what is in prompt and output
    RowSettings settings;
    std::vector<int32_t> table;
    size_t used = 0;  // entries of the table
  };

  Row& seated(int64_t row);
  void add_bias(Row& row);
  void add_row(const Row& row, int64_t start);
  void add_draw(int64_t number, int64_t end);
  void add_ids(const std::vector<int32_t>& ids, int32_t& begin, int32_t& count);
  void add_job(LogitJob job, int32_t token);
  void add_tables(const DecodeColumns& decodes, const std::vector<ChunkRow>& chunks);

  std::vector<Row> rows_;
  const size_t table_width_;
  const size_t vocabulary_;

  // The step.
  std::vector<int32_t> tokens_;
  std::vector<int32_t> row_starts_;
  std::vector<int32_t> past_;
  std::vector<int32_t> tables_;
  size_t width_ = 0;
  std::vector<int32_t> wanted_;
  std::vector<LogitJob> jobs_;
  std::vector<int64_t> drawing_rows_;  // of the jobs that draw
  std::vector<int32_t> ids_;
  std::vector<float> bias_values_;
  std::vector<LogitResult> results_;
  std::vector<int32_t> top_ids_;
  std::vector<double> top_logprobs_;
  size_t top_count_ = 0;
};

}  // namespace octavo
