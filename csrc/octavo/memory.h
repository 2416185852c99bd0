// Anonymous memory for weights and caches: 2 MiB aligned, huge pages advised, zero until touched.
#pragma once

#include <cstddef>
#include <vector>

namespace octavo {

class HugeBuffer {
 public:
  HugeBuffer() = default;
  // Throws std::bad_alloc when the system refuses. Zero bytes give an empty buffer.
  explicit HugeBuffer(size_t bytes);
  ~HugeBuffer();
  HugeBuffer(HugeBuffer&& other) noexcept;
  HugeBuffer& operator=(HugeBuffer&& other) noexcept;
  HugeBuffer(const HugeBuffer&) = delete;
  HugeBuffer& operator=(const HugeBuffer&) = delete;

  void* data() const { return data_; }
  // The size asked for, rounded up to 2 MiB.
  size_t bytes() const { return bytes_; }

  // Gives the memory of whole system pages inside [offset, offset + bytes) back to the system: it
  // reads as zero and costs nothing until it is touched again. The bytes given back; 0 where the
  // system cannot do it. Nobody may use the range meanwhile.
  size_t discard(size_t offset, size_t bytes);
  // Makes the system back [offset, offset + bytes) now instead of at the first touch. Contents stay
  // as they are, even if others write there at the same time.
  void populate(size_t offset, size_t bytes);

 private:
  void release();

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Memory that only grows and is freed as a whole: many tensors share huge pages without waste.
class Arena {
 public:
  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // 64-byte aligned, zero, valid until the arena dies. Throws std::bad_alloc.
  void* allocate(size_t bytes);
  // Sum of the sizes handed out.
  size_t used_bytes() const { return used_bytes_; }

 private:
  std::vector<HugeBuffer> chunks_;
  size_t chunk_offset_ = 0;
  size_t used_bytes_ = 0;
};

}  // namespace octavo
