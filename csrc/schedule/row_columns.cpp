#include "schedule/row_columns.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace octavo {

namespace {

size_t checked(int64_t rows, int64_t page_tokens) {
  if (rows < 1 || page_tokens < 1) throw std::invalid_argument("rows and page_tokens are at least 1");
  return size_t(rows);
}

}  // namespace

RowColumns::RowColumns(int64_t rows, int64_t page_tokens)
    : lane(checked(rows, page_tokens), kNoLane),
      computed(rows),
      room(rows),
      end_tokens(rows),
      last_token(rows),
      served_step(rows),
      cached_tokens(rows),
      plain(rows),
      token_seconds(rows),
      gap_seconds(rows),
      page_tokens_(page_tokens),
      new_tokens_(rows * page_tokens),
      stop_ids_(rows) {}

void RowColumns::seat(int64_t row, int64_t computed_tokens, int64_t end, int64_t cached,
                      double since_seconds, std::vector<int64_t> stops) {
  computed[row] = computed_tokens;
  room[row] = 0;
  end_tokens[row] = end;
  cached_tokens[row] = cached;
  token_seconds[row] = since_seconds;
  stop_ids_[row] = std::move(stops);
}

void RowColumns::set_decoding(int64_t row, int64_t rank, int64_t token, bool is_plain, double gap) {
  lane[row] = rank;
  last_token[row] = token;
  plain[row] = is_plain;
  gap_seconds[row] = gap;
}

RowNumbers RowColumns::decoding(int64_t rank) const {
  RowNumbers found;
  for (int64_t row = 0; row < rows(); ++row) {
    if (lane[row] == rank) found.push_back(row);
  }
  const auto is_before = [this](int64_t left, int64_t right) {
    return served_step[left] < served_step[right];
  };
  // Mostly they were all served in the last step.
  if (!std::is_sorted(found.begin(), found.end(), is_before)) {
    std::stable_sort(found.begin(), found.end(), is_before);
  }
  return found;
}

int64_t RowColumns::past(Numbers rows) const {
  int64_t sum = 0;
  for (const int64_t row : rows) sum += computed[row];
  return sum;
}

int64_t RowColumns::count_unserved_since(Numbers rows, double seconds) const {
  return std::count_if(rows.begin(), rows.end(),
                       [&](int64_t row) { return token_seconds[row] <= seconds; });
}

RowNumbers RowColumns::without_room(Numbers rows) const {
  RowNumbers found;
  for (const int64_t row : rows) {
    if (computed[row] >= room[row]) found.push_back(row);
  }
  return found;
}

RowColumns::Run RowColumns::run_within(Numbers rows, double each, double per_past,
                                       double seconds) const {
  Run run{0, 0, 0.0};
  for (const int64_t row : rows) {
    const int64_t past = run.past + computed[row];
    const double taken = each * double(run.count + 1) + per_past * double(past);
    if (taken > seconds) break;
    run = {run.count + 1, past, taken};
  }
  return run;
}

bool RowColumns::is_plain_with(int64_t row, int64_t start, int64_t token) const {
  if (!plain[row] || start + 2 >= end_tokens[row] || token == kNoToken) return false;
  const std::vector<int64_t>& stops = stop_ids_[row];
  return std::find(stops.begin(), stops.end(), token) == stops.end();
}

PlainStep RowColumns::take(Numbers rows, Numbers starts, Numbers tokens, int64_t step, double now,
                           size_t classes) {
  PlainStep taken;
  taken.plain.reserve(rows.count);
  taken.gaps.resize(classes);
  taken.gaps_missed.resize(classes);
  for (size_t place = 0; place < rows.count; ++place) {
    const int64_t row = rows[place], token = tokens[place];
    if (!is_plain_with(row, starts[place], token)) {
      if (token != kNoToken) taken.others.push_back(place);
      continue;
    }
    taken.plain.push_back(place);
    const int64_t column = ++computed[row] % page_tokens_;
    last_token[row] = token;
    new_tokens_[row * page_tokens_ + column] = token;
    served_step[row] = step;
    if (column == 0) taken.page_ends.push_back(row);
    const size_t rank = size_t(lane[row]);
    ++taken.gaps[rank];
    taken.gaps_missed[rank] += now - token_seconds[row] > gap_seconds[row];
    token_seconds[row] = now;
  }
  return taken;
}

std::vector<int64_t> RowColumns::fetch(int64_t row, int64_t first) const {
  std::vector<int64_t> tokens;
  const int64_t* line = &new_tokens_[row * page_tokens_];
  for (int64_t at = first; at <= computed[row]; ++at) tokens.push_back(line[at % page_tokens_]);
  return tokens;
}

}  // namespace octavo
