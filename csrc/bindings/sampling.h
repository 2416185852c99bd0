// Shared by the bindings that take the arrays of compute/sample/params.py.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>

#include "octavo/sample.h"

namespace octavo {

using JobBytes =
    nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using JobIds =
    nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using JobValues =
    nanobind::ndarray<const float, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using ResultBytes =
    nanobind::ndarray<uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using TopIds =
    nanobind::ndarray<int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using TopLogprobs =
    nanobind::ndarray<double, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

// The fields of a PackedJobs, in order, as a view. Throws std::invalid_argument (ValueError) if a
// job is wrong for `rows` wanted rows of `vocabulary` logits. The arrays must outlive the view.
LogitJobs jobs_from_arrays(const JobBytes& jobs, const JobIds& ids, const JobValues& bias_values,
                           const ResultBytes& results, const TopIds& top_ids,
                           const TopLogprobs& top_logprobs, size_t rows, size_t vocabulary);

void bind_sampling(nanobind::module_& module);

}  // namespace octavo
