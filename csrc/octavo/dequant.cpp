#include "dequant.h"

#include <cstring>

#include "fp16.h"

namespace octavo {
namespace {

using common::fp16_to_float;

uint16_t read16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | (p[1] << 8)); }

uint32_t read32(const uint8_t* p) {
  return static_cast<uint32_t>(read16(p)) | (static_cast<uint32_t>(read16(p + 2)) << 16);
}

float read_fp16(const uint8_t* p) { return fp16_to_float(read16(p)); }

// 16 bytes to 32 codes: low nibbles are elements 0..15, high nibbles 16..31.
void split_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = static_cast<uint8_t>(bytes[i] & 15);
    codes[i + 16] = static_cast<uint8_t>(bytes[i] >> 4);
  }
}

void add_fifth_bits(uint32_t bits, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(codes[i] | ((bits >> i) & 1u) << 4);
}

void decode_q4_0(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  scales[0] = read_fp16(block);
  split_nibbles(block + 2, codes);
}

void decode_q4_1(const uint8_t* block, uint8_t* codes, float* scales, float* minimums) {
  scales[0] = read_fp16(block);
  minimums[0] = read_fp16(block + 2);
  split_nibbles(block + 4, codes);
}

void decode_q5_0(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  scales[0] = read_fp16(block);
  split_nibbles(block + 6, codes);
  add_fifth_bits(read32(block + 2), codes);
}

void decode_q5_1(const uint8_t* block, uint8_t* codes, float* scales, float* minimums) {
  scales[0] = read_fp16(block);
  minimums[0] = read_fp16(block + 2);
  split_nibbles(block + 8, codes);
  add_fifth_bits(read32(block + 4), codes);
}

void decode_q8_0(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  scales[0] = read_fp16(block);
  for (int i = 0; i < 32; ++i) codes[i] = static_cast<uint8_t>(block[2 + i] ^ 0x80);
}

// 16 groups of 16 with 4-bit scales and minimums; element 128h + 32s + i has bits 2s of byte
// 32h + i.
void decode_q2_k(const uint8_t* block, uint8_t* codes, float* scales, float* minimums) {
  const float d = read_fp16(block + 80);
  const float m = read_fp16(block + 82);
  for (int g = 0; g < 16; ++g) {
    scales[g] = d * static_cast<float>(block[g] & 15);
    minimums[g] = -(m * static_cast<float>(block[g] >> 4));
  }
  for (int e = 0; e < 256; ++e) {
    const uint8_t byte = block[16 + e / 128 * 32 + e % 32];
    codes[e] = static_cast<uint8_t>((byte >> (e % 128 / 32 * 2)) & 3);
  }
}

// As Q2_K with a third bit per element (0 means "minus 4") and 6-bit signed scales.
void decode_q3_k(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  const uint8_t* high = block;
  const uint8_t* low = block + 32;
  const uint8_t* packed = block + 96;
  const float d = read_fp16(block + 108);
  for (int g = 0; g < 16; ++g) {
    const int four = g < 8 ? packed[g] & 15 : packed[g - 8] >> 4;
    const int two = (packed[8 + g % 4] >> (g / 4 * 2)) & 3;
    scales[g] = d * static_cast<float>((four | (two << 4)) - 32);
  }
  for (int e = 0; e < 256; ++e) {
    const int two = (low[e / 128 * 32 + e % 32] >> (e % 128 / 32 * 2)) & 3;
    const int third = (high[e % 32] >> (e / 32)) & 1;
    codes[e] = static_cast<uint8_t>(two | (third << 2));
  }
}

// The 6-bit scales and minimums that Q4_K and Q5_K share: 8 of each in 12 bytes.
void decode_k_scales(const uint8_t* block, float* scales, float* minimums) {
  const float d = read_fp16(block);
  const float m = read_fp16(block + 2);
  const uint8_t* p = block + 4;
  for (int g = 0; g < 8; ++g) {
    const int scale = g < 4 ? p[g] & 63 : (p[g + 4] & 15) | ((p[g - 4] >> 6) << 4);
    const int minimum = g < 4 ? p[g + 4] & 63 : (p[g + 4] >> 4) | ((p[g] >> 6) << 4);
    scales[g] = d * static_cast<float>(scale);
    minimums[g] = -(m * static_cast<float>(minimum));
  }
}

void split_k_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int pair = 0; pair < 4; ++pair) {
    for (int i = 0; i < 32; ++i) {
      const uint8_t byte = bytes[32 * pair + i];
      codes[64 * pair + i] = static_cast<uint8_t>(byte & 15);
      codes[64 * pair + 32 + i] = static_cast<uint8_t>(byte >> 4);
    }
  }
}

void decode_q4_k(const uint8_t* block, uint8_t* codes, float* scales, float* minimums) {
  decode_k_scales(block, scales, minimums);
  split_k_nibbles(block + 16, codes);
}

