// Storage types as data: one row a type (list.def), one header with its packed block and scalar codec. The
// scalar codec is the truth about bytes; every SIMD or device path is tested against it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "tensor/dtype.h"

namespace kvasir::formats {

enum Role : uint32_t { kWeights = 1, kKeys = 2, kValues = 4 };

struct Format {
  DType type;
  std::string_view name;  // as users write it: "q4_k"
  uint32_t block;         // values a block
  uint32_t block_bytes;   // bytes a block
  uint32_t roles;         // OR of Role
  // Both take n values, n a multiple of `block`. encode is deterministic and has no undefined input: a NaN or
  // an infinity in x gives some finite code (callers that must refuse check before); f32, f16 and bf16 store
  // it as it is.
  void (*decode)(const std::byte* blocks, float* out, int64_t n);
  void (*encode)(const float* x, std::byte* blocks, int64_t n);
  // NMSE on unit Gaussian vectors that encode must reach within 2 % (0 for lossless types).
  double theory_nmse;
  // encode that minimises the error weighted by importance (n values, from an importance matrix; nullptr: all
  // alike). Types without a search ignore it.
  void (*encode_weighted)(const float* x, const float* importance, std::byte* blocks, int64_t n);

  double bits_per_value() const { return 8.0 * block_bytes / block; }
  // Bytes of a row of n values. Precondition: n % block == 0.
  size_t row_bytes(int64_t n) const { return size_t(n) / block * block_bytes; }
  bool has_role(Role role) const { return (roles & role) != 0; }
};

// Every type this build knows, in list.def's order.
std::span<const Format> all();
// nullptr when unknown.
const Format* find(DType type);
const Format* find(std::string_view name);
// Throws Error{kRefused} naming the known types.
const Format& require(DType type);
const Format& require(std::string_view name, Role role);
// Name of a type whose id is Kvasir's own (44-50, 64-69) whether or not this build has it; empty for any
// other id. Public forks write 44-50 for other layouts, so a reader must also ask who wrote the file.
std::string_view own_name(DType type);
// "f32 f16 q8_0 ..." of the types with that role, for messages and help.
std::string names(Role role);

}  // namespace kvasir::formats
