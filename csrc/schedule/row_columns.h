// Progress of the requests that run, in columns over the executor's rows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace octavo {

constexpr int64_t kNoLane = -1;
constexpr int64_t kNoToken = -1;

// Numbers of rows, in an order that means something.
using RowNumbers = std::vector<int64_t>;

// Borrowed numbers.
struct Numbers {
  const int64_t* data;
  size_t count;

  Numbers(const int64_t* data, size_t count) : data(data), count(count) {}
  Numbers(const RowNumbers& rows) : data(rows.data()), count(rows.size()) {}
  const int64_t* begin() const { return data; }
  const int64_t* end() const { return data + count; }
  int64_t operator[](size_t at) const { return data[at]; }
};

// What a step brought to rows that only decode. `plain` and `others` are places among its rows:
// those that were brought forward, and those to which more happens. `page_ends` are rows whose
// computed token was the last one of a page. `gaps` and `gaps_missed` count by class.
struct PlainStep {
  std::vector<size_t> plain;
  std::vector<size_t> others;
  RowNumbers page_ends;
  std::vector<int64_t> gaps;
  std::vector<int64_t> gaps_missed;
};

// The meaning of the columns is told in `octavo.schedule.rows`. Rows are not checked here.
class RowColumns {
 public:
  RowColumns(int64_t rows, int64_t page_tokens);

  int64_t rows() const { return int64_t(lane.size()); }
  int64_t page_tokens() const { return page_tokens_; }

  void seat(int64_t row, int64_t computed_tokens, int64_t end, int64_t cached, double since_seconds,
            std::vector<int64_t> stops);
  void set_decoding(int64_t row, int64_t rank, int64_t token, bool is_plain, double gap);

  // Decoding rows of a class, longest unserved first, then by number.
  RowNumbers decoding(int64_t rank) const;
  // Tokens in the KV cache, summed.
  int64_t past(Numbers rows) const;
  // How many got their latest token at that time or before.
  int64_t count_unserved_since(Numbers rows, double seconds) const;
  // Those that need a page before their next token.
  RowNumbers without_room(Numbers rows) const;

  // The longest run of rows from the first one on that takes `seconds`, where each takes `each`
  // and `per_past` for every token of its past: how many they are, their pasts and their time.
  struct Run {
    int64_t count;
    int64_t past;
    double seconds;
  };
  Run run_within(Numbers rows, double each, double per_past, double seconds) const;

  // Brings plain rows forward by the token that each got (`kNoToken`: none), at `now` in `step`.
  PlainStep take(Numbers rows, Numbers starts, Numbers tokens, int64_t step, double now,
                 size_t classes);
  // The tokens of plain steps from position `first` on.
  std::vector<int64_t> fetch(int64_t row, int64_t first) const;

  std::vector<int64_t> lane;
  std::vector<int64_t> computed;
  std::vector<int64_t> room;
  std::vector<int64_t> end_tokens;
  std::vector<int64_t> last_token;
  std::vector<int64_t> served_step;
  std::vector<int64_t> cached_tokens;
  std::vector<uint8_t> plain;
  std::vector<double> token_seconds;
  std::vector<double> gap_seconds;

 private:
  bool is_plain_with(int64_t row, int64_t start, int64_t token) const;

  int64_t page_tokens_;
  std::vector<int64_t> new_tokens_;
  std::vector<std::vector<int64_t>> stop_ids_;
};

}  // namespace octavo
