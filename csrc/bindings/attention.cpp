// Writing K and V and attention over them by themselves, for tests and measurements.
#include <nanobind/stl/vector.h>

#include <vector>

#include "bindings/bindings.h"
#include "bindings/timing.h"
#include "octavo/operators.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Matrix = Array<float, 2>;
using OutMatrix = MutableArray<float, 2>;

KvCache cache_over(MutableArray<uint8_t, 1>& bytes, int layers, int kv_heads, int head_dim,
                   int page_tokens, int format) {
  require(layers > 0 && kv_heads > 0, "kv: layers and heads must be positive");
  require(is_head_dim(head_dim), "kv: head_dim must be a multiple of 16 up to 256");
  require(is_page_size(page_tokens), "kv: a page has 16, 32, 64, 128 or 256 tokens");
  require(format >= 0 && format <= 2, "kv: format is 0 (fp16), 1 (fp32) or 2 (int8)");
  KvCache cache;
  cache.geometry = KvGeometry{layers, kv_heads, head_dim, page_tokens, KvFormat(format)};
  cache.base = bytes.data();
  cache.pages = int32_t(bytes.size() / cache.geometry.page_bytes());
  return cache;
}

void run_write_kv(const char* tier, int threads, MutableArray<uint8_t, 1> bytes, int layers,
                  int layer, int head_dim, int page_tokens, int format, Matrix k, Matrix v,
                  Array<int32_t, 1> pages, Array<int32_t, 1> slots) {
  require(k.shape(0) == v.shape(0) && k.shape(1) == v.shape(1), "kv: k and v differ in shape");
  require(head_dim > 0 && k.shape(1) % size_t(head_dim) == 0, "kv: head_dim does not fit");
  const KvCache cache =
      cache_over(bytes, layers, int(k.shape(1)) / head_dim, head_dim, page_tokens, format);
  require(layer >= 0 && layer < layers, "kv: no such layer");
  require(pages.size() == k.shape(0) && slots.size() == k.shape(0), "kv: one slot a token");
  for (size_t i = 0; i < pages.size(); ++i) {
    require(pages.data()[i] >= 0 && pages.data()[i] < cache.pages, "kv: page out of range");
    require(slots.data()[i] >= 0 && slots.data()[i] < page_tokens, "kv: slot out of range");
  }
  Pool pool(threads);
  choose_operators(tier).write_kv(pool, KvWriteCall{&cache, layer, k.data(), v.data(),
                                                    pages.data(), slots.data(), k.shape(0)});
}

constexpr float kUntouched = 12345.0f;

// A checked call with the memory it works in. The arrays must outlive it.
class Problem {
 public:
  Problem(MutableArray<uint8_t, 1>& bytes, int layers, int kv_heads, int page_tokens, int format,
          const Matrix& q, int heads, const Array<int32_t, 1>& row_starts,
          const Array<int32_t, 1>& past, const Array<int32_t, 2>& tables, const OutMatrix& out) {
    require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && q.shape(1) % size_t(heads) == 0,
            "attention: heads do not fit");
    require(q.shape(0) == out.shape(0) && q.shape(1) == out.shape(1),
            "attention: q and out differ in shape");
    const int head_dim = int(q.shape(1)) / heads;
    cache_ = cache_over(bytes, layers, kv_heads, head_dim, page_tokens, format);
    require(row_starts.size() == past.size() + 1 && tables.shape(0) == past.size() &&
                row_starts.data()[0] == 0 &&
                size_t(row_starts.data()[past.size()]) == q.shape(0),
            "attention: rows do not fit");
    const int32_t block = task_tokens(heads, kv_heads, head_dim);
    for (size_t row = 0; row < past.size(); ++row) {
      const int count = row_starts.data()[row + 1] - row_starts.data()[row];
      check_row(tables, row, count, past.data()[row]);
      append_tasks(int32_t(row), row_starts.data()[row], count, past.data()[row], kv_heads, block,
                   &tasks_);
    }
    call_ = AttentionCall{};
    call_.cache = &cache_;
    call_.heads = heads;
    call_.kv_heads = kv_heads;
    call_.head_dim = head_dim;
    call_.q = q.data();
    call_.out = out.data();
    call_.tokens = q.shape(0);
    call_.tables = tables.data();
    call_.table_stride = tables.shape(1);
    call_.page_stride = 1;
    call_.scratch_floats = attention_scratch_floats(heads, kv_heads, head_dim);
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  AttentionCall& call() { return call_; }

