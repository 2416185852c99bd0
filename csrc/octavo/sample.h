// Choice of tokens and log-probabilities from rows of logits. Compiled once for all instruction
// set tiers: every result is made of IEEE operations in a fixed order and of integer sums, so
// there is nothing a tier could change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "octavo/pool.h"

namespace octavo {

enum LogitJobKind : int32_t { kDrawJob = 0, kScoreJob = 1 };

enum LogitStatus : int32_t {
  kLogitsUsable = 0,
  kLogitsNotFinite = 1,  // NaN or +inf among the logits, also after bias and penalties
  kNothingLeft = 2,      // every token has logit -inf
};

// One draw or score. compute/sample/params.py writes these bytes: keep both in step.
// The ids of bias, bans and history are ranges of LogitJobs::ids.
struct LogitJob {
  uint64_t seed;
  uint64_t counter;
  double top_p;
  double min_p;
  float temperature;  // 0: greedy
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  int32_t row;  // of the wanted rows, in the order of the step
  int32_t kind;
  int32_t target;     // score only
  int32_t top_k;      // 0: off
  int32_t top;        // number of alternatives to report; -1: no log-probability at all
  int32_t top_begin;  // where they go
  int32_t bias_begin, bias_count;  // values at the same indices of LogitJobs::bias_values
  int32_t banned_begin, banned_count;
  int32_t prompt_begin, prompt_count;
  int32_t output_begin, output_count;
};
static_assert(sizeof(LogitJob) == 104, "compute/sample/params.py writes this layout");

struct LogitResult {
  double logprob;  // of `token`, before bias, penalties and temperature; NaN if the job failed
  int32_t token;   // drawn: -1 if the job failed; scored: the target
  int32_t status;
};
static_assert(sizeof(LogitResult) == 16, "compute/sample/params.py reads this layout");

// The jobs of a step, sorted by row, with the arrays they refer to and write to.
struct LogitJobs {
  const LogitJob* jobs = nullptr;
  size_t count = 0;
  const int32_t* ids = nullptr;
  size_t id_count = 0;
  const float* bias_values = nullptr;
  size_t bias_count = 0;
  LogitResult* results = nullptr;  // [count]
  int32_t* top_ids = nullptr;      // [top_count]
  double* top_logprobs = nullptr;  // [top_count]
  size_t top_count = 0;
};

// One row of logits: the whole vocabulary, or the tokens that its jobs can choose from.
struct LogitRow {
  const float* logits;  // [count]
  size_t count;
  const int32_t* ids;  // [count], rising; null: logits[i] is token i's
};

// Jobs of this many most likely tokens at most do without the rest of their row.
constexpr int32_t kMostTop = 128;

// Null if every index is in range and every number in its domain; otherwise what is wrong.
const char* check_jobs(const LogitJobs& jobs, size_t rows, size_t vocabulary);

// Scratch memory of every worker of a pool, made once; a call allocates nothing.
class SampleWorkspace {
 public:
  SampleWorkspace(int workers, size_t vocabulary);
  ~SampleWorkspace();
  SampleWorkspace(const SampleWorkspace&) = delete;
  SampleWorkspace& operator=(const SampleWorkspace&) = delete;

  struct Worker;
  Worker& worker(int index) { return *workers_[size_t(index)]; }
  size_t vocabulary() const { return vocabulary_; }

 private:
  size_t vocabulary_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

// needed[i] = most likely tokens that suffice for the jobs of row first_row + i, at most kMostTop;
// 0: they look at the whole row (log-probabilities, changed logits, draws without a small top_k).
void plan_rows(const LogitJobs& jobs, size_t first_row, size_t rows, int32_t* needed);

// Does the jobs whose row is in [first_row, first_row + count); rows[0] is row `first_row` and has
// at least the tokens that plan_rows asks for. The jobs must have passed check_jobs.
void process_rows(Pool& pool, SampleWorkspace& workspace, const LogitRow* rows, size_t first_row,
                  size_t count, const LogitJobs& jobs);

}  // namespace octavo
