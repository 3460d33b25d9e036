#include "backends/cpu/kernels/attention/kv_page.h"

#include <cstring>

#include "backends/cpu/kernels/attention/headwide_tables.h"
#include "formats/format.h"

namespace kvasir::cpu {
namespace {

constexpr int kTokens = graph::kPageTokens;

int plain_bytes(DType type) {
  switch (type) {
    case DType::f32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    default:
      return 0;
  }
}

BlockForm block_form(DType type) {
  switch (type) {
    case DType::q8_0:
      return kQ8Form;
    case DType::q5_0:
      return kQ5Form;
    case DType::q4_0:
      return kQ4Form;
    default:
      return {};
  }
}

// Calls move(offset in region, offset in wire row, bytes) for every piece of the row of `token`.
template <typename Move>
void walk_plain(int size, KvSide side, int head_dim, int token, const Move& move) {
  if (side == KvSide::kKey) {
    const size_t first = size_t(token / 32) * head_dim * 32 + token % 32;
    for (int d = 0; d < head_dim; ++d) move((first + size_t(d) * 32) * size, size_t(d) * size, size_t(size));
  } else {
    for (int d = 0; d < head_dim; d += 32)
      move((size_t(d) * kTokens + size_t(token) * 32) * size, size_t(d) * size, size_t(32) * size);
  }
}

template <typename Move>
void walk_blocks(const BlockForm& form, KvSide side, int head_dim, int token, const Move& move) {
  const int n_blocks = head_dim / 32;
  const size_t high_plane = form.high_plane(head_dim), scale_plane = form.scale_plane(head_dim);
  for (int b = 0; b < n_blocks; ++b) {
    const bool key = side == KvSide::kKey;
    const size_t wire = size_t(b) * form.bytes(), codes = wire + 2 + form.high;
    const size_t slot =
        key ? (size_t(token / 32) * n_blocks + b) * 32 + token % 32 : size_t(b) * kTokens + token;
    move(scale_plane + slot * 2, wire, size_t(2));
    if (form.high) move(high_plane + slot * 4, wire + 2, size_t(4));
    if (key) {
      const size_t first = (slot - token % 32) * form.codes + size_t(token % 32) * 2;
      for (int c = 0; c < form.codes; c += 2) move(first + size_t(c / 2) * 64, codes + c, size_t(2));
    } else {
      const size_t first = (slot - token % 2) * form.codes + token % 2;
      for (int c = 0; c < form.codes; ++c) move(first + size_t(c) * 2, codes + c, size_t(1));
    }
  }
}

// A code's place in a region: first line of its block, its image, its byte of a line.
struct CodePlace {
  size_t block;
  int image, byte;
};

CodePlace code_place(int bits, KvSide side, int head_dim, int token, int d) {
  const size_t n_blocks = size_t(head_dim) / 16, bytes = size_t(64 * bits);
  if (side == KvSide::kKey)
    return {(size_t(token / 32) * n_blocks + size_t(d / 16)) * bytes, d % 16 / 4 * 2 + token % 32 / 16,
            token % 16 * 4 + d % 4};
  return {size_t(d / 32 * 4 + token / 32 * 2 + d % 32 / 16) * bytes, token % 32 / 4, d % 16 * 4 + token % 4};
}

uint8_t field_mask(int bits, int at) { return uint8_t(((1 << bits) - 1) << at); }

void put_bits(std::byte* p, int bits, int at, int value) {
  const auto mask = std::byte(field_mask(bits, at));
  *p = (*p & ~mask) | (std::byte(value << at) & mask);
}

int get_bits(std::byte b, int bits, int at) { return (int(b) >> at) & ((1 << bits) - 1); }

void put_code(int bits, KvSide side, int head_dim, int token, int d, int code, std::byte* region) {
  const CodePlace place = code_place(bits, side, head_dim, token, d);
  const CodeField field = code_field(bits, place.image);
  std::byte* at = region + place.block + place.byte;
  put_bits(at + field.line * 64, field.bits, field.at, code);
  if (field.high_line >= 0) put_bits(at + field.high_line * 64, 1, field.high_at, code >> field.bits);
}

int get_code(int bits, KvSide side, int head_dim, int token, int d, const std::byte* region) {
  const CodePlace place = code_place(bits, side, head_dim, token, d);
  const CodeField field = code_field(bits, place.image);
  const std::byte* at = region + place.block + place.byte;
  int code = get_bits(at[field.line * 64], field.bits, field.at);
  if (field.high_line >= 0) code |= get_bits(at[field.high_line * 64], 1, field.high_at) << field.bits;
  return code;
}

void pack_head_wide(int bits, KvSide side, int head_dim, const std::byte* wire, int token,
                    std::byte* region) {
  for (int d = 0; d < head_dim; ++d) {
    uint32_t word = 0;  // 8 codes are `bits` bytes
    std::memcpy(&word, wire + size_t(d / 8) * size_t(bits), size_t(bits));
    const int code = int(word >> (d % 8 * bits)) & ((1 << bits) - 1);
    put_code(bits, side, head_dim, token, d, code, region);
  }
  std::memcpy(region + head_wide_scales(bits, head_dim) + size_t(token) * 2,
              wire + size_t(head_dim / 8 * bits), 2);
}

void unpack_head_wide(int bits, KvSide side, int head_dim, const std::byte* region, int token,
                      std::byte* wire) {
  for (int first = 0; first < head_dim; first += 8) {
    uint32_t word = 0;
    for (int j = 0; j < 8; ++j)
      word |= uint32_t(get_code(bits, side, head_dim, token, first + j, region)) << (j * bits);
    std::memcpy(wire + size_t(first / 8) * size_t(bits), &word, size_t(bits));
  }
  std::memcpy(wire + size_t(head_dim / 8 * bits),
              region + head_wide_scales(bits, head_dim) + size_t(token) * 2, 2);
}

// A block is a scale, a stream (six bits, then a symbol a value, then two bits) and a byte.
constexpr size_t kTcqBytes = 52, kTcqStream = 49;

void pack_tcq(KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region) {
  for (int b = 0; b < head_dim / 128; ++b, wire += kTcqBytes) {
    std::byte* own = region + tcq_block(head_dim, b);
    std::memcpy(own + size_t(token) * 2, wire, 2);
    const std::byte* stream = wire + 2;
    own[kTcqBefore + size_t(token)] =
        (stream[0] & std::byte(63)) | (stream[kTcqStream - 1] & std::byte(0xc0));
    own[kTcqLast + size_t(token)] = wire[kTcqBytes - 1];
    for (int t = 0; t < 128; ++t) {
      const int at = 6 + 3 * t;
      uint16_t window = std::to_integer<uint16_t>(stream[at / 8]);
      if (at % 8 > 5) window |= uint16_t(std::to_integer<int>(stream[at / 8 + 1]) << 8);
      put_code(3, side, head_dim, token, b * 128 + t, window >> (at % 8) & 7, region);
    }
  }
}

void unpack_tcq(KvSide side, int head_dim, const std::byte* region, int token, std::byte* wire) {
  for (int b = 0; b < head_dim / 128; ++b, wire += kTcqBytes) {
    const std::byte* own = region + tcq_block(head_dim, b);
    std::memcpy(wire, own + size_t(token) * 2, 2);
    std::byte* stream = wire + 2;
    std::memset(stream, 0, kTcqStream);
    stream[0] = own[kTcqBefore + size_t(token)] & std::byte(63);
    stream[kTcqStream - 1] = own[kTcqBefore + size_t(token)] & std::byte(0xc0);
    wire[kTcqBytes - 1] = own[kTcqLast + size_t(token)];
    for (int t = 0; t < 128; ++t) {
      const int at = 6 + 3 * t, bits = get_code(3, side, head_dim, token, b * 128 + t, region) << (at % 8);
      stream[at / 8] |= std::byte(bits & 255);
      if (at % 8 > 5) stream[at / 8 + 1] |= std::byte(bits >> 8);
    }
  }
}

// Codes and symbols lie alike.
int plane_bits(DType type) { return head_wide_bits(type) | trellis_bits(type); }

// First bit of code i in the wire block of a published type.
int code_bit(DType type, int i) {
  switch (type) {
    case DType::tbq3_0:
      return 16 + 3 * i;
    case DType::tbq4_0:
      return 16 + i % 16 * 8 + i / 16 * 4;
    case DType::q4_polar:
      return 16 + 4 * i;
    default:  // qjl1_256
      return i;
  }
}

struct PlanarBlock {
  const PlanarForm form;
  size_t bytes, scale_at, residual_at;  // of a wire block
  explicit PlanarBlock(DType type)
      : form(planar_form(type)),
        bytes(size_t(form.bits * form.dims) / 8 + 2 + size_t(form.residual)),
        scale_at(type == DType::qjl1_256 ? 32 : 0),
        residual_at(bytes - size_t(form.residual)) {}
  size_t scale_plane(KvSide side, int head_dim, int b, int token) const {
    return side == KvSide::kKey ? form.key_scale(head_dim, b, token) : form.value_scale(head_dim, b, token);
  }
};

void pack_planar(DType type, KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region) {
  const PlanarBlock block(type);
  const PlanarForm& form = block.form;
  const int n = form.n_blocks(head_dim), dims = n * form.dims;
  for (int b = 0; b < n; ++b, wire += block.bytes) {
    for (int i = 0; i < form.dims; ++i) {
      const int at = code_bit(type, i), over = at % 8 + form.bits - 8;
      int code = get_bits(wire[at / 8], over > 0 ? form.bits - over : form.bits, at % 8);
      if (over > 0) code |= get_bits(wire[at / 8 + 1], over, 0) << (form.bits - over);
      put_code(form.bits, side, dims, token, b * form.dims + i, code, region);
    }
    std::memcpy(region + block.scale_plane(side, head_dim, b, token), wire + block.scale_at, 2);
    std::memcpy(region + form.residuals(head_dim, token) + size_t(b * form.residual),
                wire + block.residual_at, size_t(form.residual));
  }
}

void unpack_planar(DType type, KvSide side, int head_dim, const std::byte* region, int token,
                   std::byte* wire) {
  const PlanarBlock block(type);
  const PlanarForm& form = block.form;
  const int n = form.n_blocks(head_dim), dims = n * form.dims;
  for (int b = 0; b < n; ++b, wire += block.bytes) {
    for (int i = 0; i < form.dims; ++i) {
      const int at = code_bit(type, i), over = at % 8 + form.bits - 8;
      const int code = get_code(form.bits, side, dims, token, b * form.dims + i, region);
      put_bits(wire + at / 8, over > 0 ? form.bits - over : form.bits, at % 8, code);
      if (over > 0) put_bits(wire + at / 8 + 1, over, 0, code >> (form.bits - over));
    }
    std::memcpy(wire + block.scale_at, region + block.scale_plane(side, head_dim, b, token), 2);
    std::memcpy(wire + block.residual_at,
                region + form.residuals(head_dim, token) + size_t(b * form.residual), size_t(form.residual));
  }
}

template <typename Move>
void walk(DType type, KvSide side, int head_dim, int token, const Move& move) {
  if (const int size = plain_bytes(type)) return walk_plain(size, side, head_dim, token, move);
  walk_blocks(block_form(type), side, head_dim, token, move);
}

}  // namespace

KvPage::KvPage(DType k, DType v, int head_dim)
    : key_row(formats::require(k).row_bytes(head_dim)), value_row(formats::require(v).row_bytes(head_dim)) {}

bool kv_page_knows(DType type) {
  return plain_bytes(type) != 0 || block_form(type).codes != 0 || plane_bits(type) != 0 ||
         type == DType::tbq3_tcq || planar_form(type).bits != 0;
}

void pack_row(DType type, KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region) {
  if (const int bits = plane_bits(type)) return pack_head_wide(bits, side, head_dim, wire, token, region);
  if (type == DType::tbq3_tcq) return pack_tcq(side, head_dim, wire, token, region);
  if (planar_form(type).bits) return pack_planar(type, side, head_dim, wire, token, region);
  walk(type, side, head_dim, token,
       [&](size_t at, size_t from, size_t bytes) { std::memcpy(region + at, wire + from, bytes); });
}

void unpack_row(DType type, KvSide side, int head_dim, const std::byte* region, int token, std::byte* wire) {
  if (const int bits = plane_bits(type)) return unpack_head_wide(bits, side, head_dim, region, token, wire);
  if (type == DType::tbq3_tcq) return unpack_tcq(side, head_dim, region, token, wire);
  if (planar_form(type).bits) return unpack_planar(type, side, head_dim, region, token, wire);
  walk(type, side, head_dim, token,
       [&](size_t at, size_t from, size_t bytes) { std::memcpy(wire + from, region + at, bytes); });
}

}  // namespace kvasir::cpu
