// The parts the extension module is put together from.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "octavo/panel.h"

namespace octavo {

template <class Element, int Dimensions>
using Array =
    nanobind::ndarray<const Element, nanobind::ndim<Dimensions>, nanobind::c_contig,
                      nanobind::device::cpu>;

template <class Element, int Dimensions>
using MutableArray = nanobind::ndarray<Element, nanobind::ndim<Dimensions>, nanobind::c_contig,
                                       nanobind::device::cpu>;

// Becomes ValueError in Python.
inline void require(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

// Runs something without the interpreter lock; the seconds it took.
template <class Run>
double timed(const Run& run) {
  nanobind::gil_scoped_release unlocked;
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Knobs from their values in the order of tuning.py.
LinearKnobs checked_knobs(int32_t tile_rows, int32_t block_rows, int32_t spread_rows,
                          int32_t chunks_per_thread, int32_t prefetch_bytes);

void bind_attention(nanobind::module_& module);
void bind_gemm(nanobind::module_& module);
void bind_model(nanobind::module_& module);
void bind_operators(nanobind::module_& module);
void bind_rows(nanobind::module_& module);
void bind_sampling(nanobind::module_& module);
void bind_timing(nanobind::module_& module);

}  // namespace octavo
