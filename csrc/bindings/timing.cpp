// Limits of this machine and operators under repetition, for benchmarks/kernels.
#include "bindings/timing.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <string>

#include "bindings/bindings.h"
#include "octavo/gemm_types.h"
#include "octavo/memory.h"
#include "octavo/operators.h"
#include "octavo/pack.h"

namespace nb = nanobind;

namespace octavo {
namespace {

constexpr size_t kReadBytes = size_t(256) << 20;  // beyond any cache's reach
constexpr size_t kPieceBytes = size_t(1) << 20;
constexpr int64_t kPieceRounds = 1 << 14;
// Makes a burst some milliseconds long, as those of the kernels are: a machine that is shared shows
// its best speed for shorter moments only.
constexpr int64_t kPiecesPerThread = 128;

// One burst of a loop over all threads; returns the work done.
template <class Piece>
double burst(Pool& pool, int64_t pieces, const Piece& piece) {
  std::vector<double> work(size_t(pieces), 0.0);
  pool.parallel_for(pieces, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) work[size_t(i)] = piece(i);
  });
  double total = 0.0;
  for (const double part : work) total += part;
  return total;
}

// Work a second in the best of the bursts that fit into `seconds`.
template <class Run>
double best_rate(double seconds, const Run& run) {
  double best = 0.0, spent = 0.0;
  while (spent < seconds) {
    double work = 0.0;
    const double took = time_calls(1, [&](size_t) { work = run(); })[0];
    spent += took;
    if (work / took > best) best = work / took;
  }
  return best;
}

// Measures limits again and again, with threads and memory that it keeps.
class LimitMeter {
 public:
  LimitMeter(const char* tier, int threads)
      : loops_(choose_operators(tier).limits),
        pool_(checked_threads(threads)),
        memory_(kReadBytes + kPieceBytes) {
    memset(memory_.data(), 1, memory_.bytes());
  }

  // FLOP/s ("fma"), OP/s ("byte_products", "nibble_products") or bytes/s ("read").
  double measure(const std::string& kind, double seconds) {
    require(seconds > 0.0 && seconds <= 60.0, "LimitMeter: seconds must be from 0 to 60");
    nb::gil_scoped_release unlocked;
    if (kind == "read") {
      const auto* bytes = static_cast<const uint8_t*>(memory_.data());
      return best_rate(seconds, [&] {
        return burst(pool_, kReadBytes / kPieceBytes, [&](int64_t piece) {
          return loops_.read(bytes + size_t(piece) * kPieceBytes, kPieceBytes);
        });
      });
    }
    const auto loop = kind == "fma" ? loops_.fma
                      : kind == "byte_products" ? loops_.byte_products
                      : kind == "nibble_products" ? loops_.nibble_products
                                                  : nullptr;
    require(loop != nullptr, "LimitMeter: unknown limit " + kind);
    return best_rate(seconds, [&] {
      return burst(pool_, kPiecesPerThread * pool_.threads(),
                   [&](int64_t) { return loop(kPieceRounds); });
    });
  }

 private:
  static int checked_threads(int threads) {
    require(threads >= 1 && threads <= 1024, "LimitMeter: threads must be from 1 to 1024");
    return threads;
  }

  const LimitLoops& loops_;
  Pool pool_;
  HugeBuffer memory_;
};

// One weight in as many copies as it takes to find each of them outside the caches.
class LinearTimer {
 public:
  LinearTimer(const char* tier, int threads, Array<uint8_t, 1> rows, int ggml_type,
              int64_t channels, int64_t width, size_t copies)
      : operators_(choose_operators(tier)), pool_(threads) {
    require(copies > 0, "LinearTimer: at least one copy");
    PackedWeight first{};
    require(pack(pool_, arena_, rows.data(), rows.size(), ggml_type, channels, width, first) ==
                PackStatus::Ok,
            "LinearTimer: the weight cannot be packed");
    bytes_ = arena_.used_bytes();
    weights_.assign(copies, first);
    for (size_t i = 1; i < copies; ++i) {
      void* copy = arena_.allocate(bytes_);
      memcpy(copy, first.data, bytes_);
      weights_[i].data = static_cast<const uint8_t*>(copy);
    }
  }

