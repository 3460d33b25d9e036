// Float vectors of any CPU, through the compiler's vector extension (SSE2 or NEON registers). No fused
// multiply-add but by the C library.
#pragma once
#include <cstdint>
#include <cstring>

#include "backends/cpu/kernels/simd/half_types.h"
#include "base/half.h"

namespace kvasir::cpu::generic {

struct Vec {
  typedef float F __attribute__((vector_size(16)));
  typedef int32_t I __attribute__((vector_size(16)));
  typedef uint32_t U __attribute__((vector_size(16)));
  typedef uint16_t H __attribute__((vector_size(8)));
  static constexpr int kN = 4;
  static constexpr int kTileRows = 4;

  static F zero() { return F{}; }
  static F set1(float x) { return F{x, x, x, x}; }
  static F load(const float* p) {
    F x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static F load(const F16* p) {
    const U h = load_u16(p);
    // Scaling by 2^112 moves the exponent's bias and makes subnormals exact.
    const U magnitude = (h & 0x7fffu) << 13;
    const F scaled = F(magnitude) * set1(0x1p112f);
    return F(U(scaled) | ((h & 0x8000u) << 16));
  }
  static F load(const BF16* p) { return F(load_u16(p) << 16); }
  static void store(float* p, F x) { std::memcpy(p, &x, sizeof(x)); }
  static void store(F16* p, F x) {
    for (int i = 0; i < kN; ++i) p[i].bits = f32_to_f16(x[i]);
  }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F max(F a, F b) { return select(a > b, a, b); }
  static F abs(F a) { return F(U(a) & 0x7fffffffu); }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F fused(F a, F b, F c) {  // rounded once on every ISA
    F out;
    for (int i = 0; i < kN; ++i) out[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return out;
  }
  static F round(F a) {
    const F magic = set1(12582912.0f);  // 1.5 * 2^23: the sum has no fraction bits left
    return (a + magic) - magic;
  }
  static F scale2(F a, F n) { return a * F((__builtin_convertvector(n, I) + 127) << 23); }
  static F if_less(F x, F y, F then, F otherwise) { return select(x < y, then, otherwise); }
  static F keep(F x, int lo, int hi, F fill) {
    const I lane = {0, 1, 2, 3};
    const I inside = (lane >= lo) & (lane < hi);
    return select(inside, x, fill);
  }
  static float reduce_max(F x) {
    const float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
  }
  static float reduce_add(F x) { return (x[0] + x[2]) + (x[1] + x[3]); }

  typedef int16_t S __attribute__((vector_size(16)));
  typedef uint16_t US __attribute__((vector_size(16)));
  typedef int8_t B8 __attribute__((vector_size(8)));
  typedef uint8_t UB8 __attribute__((vector_size(8)));
  // Integers: kN lanes of 32 bits, or 2 * kN of 16.
  static I izero() { return I{}; }
  static I iset1(int32_t x) { return I{x, x, x, x}; }
  static I iload(const void* p) { return read<I>(p); }
  static I load_s8_wide16(const void* p) { return I(__builtin_convertvector(read<B8>(p), S)); }
  static I load_u8_wide16(const void* p) { return I(__builtin_convertvector(read<UB8>(p), US)); }
  static I bit_and(I a, I b) { return a & b; }
  static I bit_or(I a, I b) { return a | b; }
  static I bit_xor(I a, I b) { return a ^ b; }
  static I sub16(I a, I b) { return I(S(a) - S(b)); }
  template <int n>
  static I shift_left32(I a) {
    return a << n;
  }
  static I shift_right32(I a, int n) { return I(U(a) >> uint32_t(n)); }
  static I shift_right_lanes(I a, int first) {  // lane i by first + i
    const U lane = {0, 1, 2, 3};
    return I(U(a) >> (lane + uint32_t(first)));
  }
  // Sums of a.lo * b.lo + a.hi * b.hi over the 16-bit halves of each lane.
  using Dot = I;
  static Dot dot_zero() { return I{}; }
  static Dot dot16(Dot acc, I a, I b) { return acc + low(a) * low(b) + (a >> 16) * (b >> 16); }
  static I dot_sum(Dot acc) { return acc; }
  // (a * b + 2^14) >> 15 of each 16-bit half.
  static I mul_round15(I a, I b) {
    const I lo = (low(a) * low(b) + 0x4000) >> 15, hi = ((a >> 16) * (b >> 16) + 0x4000) >> 15;
    return (lo & 0xffff) | (hi << 16);
  }
  static void istore(void* p, I x) { std::memcpy(p, &x, sizeof(x)); }
  // kN values to the nearest int16, ties to even.
  static void store_s16(int16_t* p, F x) {
    const I whole = __builtin_convertvector(round(x), I);
    for (int i = 0; i < kN; ++i) p[i] = int16_t(whole[i]);
  }
  static F to_float(I a) { return __builtin_convertvector(a, F); }

  static I iadd(I a, I b) { return I(U(a) + U(b)); }
  template <int n>
  static I shift_right(I a) {
    return I(U(a) >> n);
  }
  static I to_int(F x) { return __builtin_convertvector(round(x), I); }
  static int32_t reduce_iadd(I x) {
    return int32_t(uint32_t(x[0]) + uint32_t(x[1]) + uint32_t(x[2]) + uint32_t(x[3]));
  }
  static void store_u8(uint8_t* p, I x) {
    for (int i = 0; i < kN; ++i) p[i] = uint8_t(x[i]);
  }
  static void store_u16(uint16_t* p, I x) {
    for (int i = 0; i < kN; ++i) p[i] = uint16_t(x[i]);
  }

  static constexpr int kLevelBias = 0;
  struct Table {
    int8_t level[16];
  };
  static Table load_table(const int8_t* levels) { return read<Table>(levels); }
  static I lookup(const Table& table, I codes) {
    uint8_t bytes[16];
    std::memcpy(bytes, &codes, sizeof(bytes));
    for (uint8_t& b : bytes) b = uint8_t(table.level[b & 15]);
    return read<I>(bytes);
  }
  static I select_bits(uint8_t mask, I a, I b) {
    const I m = iset1(mask * 0x01010101);
    return (a & m) | (b & ~m);
  }
  // Products of bytes fit 16 bits, and so does a pair of them: 2 * 127 * 127 < 32768.
  static I dot8(I acc, I levels, I words) {
    const S even = (S(levels) << 8 >> 8) * (S(words) << 8 >> 8), odd = (S(levels) >> 8) * (S(words) >> 8);
    const I pairs = I(even + odd);
    return acc + low(pairs) + (pairs >> 16);
  }
  static constexpr int kWeightBias = 127;
  static I dot_weights(I acc, I levels, I words) { return dot8(acc, levels, words); }
  static Table load_signed_table(const int8_t* levels) { return load_table(levels); }

  struct WideTable {
    int16_t level[16];
  };
  static WideTable load_wide_table(const int16_t* levels) { return read<WideTable>(levels); }
  static void lookup_wide(const WideTable& table, I codes, I& even, I& odd) {
    const US index = US(codes) & 0x0f0f;
    US low, high;
    for (int i = 0; i < 2 * kN; ++i) {
      low[i] = uint16_t(table.level[index[i] & 15]);
      high[i] = uint16_t(table.level[index[i] >> 8]);
    }
    even = I(low), odd = I(high);
  }
  template <int bit>
  static I by_bit(I bits, I off, I on) {
    const I set = (bits >> bit & iset1(0x01010101)) * 255;
    return (on & set) | (off & ~set);
  }
  static I join_bytes(I even, I odd) { return I((US(even) & 0xff) | (US(odd) << 8)); }

  static F sqrt(F a) {
    for (int i = 0; i < kN; ++i) a[i] = __builtin_sqrtf(a[i]);
    return a;
  }
  static I count_less(I count, F x, F y) { return count - I(x < y); }
  static F lookup16(const float* table, I index) {
    return F{table[index[0]], table[index[1]], table[index[2]], table[index[3]]};
  }
  static F flip(F x, F signs) { return F(U(x) ^ U(signs)); }
  template <int kDistance>
  static F butterfly(F x) {
    static_assert(kDistance == 1 || kDistance == 2);
    const F other = kDistance == 1 ? F{x[1], x[0], x[3], x[2]} : F{x[2], x[3], x[0], x[1]};
    const F upper = kDistance == 1 ? F{0, -0.0f, 0, -0.0f} : F{0, 0, -0.0f, -0.0f};
    return other + flip(x, upper);
  }

 private:
  static I low(I a) { return (a << 16) >> 16; }
  template <typename T>
  static T read(const void* p) {
    T x;
    std::memcpy(&x, p, sizeof(x));
    return x;
  }
  static F select(I mask, F yes, F no) { return F((I(yes) & mask) | (I(no) & ~mask)); }
  static U load_u16(const void* p) {
    H h;
    std::memcpy(&h, p, sizeof(h));
    return __builtin_convertvector(h, U);
  }
};

}  // namespace kvasir::cpu::generic
