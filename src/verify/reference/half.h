// IEEE binary16 and bfloat16 by arithmetic on doubles: round to nearest, ties to even.
#pragma once
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kvasir::verify::reference {

// 2^n of a normal double.
inline double power_of_two(int n) { return std::bit_cast<double>(uint64_t(1023 + n) << 52); }
// n with 2^n <= |x| < 2^(n + 1), for a normal x; -1023 for smaller ones.
inline int exponent_of(double x) { return int(std::bit_cast<uint64_t>(x) >> 52 & 2047) - 1023; }

// Nearest value with `digits` significand bits (the hidden one counted), smallest normal exponent `lowest`.
inline double round_to(double x, int digits, int lowest) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int step = std::max(exponent_of(x), lowest) - digits + 1;
  return std::nearbyint(x * power_of_two(-step)) * power_of_two(step);
}

// Distance between neighbours at x.
inline double f16_step(double x) { return power_of_two(std::max(exponent_of(x), -14) - 10); }

inline double round_f16(double x) {
  const double y = round_to(x, 11, -14);
  return std::fabs(y) > 65504.0 ? std::copysign(std::numeric_limits<double>::infinity(), x) : y;
}

inline double from_f16(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double sign = h >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * mantissa * power_of_two(-24);
  return sign * (1024 + mantissa) * power_of_two(exponent - 25);
}

// n little-endian f16 values.
inline void f16_row(const std::byte* row, int n, double* out) {
  for (int i = 0; i < n; ++i)
    out[i] = from_f16(uint16_t(std::to_integer<int>(row[2 * i]) | std::to_integer<int>(row[2 * i + 1]) << 8));
}

inline uint16_t to_f16(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return uint16_t(sign | 0x7e00);
  const double y = std::fabs(round_f16(x));
  if (std::isinf(y)) return uint16_t(sign | 0x7c00);
  if (y < power_of_two(-14)) return uint16_t(sign | int(y * power_of_two(24)));
  const int exponent = exponent_of(y);
  return uint16_t(sign | (exponent + 15) << 10 | (int(y * power_of_two(10 - exponent)) - 1024));
}

inline double from_bf16(uint16_t b) { return double(std::bit_cast<float>(uint32_t(b) << 16)); }

inline uint16_t to_bf16(double x) {
  if (std::isnan(x)) return 0x7fc0;
  return uint16_t(std::bit_cast<uint32_t>(float(round_to(x, 8, -126))) >> 16);
}

}  // namespace kvasir::verify::reference
