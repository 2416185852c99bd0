// The linear operator and its parts by themselves, for tests and measurements.
#include "octavo/gemm_types.h"

#include <nanobind/stl/string.h>

#include <cstring>
#include <vector>

#include "bindings/bindings.h"
#include "octavo/cpu_features.h"
#include "octavo/memory.h"
#include "octavo/operators.h"
#include "octavo/pack.h"

namespace nb = nanobind;

namespace octavo {
namespace {

using Matrix = Array<float, 2>;
using OutMatrix = MutableArray<float, 2>;

struct PackedMatrix {
  Arena arena;
  PackedWeight weight{};

  PackedMatrix(Array<uint8_t, 1> rows, int ggml_type, int64_t channels, int64_t width,
               int threads) {
    Pool pool(threads);
    const PackStatus status =
        pack(pool, arena, rows.data(), rows.size(), ggml_type, channels, width, weight);
    require(status != PackStatus::UnknownType, "pack: the format is not supported");
    require(status != PackStatus::BadShape, "pack: the width does not fit the format's block");
    require(status != PackStatus::WrongSize, "pack: the bytes do not fit the shape");
  }
};

void set_knobs(PackedMatrix& self, int32_t tile_rows, int32_t block_rows, int32_t spread_rows,
               int32_t chunks_per_thread, int32_t prefetch_bytes) {
  self.weight.knobs =
      checked_knobs(tile_rows, block_rows, spread_rows, chunks_per_thread, prefetch_bytes);
}

Activations parse_mode(const std::string& mode) {
  if (mode == "int8") return Activations::Int8;
  if (mode == "int8x2") return Activations::Int8x2;
  require(mode == "fp32", "activations must be int8, int8x2 or fp32");
  return Activations::Fp32;
}

// Activations with the memory they lie in.
struct Prepared {
  HugeBuffer memory;
  ActivationBuffer buffer{};

  Prepared(const Operators& operators, Pool& pool, const Matrix& x, Activations mode)
      : memory(activation_bytes(int64_t(x.shape(0)), int64_t(x.shape(1)), mode)) {
    buffer.memory = memory.data();
    buffer.memory_bytes = memory.bytes();
    operators.prepare_activations(pool, x.data(), int64_t(x.shape(1)), int64_t(x.shape(0)),
                                  int64_t(x.shape(1)), mode, buffer);
  }
};

const float* bias_data(const nb::object& bias, int64_t channels) {
  if (bias.is_none()) return nullptr;
  const auto values = nb::cast<Array<float, 1>>(bias, false);
  require(int64_t(values.size()) == channels, "linear: the bias does not fit the weight");
  return values.data();
}

// Runs all matrices over the same activations; outs[i] is [rows, channels of matrix i]. A softcap
// of 0 is none.
void run_linear(const char* tier, int threads, const nb::list& matrices, const std::string& mode,
                Matrix x, const nb::list& biases, const nb::list& outs, float softcap) {
  require(matrices.size() == outs.size() && matrices.size() == biases.size(),
          "linear: as many outputs and biases as matrices");
  require(softcap >= 0.0f, "linear: a softcap is positive");
  std::vector<LinearTarget> targets;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const PackedWeight& weight = nb::cast<PackedMatrix&>(matrices[i]).weight;
    const auto out = nb::cast<OutMatrix>(outs[i], false);
    require(weight.width == int64_t(x.shape(1)), "linear: x does not fit the weight");
    require(out.shape(0) == x.shape(0) && int64_t(out.shape(1)) == weight.channels,
            "linear: out does not fit");
    targets.push_back({&weight, bias_data(biases[i], weight.channels), out.data(),
                       weight.channels, nullptr, softcap});
  }
  const Operators& operators = choose_operators(tier);
  Pool pool(threads);
  const Prepared prepared(operators, pool, x, parse_mode(mode));
  operators.linear(pool, targets.data(), int(targets.size()), prepared.buffer);
}

// Codes, scales and scaled sums of each term row; the outputs have twice the rows with int8x2.
void run_quantize(const char* tier, int threads, const std::string& mode, Matrix x,
                  MutableArray<int8_t, 2> codes, OutMatrix scales, OutMatrix scaled_sums) {
  const Activations activations = parse_mode(mode);
  require(activations != Activations::Fp32, "quantize: fp32 has no codes");
  const size_t rows = x.shape(0) * (activations == Activations::Int8x2 ? 2 : 1);
  const size_t width = size_t(padded_width(int64_t(x.shape(1)))), groups = width / block_inputs;
  require(codes.shape(0) == rows && codes.shape(1) == width, "quantize: codes do not fit");
  require(scales.shape(0) == rows && scales.shape(1) == groups, "quantize: scales do not fit");
  require(scaled_sums.shape(0) == rows && scaled_sums.shape(1) == groups,
          "quantize: scaled_sums do not fit");
  Pool pool(threads);
  const Prepared prepared(choose_operators(tier), pool, x, activations);
  for (size_t row = 0; row < rows; ++row) {
    std::memcpy(codes.data() + row * width,
                prepared.buffer.codes + row * size_t(prepared.buffer.codes_stride), width);
  }
  for (size_t i = 0; i < rows * groups; ++i) {
    scales.data()[i] = prepared.buffer.groups[i].scale;
    scaled_sums.data()[i] = prepared.buffer.groups[i].scaled_sum;
  }
}

void run_embed_rows(const char* tier, int threads, const PackedMatrix& matrix,
                    Array<int32_t, 1> tokens, float scale, OutMatrix out) {
  require(out.shape(0) == tokens.size() && int64_t(out.shape(1)) == matrix.weight.width,
          "embed_rows: out does not fit");
  for (size_t i = 0; i < tokens.size(); ++i) {
    require(tokens.data()[i] >= 0 && tokens.data()[i] < matrix.weight.channels,
            "embed_rows: no such token");
  }
  Pool pool(threads);
  choose_operators(tier).embed_rows(pool, matrix.weight, tokens.data(), int64_t(tokens.size()),
                                    scale, out.data(), matrix.weight.width);
}

}  // namespace

