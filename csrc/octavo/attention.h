// Paged causal attention, one kernel family for prefill and decode.
//
// Online softmax (Milakov and Gimelshein 2018) over tiles of 64 tokens, in segments of 512 tokens
// whose states are merged in order (as in split-KV decoding, Dao et al. 2023). Tiles and segments
// lie at absolute positions, and a row takes in only the tokens it may see, so a row's bits depend
// on its own query and cache only: not on chunking, batch, page size or threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "octavo/attention_pages.h"
#include "octavo/attention_softmax.h"
#include "octavo/attention_tile.h"
#include "octavo/attention_types.h"
#include "octavo/kv_codes.h"
#include "octavo/pool.h"
#include "octavo/quantize.h"

namespace octavo {
namespace OCTAVO_TIER {

// The positions that a query sees are [lowest_seen, its own + 1).
inline int lowest_seen(const AttentionCall& call, int position) {
  return call.window > 0 && position + 1 > call.window ? position + 1 - call.window : 0;
}

// The same for all queries of a task.
inline int task_lowest(const AttentionCall& call, const AttentionTask& task) {
  return lowest_seen(call, task.position);
}
inline int task_highest(const AttentionTask& task) { return task.position + task.tokens; }
inline int first_segment(const AttentionCall& call, const AttentionTask& task) {
  return task_lowest(call, task) / kSegmentTokens * kSegmentTokens;
}

// The tile to come, or null where its keys or values are not to be asked for.
template <class Tile>
struct Ahead {
  const Tile* keys;
  const Tile* values;
};

// Takes `Rows` rows from `row` on through one tile that starts at absolute position `start`.
template <int Rows, class Tile>
inline void attend_rows(const AttentionCall& call, const RowBlock& block, int row, int start,
                        const Tile& tile, const Ahead<Tile>& ahead, const State& state) {
  constexpr const Tile* no_tile = nullptr;
  const int head_dim = call.head_dim;
  alignas(64) float scores[Rows * kTileTokens];
  int begin[Rows], end[Rows], shared_begin = 0, shared_end = kTileTokens;
  int lowest = kTileTokens, highest = 0;
  for (int r = 0; r < Rows; ++r) {
    begin[r] = block.low[row + r] > start ? block.low[row + r] - start : 0;
    end[r] = block.high[row + r] - start < kTileTokens ? block.high[row + r] - start : kTileTokens;
    if (begin[r] > shared_begin) shared_begin = begin[r];
    if (end[r] < shared_end) shared_end = end[r];
    if (begin[r] < lowest) lowest = begin[r];
    if (end[r] > highest) highest = end[r];
  }
  if (lowest >= highest) return;
  tile_scores<Rows>(block, row, head_dim, tile, lowest / kGroupTokens,
                    (highest + kGroupTokens - 1) / kGroupTokens, ahead.keys, scores);
  float* output = state.output + size_t(row) * head_dim;
  soften_rows<Rows>(scores, begin, end, call.softcap, head_dim, state.maximum + row,
                    state.sum + row, output);
  if constexpr (Tile::coded) {
    for (int r = 0; r < Rows; ++r) {
      scale_weights(scores + r * kTileTokens, begin[r], end[r], tile);
    }
  }
  // Tokens that only some of the rows see are added row by row, never as zeros: 0 x NaN is NaN.
  const bool shared = shared_begin < shared_end;
  for (int r = 0; r < Rows; ++r) {
    tile_values<1>(scores + r * kTileTokens, begin[r], shared ? shared_begin : end[r], tile,
                   no_tile, head_dim, output + size_t(r) * head_dim);
  }
  if (!shared) return;
  tile_values<Rows>(scores, shared_begin, shared_end, tile, ahead.values, head_dim, output);
  for (int r = 0; r < Rows; ++r) {
    tile_values<1>(scores + r * kTileTokens, shared_end, end[r], tile,
                   no_tile, head_dim, output + size_t(r) * head_dim);
  }
}

// Takes all rows through a tile. The first ones ask for the keys of the next tile and the last ones
// for its values, so that memory gets time for both.
template <class Tile>
inline void attend_block(const AttentionCall& call, const RowBlock& block, int start,
                         const Tile& tile, const Tile* next, const State& state) {
  int row = 0;
  while (row < block.rows) {
    const int left = block.rows - row, rows = rows_together(left);
    const Ahead<Tile> ahead{row == 0 ? next : nullptr, rows == left ? next : nullptr};
    switch (rows) {
      case 1: attend_rows<1>(call, block, row, start, tile, ahead, state); break;
      case 2: attend_rows<2>(call, block, row, start, tile, ahead, state); break;
      case 3: attend_rows<3>(call, block, row, start, tile, ahead, state); break;
      case 4: attend_rows<4>(call, block, row, start, tile, ahead, state); break;
      case 5: attend_rows<5>(call, block, row, start, tile, ahead, state); break;
      case 6: attend_rows<6>(call, block, row, start, tile, ahead, state); break;
    }
    row += rows;
  }
}

// Tiles of a task's kv head, cut to the positions that some row sees.
template <class Element>
inline Tile<Element, Element> task_tile(const AttentionCall& call, const AttentionTask& task,
                                        int start) {
  const int32_t* table = call.tables + size_t(task.sequence) * call.table_stride;
  const int lowest = task_lowest(call, task), highest = task_highest(task);
  return page_tile<Element>(call, table, task.kv_head, start, lowest > start ? lowest : start,
                            highest < start + kTileTokens ? highest : start + kTileTokens);
}

// Where the tiles of the segment at `segment` begin when no row sees a token before `lowest`.
inline int first_tile(int segment, int lowest) {
  return lowest > segment ? lowest / kTileTokens * kTileTokens : segment;
}

// The first tile that a task reads of a segment.
template <class Element>
inline Tile<Element, Element> segment_tile(const AttentionCall& call, const AttentionTask& task,
                                           int segment) {
  return task_tile<Element>(call, task, first_tile(segment, task_lowest(call, task)));
}

// One segment (absolute positions [segment, segment + 512)) into a fresh state. Tiles below
// `fetch_end` are asked for ahead of time, and after them the first one of `following`, if any; the
// segment's own first tile is the caller's to ask for.
template <class Element>
inline void attend_segment(const AttentionCall& call, const AttentionTask& task,
                           const RowBlock& block, int segment, int fetch_end,
                           const AttentionTask* following, const State& state) {
  clear_state(state, block.rows, call.head_dim);
  const int highest = task_highest(task);
  const int stop = highest < segment + kSegmentTokens ? highest : segment + kSegmentTokens;
  int start = first_tile(segment, task_lowest(call, task));
  Tile<Element, Element> tile = task_tile<Element>(call, task, start), next;
  for (; start < stop; start += kTileTokens, tile = next) {
    const bool more = start + kTileTokens < fetch_end;
    if (more) {
      next = task_tile<Element>(call, task, start + kTileTokens);
    } else if (following != nullptr) {
      next = segment_tile<Element>(call, *following, first_segment(call, *following));
    }
    const bool fetches = more || following != nullptr;
    attend_block(call, block, start, tile, fetches ? &next : nullptr, state);
  }
}

// Bump allocation inside one worker's scratch (attention_scratch_floats() long).
struct TaskScratch {
  float* q;
  int8_t* codes;  // instead of q
  float* scales;
  int32_t* sums;
  int* low;
  int* high;
  State total;
  State next;
};

inline TaskScratch cut_scratch(float* scratch, int rows, int head_dim) {
  TaskScratch cut;
  const size_t matrix = size_t(rows) * head_dim, column = (size_t(rows) + 15) / 16 * 16;
  cut.q = scratch;
  cut.codes = reinterpret_cast<int8_t*>(scratch);
  cut.total.output = cut.q + matrix;
  cut.next.output = cut.total.output + matrix;
  float* columns = cut.next.output + matrix;
  cut.total.maximum = columns;
  cut.total.sum = columns + column;
  cut.next.maximum = columns + 2 * column;
  cut.next.sum = columns + 3 * column;
  cut.low = reinterpret_cast<int*>(columns + 4 * column);
  cut.high = reinterpret_cast<int*>(columns + 5 * column);
  cut.scales = columns + 6 * column;
  cut.sums = reinterpret_cast<int32_t*>(columns + 7 * column);
  return cut;
}

// Puts the quads of a row where those of `rows` rows lie side by side.
template <class T>
inline void spread_quads(const T* row, int head_dim, int rows, T* place) {
  for (int d = 0; d < head_dim; d += 4) memcpy(place + d * rows, row + d, 4 * sizeof(T));
}

// Queries of a task, scaled and gathered, with the positions each row sees. `Element` is the
// cache's: over codes queries become codes too.
template <class Element>
inline RowBlock gather_rows(const AttentionCall& call, const AttentionTask& task,
                            const TaskScratch& cut) {
  constexpr bool coded = std::is_same<Element, int8_t>::value;
  const int group = call.heads / call.kv_heads, head_dim = call.head_dim;
  const int rows = task.tokens * group;
  const simd::F16 scale = simd::set1(call.scale);
  alignas(64) float scaled[kMostHeadDim];
  alignas(64) int8_t codes[kMostHeadDim];
  int part = 0, part_rows = rows_together(rows);
  for (int row = 0; row < rows; ++row) {
    if (row == part + part_rows) {
      part = row;
      part_rows = rows_together(rows - row);
    }
    const int head = task.kv_head * group + row % group, token = row / group;
    const float* source = call.q + (size_t(task.token + token) * call.heads + head) * head_dim;
    for (int d = 0; d < head_dim; d += 16) {
      simd::store(scaled + d, simd::mul(simd::load(source + d), scale));
    }
    const size_t place = size_t(part) * head_dim + (row - part) * 4;
    if constexpr (coded) {
      const HeadCodes head_codes = quantize_head(scaled, head_dim, codes);
      cut.scales[row] = head_codes.scale;
      cut.sums[row] = head_codes.sum;
      spread_quads(codes, head_dim, part_rows, cut.codes + place);
    } else {
      spread_quads(scaled, head_dim, part_rows, cut.q + place);
    }
    cut.high[row] = task.position + token + 1;
    cut.low[row] = lowest_seen(call, task.position + token);
  }
  return RowBlock{cut.q, cut.codes, cut.scales, cut.sums, cut.low, cut.high, rows};
}

// Columns of `out` that the heads of one kv head make.
inline int task_width(const AttentionCall& call) {
  return call.heads / call.kv_heads * call.head_dim;
}

// Whether tasks quantise what they write: their columns must be whole groups of a row.
inline bool tasks_quantize(const AttentionCall& call) {
  return call.prepared != nullptr && call.activations != Activations::Fp32 &&
         task_width(call) % block_inputs == 0;
}

inline void write_output(const AttentionCall& call, const AttentionTask& task, const State& total) {
  const int head_dim = call.head_dim, width = task_width(call), column = task.kv_head * width;
  const size_t stride = size_t(width) * call.kv_heads;
  const bool quantize = tasks_quantize(call);
  int row = 0;
  for (int i = 0; i < task.tokens; ++i) {
    const size_t token = size_t(task.token + i);
    float* out = call.out + token * stride + column;
    for (int begin = 0; begin < width; begin += head_dim, ++row) {
      const simd::F16 factor = simd::set1(1.0f / total.sum[row]);
      const float* output = total.output + size_t(row) * head_dim;
      for (int d = 0; d < head_dim; d += 16) {
        simd::store(out + begin + d, simd::mul(simd::load(output + d), factor));
      }
    }
    if (quantize) quantize_columns(out, int64_t(token), column, width, *call.prepared);
  }
}

// Asks for the first tile of a segment at once, where nothing came before to do it by and by.
template <class Element>
inline void fetch_segment(const AttentionCall& call, const AttentionTask& task, int segment) {
  fetch_tile(segment_tile<Element>(call, task, segment), call.head_dim);
}

// `following` is the task that this thread will take next, as far as that is known, or null.
template <class Element>
inline void attention_task(const AttentionCall& call, const AttentionTask& task,
                           const AttentionTask* following, float* scratch) {
  const int rows = task.tokens * (call.heads / call.kv_heads), highest = task_highest(task);
  const int first = first_segment(call, task);
  fetch_segment<Element>(call, task, first);
  const TaskScratch cut = cut_scratch(scratch, rows, call.head_dim);
  const RowBlock block = gather_rows<Element>(call, task, cut);
  attend_segment<Element>(call, task, block, first, highest, following, cut.total);
  for (int segment = first + kSegmentTokens; segment < highest; segment += kSegmentTokens) {
    attend_segment<Element>(call, task, block, segment, highest, following, cut.next);
    merge_state(cut.total, cut.next, rows, call.head_dim);
  }
  write_output(call, task, cut.total);
}

constexpr int kMaxSplitTasks = 256;

// Where the segments of each task start in the list of parts of a split call.
struct SplitPlan {
  int first_part[kMaxSplitTasks + 1];
  size_t first_float[kMaxSplitTasks + 1];
};

// Splitting pays when there are too few tasks for the threads and some task has many segments.
inline bool plan_split(const AttentionCall& call, const AttentionTask* tasks, size_t count,
                       int threads, SplitPlan* plan) {
  if (threads < 2 || count >= size_t(threads) * 4 || count > size_t(kMaxSplitTasks)) return false;
  plan->first_part[0] = 0;
  plan->first_float[0] = 0;
  for (size_t i = 0; i < count; ++i) {
    const int span = task_highest(tasks[i]) - first_segment(call, tasks[i]);
    const int parts = (span + kSegmentTokens - 1) / kSegmentTokens;
    const size_t rows = size_t(tasks[i].tokens) * (call.heads / call.kv_heads);
    plan->first_part[i + 1] = plan->first_part[i] + parts;
    plan->first_float[i + 1] = plan->first_float[i] + parts * rows * (call.head_dim + 2);
  }
  return size_t(plan->first_part[count]) > count && plan->first_float[count] <= call.split_floats;
}

inline State part_state(const AttentionCall& call, const SplitPlan& plan, size_t task, int part,
                        int rows) {
  float* base = call.split + plan.first_float[task] +
                size_t(part) * rows * (size_t(call.head_dim) + 2);
  const size_t matrix = size_t(rows) * call.head_dim;
  return State{base + matrix, base + matrix + rows, base};
}

template <class Element>
inline void split_attention(Pool& pool, const AttentionCall& call, const AttentionTask* tasks,
                            size_t count, const SplitPlan& plan) {
  const int group = call.heads / call.kv_heads;
  pool.parallel_for(
      size_t(plan.first_part[count]), 1, [&](size_t begin, size_t end, int worker) {
        float* scratch = call.scratch + size_t(worker) * call.scratch_floats;
        size_t task = 0;
        for (size_t part = begin; part < end; ++part) {
          while (size_t(plan.first_part[task + 1]) <= part) ++task;
          const int rows = tasks[task].tokens * group;
          const int index = int(part) - plan.first_part[task];
          const int segment = first_segment(call, tasks[task]) + index * kSegmentTokens;
          const int highest = task_highest(tasks[task]), after = segment + kSegmentTokens;
          fetch_segment<Element>(call, tasks[task], segment);
          const TaskScratch cut = cut_scratch(scratch, rows, call.head_dim);
          const RowBlock block = gather_rows<Element>(call, tasks[task], cut);
          attend_segment<Element>(call, tasks[task], block, segment,
                                  highest < after ? highest : after, nullptr,
                                  part_state(call, plan, task, index, rows));
        }
      });
  pool.parallel_for(count, 1, [&](size_t begin, size_t end, int) {
    for (size_t task = begin; task < end; ++task) {
      const int rows = tasks[task].tokens * group;
      const int parts = plan.first_part[task + 1] - plan.first_part[task];
      const State total = part_state(call, plan, task, 0, rows);
      for (int part = 1; part < parts; ++part) {
        merge_state(total, part_state(call, plan, task, part, rows), rows, call.head_dim);
      }
      write_output(call, tasks[task], total);
    }
  });
}

template <class Element>
inline void run_attention(Pool& pool, const AttentionCall& call, const AttentionTask* tasks,
                          size_t count) {
  SplitPlan plan;
  if (plan_split(call, tasks, count, pool.threads(), &plan)) {
    split_attention<Element>(pool, call, tasks, count, plan);
    return;
  }
  pool.parallel_for(count, 1, [&](size_t begin, size_t end, int worker) {
    float* scratch = call.scratch + size_t(worker) * call.scratch_floats;
    for (size_t task = begin; task < end; ++task) {
      const size_t next = task + 1 < end ? task + 1 : size_t(pool.upcoming());
      attention_task<Element>(call, tasks[task], next < count ? tasks + next : nullptr, scratch);
    }
  });
}

inline void attention_of_format(Pool& pool, const AttentionCall& call, const AttentionTask* tasks,
                                size_t count) {
  switch (call.cache->geometry.format) {
    case KvFormat::Fp16: return run_attention<Half>(pool, call, tasks, count);
    case KvFormat::Fp32: return run_attention<float>(pool, call, tasks, count);
    case KvFormat::Int8: return run_attention<int8_t>(pool, call, tasks, count);
  }
}

inline void attention(Pool& pool, const AttentionCall& call, const AttentionTask* tasks,
                      size_t count) {
  const int64_t width = int64_t(call.heads) * call.head_dim, tokens = int64_t(call.tokens);
  if (tasks_quantize(call)) {
    lay_out_activations(call.out, width, tokens, width, call.activations, *call.prepared);
  }
  attention_of_format(pool, call, tasks, count);
  if (call.prepared != nullptr && !tasks_quantize(call)) {
    prepare_activations(pool, call.out, width, tokens, width, call.activations, *call.prepared);
  }
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
