// Timing of repeated calls inside native code, where the interpreter costs nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

namespace octavo {

// Seconds of each of `calls` runs of body(index).
template <class Body>
std::vector<double> time_calls(size_t calls, const Body& body) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds(calls);
  auto start = Clock::now();
  for (size_t call = 0; call < calls; ++call) {
    body(call);
    const auto end = Clock::now();
    seconds[call] = std::chrono::duration<double>(end - start).count();
    start = end;
  }
  return seconds;
}

}  // namespace octavo