void decode_q5_k(const uint8_t* block, uint8_t* codes, float* scales, float* minimums) {
  decode_k_scales(block, scales, minimums);
  split_k_nibbles(block + 48, codes);
  for (int e = 0; e < 256; ++e) {
    const int fifth = (block[16 + e % 32] >> (e / 32)) & 1;
    codes[e] = static_cast<uint8_t>(codes[e] | (fifth << 4));
  }
}

// Element 128h + 32s + i: low 4 bits in byte 64h + 32(s % 2) + i, high 2 bits in byte 32h + i.
void decode_q6_k(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  const float d = read_fp16(block + 208);
  for (int g = 0; g < 16; ++g) {
    scales[g] = d * static_cast<float>(static_cast<int8_t>(block[192 + g]));
  }
  for (int e = 0; e < 256; ++e) {
    const int half = e / 128;
    const int section = e % 128 / 32;
    const int i = e % 32;
    const int four = (block[64 * half + section % 2 * 32 + i] >> (section / 2 * 4)) & 15;
    const int two = (block[128 + 32 * half + i] >> (section * 2)) & 3;
    codes[e] = static_cast<uint8_t>(four | (two << 4));
  }
}

// The non-linear 4-bit values of IQ4_NL and IQ4_XS, moved by 128 to be unsigned.
constexpr uint8_t nonlinear_codes[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                         129, 141, 153, 166, 181, 197, 217, 241};

void split_nonlinear(const uint8_t* bytes, uint8_t* codes) {
  split_nibbles(bytes, codes);
  for (int i = 0; i < 32; ++i) codes[i] = nonlinear_codes[codes[i]];
}

void decode_iq4_nl(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  scales[0] = read_fp16(block);
  split_nonlinear(block + 2, codes);
}

void decode_iq4_xs(const uint8_t* block, uint8_t* codes, float* scales, float*) {
  const float d = read_fp16(block);
  const unsigned high = read16(block + 2);
  for (int g = 0; g < 8; ++g) {
    const unsigned four = (block[4 + g / 2] >> (g % 2 * 4)) & 15u;
    const unsigned two = (high >> (2 * g)) & 3u;
    scales[g] = d * static_cast<float>(static_cast<int>(four | (two << 4)) - 32);
    split_nonlinear(block + 8 + 16 * g, codes + 32 * g);
  }
}

constexpr PanelFormat floats(Storage storage) { return {storage, false, 32, 0, 0}; }
constexpr PanelFormat symmetric(Storage storage, int group, int zero_point, int largest_code) {
  return {storage, false, static_cast<uint8_t>(group), static_cast<uint8_t>(zero_point),
          static_cast<uint8_t>(largest_code)};
}
constexpr PanelFormat affine(Storage storage, int group, int largest_code) {
  return {storage, true, static_cast<uint8_t>(group), 0, static_cast<uint8_t>(largest_code)};
}

struct Entry {
  int ggml_type;
  BlockFormat format;
};

constexpr Storage codes4 = Storage::Codes4;
constexpr Storage codes5 = Storage::Codes5;
constexpr Storage codes6 = Storage::Codes6;
constexpr Storage codes8 = Storage::Codes8;
constexpr Entry entries[] = {
    {0, {floats(Storage::Float32), 1, 4, false, nullptr}},
    {1, {floats(Storage::Float16), 1, 2, false, nullptr}},
    {30, {floats(Storage::BFloat16), 1, 2, false, nullptr}},
    {2, {symmetric(codes4, 32, 8, 15), 32, 18, false, decode_q4_0}},
    {3, {affine(codes4, 32, 15), 32, 20, false, decode_q4_1}},
    {6, {symmetric(codes5, 32, 16, 31), 32, 22, false, decode_q5_0}},
    {7, {affine(codes5, 32, 31), 32, 24, false, decode_q5_1}},
    {8, {symmetric(codes8, 32, 128, 255), 32, 34, false, decode_q8_0}},
    {10, {affine(codes4, 16, 15), 256, 84, true, decode_q2_k}},
    {11, {symmetric(codes4, 16, 4, 15), 256, 110, true, decode_q3_k}},
    {12, {affine(codes4, 32, 15), 256, 144, true, decode_q4_k}},
    {13, {affine(codes5, 32, 31), 256, 176, true, decode_q5_k}},
    {14, {symmetric(codes6, 16, 32, 63), 256, 210, true, decode_q6_k}},
    {20, {symmetric(codes8, 32, 128, 255), 32, 18, false, decode_iq4_nl}},
    {23, {symmetric(codes8, 32, 128, 255), 256, 136, true, decode_iq4_xs}},
};

}  // namespace

const BlockFormat* find_block_format(int ggml_type) {
  for (const Entry& entry : entries) {
    if (entry.ggml_type == ggml_type) return &entry.format;
  }
  return nullptr;
}

}  // namespace octavo
