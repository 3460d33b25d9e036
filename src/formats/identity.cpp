#include "formats/identity.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <vector>

#include "base/sha256.h"
#include "formats/basis.h"
#include "formats/head_wide.h"

namespace kvasir::formats {
namespace {

uint64_t splitmix64(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// The digest of floats; every NaN and infinity counts as the same, as their bits may depend on the CPU.
std::string digest(std::span<const float> values) {
  std::vector<std::byte> bytes;
  for (float value : values) {
    const uint32_t bits = std::isfinite(value) ? std::bit_cast<uint32_t>(value) : 0x7fc00000;
    for (int shift = 0; shift < 32; shift += 8) bytes.push_back(std::byte(bits >> shift));
  }
  return sha256_hex(bytes);
}

}  // namespace

Identity identity(const Format& format, Role side, int head_dim) {
  constexpr int kRows = 64;
  const size_t n = size_t(head_dim);
  uint64_t state = 0;
  std::vector<float> values(kRows * n);
  std::vector<std::byte> row(format.row_bytes(head_dim));
  for (size_t r = 0; r < kRows; ++r) {
    for (std::byte& byte : row) byte = std::byte(splitmix64(state));
    format.decode(row.data(), values.data() + r * n, head_dim);
  }
  Identity out;
  out.table = digest(values);
  std::vector<float> ramp(n);
  for (size_t i = 0; i < n; ++i) ramp[i] = float(i % 251) - 100;
  to_basis(format.basis, side, ramp.data(), ramp.data(), head_dim);
  out.basis = digest(ramp);
  if (format.basis == Basis::kHeadWide)
    out.seed = fmt::format("0x{:016x}", kHeadWideSeed + (side == kValues ? 1 : 0));
  return out;
}

}  // namespace kvasir::formats
