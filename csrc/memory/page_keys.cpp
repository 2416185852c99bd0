#include "memory/page_keys.h"

#include <algorithm>
#include <cstring>

namespace octavo {
namespace {

constexpr size_t kBlockBytes = 128;
constexpr int kRounds = 12;
constexpr char kPerson[16] = "octavo page";

constexpr uint64_t kStart[8] = {
    0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
    0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179,
};

constexpr uint8_t kSchedule[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
    {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4},
    {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13},
    {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11},
    {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5},
    {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

// The machines this runs on are little-endian, and pages are kept on the machine that wrote them.
uint64_t word_at(const uint8_t* bytes) {
  uint64_t word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

uint64_t rotated(uint64_t word, int bits) { return word >> bits | word << (64 - bits); }

class Blake2b {
 public:
  Blake2b() {
    std::copy(std::begin(kStart), std::end(kStart), state_);
    // Digest length, no key, fanout and depth 1.
    state_[0] ^= 0x01010000 ^ sizeof(PageKey);
    const auto* person = reinterpret_cast<const uint8_t*>(kPerson);
    state_[6] ^= word_at(person);
    state_[7] ^= word_at(person + 8);
  }

  void update(const uint8_t* bytes, size_t count) {
    while (count) {
      // The last block is told apart, so a full one waits until more comes.
      if (filled_ == kBlockBytes) compress(false);
      const size_t part = std::min(count, kBlockBytes - filled_);
      std::memcpy(block_ + filled_, bytes, part);
      filled_ += part;
      bytes += part;
      count -= part;
    }
  }

  PageKey digest() {
    std::memset(block_ + filled_, 0, kBlockBytes - filled_);
    compress(true);
    PageKey key;
    std::memcpy(key.data(), state_, key.size());
    return key;
  }

 private:
  void compress(bool is_last) {
    total_ += filled_;
    filled_ = 0;
    uint64_t message[16], v[16];
    for (int at = 0; at < 16; ++at) message[at] = word_at(block_ + 8 * at);
    std::copy(state_, state_ + 8, v);
    std::copy(std::begin(kStart), std::end(kStart), v + 8);
    v[12] ^= total_;
    if (is_last) v[14] = ~v[14];
    const auto mix = [&v](int a, int b, int c, int d, uint64_t x, uint64_t y) {
      v[a] += v[b] + x;
      v[d] = rotated(v[d] ^ v[a], 32);
      v[c] += v[d];
      v[b] = rotated(v[b] ^ v[c], 24);
      v[a] += v[b] + y;
      v[d] = rotated(v[d] ^ v[a], 16);
      v[c] += v[d];
      v[b] = rotated(v[b] ^ v[c], 63);
    };
    for (int round = 0; round < kRounds; ++round) {
      const uint8_t* order = kSchedule[round % 10];
      const auto word = [&](int at) { return message[order[at]]; };
      for (int column = 0; column < 4; ++column) {
        mix(column, column + 4, column + 8, column + 12, word(2 * column), word(2 * column + 1));
      }
      for (int diagonal = 0; diagonal < 4; ++diagonal) {
        mix(diagonal, 4 + (diagonal + 1) % 4, 8 + (diagonal + 2) % 4, 12 + (diagonal + 3) % 4,
            word(8 + 2 * diagonal), word(9 + 2 * diagonal));
      }
    }
    for (int at = 0; at < 8; ++at) state_[at] ^= v[at] ^ v[at + 8];
  }

  uint64_t state_[8];
  uint8_t block_[kBlockBytes];
  size_t filled_ = 0;
  uint64_t total_ = 0;
};

}  // namespace

PageKey child_key(const PageKey& parent, const int32_t* tokens, size_t count) {
  Blake2b hash;
  hash.update(parent.data(), parent.size());
  hash.update(reinterpret_cast<const uint8_t*>(tokens), count * sizeof *tokens);
  return hash.digest();
}

}  // namespace octavo
