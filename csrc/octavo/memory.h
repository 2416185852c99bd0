// Anonymous memory for weights and caches: 2 MiB aligned, huge pages advised, zero until touched.
#pragma once

#include <cstddef>

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

 private:
  void release();

  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace octavo
