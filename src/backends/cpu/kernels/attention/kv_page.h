// Layout of one 64-token page of a cache: a permutation of the bytes of the types' wire rows, so that
// attention reads it front to back with keys across lanes (scores) or dimensions across lanes (values).
//
// A page holds, for each KV head, a key region of 64 * row_bytes(k) and a value region of 64 * row_bytes(v).
// With t = token in page, d = dimension, T = element:
//   f32 f16 bf16  keys    T [2][head_dim][32]            element (t / 32, d, t % 32)
//                 values  T [head_dim / 32][64][32]      element (d / 32, t, d % 32)
//   32-blocks (q8_0 q5_0 q4_0): planes; block b = d / 32 has n code bytes c (32: one a value; 16: values c
//   and c + 16)
//     codes       keys    [2][head_dim / 32][n / 2][32][2]   byte (t / 32, b, c / 2, t % 32, c % 2)
//                 values  [head_dim / 32][32][n][2]          byte (b, t / 2, c, t % 2)
//     high bits   keys    u32 [2][head_dim / 32][32]     (t / 32, b, t % 32)      q5_0 only
//                 values  u32 [head_dim / 32][64]        (b, t)
//     scales      keys    f16 [2][head_dim / 32][32]     (t / 32, b, t % 32)
//                 values  f16 [head_dim / 32][64]        (b, t)
#pragma once
#include <cstddef>
#include <cstdint>

#include "graph/graph.h"
#include "tensor/dtype.h"

namespace kvasir::cpu {

enum class KvSide : uint8_t { kKey, kValue };

// Regions of a page. Precondition: both types can hold keys / values and head_dim is a multiple of 32.
struct KvPage {
  size_t key_row = 0, value_row = 0;  // wire bytes of a row of head_dim values
  KvPage(DType k, DType v, int head_dim);
  size_t key_bytes() const { return graph::kPageTokens * key_row; }  // one head's key region
  size_t head_bytes() const { return graph::kPageTokens * (key_row + value_row); }
  size_t key_offset(int kv_head) const { return size_t(kv_head) * head_bytes(); }
  size_t value_offset(int kv_head) const { return key_offset(kv_head) + key_bytes(); }
};

// A block type's wire block of 32 values (f16 scale, high bits, codes) and where its planes lie in a region.
struct BlockForm {
  int codes = 0;  // code bytes a block
  int high = 0;   // bytes of high bits a block
  constexpr int bytes() const { return 2 + high + codes; }
  constexpr size_t high_plane(int head_dim) const {
    return size_t(graph::kPageTokens) * (head_dim / 32) * codes;
  }
  constexpr size_t scale_plane(int head_dim) const {
    return size_t(graph::kPageTokens) * (head_dim / 32) * (codes + high);
  }
};
inline constexpr BlockForm kQ8Form{32, 0}, kQ5Form{16, 4}, kQ4Form{16, 0};

// True when this file lays out that type.
bool kv_page_knows(DType type);

// One row in wire form (the bytes of formats::Format::encode) into or out of slot `token` of a region. Exact
// inverses.
void pack_row(DType type, KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region);
void unpack_row(DType type, KvSide side, int head_dim, const std::byte* region, int token, std::byte* wire);

}  // namespace kvasir::cpu
