// How the codes of one panel (32 output rows) and one block (32 values of k) lie in memory.
//
// The "image" is 16 chunks of 64 bytes: chunk z = 8 * g + j holds rows 16g .. 16g+15, four bytes each: k = 4j
// .. 4j+3. That is one 512-bit register for a four-way int8 dot product (two of 256 bits, four of 128 bits).
// Codes of fewer than 8 bits are stored as planes over the image:
//   8 bits  the image itself (1024 bytes)
//   4 bits  512 bytes: byte i of chunk z is nibble z / 8 of byte i of stored chunk z % 8
//   2 bits  256 bytes: bits 2 * (z % 4) of stored chunk z / 4
//   1 bit   128 bytes: bit z % 8 of stored chunk z / 8
// and a code is low plane | high plane << low bits (5 = 4 + 1, 6 = 4 + 2, 3 = 2 + 1).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvasir::cpu::matmul {

inline constexpr int kImageBytes = 1024;

// Which stored chunk holds the field of chunk z, and at which bit.
struct PlaneField {
  int chunk, bit;
};
static constexpr PlaneField plane_field(int bits, int z) {
  if (bits == 8) return {z, 0};
  if (bits == 4) return {z % 8, 4 * (z / 8)};
  if (bits == 2) return {z / 4, 2 * (z % 4)};
  return {z / 8, z % 8};
}
static constexpr int plane_bytes(int bits) { return bits * 128; }

// Codes of chunk z at byte `offset`, shifted left by kShift (0 or 8 - kLow - kHigh).
template <class V, int kLow, int kHigh, int kShift, int z>
[[gnu::always_inline]] inline typename V::Bytes load_codes(const std::byte* planes, int offset) {
  constexpr PlaneField low = plane_field(kLow, z);
  typename V::Bytes code = V::load(planes + low.chunk * 64 + offset);
  if constexpr (kLow < 8)
    code = V::mask(V::template shift<kShift - low.bit>(code), uint8_t(((1 << kLow) - 1) << kShift));
  if constexpr (kHigh > 0) {
    constexpr PlaneField high = plane_field(kHigh, z);
    const auto raw = V::load(planes + plane_bytes(kLow) + high.chunk * 64 + offset);
    constexpr int kTo = kShift + kLow;
    code = V::or_masked(code, V::template shift<kTo - high.bit>(raw), uint8_t(((1 << kHigh) - 1) << kTo));
  }
  return code;
}

// The inverse, for packing: adds four codes (a word of bytes: k = 4j .. 4j + 3 of `row`) to zeroed planes.
static inline void store_codes(int low_bits, int high_bits, std::byte* planes, int row, int j,
                               uint32_t codes) {
  const int z = row / 16 * 8 + j;
  const auto add = [&](std::byte* plane, int bits, uint32_t values) {
    const PlaneField field = plane_field(bits, z);
    std::byte* p = plane + field.chunk * 64 + row % 16 * 4;
    uint32_t word;
    std::memcpy(&word, p, 4);
    word |= (values & ((1u << bits) - 1) * 0x01010101u) << field.bit;
    std::memcpy(p, &word, 4);
  };
  add(planes, low_bits, codes);
  if (high_bits != 0) add(planes + plane_bytes(low_bits), high_bits, codes >> low_bits);
}

}  // namespace kvasir::cpu::matmul
