// Single operators by themselves, for tests and measurements.
#include "octavo/operators.h"

#include <vector>

#include "bindings/bindings.h"
#include "octavo/cpu_features.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Matrix = Array<float, 2>;
using OutMatrix = MutableArray<float, 2>;

bool same_shape(const Matrix& a, const OutMatrix& b) {
  return a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1);
}

void run_rms_norm(const char* tier, int threads, Matrix x, Array<float, 1> weight, float eps,
                  OutMatrix out) {
  const size_t width = weight.shape(0);
  require(width > 0 && x.shape(1) % width == 0, "rms_norm: the weight does not divide the width");
  require(same_shape(x, out), "rms_norm: x and out differ in shape");
  Pool pool(threads);
  choose_operators(tier).rms_norm(pool, x.data(), weight.data(), eps, x.shape(0),
                                  x.shape(1) / width, width, out.data());
}

using Elementwise = void (*Operators::*)(Pool&, const float*, const float*, size_t, float*);

template <Elementwise Operator>
void run_elementwise(const char* tier, int threads, Matrix a, Matrix b, OutMatrix out) {
  require(same_shape(a, out) && same_shape(b, out), "operands differ in shape");
  Pool pool(threads);
  (choose_operators(tier).*Operator)(pool, a.data(), b.data(), a.size(), out.data());
}

void run_softcap(const char* tier, int threads, OutMatrix x, float cap) {
  require(cap > 0.0f, "softcap: the cap must be positive");
  Pool pool(threads);
  choose_operators(tier).softcap(pool, x.data(), x.size(), cap);
}

void run_rope(const char* tier, int threads, Matrix x, Matrix table, int heads, int dims,
              bool interleaved, OutMatrix out) {
  require(heads > 0 && x.shape(1) % size_t(heads) == 0, "rope: heads do not divide the width");
  const int head_dim = int(x.shape(1)) / heads;
  require(dims > 0 && dims % 2 == 0 && dims <= head_dim, "rope: dims must be even and fit a head");
  require(table.shape(0) == x.shape(0) && table.shape(1) == size_t(dims) * (interleaved ? 2 : 1),
          "rope: the table does not fit");
  require(same_shape(x, out), "rope: x and out differ in shape");
  Pool pool(threads);
  choose_operators(tier).rope(pool, RopeCall{x.data(), out.data(), table.data(), table.shape(1),
                                             x.shape(0), heads, head_dim, dims, interleaved});
}

KvCache cache_over(MutableArray<uint8_t, 1>& bytes, int layers, int kv_heads, int head_dim,
                   int page_tokens, int format) {
  require(layers > 0 && kv_heads > 0, "kv: layers and heads must be positive");
  require(is_head_dim(head_dim), "kv: head_dim must be a multiple of 16 up to 256");
  require(is_page_size(page_tokens), "kv: a page has 16, 32, 64, 128 or 256 tokens");
  require(format == 0 || format == 1, "kv: format is 0 (fp16) or 1 (fp32)");
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

// Returns whether segments ran as tasks of their own, which `split` allows.
bool run_attention(const char* tier, int threads, MutableArray<uint8_t, 1> bytes, int layers,
                   int layer, int kv_heads, int page_tokens, int format, Matrix q, int heads,
                   Array<int32_t, 1> row_starts, Array<int32_t, 1> past, Array<int32_t, 2> tables,
                   float scale, int window, float softcap, bool split, OutMatrix out) {
  require(heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && q.shape(1) % size_t(heads) == 0,
          "attention: heads do not fit");
  require(layer >= 0 && layer < layers && window >= 0, "attention: no such layer or window");
  require(same_shape(q, out), "attention: q and out differ in shape");
  const int head_dim = int(q.shape(1)) / heads;
  const KvCache cache = cache_over(bytes, layers, kv_heads, head_dim, page_tokens, format);
  const size_t rows = past.size();
  require(row_starts.size() == rows + 1 && tables.shape(0) == rows && row_starts.data()[0] == 0 &&
              size_t(row_starts.data()[rows]) == q.shape(0),
          "attention: rows do not fit");
  std::vector<AttentionTask> tasks;
  for (size_t row = 0; row < rows; ++row) {
    const int count = row_starts.data()[row + 1] - row_starts.data()[row];
    const int length = past.data()[row] + count;
    require(count > 0 && past.data()[row] >= 0, "attention: a row is empty");
    require(size_t(length) <= tables.shape(1) * size_t(page_tokens), "attention: table too short");
    for (int page = 0; page * page_tokens < length; ++page) {
      const int32_t id = tables.data()[row * tables.shape(1) + page];
      require(id >= 0 && id < cache.pages, "attention: page out of range");
    }
    append_tasks(int32_t(row), row_starts.data()[row], count, past.data()[row], kv_heads,
                 task_tokens(heads, kv_heads, head_dim), &tasks);
  }
  Pool pool(threads);
  const size_t floats = attention_scratch_floats(heads, kv_heads, head_dim);
  std::vector<float> scratch(floats * size_t(pool.threads()));
  constexpr float untouched = 12345.0f;
  std::vector<float> parts(split ? size_t(1) << 21 : 1, untouched);
  const AttentionCall call{&cache,       layer,   heads,        kv_heads,
                           head_dim,     window,  scale,        softcap,
                           q.data(),     out.data(), tables.data(), tables.shape(1),
                           scratch.data(), floats, parts.data(), split ? parts.size() : 0};
  choose_operators(tier).attention(pool, call, tasks.data(), tasks.size());
  return parts[0] != untouched;
}

}  // namespace

void bind_operators(nb::module_& module) {
  module.def("tier", [](const char* name) { return choose_operators(name).tier; },
             nb::arg("name") = "", "Name of the tier that `name` or this processor selects.");
  module.def("rms_norm", run_rms_norm);
  module.def("add", run_elementwise<&Operators::add>);
  module.def("silu_mul", run_elementwise<&Operators::silu_mul>);
  module.def("gelu_mul", run_elementwise<&Operators::gelu_mul>);
  module.def("softcap", run_softcap);
  module.def("rope", run_rope);
  module.def("write_kv", run_write_kv);
  module.def("attention", run_attention);
}

}  // namespace octavo
