// Where the time of a step goes, by kind of operation.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "octavo/program.h"

namespace octavo {

// Operations by opcode, then what a step does besides them.
constexpr size_t kTablesPart = kOpcodes;        // checks, token places, rope tables
constexpr size_t kSamplingPart = kOpcodes + 1;  // draws and scores
constexpr size_t kStepParts = kOpcodes + 2;

class StepProfile {
 public:
  struct Part {
    uint64_t calls = 0;
    double seconds = 0.0;
  };

  void enable(bool enabled) {
    enabled_ = enabled;
    parts_ = {};
  }
  const std::array<Part, kStepParts>& parts() const { return parts_; }

  // Runs `work` and books its time; costs one test of a flag while the profile is off.
  template <class Work>
  void measure(size_t part, const Work& work) {
    if (!enabled_) return work();
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    parts_[part].calls += 1;
    parts_[part].seconds += spent.count();
  }

 private:
  bool enabled_ = false;
  std::array<Part, kStepParts> parts_{};
};

}  // namespace octavo
