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

struct TcqTable;  // tcq_table.h

enum Role : uint32_t { kWeights = 1, kKeys = 2, kValues = 4 };

// The basis that rows of a KV type live in; transforms and formulas: basis.h.
enum class Basis : uint8_t { kModel, kHeadWide, kBlock32, kBlock128, kSignedBlock128 };

struct Format {
  DType type;
  std::string_view name;  // as users write it: "q4_k"
  uint32_t block;         // values a block
  uint32_t block_bytes;   // bytes a block
  uint32_t roles;         // OR of Role
  // Both take one row of n values in the type's basis (basis.h); takes(n) must hold. encode is deterministic and has no
  // undefined input: a NaN or an infinity in x gives some finite code (callers that must refuse check
  // before); f32, f16 and bf16 store it as it is.
  void (*decode)(const std::byte* blocks, float* out, int64_t n);
  void (*encode)(const float* x, std::byte* blocks, int64_t n);
  // NMSE on unit Gaussian vectors that encode must reach within 2 % (0 for lossless types). For a head-wide
  // type: at head size 256; theory(n) has the others.
  double theory_nmse;
  // encode that minimises the error weighted by importance (n values, from an importance matrix; nullptr: all
  // alike). Types without a search ignore it.
  void (*encode_weighted)(const float* x, const float* importance, std::byte* blocks, int64_t n);

  Basis basis = Basis::kModel;
  // The encoder of whoever published the type, for parity with their bytes; nullptr when there is none. Ours has a
  // better scale.
  void (*encode_published)(const float* x, std::byte* blocks, int64_t n) = nullptr;
  // Bytes a row has once, after its blocks: the scale of a head-wide type. 0 for all others.
  uint32_t row_extra = 0;
  double (*head_theory)(int64_t n) = nullptr;  // head-wide types only
  bool trellis = false;                        // values depend on their neighbours' codes; encoding is a search
  // decode and encode with another table than Kvasir's own, for types whose table is data; nullptr for all others.
  void (*decode_with)(const TcqTable& table, const std::byte* blocks, float* out, int64_t n) = nullptr;
  void (*encode_with)(const TcqTable& table, const float* x, std::byte* blocks, int64_t n) = nullptr;

  // A row is one whole head, of a size that the type lists.
  bool head_wide() const { return row_extra != 0; }
  // As a KV type: rows of a page are kept exact (f16, in the type's basis) until the page is full, then encoded together.
  // Types of one value a block are written as they come.
  bool open_page() const { return block > 1; }
  // May a row have n values?
  bool takes(int64_t n) const {
    if (head_wide()) return n == 64 || n == 128 || n == 256 || n == 512;
    return n > 0 && n % block == 0;
  }
  // Of a row of n values, everything counted.
  double bits_per_value(int64_t n) const { return 8.0 * double(row_bytes(n)) / double(n); }
  // Bytes of a row of n values. Precondition: takes(n).
  size_t row_bytes(int64_t n) const { return size_t(n) / block * block_bytes + row_extra; }
  double theory(int64_t n) const { return head_theory ? head_theory(n) : theory_nmse; }
  bool has_role(Role role) const { return (roles & role) != 0; }
  // With the table where the type has one to replace (nullptr: Kvasir's own).
  void decode_row(const TcqTable* table, const std::byte* blocks, float* out, int64_t n) const {
    table && decode_with ? decode_with(*table, blocks, out, n) : decode(blocks, out, n);
  }
  void encode_row(const TcqTable* table, const float* x, std::byte* blocks, int64_t n) const {
    table && encode_with ? encode_with(*table, x, blocks, n) : encode(x, blocks, n);
  }
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
