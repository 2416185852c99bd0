// Thread pool for the short parallel regions of a step (a few to a few hundred microseconds).
//
// The caller takes part as worker 0. Idle workers spin for a bounded time, long enough to cover
// the gaps inside a step, then sleep in the kernel; an idle engine uses no CPU.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>

namespace octavo {

class Pool {
 public:
  // `threads` counts the caller; values below 1 become 1. Throws std::system_error when the
  // system refuses a thread.
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return threads_; }

  // Inside a region: where the range begins that is handed out next, if there is one more. Others
  // may take it first.
  int64_t upcoming() const { return next_.load(std::memory_order_relaxed); }

  // What threads read into the caches while they wait for others, in or between regions: memory
  // that a region to come will need. Replaces what was set before; no bytes mean nothing.
  void read_ahead(const void* data, size_t bytes);

  // Calls f(begin, end, worker) on disjoint ranges of at most `chunk` that cover [0, total);
  // 0 <= worker < threads(). Ranges are handed out dynamically, so f's result must not depend on
  // who runs what. Returns when all are done. One caller at a time; f must neither throw nor call
  // the pool.
  template <class Function>
  void parallel_for(int64_t total, int64_t chunk, Function&& f) {
    using Callable = std::remove_reference_t<Function>;
    run(total, chunk,
        [](void* context, int64_t begin, int64_t end, int worker) {
          (*static_cast<Callable*>(context))(begin, end, worker);
        },
        const_cast<void*>(static_cast<const void*>(&f)));
  }

 private:
  using Range = void (*)(void* context, int64_t begin, int64_t end, int worker);

  void run(int64_t total, int64_t chunk, Range function, void* context);
  void take_chunks(int worker);
  void serve(int worker);
  void wait_for_region(uint32_t seen, int worker);
  void close_region();
  void wait_a_turn(int worker);
  void stop();

  const int threads_;
  std::unique_ptr<std::thread[]> workers_;
  Range function_ = nullptr;
  void* context_ = nullptr;
  int64_t total_ = 0;
  int64_t chunk_ = 1;
  std::atomic<bool> stopping_{false};
  // Each on a cache line of its own: they are written by different threads all the time.
  alignas(64) std::atomic<uint32_t> region_{0};
  alignas(64) std::atomic<int> parked_{0};
  // Workers inside the region, and a bit that says that no more may enter.
  alignas(64) std::atomic<uint32_t> entry_;
  alignas(64) std::atomic<int64_t> next_{0};
  // What is left to read ahead. Taken apart by anybody at any time: a reader that meets two halves
  // of different ranges prefetches in vain.
  alignas(64) std::atomic<uintptr_t> ahead_{0};
  std::atomic<uintptr_t> ahead_end_{0};
};

}  // namespace octavo