  void allocate(int threads, bool split) {
    scratch_.resize(call_.scratch_floats * size_t(threads));
    parts_.assign(split ? size_t(1) << 21 : 1, kUntouched);
    call_.scratch = scratch_.data();
    call_.split = parts_.data();
    call_.split_floats = split ? parts_.size() : 0;
  }

  void run(const Operators& operators, Pool& pool, int layer) {
    call_.layer = layer;
    operators.attention(pool, call_, tasks_.data(), tasks_.size());
  }

  bool was_split() const { return parts_[0] != kUntouched; }

 private:
  void check_row(const Array<int32_t, 2>& tables, size_t row, int count, int past) const {
    const int length = past + count, page_tokens = cache_.geometry.page_tokens;
    require(count > 0 && past >= 0, "attention: a row is empty");
    require(size_t(length) <= tables.shape(1) * size_t(page_tokens), "attention: table too short");
    for (int page = 0; page * page_tokens < length; ++page) {
      const int32_t id = tables.data()[row * tables.shape(1) + page];
      require(id >= 0 && id < cache_.pages, "attention: page out of range");
    }
  }

  KvCache cache_;
  AttentionCall call_;
  std::vector<AttentionTask> tasks_;
  std::vector<float> scratch_;
  std::vector<float> parts_;
};

// Returns whether segments ran as tasks of their own, which `split` allows.
bool run_attention(const char* tier, int threads, MutableArray<uint8_t, 1> bytes, int layers,
                   int layer, int kv_heads, int page_tokens, int format, Matrix q, int heads,
                   Array<int32_t, 1> row_starts, Array<int32_t, 1> past, Array<int32_t, 2> tables,
                   float scale, int window, float softcap, bool split, OutMatrix out) {
  require(layer >= 0 && layer < layers && window >= 0, "attention: no such layer or window");
  Problem problem(bytes, layers, kv_heads, page_tokens, format, q, heads, row_starts, past, tables,
                  out);
  problem.call().scale = scale;
  problem.call().window = window;
  problem.call().softcap = softcap;
  Pool pool(threads);
  problem.allocate(pool.threads(), split);
  problem.run(choose_operators(tier), pool, layer);
  return problem.was_split();
}

// Seconds of each call; every call takes the next layer, so that many layers are cold data.
std::vector<double> time_attention(const char* tier, int threads, MutableArray<uint8_t, 1> bytes,
                                   int layers, int kv_heads, int page_tokens, int format, Matrix q,
                                   int heads, Array<int32_t, 1> row_starts, Array<int32_t, 1> past,
                                   Array<int32_t, 2> tables, OutMatrix out, size_t calls) {
  Problem problem(bytes, layers, kv_heads, page_tokens, format, q, heads, row_starts, past, tables,
                  out);
  problem.call().scale = 0.125f;
  Pool pool(threads);
  problem.allocate(pool.threads(), true);
  const Operators& operators = choose_operators(tier);
  nb::gil_scoped_release unlocked;
  return time_calls(calls, [&](size_t call) {
    problem.run(operators, pool, int(call % size_t(layers)));
  });
}

}  // namespace

void bind_attention(nb::module_& module) {
  module.def("write_kv", run_write_kv);
  module.def("attention", run_attention);
  module.def("time_attention", time_attention);
}

}  // namespace octavo