  // Seconds of each call; every call takes the next copy.
  std::vector<double> run(Array<float, 2> x, size_t calls) {
    const int64_t rows = int64_t(x.shape(0)), width = int64_t(x.shape(1));
    require(rows > 0 && width == weights_[0].width, "LinearTimer: x does not fit the weight");
    nb::gil_scoped_release unlocked;
    const HugeBuffer memory(activation_bytes(rows, width, Activations::Int8));
    std::vector<float> y(size_t(rows * weights_[0].channels));
    ActivationBuffer buffer{};
    buffer.memory = memory.data();
    buffer.memory_bytes = memory.bytes();
    operators_.prepare_activations(pool_, x.data(), width, rows, width, Activations::Int8, buffer);
    return time_calls(calls, [&](size_t) {
      const LinearTarget target{&weights_[next_], nullptr, y.data(), weights_[0].channels};
      operators_.linear(pool_, &target, 1, buffer);
      next_ = (next_ + 1) % weights_.size();
    });
  }

  void set_knobs(int32_t tile_rows, int32_t block_rows, int32_t spread_rows,
                 int32_t chunks_per_thread, int32_t prefetch_bytes) {
    const LinearKnobs knobs =
        checked_knobs(tile_rows, block_rows, spread_rows, chunks_per_thread, prefetch_bytes);
    for (PackedWeight& weight : weights_) weight.knobs = knobs;
  }

  size_t bytes() const { return bytes_; }

 private:
  const Operators& operators_;
  Pool pool_;
  Arena arena_;
  std::vector<PackedWeight> weights_;
  size_t bytes_ = 0;
  size_t next_ = 0;
};

std::vector<double> time_rms_norm(const char* tier, int threads, Array<float, 2> x,
                                  Array<float, 1> weight, MutableArray<float, 2> out,
                                  size_t calls) {
  const size_t width = weight.shape(0), rows = x.shape(0);
  require(width > 0 && x.shape(1) == width && out.shape(0) == rows && out.shape(1) == width,
          "time_rms_norm: the arrays do not fit");
  const Operators& operators = choose_operators(tier);
  Pool pool(threads);
  return time_calls(calls, [&](size_t) {
    operators.rms_norm(pool, x.data(), weight.data(), 1e-5f, rows, 1, width, out.data());
  });
}

// Rotates all dimensions of each head, by halves.
std::vector<double> time_rope(const char* tier, int threads, Array<float, 2> x,
                              Array<float, 2> table, int heads, MutableArray<float, 2> out,
                              size_t calls) {
  require(heads > 0 && x.shape(1) % size_t(heads) == 0, "time_rope: heads do not divide the width");
  const int head_dim = int(x.shape(1)) / heads;
  require(head_dim % 2 == 0 && table.shape(0) == x.shape(0) &&
              table.shape(1) == size_t(head_dim) && out.shape(0) == x.shape(0) &&
              out.shape(1) == x.shape(1),
          "time_rope: the arrays do not fit");
  const Operators& operators = choose_operators(tier);
  Pool pool(threads);
  const RopeCall call{x.data(), out.data(), table.data(), table.shape(1), x.shape(0),
                      heads,    head_dim,   head_dim,     false};
  return time_calls(calls, [&](size_t) { operators.rope(pool, call); });
}

}  // namespace

void bind_timing(nb::module_& module) {
  nb::class_<LimitMeter>(module, "LimitMeter")
      .def(nb::init<const char*, int>(), nb::arg("tier"), nb::arg("threads"))
      .def("measure", &LimitMeter::measure, nb::arg("kind"), nb::arg("seconds"));
  nb::class_<LinearTimer>(module, "LinearTimer")
      .def(nb::init<const char*, int, Array<uint8_t, 1>, int, int64_t, int64_t, size_t>(),
           nb::arg("tier"), nb::arg("threads"), nb::arg("rows"), nb::arg("ggml_type"),
           nb::arg("channels"), nb::arg("width"), nb::arg("copies"))
      .def("run", &LinearTimer::run, nb::arg("x"), nb::arg("calls"))
      .def("set_knobs", &LinearTimer::set_knobs)
      .def_prop_ro("bytes", &LinearTimer::bytes);
  module.def("time_rms_norm", time_rms_norm);
  module.def("time_rope", time_rope);
}

}  // namespace octavo
