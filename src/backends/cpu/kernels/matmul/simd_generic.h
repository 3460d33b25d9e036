// The vector type of the generic row: four bytes and one float at a time. It defines what every other row
// must give.
#pragma once
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "backends/cpu/kernels/matmul/activation.h"
#include "backends/cpu/kernels/matmul/types/layout.h"
#include "base/half.h"

namespace kvasir::cpu::matmul {

struct GenericVector {
  static constexpr int kBytes = 4, kLanes = 1;
  static constexpr int kTileGroups = 1, kTileRows = 1, kFewRows = 0;
  static constexpr int kFloatGroups = 1, kFloatRows = 4;
  static constexpr CodeForm code_form(int offset, int) {
    return offset == 0 ? CodeForm::kPlain : CodeForm::kTop128;
  }

  using Bytes = uint32_t;
  using Small = uint8_t;
  using Ints = int32_t;
  using Floats = float;

  static Bytes load(const std::byte* p) {
    Bytes v;
    std::memcpy(&v, p, 4);
    return v;
  }
  template <int n>
  static Bytes shift(Bytes v) {  // left by n, bits may cross bytes
    if constexpr (n >= 0)
      return v << n;
    else
      return v >> -n;
  }
  static Bytes mask(Bytes v, uint8_t m) { return v & (m * 0x01010101u); }
  static Bytes or_masked(Bytes a, Bytes b, uint8_t m) { return a | (b & (m * 0x01010101u)); }
  static Bytes lookup(const uint8_t* table, Bytes v) {
    Bytes out = 0;
    for (int i = 0; i < 4; ++i) out |= Bytes(table[(v >> (8 * i)) & 15]) << (8 * i);
    return out;
  }

  static Small load_small(const std::byte* p) { return Small(*p); }
  static Small small_mask(Small v, uint8_t m) { return v & m; }
  static Small small_or(Small a, Small b) { return a | b; }
  template <int n>
  static Small small_shift(Small v) {
    if constexpr (n >= 0)
      return Small(v << n);
    else
      return Small(v >> -n);
  }

  template <class Kind>
  static Ints start(const int32_t* start) {
    return Kind::kOffset ? *start : kMagicBits;
  }
  static Bytes broadcast4(const int8_t* a) { return load(reinterpret_cast<const std::byte*>(a)); }
  template <class Kind>
  static Ints dot(Ints sum, Bytes w, Bytes a) {
    for (int i = 0; i < 4; ++i) sum += int((w >> (8 * i)) & 255) * int8_t(a >> (8 * i));
    return sum;
  }
  static Floats as_floats(Ints v) { return std::bit_cast<float>(v); }

  static Floats load_floats(const float* p) { return *p; }
  static void store(float* p, Floats v) { *p = v; }
  static void store(std::byte* p, Bytes v) { std::memcpy(p, &v, 4); }
  static Floats zero() { return 0; }
  static Floats set1(float v) { return v; }
  static Floats broadcast(const float* p) { return *p; }
  static Floats load_f16(const std::byte* p) {
    uint16_t h;
    std::memcpy(&h, p, 2);
    return f16_to_f32(h);
  }
  template <bool odd>
  static Floats load_bf16_pair(const std::byte* p) {
    uint16_t h;
    std::memcpy(&h, p + 2 * odd, 2);
    return bf16_to_f32(h);
  }
  static Floats from_u8(Small v) { return float(v); }
  static Floats from_i8(Small v) { return float(int8_t(v)); }
  static Floats mul(Floats a, Floats b) { return a * b; }
  static Floats sub(Floats a, Floats b) { return a - b; }
  static Floats negate(Floats a) { return -a; }
  static Floats fma(Floats a, Floats b, Floats c) { return std::fma(a, b, c); }
  static void prefetch(const std::byte*) {}
  static void prefetch_far(const std::byte*) {}
};

}  // namespace kvasir::cpu::matmul
