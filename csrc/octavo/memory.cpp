#include "memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#if defined(__linux__) && !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23  // Linux 5.14; older kernels refuse it
#endif

namespace octavo {
namespace {

constexpr size_t huge_page_bytes = size_t{2} << 20;
constexpr size_t chunk_bytes = size_t{64} << 20;
constexpr size_t line_bytes = 64;

#if defined(__linux__)
// mmap aligns to small pages only: take one huge page more and give the edges back.
void* map_aligned(size_t bytes) {
  const size_t span = bytes + huge_page_bytes;
  void* raw = mmap(nullptr, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  char* begin = static_cast<char*>(raw);
  const size_t misfit = reinterpret_cast<uintptr_t>(begin) % huge_page_bytes;
  const size_t front = misfit == 0 ? 0 : huge_page_bytes - misfit;
  if (front > 0) munmap(begin, front);
  const size_t back = span - front - bytes;
  if (back > 0) munmap(begin + front + bytes, back);
  // Advice only: without huge pages everything works, a little slower.
  madvise(begin + front, bytes, MADV_HUGEPAGE);
  return begin + front;
}

void unmap(void* data, size_t bytes) { munmap(data, bytes); }

size_t system_page_bytes() { return size_t(sysconf(_SC_PAGESIZE)); }

bool drop(void* begin, size_t bytes) { return madvise(begin, bytes, MADV_DONTNEED) == 0; }

bool fault_in(void* begin, size_t bytes) {
  return madvise(begin, bytes, MADV_POPULATE_WRITE) == 0;
}
#else
void* map_aligned(size_t bytes) {
  void* data = std::aligned_alloc(huge_page_bytes, bytes);
  if (data == nullptr) throw std::bad_alloc();
  std::memset(data, 0, bytes);
  return data;
}

void unmap(void* data, size_t) { std::free(data); }

size_t system_page_bytes() { return 4096; }

bool drop(void*, size_t) { return false; }

bool fault_in(void*, size_t) { return false; }
#endif

}  // namespace

HugeBuffer::HugeBuffer(size_t bytes) {
  if (bytes == 0) return;
  if (bytes > SIZE_MAX - 2 * huge_page_bytes) throw std::bad_alloc();
  bytes_ = (bytes + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
  data_ = map_aligned(bytes_);
}

HugeBuffer::~HugeBuffer() { release(); }

HugeBuffer::HugeBuffer(HugeBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

HugeBuffer& HugeBuffer::operator=(HugeBuffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
  }
  return *this;
}

size_t HugeBuffer::discard(size_t offset, size_t bytes) {
  const size_t page = system_page_bytes(), begin = (offset + page - 1) / page * page;
  const size_t end = (offset + bytes) / page * page;
  if (data_ == nullptr || begin >= end) return 0;
  return drop(static_cast<char*>(data_) + begin, end - begin) ? end - begin : 0;
}

void HugeBuffer::populate(size_t offset, size_t bytes) {
  if (data_ == nullptr || bytes == 0) return;
  const size_t page = system_page_bytes(), begin = offset / page * page;
  char* first = static_cast<char*>(data_) + begin;
  const size_t span = offset + bytes - begin;
  if (fault_in(first, span)) return;
  // An atomic write of nothing faults a page in and cannot lose what another thread writes.
  for (size_t at = 0; at < span; at += page) {
    __atomic_fetch_or(reinterpret_cast<unsigned char*>(first + at), 0, __ATOMIC_RELAXED);
  }
}

void HugeBuffer::release() {
  if (data_ != nullptr) unmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

Arena::Arena() = default;
Arena::~Arena() = default;

void* Arena::allocate(size_t bytes) {
  if (bytes > SIZE_MAX - 2 * huge_page_bytes) throw std::bad_alloc();
  const size_t size = (bytes + line_bytes - 1) / line_bytes * line_bytes;
  if (chunks_.empty() || chunks_.back().bytes() - chunk_offset_ < size) {
    // The rest of the old chunk is never touched, so it costs address space only.
    chunks_.emplace_back(size > chunk_bytes ? size : chunk_bytes);
    chunk_offset_ = 0;
  }
  void* result = static_cast<char*>(chunks_.back().data()) + chunk_offset_;
  chunk_offset_ += size;
  used_bytes_ += size;
  return result;
}

}  // namespace octavo
