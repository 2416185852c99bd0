// Single operators by themselves, for tests and measurements.
#include "octavo/operators.h"

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

}  // namespace

void bind_operators(nb::module_& module) {
  module.def("tier", [](const char* name) { return choose_operators(name).tier; },
             nb::arg("name") = "", "Name of the tier that `name` or this processor selects.");
  module.def("rms_norm", run_rms_norm);
  module.def("add", run_elementwise<&Operators::add>);
  module.def("silu_mul", run_elementwise<&Operators::silu_mul>);
  module.def("gelu_mul", run_elementwise<&Operators::gelu_mul>);
  module.def("rope", run_rope);
}

}  // namespace octavo