LinearKnobs checked_knobs(int32_t tile_rows, int32_t block_rows, int32_t spread_rows,
                          int32_t chunks_per_thread, int32_t prefetch_bytes) {
  const LinearKnobs knobs{tile_rows, block_rows, spread_rows, chunks_per_thread, prefetch_bytes};
  require(knobs.valid(), "knobs: a value is out of range");
  return knobs;
}

void bind_gemm(nb::module_& module) {
  nb::class_<PackedMatrix>(module, "PackedMatrix")
      .def(nb::init<Array<uint8_t, 1>, int, int64_t, int64_t, int>(), nb::arg("rows"),
           nb::arg("ggml_type"), nb::arg("channels"), nb::arg("width"), nb::arg("threads") = 1)
      .def("set_knobs", set_knobs)
      .def_prop_ro("bytes", [](const PackedMatrix& m) { return m.arena.used_bytes(); })
      .def_prop_ro("tensor_scale", [](const PackedMatrix& m) { return m.weight.tensor_scale; });
  module.def("row_bytes", row_bytes, nb::arg("ggml_type"), nb::arg("width"),
             "Bytes of a row of this format; 0 for an unknown format or a width it cannot have.");
  module.def("linear", run_linear, nb::arg("tier"), nb::arg("threads"), nb::arg("matrices"),
             nb::arg("activations"), nb::arg("x"), nb::arg("biases"), nb::arg("outs"),
             nb::arg("softcap") = 0.0f);
  module.def("knobs_are_valid",
             [](int32_t tile_rows, int32_t block_rows, int32_t spread_rows,
                int32_t chunks_per_thread, int32_t prefetch_bytes) {
               return LinearKnobs{tile_rows, block_rows, spread_rows, chunks_per_thread,
                                  prefetch_bytes}
                   .valid();
             });
  module.def("quantize", run_quantize);
  module.def("embed_rows", run_embed_rows);
}

}  // namespace octavo
