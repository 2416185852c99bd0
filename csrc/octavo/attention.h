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
#include "octavo/attention_tile.h"
#include "octavo/attention_types.h"
#include "octavo/kv_codes.h"
#include "octavo/pool.h"

namespace octavo {
namespace OCTAVO_TIER {

// Takes `Rows` rows from `row` on through one tile that starts at absolute position `start`.
template <int Rows, class Tile>
inline void attend_rows(const AttentionCall& call, const RowBlock& block, int row, int start,
                        const Tile& tile, const Tile* next, const State& state) {
  constexpr const Tile* no_tile = nullptr;
  const int head_dim = call.head_dim;
  alignas(64) float scores[Rows * kTileTokens];
  int begin[Rows], end[Rows], shared_begin = 0, shared_end = kTileTokens;
  bool any = false;
  for (int r = 0; r < Rows; ++r) {
    begin[r] = block.low[row + r] > start ? block.low[row + r] - start : 0;
    end[r] = block.high[row + r] - start < kTileTokens ? block.high[row + r] - start : kTileTokens;
    if (begin[r] > shared_begin) shared_begin = begin[r];
    if (end[r] < shared_end) shared_end = end[r];
    any = any || begin[r] < end[r];
  }
  if (!any) return;
  tile_scores<Rows>(block, row, head_dim, tile, next, scores);
  float* output = state.output + size_t(row) * head_dim;
  for (int r = 0; r < Rows; ++r) {
    if (begin[r] >= end[r]) continue;
    soften_row(scores + r * kTileTokens, begin[r], end[r], call.softcap, head_dim,
               state.maximum + row + r, state.sum + row + r, output + size_t(r) * head_dim);
    if constexpr (Tile::coded) {
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
  tile_values<Rows>(scores, shared_begin, shared_end, tile, next, head_dim, output);
  for (int r = 0; r < Rows; ++r) {
    tile_values<1>(scores + r * kTileTokens, shared_end, end[r], tile,
                   no_tile, head_dim, output + size_t(r) * head_dim);
  }
}

template <class Tile>
inline void attend_block(const AttentionCall& call, const RowBlock& block, int start,
                         const Tile& tile, const Tile* next, const State& state) {
  int row = 0;
  while (row < block.rows) {
    const int left = block.rows - row;
    // Two even parts beat a full block and a remainder (7 = 4 + 3, not 6 + 1).
    const int rows = left <= kMaxRows ? left : left < 2 * kMaxRows ? (left + 1) / 2 : kMaxRows;
    switch (rows) {
      case 1: attend_rows<1>(call, block, row, start, tile, next, state); break;
      case 2: attend_rows<2>(call, block, row, start, tile, next, state); break;
      case 3: attend_rows<3>(call, block, row, start, tile, next, state); break;
      case 4: attend_rows<4>(call, block, row, start, tile, next, state); break;
      case 5: attend_rows<5>(call, block, row, start, tile, next, state); break;
      case 6: attend_rows<6>(call, block, row, start, tile, next, state); break;
    }
    row += rows;
    next = nullptr;
  }
}

// One segment (absolute positions [segment, segment + 512)) into a fresh state.
template <class Element>
inline void attend_segment(const AttentionCall& call, const AttentionTask& task,
                           const RowBlock& block, int segment, const State& state, float* buffer) {
  clear_state(state, block.rows, call.head_dim);
  const int32_t* table = call.tables + size_t(task.sequence) * call.table_stride;
  // Rows are token-major, so the first sees the earliest token and the last the latest.
  const int lowest = block.low[0], highest = block.high[block.rows - 1];
  const int stop = highest < segment + kSegmentTokens ? highest : segment + kSegmentTokens;
  const auto tile_at = [&](int start) {
    return page_tile<Element>(call, table, task.kv_head, start, lowest > start ? lowest : start,
                              stop < start + kTileTokens ? stop : start + kTileTokens);
  };
  const bool few_rows = block.rows <= kMaxRows;
  int start = lowest > segment ? lowest / kTileTokens * kTileTokens : segment;
  Tile<Element, Element> tile;
  if (start < stop) tile = tile_at(start);
  for (; start < stop; start += kTileTokens) {
    Tile<Element, Element> next;
    const bool more = start + kTileTokens < stop;
    if (more) next = tile_at(start + kTileTokens);
    if (few_rows || std::is_same<Element, float>::value) {
      attend_block(call, block, start, tile, more ? &next : nullptr, state);
    } else {
      const int written = stop < start + kTileTokens ? stop - start : kTileTokens;
      const WideTile<Element>* none = nullptr;
      attend_block(call, block, start, widen_tile(tile, call.head_dim, written, buffer), none,
                   state);
    }
    if (more) tile = next;
  }
}

// total = total merged with the state of the next segment, row by row.
inline void merge_state(const State& total, const State& next, int rows, int head_dim) {
  for (int r = 0; r < rows; ++r) {
    if (next.maximum[r] == -__builtin_inff()) continue;
    float* output = total.output + size_t(r) * head_dim;
    const float* other = next.output + size_t(r) * head_dim;
    if (total.maximum[r] == -__builtin_inff()) {
      memcpy(output, other, sizeof(float) * head_dim);
      total.maximum[r] = next.maximum[r];
      total.sum[r] = next.sum[r];
      continue;
    }
    const float maximum =
        total.maximum[r] > next.maximum[r] ? total.maximum[r] : next.maximum[r];
    const float left = exp_scalar(total.maximum[r] - maximum);
    const float right = exp_scalar(next.maximum[r] - maximum);
    const simd::F16 left_factor = simd::set1(left), right_factor = simd::set1(right);
    for (int d = 0; d < head_dim; d += 16) {
      simd::store(output + d, simd::fma(simd::load(output + d), left_factor,
                                        simd::mul(simd::load(other + d), right_factor)));
    }
    total.sum[r] = total.sum[r] * left + next.sum[r] * right;
    total.maximum[r] = maximum;
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
  float* tile;
};

inline TaskScratch cut_scratch(float* scratch, int rows, int head_dim) {
  TaskScratch cut;
  const size_t matrix = size_t(rows) * head_dim, column = (size_t(rows) + 15) / 16 * 16;
  cut.q = scratch;
  cut.codes = reinterpret_cast<int8_t*>(scratch);
  cut.total.output = cut.q + matrix;
  cut.next.output = cut.total.output + matrix;
  cut.tile = cut.next.output + matrix;
  float* columns = cut.tile + 2 * size_t(kTileTokens) * head_dim;
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

// Queries of a task, scaled and gathered, with the positions each row sees. `Element` is the
// cache's: over codes queries become codes too.
template <class Element>
inline RowBlock gather_rows(const AttentionCall& call, const AttentionTask& task,
                            const TaskScratch& cut) {
  const int group = call.heads / call.kv_heads, head_dim = call.head_dim;
  const simd::F16 scale = simd::set1(call.scale);
  alignas(64) float scaled[kMostHeadDim];
  int row = 0;
  for (int i = 0; i < task.tokens; ++i) {
    const float* token = call.q + size_t(task.token + i) * call.heads * head_dim;
    const int position = task.position + i;
    for (int g = 0; g < group; ++g, ++row) {
      const float* source = token + size_t(task.kv_head * group + g) * head_dim;
      constexpr bool coded = std::is_same<Element, int8_t>::value;
      float* target = coded ? scaled : cut.q + size_t(row) * head_dim;
      for (int d = 0; d < head_dim; d += 16) {
        simd::store(target + d, simd::mul(simd::load(source + d), scale));
      }
      if constexpr (coded) {
        const HeadCodes head = quantize_head(scaled, head_dim, cut.codes + size_t(row) * head_dim);
        cut.scales[row] = head.scale;
        cut.sums[row] = head.sum;
      }
      cut.high[row] = position + 1;
      cut.low[row] = call.window > 0 && position + 1 > call.window ? position + 1 - call.window : 0;
    }
  }
  return RowBlock{cut.q, cut.codes, cut.scales, cut.sums, cut.low, cut.high, row};
}

inline void write_output(const AttentionCall& call, const AttentionTask& task, const State& total) {
  const int group = call.heads / call.kv_heads, head_dim = call.head_dim;
  int row = 0;
  for (int i = 0; i < task.tokens; ++i) {
    for (int g = 0; g < group; ++g, ++row) {
      float* out = call.out + (size_t(task.token + i) * call.heads + task.kv_head * group + g) *
                                  head_dim;
      const simd::F16 factor = simd::set1(1.0f / total.sum[row]);
      const float* output = total.output + size_t(row) * head_dim;
      for (int d = 0; d < head_dim; d += 16) {
        simd::store(out + d, simd::mul(simd::load(output + d), factor));
      }
    }
  }
}

inline int first_segment(int low) { return low / kSegmentTokens * kSegmentTokens; }

template <class Element>
inline void attention_task(const AttentionCall& call, const AttentionTask& task, float* scratch) {
  const int rows = task.tokens * (call.heads / call.kv_heads);
  const TaskScratch cut = cut_scratch(scratch, rows, call.head_dim);
  const RowBlock block = gather_rows<Element>(call, task, cut);
  const int first = first_segment(block.low[0]);
  attend_segment<Element>(call, task, block, first, cut.total, cut.tile);
  for (int segment = first + kSegmentTokens; segment < block.high[rows - 1];
       segment += kSegmentTokens) {
    attend_segment<Element>(call, task, block, segment, cut.next, cut.tile);
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

inline int task_first_segment(const AttentionCall& call, const AttentionTask& task) {
  const int low = call.window > 0 && task.position + 1 > call.window
                      ? task.position + 1 - call.window
                      : 0;
  return first_segment(low);
}

// Splitting pays when there are too few tasks for the threads and some task has many segments.
inline bool plan_split(const AttentionCall& call, const AttentionTask* tasks, size_t count,
                       int threads, SplitPlan* plan) {
  if (threads < 2 || count >= size_t(threads) * 4 || count > size_t(kMaxSplitTasks)) return false;
  plan->first_part[0] = 0;
  plan->first_float[0] = 0;
  for (size_t i = 0; i < count; ++i) {
    const int span = tasks[i].position + tasks[i].tokens - task_first_segment(call, tasks[i]);
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
          const TaskScratch cut = cut_scratch(scratch, rows, call.head_dim);
          const RowBlock block = gather_rows<Element>(call, tasks[task], cut);
          attend_segment<Element>(
              call, tasks[task], block,
              task_first_segment(call, tasks[task]) + index * kSegmentTokens,
              part_state(call, plan, task, index, rows), cut.tile);
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
      attention_task<Element>(call, tasks[task], scratch);
    }
  });
}

inline void attention(Pool& pool, const AttentionCall& call, const AttentionTask* tasks,
                      size_t count) {
  switch (call.cache->geometry.format) {
    case KvFormat::Fp16: return run_attention<Half>(pool, call, tasks, count);
    case KvFormat::Fp32: return run_attention<float>(pool, call, tasks, count);
    case KvFormat::Int8: return run_attention<int8_t>(pool, call, tasks, count);
  }
}

}  // namespace OCTAVO_TIER
}  // namespace octavo
