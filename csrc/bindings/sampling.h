// Shared by the bindings that take the arrays of compute/sample/params.py.
#pragma once

#include <cstddef>
#include <cstdint>

#include "bindings/bindings.h"
#include "octavo/sample.h"

namespace octavo {

using JobBytes = Array<uint8_t, 1>;
using JobIds = Array<int32_t, 1>;
using JobValues = Array<float, 1>;
using ResultBytes = MutableArray<uint8_t, 1>;
using TopIds = MutableArray<int32_t, 1>;
using TopLogprobs = MutableArray<double, 1>;

// The arrays of PackedJobs.arrays() as a view. Throws std::invalid_argument (ValueError) if a
// job is wrong for `rows` wanted rows of `vocabulary` logits. The arrays must outlive the view.
LogitJobs jobs_from_arrays(const JobBytes& jobs, const JobIds& ids, const JobValues& bias_values,
                           const ResultBytes& results, const TopIds& top_ids,
                           const TopLogprobs& top_logprobs, size_t rows, size_t vocabulary);

}  // namespace octavo
