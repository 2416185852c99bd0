#include "pool.h"

#include <chrono>
#include <climits>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif
#if defined(__unix__) || defined(__APPLE__)
#include <csignal>
#include <pthread.h>
#endif

namespace octavo {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto spin_time = std::chrono::microseconds(200);
constexpr int pauses_per_clock_read = 64;
// Read in one turn of a waiting loop: few enough to see soon that the wait is over.
constexpr uintptr_t ahead_bytes = 256;
// More threads would wait for the counter that they take their parts from.
constexpr int most_ahead_workers = 4;
constexpr uint32_t closed = uint32_t{1} << 31;

inline void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

#if defined(__linux__)
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain word");

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, value, nullptr,
          nullptr, 0);
}

void wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr,
          nullptr, 0);
}
#else
std::mutex sleep_mutex;
std::condition_variable sleep_condition;

void sleep_while(std::atomic<uint32_t>& word, uint32_t value) {
  std::unique_lock<std::mutex> lock(sleep_mutex);
  sleep_condition.wait(lock, [&] { return word.load() != value; });
}

void wake_all(std::atomic<uint32_t>&) {
  { std::lock_guard<std::mutex> lock(sleep_mutex); }
  sleep_condition.notify_all();
}
#endif

// Signals belong to the interpreter's own threads: workers start with all of them blocked.
class SignalsBlocked {
 public:
#if defined(__unix__) || defined(__APPLE__)
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &previous_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &previous_, nullptr); }

 private:
  sigset_t previous_;
#endif
};

}  // namespace

Pool::Pool(int threads)
    : threads_(threads < 1 ? 1 : threads), workers_(new std::thread[threads_ - 1]), entry_(closed) {
  const SignalsBlocked guard;
  try {
    for (int i = 1; i < threads_; ++i) workers_[i - 1] = std::thread([this, i] { serve(i); });
  } catch (...) {
    stop();
    throw;
  }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
  stopping_ = true;
  region_.fetch_add(1, std::memory_order_seq_cst);
  wake_all(region_);
  for (int i = 1; i < threads_; ++i) {
    if (workers_[i - 1].joinable()) workers_[i - 1].join();
  }
}

void Pool::run(int64_t total, int64_t chunk, Range function, void* context) {
  if (total <= 0) return;
  if (chunk < 1) chunk = 1;
  if (threads_ == 1 || total <= chunk) {
    for (int64_t begin = 0; begin < total; begin += chunk) {
      next_.store(begin + chunk, std::memory_order_relaxed);
      function(context, begin, begin + chunk < total ? begin + chunk : total, 0);
    }
    return;
  }
  function_ = function;
  context_ = context;
  total_ = total;
  chunk_ = chunk;
  next_.store(0, std::memory_order_relaxed);
  // Not a store: a worker that came too late for the last region may still be on its way out.
  entry_.fetch_and(~closed, std::memory_order_acq_rel);
  region_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load(std::memory_order_seq_cst) > 0) wake_all(region_);
  take_chunks(0);
  close_region();
}

void Pool::read_ahead(const void* data, size_t bytes) {
  ahead_end_.store(0, std::memory_order_relaxed);
  ahead_.store(reinterpret_cast<uintptr_t>(data), std::memory_order_relaxed);
  ahead_end_.store(reinterpret_cast<uintptr_t>(data) + bytes, std::memory_order_relaxed);
}

// One turn of a waiting loop.
void Pool::wait_a_turn(int worker) {
  const uintptr_t end = ahead_end_.load(std::memory_order_relaxed);
  if (worker >= most_ahead_workers || ahead_.load(std::memory_order_relaxed) >= end) return pause();
  const uintptr_t at = ahead_.fetch_add(ahead_bytes, std::memory_order_relaxed);
  for (uintptr_t line = 0; line < ahead_bytes; line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(at + line), 0, 2);
  }
}

// Waits for the workers that entered, not for those still asleep: on a busy machine a worker may
// get its core only after the others have done all there was.
void Pool::close_region() {
  entry_.fetch_or(closed, std::memory_order_acq_rel);
  const auto start = Clock::now();
  for (int pauses = 0; entry_.load(std::memory_order_acquire) != closed;) {
    wait_a_turn(0);
    if (++pauses % pauses_per_clock_read == 0 && Clock::now() - start > spin_time) {
      // A worker lost its core to another process: let it have this one.
      std::this_thread::yield();
    }
  }
}

void Pool::take_chunks(int worker) {
  for (;;) {
    const int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (begin >= total_) return;
    function_(context_, begin, begin + chunk_ < total_ ? begin + chunk_ : total_, worker);
  }
}

void Pool::serve(int worker) {
  for (uint32_t seen = 0;;) {
    wait_for_region(seen, worker);
    seen = region_.load(std::memory_order_acquire);
    if (stopping_) return;
    if ((entry_.fetch_add(1, std::memory_order_acquire) & closed) == 0) take_chunks(worker);
    entry_.fetch_sub(1, std::memory_order_release);
  }
}

void Pool::wait_for_region(uint32_t seen, int worker) {
  const auto start = Clock::now();
  for (int pauses = 0; region_.load(std::memory_order_acquire) == seen;) {
    wait_a_turn(worker);
    if (++pauses % pauses_per_clock_read != 0 || Clock::now() - start < spin_time) continue;
    // The count goes up before the word is read again, and the caller changes the word before it
    // reads the count: one of the two always sees the other.
    parked_.fetch_add(1, std::memory_order_seq_cst);
    while (region_.load(std::memory_order_seq_cst) == seen) sleep_while(region_, seen);
    parked_.fetch_sub(1, std::memory_order_seq_cst);
  }
}

}  // namespace octavo
