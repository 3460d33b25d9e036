// IEEE binary16 and bfloat16 by arithmetic on doubles: round to nearest, ties to even.
#pragma once
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvasir::verify::reference {

// Nearest value with `digits` significand bits (the hidden one counted), smallest normal exponent `lowest`.
inline double round_to(double x, int digits, int lowest) {
  if (x == 0 || !std::isfinite(x)) return x;
  const int exponent = std::ilogb(x) < lowest ? lowest : std::ilogb(x);
  const double quantum = std::ldexp(1.0, exponent - digits + 1);
  return std::nearbyint(x / quantum) * quantum;
}

// Distance between neighbours at x.
inline double f16_step(double x) {
  const int exponent = x == 0 ? -14 : std::ilogb(x);
  return std::ldexp(1.0, (exponent < -14 ? -14 : exponent) - 10);
}

inline double round_f16(double x) {
  const double y = round_to(x, 11, -14);
  return std::fabs(y) > 65504.0 ? std::copysign(std::numeric_limits<double>::infinity(), x) : y;
}

inline double from_f16(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double sign = h >> 15 ? -1.0 : 1.0;
  if (exponent == 31) return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

inline uint16_t to_f16(double x) {
  const uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  if (std::isnan(x)) return uint16_t(sign | 0x7e00);
  const double y = std::fabs(round_f16(x));
  if (std::isinf(y)) return uint16_t(sign | 0x7c00);
  if (y < std::ldexp(1.0, -14)) return uint16_t(sign | int(std::ldexp(y, 24)));
  const int exponent = std::ilogb(y);
  return uint16_t(sign | (exponent + 15) << 10 | (int(std::ldexp(y, 10 - exponent)) - 1024));
}

inline double from_bf16(uint16_t b) { return double(std::bit_cast<float>(uint32_t(b) << 16)); }

inline uint16_t to_bf16(double x) {
  if (std::isnan(x)) return 0x7fc0;
  return uint16_t(std::bit_cast<uint32_t>(float(round_to(x, 8, -126))) >> 16);
}

}  // namespace kvasir::verify::reference
