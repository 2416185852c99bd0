// The native module of what the scheduler learns in every step.
#include <nanobind/nanobind.h>
#include <nanobind/stl/array.h>

#include "schedule/least_squares.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(_costs, module) {
  using Fit = octavo::LeastSquares;
  module.doc() = "Fit of step times; octavo.schedule.cost is the way to use it.";
  nb::class_<Fit>(module, "LeastSquares")
      .def(nb::init<const Fit::Values&, const Fit::Values&, double, int>(), "theta"_a, "ridge"_a,
           "forgetting"_a, "sweeps"_a)
      .def("observe", &Fit::observe, "features"_a, "target"_a)
      .def_prop_ro("theta", [](const Fit& fit) { return nb::make_tuple(
           fit.theta()[0], fit.theta()[1], fit.theta()[2], fit.theta()[3], fit.theta()[4]); });
}
