#include "octavo/step_rows.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>
#include <utility>

namespace octavo {

namespace {

constexpr int32_t kNoPage = -1;

void require(bool condition, const char* message) {
  if (!condition) throw std::invalid_argument(message);
}

LogitJob score_job(int32_t target, int32_t top) {
  LogitJob job{};
  job.top_p = 1.0;
  job.repetition_penalty = 1.0f;
  job.temperature = 1.0f;
  job.kind = kScoreJob;
  job.target = target;
  job.top = top;
  return job;
}

int32_t narrow(int64_t value) {
  require(value >= std::numeric_limits<int32_t>::min() &&
              value <= std::numeric_limits<int32_t>::max(),
          "a token or position is too large");
  return int32_t(value);
}

}  // namespace

StepRows::StepRows(size_t rows, size_t table_width, size_t vocabulary)
    : rows_(rows), table_width_(table_width), vocabulary_(vocabulary) {}

void StepRows::seat(int64_t row, RowSettings settings) {
  require(row >= 0 && size_t(row) < rows_.size(), "there is no such row");
  require(settings.bias_ids.size() == settings.bias_values.size(),
          "bias_ids and bias_values differ in length");
  const bool penalises_nothing = settings.job.repetition_penalty == 1.0f &&
                                 settings.job.presence_penalty == 0.0f &&
                                 settings.job.frequency_penalty == 0.0f;
  require(!penalises_nothing || (settings.prompt.empty() && settings.output.empty()),
          "without penalties there is nothing to look at");
  settings.job.kind = kDrawJob;
  settings.job.top = int32_t(std::min(int64_t(settings.job.top), int64_t(vocabulary_)));
  Row& seat = rows_[size_t(row)];
  seat.settings = std::move(settings);
  seat.table.resize(table_width_, kNoPage);
  seat.used = 0;
  seat.looks_back = !penalises_nothing;
  seat.is_seated = true;
}

void StepRows::vacate(int64_t row) {
  require(row >= 0 && size_t(row) < rows_.size(), "there is no such row");
  rows_[size_t(row)] = Row{};
}

StepRows::Row& StepRows::seated(int64_t row) {
  require(row >= 0 && size_t(row) < rows_.size() && rows_[size_t(row)].is_seated,
          "nobody has this row");
  return rows_[size_t(row)];
}

void StepRows::append(int64_t row, int64_t start, const std::vector<int32_t>& pages) {
  Row& owner = seated(row);
  require(start >= 0 && size_t(start) <= owner.used && pages.size() <= table_width_ - size_t(start),
          "the pages do not continue the row's table");
  std::copy(pages.begin(), pages.end(), owner.table.begin() + start);
  owner.used = size_t(start) + pages.size();
}

void StepRows::gather(const DecodeColumns& decodes, const std::vector<ChunkRow>& chunks) {
  for (std::vector<int32_t>* each : {&tokens_, &past_, &wanted_, &ids_}) each->clear();
  row_starts_.assign(1, 0);
  jobs_.clear();
  drawing_rows_.clear();
  bias_values_.clear();
  top_count_ = width_ = 0;
  // First of all ids, so that ids and values of a bias have equal indices.
  for (size_t i = 0; i < decodes.count; ++i) add_bias(seated(decodes.rows[i]));
  for (const ChunkRow& chunk : chunks) {
    Row& row = seated(chunk.row);
    if (chunk.draws) add_bias(row);
  }
  for (size_t i = 0; i < decodes.count; ++i) {
    tokens_.push_back(narrow(decodes.tokens[i]));
    add_row(rows_[size_t(decodes.rows[i])], decodes.starts[i]);
    add_draw(decodes.rows[i], decodes.starts[i] + 1);
  }
  for (const ChunkRow& chunk : chunks) {
    const size_t first = tokens_.size(), count = chunk.tokens.size();
    require(count > 0 && chunk.targets.size() <= count, "a chunk scores more than it computes");
    tokens_.insert(tokens_.end(), chunk.tokens.begin(), chunk.tokens.end());
    add_row(rows_[size_t(chunk.row)], chunk.start);
    for (size_t i = 0; i < chunk.targets.size(); ++i) {
      require(chunk.top >= 0, "top, the number of alternatives, must not be negative");
      const int64_t top = std::min(int64_t(chunk.top), int64_t(vocabulary_));
      add_job(score_job(chunk.targets[i], int32_t(top)), int32_t(first + i));
    }
    if (chunk.draws) add_draw(chunk.row, chunk.start + int64_t(count));
  }
  add_tables(decodes, chunks);
  results_.resize(jobs_.size());
  top_ids_.resize(top_count_);
  top_logprobs_.resize(top_count_);
}

void StepRows::add_bias(Row& row) {
  RowSettings& settings = row.settings;
  settings.job.bias_begin = int32_t(ids_.size());
  settings.job.bias_count = int32_t(settings.bias_ids.size());
  ids_.insert(ids_.end(), settings.bias_ids.begin(), settings.bias_ids.end());
  bias_values_.insert(bias_values_.end(), settings.bias_values.begin(),
                      settings.bias_values.end());
}

// The row of the step whose tokens were the latest to be added.
void StepRows::add_row(const Row& row, int64_t start) {
  row_starts_.push_back(int32_t(tokens_.size()));
  past_.push_back(narrow(start));
  width_ = std::max(width_, row.used);
}

// The token at position `end`, from the logits of the latest token.
void StepRows::add_draw(int64_t number, int64_t end) {
  Row& row = rows_[size_t(number)];
  RowSettings& settings = row.settings;
  LogitJob job = settings.job;
  const int64_t counter = end - settings.prompt_tokens;
  require(counter >= 0, "a draw is in the middle of the prompt");
  job.counter = uint64_t(counter);
  if (counter < settings.min_tokens) {
    add_ids(settings.stop_ids, job.banned_begin, job.banned_count);
  }
  if (row.looks_back) {
    require(size_t(counter) <= settings.output.size(), "a row has not drawn all of its tokens");
    settings.output.resize(size_t(counter));
    add_ids(settings.prompt, job.prompt_begin, job.prompt_count);
    add_ids(settings.output, job.output_begin, job.output_count);
  }
  add_job(job, int32_t(tokens_.size() - 1));
  drawing_rows_.push_back(number);
}

void StepRows::add_ids(const std::vector<int32_t>& ids, int32_t& begin, int32_t& count) {
  begin = int32_t(ids_.size());
  count = int32_t(ids.size());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

void StepRows::add_job(LogitJob job, int32_t token) {
  if (wanted_.empty() || wanted_.back() != token) wanted_.push_back(token);
  job.row = int32_t(wanted_.size() - 1);
  job.top_begin = int32_t(top_count_);
  top_count_ += size_t(std::max(job.top, 0));
  jobs_.push_back(job);
}

// Tables as wide as the longest one of the step.
void StepRows::add_tables(const DecodeColumns& decodes, const std::vector<ChunkRow>& chunks) {
  tables_.resize(past_.size() * width_);
  int32_t* out = tables_.data();
  const auto add = [&](const Row& row) {
    std::copy_n(row.table.begin(), row.used, out);
    std::fill(out + row.used, out + width_, kNoPage);
    out += width_;
  };
  for (size_t i = 0; i < decodes.count; ++i) add(rows_[size_t(decodes.rows[i])]);
  for (const ChunkRow& chunk : chunks) add(rows_[size_t(chunk.row)]);
}

StepInput StepRows::input() const {
  return StepInput{tokens_.data(), tokens_.size(), row_starts_.data(), past_.data(), tables_.data(),
                   past_.size(),   width_,         wanted_.data(),     wanted_.size()};
}

LogitJobs StepRows::jobs() {
  LogitJobs view;
  view.jobs = jobs_.data();
  view.count = jobs_.size();
  view.ids = ids_.data();
  view.id_count = ids_.size();
  view.bias_values = bias_values_.data();
  view.bias_count = bias_values_.size();
  view.results = results_.data();
  view.top_ids = top_ids_.data();
  view.top_logprobs = top_logprobs_.data();
  view.top_count = top_count_;
  return view;
}

void StepRows::remember() {
  size_t draw = 0;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    if (jobs_[i].kind != kDrawJob) continue;
    Row& row = rows_[size_t(drawing_rows_[draw++])];
    if (row.looks_back && results_[i].token >= 0) row.settings.output.push_back(results_[i].token);
  }
}

}  // namespace octavo
