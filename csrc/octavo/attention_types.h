// What a call of attention or of a KV write is given; shared by all tiers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo/gemm_types.h"
#include "octavo/kv.h"

namespace octavo {

// Up to 32 neighbouring query tokens of one sequence for one kv head.
struct AttentionTask {
  int32_t sequence;  // row of the page tables
  int32_t kv_head;
  int32_t token;     // index of the first query token in the batch
  int32_t tokens;
  int32_t position;  // absolute position of the first query token
};

struct AttentionCall {
  const KvCache* cache;
  int32_t layer;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_dim;
  int32_t window;  // 0: sees everything before
  float scale;
  float softcap;  // 0: none
  const float* q;  // [tokens, heads * head_dim]
  float* out;      // the same shape
  size_t tokens;
  Activations activations;
  ActivationBuffer* prepared;  // prepare_activations of `out` goes here as well, unless null
  const int32_t* tables;  // first entry of the layer's cache group
  size_t table_stride;    // entries from one row to the next
  size_t page_stride;     // entries from one page of the group to the next
  float* scratch;  // scratch_floats a worker
  size_t scratch_floats;
  float* split;  // partial states of segments that run as tasks of their own
  size_t split_floats;
};

// Where each batch token's K and V go.
struct KvWriteCall {
  const KvCache* cache;
  int32_t layer;
  const float* k;  // [tokens, kv_heads * head_dim]
  const float* v;
  const int32_t* pages;  // [tokens]
  const int32_t* slots;  // [tokens]
  size_t tokens;
};

constexpr int32_t kTaskTokens = 32;
constexpr int32_t kTaskFloats = 8192;

// Query tokens a task takes: bounded so that its rows stay in the cache nearest to the core.
static inline int32_t task_tokens(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  const int32_t tokens = kTaskFloats / (heads / kv_heads * head_dim);
  return tokens < 1 ? 1 : tokens > kTaskTokens ? kTaskTokens : tokens;
}

static inline size_t attention_scratch_floats(int32_t heads, int32_t kv_heads, int32_t head_dim) {
  const size_t rows = size_t(task_tokens(heads, kv_heads, head_dim)) * (heads / kv_heads);
  const size_t columns = 8 * ((rows + 15) / 16 * 16);
  return 3 * rows * head_dim + columns;
}

// Tasks of one sequence's query tokens. Later blocks read more of the cache and come first, so that
// the threads finish together.
template <class Tasks>
static inline void append_tasks(int32_t sequence, int32_t token, int32_t count, int32_t past,
                                int32_t kv_heads, int32_t block, Tasks* tasks) {
  for (int32_t first = (count - 1) / block * block; first >= 0; first -= block) {
    const int32_t left = count - first;
    for (int32_t head = 0; head < kv_heads; ++head) {
      tasks->push_back(AttentionTask{sequence, head, token + first, left < block ? left : block,
                                     past + first});
    }
  }
}

}  // namespace octavo
