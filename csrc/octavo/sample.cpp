#include "octavo/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "octavo/philox.h"
#include "octavo/sample_mass.h"
#include "octavo/sample_select.h"

namespace octavo {

struct SampleWorkspace::Worker {
  explicit Worker(size_t vocabulary)
      : logits(new float[vocabulary]),
        raw_block_max(new float[block_count(vocabulary)]),
        block_max(new float[block_count(vocabulary)]),
        block_mass(new int64_t[block_count(vocabulary)]),
        seen(new int32_t[vocabulary]()),
        select(vocabulary) {}

  std::unique_ptr<float[]> logits;  // a row after bias, penalties and bans
  std::unique_ptr<float[]> raw_block_max;
  std::unique_ptr<float[]> block_max;
  std::unique_ptr<int64_t[]> block_mass;
  std::unique_ptr<int32_t[]> seen;  // all zero between rows
  SelectScratch select;
};

SampleWorkspace::SampleWorkspace(int workers, size_t vocabulary) : vocabulary_(vocabulary) {
  for (int i = 0; i < workers; ++i) workers_.push_back(std::make_unique<Worker>(vocabulary));
}

SampleWorkspace::~SampleWorkspace() = default;

namespace {

bool penalises(const LogitJob& job) {
  return job.repetition_penalty != 1.0f || job.presence_penalty != 0.0f ||
         job.frequency_penalty != 0.0f;
}

void apply_penalties(const LogitJob& job, const int32_t* prompt, const int32_t* output,
                     float* logits, int32_t* seen) {
  constexpr int32_t kDone = -1;
  const auto repeat = [&](float z) {
    return z > 0.0f ? z / job.repetition_penalty : z * job.repetition_penalty;
  };
  for (int32_t i = 0; i < job.output_count; ++i) ++seen[output[i]];
  for (int32_t i = 0; i < job.output_count; ++i) {
    const int32_t id = output[i];
    if (seen[id] == kDone) continue;
    float z = repeat(logits[id]);
    z = z - job.frequency_penalty * float(seen[id]);
    logits[id] = z - job.presence_penalty;
    seen[id] = kDone;
  }
  for (int32_t i = 0; i < job.prompt_count; ++i) {
    const int32_t id = prompt[i];
    if (seen[id] == kDone) continue;
    logits[id] = repeat(logits[id]);
    seen[id] = kDone;
  }
  for (int32_t i = 0; i < job.output_count; ++i) seen[output[i]] = 0;
  for (int32_t i = 0; i < job.prompt_count; ++i) seen[prompt[i]] = 0;
}

bool changes_logits(const LogitJob& job) {
  return job.bias_count > 0 || job.banned_count > 0 || penalises(job);
}

// The row after bias, penalties and bans: the raw one where the job changes nothing.
RowSummary adjusted_row(const LogitJobs& jobs, const LogitJob& job, const RowSummary& raw,
                        SampleWorkspace::Worker& worker) {
  if (!changes_logits(job)) return raw;
  float* logits = worker.logits.get();
  std::copy(raw.logits, raw.logits + raw.vocabulary, logits);
  for (int32_t i = job.bias_begin; i < job.bias_begin + job.bias_count; ++i) {
    logits[jobs.ids[i]] += jobs.bias_values[i];
  }
  if (penalises(job)) {
    apply_penalties(job, jobs.ids + job.prompt_begin, jobs.ids + job.output_begin, logits,
                    worker.seen.get());
  }
  for (int32_t i = job.banned_begin; i < job.banned_begin + job.banned_count; ++i) {
    logits[jobs.ids[i]] = -INFINITY;
  }
  return summarise(logits, raw.vocabulary, worker.block_max.get());
}

int32_t most_likely(const RowSummary& row) {
  size_t block = 0;
  while (row.block_max[block] != row.max) ++block;
  size_t id = block * kLogitBlock;
  while (row.logits[id] != row.max) ++id;
  return int32_t(id);
}

// What top-k, top-p and min-p leave of the row.
struct Kept {
  Cut cut;
  double least_mass = 0.0;
};

// The masses of a block that a draw may hit, zero for the rest; returns their sum.
OCTAVO_VECTOR_CLONES
int64_t drawable_masses(const RowSummary& row, float temperature, const Kept& kept, size_t block,
                        int64_t* masses) {
  const int32_t begin = int32_t(block * kLogitBlock);
  const float* z = row.logits + begin;
  const size_t length = block_length(block, row.vocabulary);
  const Cut cut = kept.cut;
  float unrounded[kLogitBlock];
  float exponents[kLogitBlock];
  block_exponents(z, length, row.max, temperature, exponents);
  block_unrounded(exponents, length, unrounded);
  for (size_t i = 0; i < length; ++i) {
    unrounded[i] = cut.keeps(z[i], begin + int32_t(i)) ? unrounded[i] : 0.0f;
  }
  return block_rounded(unrounded, length, kept.least_mass, masses);
}

// Inverse of the cumulative mass over rising ids at floor(u * total), u = bits / 2^64.
int32_t draw(const LogitJob& job, const RowSummary& row, SampleWorkspace::Worker& worker) {
  Kept kept;
  const bool limits_count = job.top_k > 0 && size_t(job.top_k) < row.vocabulary;
  if (limits_count || job.top_p < 1.0) {
    kept.cut = find_cut(row, job.temperature, limits_count ? size_t(job.top_k) : 0, job.top_p,
                        worker.select);
  }
  kept.least_mass = std::ceil(job.min_p * kMassOne);
  int64_t masses[kLogitBlock];
  int64_t total = 0;
  for (size_t block = 0; block < block_count(row.vocabulary); ++block) {
    const float best = row.block_max[block];
    const bool empty = best < kept.cut.logit ||
                       exponent_of(best, row.max, job.temperature) < kLowestExponent;
    worker.block_mass[block] =
        empty ? 0 : drawable_masses(row, job.temperature, kept, block, masses);
    total += worker.block_mass[block];
  }
  const uint64_t bits = philox_bits(job.seed, job.counter);
  int64_t target = int64_t(static_cast<unsigned __int128>(bits) * uint64_t(total) >> 64);
  size_t block = 0;
  while (target >= worker.block_mass[block]) target -= worker.block_mass[block++];
  drawable_masses(row, job.temperature, kept, block, masses);
  size_t i = 0;
  while (target >= masses[i]) target -= masses[i++];
  return int32_t(block * kLogitBlock + i);
}

void report_logprobs(const LogitJobs& jobs, const LogitJob& job, const RowSummary& raw,
                     LogitResult& result, SelectScratch& scratch) {
  const double normaliser = log_sum_exp(raw);
  result.logprob = double(raw.logits[result.token]) - normaliser;
  if (job.top == 0) return;
  find_top(raw, size_t(job.top), scratch);
  for (int32_t i = 0; i < job.top; ++i) {
    const Candidate& candidate = scratch.candidates[size_t(i)];
    jobs.top_ids[job.top_begin + i] = candidate.id;
    jobs.top_logprobs[job.top_begin + i] = double(candidate.logit) - normaliser;
  }
}

LogitStatus status_of(const RowSummary& row) {
  if (!row.usable) return kLogitsNotFinite;
  return row.max == -INFINITY ? kNothingLeft : kLogitsUsable;
}

void process_job(const LogitJobs& jobs, const LogitJob& job, const LogitRow& given,
                 SampleWorkspace::Worker& worker, LogitResult& result) {
  const bool scores = job.kind == kScoreJob;
  result = {std::numeric_limits<double>::quiet_NaN(), scores ? job.target : -1, kLogitsUsable};
  const RowSummary raw = summarise(given.logits, given.count, worker.raw_block_max.get());
  result.status = status_of(raw);
  if (result.status != kLogitsUsable) return;
  if (!scores) {
    const RowSummary row = adjusted_row(jobs, job, raw, worker);
    result.status = status_of(row);
    if (result.status != kLogitsUsable) return;
    const int32_t place = job.temperature == 0.0f ? most_likely(row) : draw(job, row, worker);
    result.token = given.ids == nullptr ? place : given.ids[place];
  }
  if (job.top >= 0) report_logprobs(jobs, job, raw, result, worker.select);
}

bool in_range(int32_t begin, int32_t count, size_t size) {
  return begin >= 0 && count >= 0 && size_t(begin) + size_t(count) <= size;
}

bool within(double value, double low, double high) { return value >= low && value <= high; }

const char* check_job(const LogitJobs& jobs, const LogitJob& job, size_t rows, size_t vocabulary) {
  if (job.row < 0 || size_t(job.row) >= rows) return "a job's row is out of range";
  if (job.kind != kDrawJob && job.kind != kScoreJob) return "unknown kind of job";
  if (job.target < 0 || size_t(job.target) >= vocabulary) return "target is not in the vocabulary";
  if (!within(job.top_p, 0, 1)) return "top_p must be from 0 to 1";
  if (!within(job.min_p, 0, 1)) return "min_p must be from 0 to 1";
  if (!within(job.temperature, 0, FLT_MAX)) return "temperature must be finite and not negative";
  if (!within(job.repetition_penalty, FLT_MIN, FLT_MAX)) return "repetition_penalty must be > 0";
  if (!within(job.presence_penalty, -FLT_MAX, FLT_MAX)) return "presence_penalty must be finite";
  if (!within(job.frequency_penalty, -FLT_MAX, FLT_MAX)) return "frequency_penalty must be finite";
  if (job.top_k < 0) return "top_k must not be negative";
  if (job.top > 0 && (size_t(job.top) > vocabulary ||
                      !in_range(job.top_begin, job.top, jobs.top_count))) {
    return "alternatives do not fit their arrays";
  }
  if (!in_range(job.bias_begin, job.bias_count, jobs.bias_count) ||
      !in_range(job.bias_begin, job.bias_count, jobs.id_count) ||
      !in_range(job.banned_begin, job.banned_count, jobs.id_count) ||
      !in_range(job.prompt_begin, job.prompt_count, jobs.id_count) ||
      !in_range(job.output_begin, job.output_count, jobs.id_count)) {
    return "a range of token ids is out of bounds";
  }
  return nullptr;
}

std::pair<const LogitJob*, const LogitJob*> jobs_of_rows(const LogitJobs& jobs, size_t first_row,
                                                         size_t rows) {
  const auto row_below = [](const LogitJob& job, size_t row) { return size_t(job.row) < row; };
  const LogitJob* end = jobs.jobs + jobs.count;
  const LogitJob* first = std::lower_bound(jobs.jobs, end, first_row, row_below);
  return {first, std::lower_bound(first, end, first_row + rows, row_below)};
}

int32_t tokens_needed(const LogitJob& job) {
  if (job.kind == kScoreJob || job.top >= 0 || changes_logits(job)) return 0;
  if (job.temperature == 0.0f) return 1;
  return job.top_k <= kMostTop ? job.top_k : 0;
}

}  // namespace

const char* check_jobs(const LogitJobs& jobs, size_t rows, size_t vocabulary) {
  if (vocabulary == 0 || vocabulary >= kMaxVocabulary) return "unsupported size of vocabulary";
  for (size_t i = 0; i < jobs.id_count; ++i) {
    if (jobs.ids[i] < 0 || size_t(jobs.ids[i]) >= vocabulary) {
      return "a token id is not in the vocabulary";
    }
  }
  for (size_t i = 0; i < jobs.bias_count; ++i) {
    if (!within(jobs.bias_values[i], -FLT_MAX, FLT_MAX)) return "logit bias must be finite";
  }
  for (size_t i = 0; i < jobs.count; ++i) {
    const char* wrong = check_job(jobs, jobs.jobs[i], rows, vocabulary);
    if (wrong != nullptr) return wrong;
    if (i > 0 && jobs.jobs[i].row < jobs.jobs[i - 1].row) return "jobs are not sorted by row";
  }
  return nullptr;
}

void plan_rows(const LogitJobs& jobs, size_t first_row, size_t rows, int32_t* needed) {
  std::fill(needed, needed + rows, 1);
  const auto [first, last] = jobs_of_rows(jobs, first_row, rows);
  for (const LogitJob* job = first; job < last; ++job) {
    int32_t& row = needed[size_t(job->row) - first_row];
    const int32_t wanted = tokens_needed(*job);
    row = wanted == 0 || row == 0 ? 0 : std::max(row, wanted);
  }
}

void process_rows(Pool& pool, SampleWorkspace& workspace, const LogitRow* rows, size_t first_row,
                  size_t count, const LogitJobs& jobs) {
  const auto [first, last] = jobs_of_rows(jobs, first_row, count);
  const LogitJob* all = first;
  pool.parallel_for(last - first, 1, [&](int64_t begin, int64_t stop, int index) {
    for (int64_t i = begin; i < stop; ++i) {
      process_job(jobs, all[i], rows[size_t(all[i].row) - first_row], workspace.worker(index),
                  jobs.results[(all - jobs.jobs) + i]);
    }
  });
}

}  // namespace octavo
