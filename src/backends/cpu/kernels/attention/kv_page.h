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
//   head-wide types (tbq2_h tbq3_h tbq4_h, b bits a code): blocks of 512 codes in 64 b bytes, then the scales
//     codes       keys    [2][head_dim / 16] blocks      (t / 32, d / 16): 32 t x 16 d
//                 values  [head_dim / 32][2][2] blocks   (d / 32, t / 32, d % 32 / 16): 16 d x 32 t
//     scales      f16 [64]                               (t)
//   A block is b lines of 64 bytes that spread into 8 images of 64 codes, one a byte; an image is a vector of
//   16 lanes of four bytes, the operand of a four-way int8 dot product:
//     keys        image z, byte i is key 16 (z % 2) + i / 4, dimension 4 (z / 2) + i % 4
//     values      image z, byte i is dimension i / 4, token 4 z + i % 4
//   Byte i of line l holds byte i of several images:
//     4 bits      2l (bits 0-3) and 2l + 1 (bits 4-7)
//     3 bits      2l (bits 0-2) and 2l + 1 (bits 3-5); images 6 and 7 have their low bits in bits 6-7 of
//                 lines 0 and 1, their high bits in bits 6 and 7 of line 2
//     2 bits      4l .. 4l + 3 (bits 0-1, 2-3, 4-5, 6-7)
//   So one shift brings a code to the low bits of its byte and a table lookup ignores what is above; only a
//   quarter of the 3-bit codes take two shifts and a select, which separate planes would need for all.
//   trellis types (tbq2_ht tbq3_ht tbq4_ht): as head-wide types in size, lines and scales, but a row is cut
//   into stripes of equal runs, 4 of a key and 16 of a value, and dimension d has its symbol at step d % run
//   of stripe d / run. Steps are images one behind the other, so that the symbols before those of a vector
//   are another vector, and two (2 bits: four) steps share a byte:
//     keys        byte i of image step % 8 of block [t / 32][step / 8][t % 32 / 16]: key i / 4, stripe i % 4
//     values      byte i of image t / 4 % 2 * 4 + step % 4 of block [step / 4][t / 8]: stripe i / 4, token i
//     % 4
//   tbq3_tcq: symbols as those of tbq3_ht, then for each block of 128 dimensions 256 bytes:
//     scales      f16 [64]                               (t)
//     before      u8 [64]: bits 0-5: the two symbols before the first of a row; bits 6-7: its stream's last
//     two last        u8 [64]: a row's last byte
//   tbq3_0 tbq4_0 q4_polar qjl1_256 (PlanarForm): codes as head-wide types of as many bits, of qjl1_256 the 2
//   head_dim signs of a row (1 bit: image z in bit z), then, of n blocks of one scale each,
//     scales      keys    f16 (qjl1_256: bf16) [2][n][32]    (t / 32, b, t % 32)
//                 values  f16 [n][64]                        (b, t)
//     residual    u8 [64][n][16]                             q4_polar only
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

// A published type's wire block of one scale and where its parts lie in a region.
struct PlanarForm {
  int bits = 0;      // a code
  int values = 0;    // a block
  int dims = 0;      // codes a block: of qjl1_256, 256 signs for 128 values
  int residual = 0;  // bytes a block
  constexpr int n_blocks(int head_dim) const { return head_dim / values; }
  constexpr size_t code_bytes(int head_dim) const {
    return size_t(graph::kPageTokens) * size_t(n_blocks(head_dim) * dims) / 8 * size_t(bits);
  }
  // Of the two-byte scales.
  constexpr size_t key_scale(int head_dim, int b, int t) const {
    return code_bytes(head_dim) + (size_t(t / 32) * n_blocks(head_dim) + b) * 64 + size_t(t % 32) * 2;
  }
  constexpr size_t value_scale(int head_dim, int b, int t) const {
    return code_bytes(head_dim) + (size_t(b) * graph::kPageTokens + t) * 2;
  }
  constexpr size_t residuals(int head_dim, int t) const {
    const size_t n = size_t(n_blocks(head_dim));
    return code_bytes(head_dim) + graph::kPageTokens * 2 * n + size_t(t) * n * size_t(residual);
  }
};
constexpr PlanarForm planar_form(DType type) {
  switch (type) {
    case DType::tbq3_0:
      return {3, 32, 32, 0};
    case DType::tbq4_0:
      return {4, 32, 32, 0};
    case DType::q4_polar:
      return {4, 128, 128, 16};
    case DType::qjl1_256:
      return {1, 128, 256, 0};
    default:
      return {};
  }
}

// Where a code of a block of a head-wide type lies: `bits` bits of it at bit `at` of line `line`, and, when
// high_line >= 0, the bit above them at bit high_at of line high_line.
struct CodeField {
  int line, at, bits, high_line, high_at;
};
constexpr CodeField code_field(int code_bits, int image) {
  if (code_bits == 4) return {image / 2, image % 2 * 4, 4, -1, 0};
  if (code_bits == 2) return {image / 4, image % 4 * 2, 2, -1, 0};
  if (code_bits == 1) return {0, image, 1, -1, 0};
  if (image < 6) return {image / 2, image % 2 * 3, 3, -1, 0};
  return {image - 6, 6, 2, 2, image};
}
constexpr size_t head_wide_scales(int code_bits, int head_dim) {  // offset of the scales in a region
  return size_t(graph::kPageTokens) * size_t(head_dim) / 8 * size_t(code_bits);
}

// Stripes of a row of a trellis type, and the place of dimension d among its steps: run by run, stripe by
// stripe.
constexpr int trellis_stripes(KvSide side) { return side == KvSide::kKey ? 4 : 16; }
constexpr int trellis_step(KvSide side, int head_dim, int d) {
  const int stripes = trellis_stripes(side), run = head_dim / stripes;
  return d % run * stripes + d / run;
}
// Where a trellis type has the symbol of token t at such a place.
struct SymbolPlace {
  int block, image, byte;
};
constexpr SymbolPlace trellis_place(KvSide side, int head_dim, int t, int place) {
  if (side == KvSide::kKey) {
    const int step = place / 4;
    return {t / 32 * (head_dim / 16) + step / 8 * 2 + t % 32 / 16, step % 8, t % 16 * 4 + place % 4};
  }
  const int step = place / 16;
  return {step / 4 * 8 + t / 8, t / 4 % 2 * 4 + step % 4, place % 16 * 4 + t % 4};
}

// Of tbq3_tcq: offset in a region of the 256 bytes of block b, and where in them its bytes `before` and
// `last` are.
constexpr size_t tcq_block(int head_dim, int b) { return head_wide_scales(3, head_dim) + size_t(b) * 256; }
inline constexpr size_t kTcqBefore = 128, kTcqLast = 192;

// True when this file lays out that type.
bool kv_page_knows(DType type);

// One row in wire form (the bytes of formats::Format::encode) into or out of slot `token` of a region. Exact
// inverses.
void pack_row(DType type, KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region);
void unpack_row(DType type, KvSide side, int head_dim, const std::byte* region, int token, std::byte* wire);

}  // namespace kvasir::cpu
