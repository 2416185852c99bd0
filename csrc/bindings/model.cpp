// The Model class as Python sees it. compute/kernels/cpu/model.py is the way to use it.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <vector>

#include "bindings/bindings.h"
#include "bindings/sampling.h"
#include "octavo/step.h"

namespace nb = nanobind;

namespace octavo {
namespace {

Activations activations_of(const std::string& name) {
  if (name == "int8") return Activations::Int8;
  if (name == "int8x2") return Activations::Int8x2;
  require(name == "fp32", "activations must be int8, int8x2 or fp32");
  return Activations::Fp32;
}

KvFormat kv_format_of(const std::string& name) {
  if (name == "fp16") return KvFormat::Fp16;
  if (name == "int8") return KvFormat::Int8;
  require(name == "fp32", "kv_format must be fp16, fp32 or int8");
  return KvFormat::Fp32;
}

void make_model(Model* self, const char* tier, int threads, const char* activations,
                const char* kv_format, size_t max_tokens, int layers, int kv_heads, int head_dim) {
  require(threads >= 1 && threads <= 1024, "threads must be from 1 to 1024");
  const ModelSettings settings{threads,    activations_of(activations), kv_format_of(kv_format),
                               max_tokens, layers,                      kv_heads,
                               head_dim};
  new (self) Model(choose_operators(tier), settings);
}

int add_matrix(Model& self, Array<uint8_t, 1> rows, int ggml_type, int64_t channels,
               int64_t width) {
  nb::gil_scoped_release unlocked;
  return self.add_matrix(rows.data(), rows.size(), ggml_type, channels, width);
}

void set_knobs(Model& self, int32_t matrix, int32_t tile_rows, int32_t block_rows,
               int32_t spread_rows, int32_t chunks_per_thread, int32_t prefetch_bytes) {
  self.set_knobs(matrix, checked_knobs(tile_rows, block_rows, spread_rows, chunks_per_thread,
                                       prefetch_bytes));
}

int add_rotation(Model& self, int dims, bool interleaved, Array<double, 1> frequencies) {
  return self.add_rotation(Rotation{
      dims, interleaved,
      std::vector<double>(frequencies.data(), frequencies.data() + frequencies.size())});
}

void set_program(Model& self, Array<int32_t, 2> codes, Array<float, 2> floats) {
  require(codes.shape(1) == 1 + kOperationInts && floats.shape(1) == kOperationFloats &&
              codes.shape(0) == floats.shape(0) && codes.shape(0) > 0,
          "a program has 7 integers and 2 floats an operation");
  std::vector<Operation> program(codes.shape(0));
  for (size_t i = 0; i < program.size(); ++i) {
    const int32_t* record = codes.data() + i * (1 + kOperationInts);
    program[i].code = Opcode(record[0]);
    memcpy(program[i].ints, record + 1, sizeof program[i].ints);
    memcpy(program[i].floats, floats.data() + i * kOperationFloats, sizeof program[i].floats);
  }
  self.set_program(std::move(program));
}

// `places` are (group, index) of each layer.
void allocate_kv(Model& self, int32_t pages, int32_t page_tokens, Array<int32_t, 2> places,
                 int32_t window_tokens) {
  require(places.shape(1) == 2, "places must be [layers, 2]");
  std::vector<KvPlace> of_layers;
  for (size_t layer = 0; layer < places.shape(0); ++layer) {
    const int32_t* place = places.data() + 2 * layer;
    of_layers.push_back(KvPlace{place[0], place[1]});
  }
  nb::gil_scoped_release unlocked;
  self.allocate_kv(pages, page_tokens, std::move(of_layers), window_tokens);
}

using Ids = Array<int32_t, 1>;

StepInput input_of(const Ids& tokens, const Ids& row_starts, const Ids& past,
                   const Array<int32_t, 2>& tables, const Ids& wanted) {
  require(row_starts.size() == past.size() + 1 && tables.shape(0) == past.size(),
          "row_starts, past and tables differ in rows");
  return StepInput{tokens.data(), tokens.size(), row_starts.data(), past.data(), tables.data(),
                   past.size(),   tables.shape(1), wanted.data(),   wanted.size()};
}

double logits(Model& self, Ids tokens, Ids row_starts, Ids past, Array<int32_t, 2> tables,
              Ids wanted, MutableArray<float, 2> out) {
  const StepInput input = input_of(tokens, row_starts, past, tables, wanted);
  require(out.shape(0) == wanted.size() && out.shape(1) == self.vocabulary(),
          "out must be [wanted, vocabulary]");
  return timed([&] { self.run(input, out.data()); });
}

double step(Model& self, Ids tokens, Ids row_starts, Ids past, Array<int32_t, 2> tables, Ids wanted,
            JobBytes jobs, JobIds ids, JobValues bias_values, ResultBytes results, TopIds top_ids,
            TopLogprobs top_logprobs) {
  const StepInput input = input_of(tokens, row_starts, past, tables, wanted);
  const LogitJobs view = jobs_from_arrays(jobs, ids, bias_values, results, top_ids, top_logprobs,
                                          wanted.size(), self.vocabulary());
  return timed([&] { self.run(input, view); });
}

// (calls, seconds) of each part of profile.h since the profile was enabled.
std::vector<std::pair<uint64_t, double>> profile(Model& self) {
  std::vector<std::pair<uint64_t, double>> parts;
  for (const StepProfile::Part& part : self.profile()) parts.push_back({part.calls, part.seconds});
  return parts;
}

// For tests: the cache as bytes, so that they can poison what was never written.
nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>> cache_bytes(Model& self) {
  const KvCache& cache = self.cache();
  const size_t bytes = cache.base == nullptr ? 0 : cache.geometry.page_bytes() * size_t(cache.pages);
  return nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>(cache.base, {bytes}, nb::find(self));
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::class_<Model>(module, "Model")
      .def("__init__", make_model, nb::arg("tier"), nb::arg("threads"), nb::arg("activations"),
           nb::arg("kv_format"), nb::arg("max_tokens"), nb::arg("layers"), nb::arg("kv_heads"),
           nb::arg("head_dim"))
      .def("add_matrix", add_matrix)
      .def("set_knobs", set_knobs)
      .def("add_vector",
           [](Model& self, Array<float, 1> values) {
             return self.add_vector(values.data(), values.size());
           })
      .def("add_rotation", add_rotation)
      .def("set_program", set_program)
      .def("page_bytes", &Model::page_bytes)
      .def("allocate_kv", allocate_kv)
      .def("discard_kv", &Model::discard_kv, nb::call_guard<nb::gil_scoped_release>())
      .def("populate_kv", &Model::populate_kv, nb::call_guard<nb::gil_scoped_release>())
      .def("discard_workspace", &Model::discard_workspace,
           nb::call_guard<nb::gil_scoped_release>())
      .def("logits", logits)
      .def("step", step)
      .def("enable_profile", &Model::enable_profile)
      .def("profile", profile)
      .def("cache_bytes", cache_bytes)
      .def_prop_ro("tier", &Model::tier)
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("weight_bytes", &Model::weight_bytes)
      .def_prop_ro("workspace_bytes", &Model::workspace_bytes);
}

}  // namespace octavo
