// What a weight type tells the matmul kernels: WeightLayout<type>, one file a type. Quantised types describe
//   a unit      one panel (32 rows) x 32 * kUnitBlocks values; its bytes equal the bytes of its 32 GGUF
//   blocks its codes   planes (code_planes.h) of each block, unsigned; value = scale * (code - kOffset) + min
//   its scales  scales<V>(unit, j, lane, out): f32 scale (and min) of V::kLanes rows from `lane` on, for
//   block j packing     unpack(): the codes of one GGUF block; pack_scales(): its scales into row `row` of
//   the unit
// V is the vector type of an ISA (simd_*.h). A type is written once for all of them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/cpu/kernels/matmul/code_planes.h"
#include "backends/cpu/kernels/matmul/matmul.h"
#include "tensor/dtype.h"

namespace kvasir::cpu::matmul {

template <DType kType>
struct WeightLayout;

// How a vector type wants the codes of a type with offset.
enum class CodeForm {
  kPlain,   // as stored: 0 .. 2^bits - 1, offset W::kOffset
  kTop128,  // shifted to the top of the byte, so that the offset is 128 for every type
  kSigned,  // offset taken off
};

// Scales of V::kLanes rows and one block; index 1 is used when a block has two halves of 16. A type fills scale and min;
// a scale must have at most 21 significant bits (int8_tile.h).
template <class V>
struct Scales {
  typename V::Floats scale[2], offset[2], min[2];
};

template <int kUnitBlocksIn, int kSourceBytesIn, int kLowIn, int kHighIn, int kHeaderIn, int kBlockScalesIn>
struct QuantisedLayout {
  static constexpr bool kQuantised = true;
  static constexpr int kUnitBlocks = kUnitBlocksIn;    // blocks of 32 values a unit
  static constexpr int kSourceBytes = kSourceBytesIn;  // bytes of a GGUF block: one row of a unit
  static constexpr int kUnitBytes = kPanelRows * kSourceBytes;
  static constexpr int kLow = kLowIn, kHigh = kHighIn;  // bits of the two code planes
  static constexpr int kBits = kLow + kHigh;
  static constexpr int kHeader = kHeaderIn;            // bytes before the first block
  static constexpr int kBlockScales = kBlockScalesIn;  // bytes between a block's start and its planes
  static constexpr int kBlockBytes = kBlockScales + plane_bytes(kBits);
  static constexpr int block_offset(int j) { return kHeader + j * kBlockBytes; }
  static constexpr int planes_offset(int j) { return block_offset(j) + kBlockScales; }
  static_assert(kHeader + kUnitBlocks * kBlockBytes == kUnitBytes);
  // Types with a table override this: code -> code to multiply with.
  static constexpr const uint8_t* kTable = nullptr;
  static constexpr bool kHasTable = false;  // g++ 12 with sanitizers cannot compare the pointer in a constant
};

// A table of n vectors of 32 six-bit numbers in 24 n bytes: vectors 0 .. 3n/4 - 1 in the low bits of 32 bytes
// each; the top bits of three of them hold one of the remaining n/4.
template <class V>
[[gnu::always_inline]] inline typename V::Small six_bits(const std::byte* table, int n, int i, int lane) {
  const int stored = 3 * n / 4;
  if (i < stored) return V::small_mask(V::load_small(table + 32 * i + lane), 0x3f);
  const std::byte* p = table + 96 * (i - stored) + lane;
  const auto a = V::small_mask(V::template small_shift<-6>(V::load_small(p)), 0x03);
  const auto b = V::small_mask(V::template small_shift<-4>(V::load_small(p + 32)), 0x0c);
  const auto c = V::small_mask(V::template small_shift<-2>(V::load_small(p + 64)), 0x30);
  return V::small_or(a, V::small_or(b, c));
}

static inline void set_six_bits(std::byte* table, int n, int i, int row, uint8_t value) {
  const int stored = 3 * n / 4;
  if (i < stored) {
    table[32 * i + row] |= std::byte(value);
    return;
  }
  for (int t = 0; t < 3; ++t)
    table[96 * (i - stored) + 32 * t + row] |= std::byte(uint8_t(((value >> (2 * t)) & 3) << 6));
}

static inline void copy16(std::byte* to, const std::byte* from) { std::memcpy(to, from, 2); }

}  // namespace kvasir::cpu::matmul
