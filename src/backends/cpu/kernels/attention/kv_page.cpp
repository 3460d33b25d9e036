#include "backends/cpu/kernels/attention/kv_page.h"

#include <cstring>
#include <type_traits>

#include "backends/cpu/kernels/attention/attention.h"
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

template <size_t n>
using Bytes = std::integral_constant<size_t, n>;

// Calls move(offset in region, offset in wire row, bytes) for every piece of the row of `token`; `bytes` is a
// constant, so that a piece is moved by one instruction or two.
template <size_t size, typename Move>
void walk_plain(KvSide side, int head_dim, int token, const Move& move) {
  if (side == KvSide::kKey) {
    const size_t first = size_t(token / 32) * head_dim * 32 + token % 32;
    for (int d = 0; d < head_dim; ++d) move((first + size_t(d) * 32) * size, size_t(d) * size, Bytes<size>{});
  } else {
    for (int d = 0; d < head_dim; d += 32)
      move((size_t(d) * kTokens + size_t(token) * 32) * size, size_t(d) * size, Bytes<32 * size>{});
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
    move(scale_plane + slot * 2, wire, Bytes<2>{});
    if (form.high) move(high_plane + slot * 4, wire + 2, Bytes<4>{});
    if (key) {
      const size_t first = (slot - token % 32) * form.codes + size_t(token % 32) * 2;
      for (int c = 0; c < form.codes; c += 2) move(first + size_t(c / 2) * 64, codes + c, Bytes<2>{});
    } else {
      const size_t first = (slot - token % 2) * form.codes + token % 2;
      for (int c = 0; c < form.codes; ++c) move(first + size_t(c) * 2, codes + c, Bytes<1>{});
    }
  }
}

constexpr int kMostCodes = 2 * kMaxHeadDim;  // of a row: signs of qjl1_256

constexpr uint32_t in_every_byte(int value) { return uint32_t(value) * 0x01010101u; }

// Four bytes in a row as one word, whatever the byte order: shifts never cross bytes that a mask keeps.
uint32_t load_four(const std::byte* p) {
  uint32_t word;
  std::memcpy(&word, p, sizeof word);
  return word;
}

// How the codes of a row lie: as of head-wide types, or as of trellis types.
enum class Order { kPlain, kStriped };

// Calls piece(first dimension, first line of the block, image, byte of a line): of keys in plain order four
// dimensions in a row, whose codes lie in four bytes in a row; else one.
template <typename Piece>
void walk_codes(int bits, KvSide side, Order order, int dims, int token, const Piece& piece) {
  const size_t n_blocks = size_t(dims) / 16, bytes = size_t(64 * bits);
  if (order == Order::kStriped) {
    const int stripes = trellis_stripes(side), run = dims / stripes;
    for (int d = 0, stripe = 0; stripe < stripes; ++stripe)
      for (int step = 0; step < run; ++step, ++d) {
        const SymbolPlace at = trellis_place(side, dims, token, step * stripes + stripe);
        piece(d, size_t(at.block) * bytes, at.image, at.byte);
      }
  } else if (side == KvSide::kKey) {
    for (int d = 0; d < dims; d += 4)
      piece(d, (size_t(token / 32) * n_blocks + size_t(d / 16)) * bytes, d % 16 / 4 * 2 + token % 32 / 16,
            token % 16 * 4);
  } else {
    for (int d = 0; d < dims; ++d)
      piece(d, size_t(d / 32 * 4 + token / 32 * 2 + d % 32 / 16) * bytes, token % 32 / 4,
            d % 16 * 4 + token % 4);
  }
}

template <int bits>
void get_codes(KvSide side, Order order, int dims, const std::byte* region, int token, uint8_t* codes) {
  if (side == KvSide::kKey && order == Order::kPlain)
    return walk_codes(bits, side, order, dims, token, [&](int d, size_t block, int image, int byte) {
      const CodeField field = code_field(bits, image);
      const std::byte* at = region + block + byte;
      uint32_t four = load_four(at + field.line * 64) >> field.at & in_every_byte((1 << field.bits) - 1);
      if (field.high_line >= 0)
        four |= (load_four(at + field.high_line * 64) >> field.high_at & in_every_byte(1)) << field.bits;
      std::memcpy(codes + d, &four, sizeof four);
    });
  walk_codes(bits, side, order, dims, token, [&](int d, size_t block, int image, int byte) {
    const CodeField field = code_field(bits, image);
    const uint8_t* at = reinterpret_cast<const uint8_t*>(region + block + byte);
    int code = at[field.line * 64] >> field.at & ((1 << field.bits) - 1);
    if (field.high_line >= 0) code |= (at[field.high_line * 64] >> field.high_at & 1) << field.bits;
    codes[d] = uint8_t(code);
  });
}

template <typename T>
void put_field(std::byte* p, T mask, T value) {
  T word;
  std::memcpy(&word, p, sizeof word);
  word = T((word & ~mask) | (value & mask));
  std::memcpy(p, &word, sizeof word);
}

template <int bits>
void put_codes(KvSide side, Order order, int dims, const uint8_t* codes, int token, std::byte* region) {
  if (side == KvSide::kKey && order == Order::kPlain)
    return walk_codes(bits, side, order, dims, token, [&](int d, size_t block, int image, int byte) {
      const CodeField field = code_field(bits, image);
      std::byte* at = region + block + byte;
      uint32_t four;
      std::memcpy(&four, codes + d, sizeof four);
      put_field(at + field.line * 64, in_every_byte((1 << field.bits) - 1) << field.at, four << field.at);
      if (field.high_line >= 0)
        put_field(at + field.high_line * 64, in_every_byte(1) << field.high_at,
                  (four >> field.bits) << field.high_at);
    });
  walk_codes(bits, side, order, dims, token, [&](int d, size_t block, int image, int byte) {
    const CodeField field = code_field(bits, image);
    std::byte* at = region + block + byte;
    put_field(at + field.line * 64, uint8_t(((1 << field.bits) - 1) << field.at),
              uint8_t(codes[d] << field.at));
    if (field.high_line >= 0)
      put_field(at + field.high_line * 64, uint8_t(1 << field.high_at),
                uint8_t(codes[d] >> field.bits << field.high_at));
  });
}

// Codes of `bits` bits each, least significant bit first, without gaps; n a multiple of 8.
template <int bits>
void get_stream(const std::byte* stream, int n, uint8_t* codes) {
  for (int i = 0; i < n; i += 8) {
    uint32_t word = 0;
    std::memcpy(&word, stream + i / 8 * bits, bits);
    for (int j = 0; j < 8; ++j) codes[i + j] = uint8_t(word >> (j * bits) & ((1 << bits) - 1));
  }
}
template <int bits>
void put_stream(const uint8_t* codes, int n, std::byte* stream) {
  for (int i = 0; i < n; i += 8) {
    uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= uint32_t(codes[i + j]) << (j * bits);
    std::memcpy(stream + i / 8 * bits, &word, bits);
  }
}

// call(integral constant) with the bits of a code.
template <typename Call>
void with_bits(int bits, const Call& call) {
  switch (bits) {
    case 1:
      return call(std::integral_constant<int, 1>{});
    case 2:
      return call(std::integral_constant<int, 2>{});
    case 3:
      return call(std::integral_constant<int, 3>{});
    case 4:
      return call(std::integral_constant<int, 4>{});
  }
}

void pack_head_wide(int bits, Order order, KvSide side, int head_dim, const std::byte* wire, int token,
                    std::byte* region) {
  with_bits(bits, [&](auto b) {
    uint8_t codes[kMostCodes];
    get_stream<b>(wire, head_dim, codes);
    put_codes<b>(side, order, head_dim, codes, token, region);
  });
  std::memcpy(region + head_wide_scales(bits, head_dim) + size_t(token) * 2,
              wire + size_t(head_dim / 8 * bits), 2);
}

void unpack_head_wide(int bits, Order order, KvSide side, int head_dim, const std::byte* region, int token,
                      std::byte* wire) {
  with_bits(bits, [&](auto b) {
    uint8_t codes[kMostCodes];
    get_codes<b>(side, order, head_dim, region, token, codes);
    put_stream<b>(codes, head_dim, wire);
  });
  std::memcpy(wire + size_t(head_dim / 8 * bits),
              region + head_wide_scales(bits, head_dim) + size_t(token) * 2, 2);
}

// A block is a scale, a stream (six bits, then a symbol a value, then two bits) and a byte.
constexpr size_t kTcqBytes = 52, kTcqStream = 49;

void pack_tcq(KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region) {
  uint8_t codes[kMostCodes];
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
      codes[b * 128 + t] = uint8_t(window >> (at % 8) & 7);
    }
  }
  put_codes<3>(side, Order::kPlain, head_dim, codes, token, region);
}

void unpack_tcq(KvSide side, int head_dim, const std::byte* region, int token, std::byte* wire) {
  uint8_t codes[kMostCodes];
  get_codes<3>(side, Order::kPlain, head_dim, region, token, codes);
  for (int b = 0; b < head_dim / 128; ++b, wire += kTcqBytes) {
    const std::byte* own = region + tcq_block(head_dim, b);
    std::memcpy(wire, own + size_t(token) * 2, 2);
    std::byte* stream = wire + 2;
    std::memset(stream, 0, kTcqStream);
    stream[0] = own[kTcqBefore + size_t(token)] & std::byte(63);
    stream[kTcqStream - 1] = own[kTcqBefore + size_t(token)] & std::byte(0xc0);
    wire[kTcqBytes - 1] = own[kTcqLast + size_t(token)];
    for (int t = 0; t < 128; ++t) {
      const int at = 6 + 3 * t, bits = codes[b * 128 + t] << (at % 8);
      stream[at / 8] |= std::byte(bits & 255);
      if (at % 8 > 5) stream[at / 8 + 1] |= std::byte(bits >> 8);
    }
  }
}

int plane_bits(DType type) { return head_wide_bits(type) | trellis_bits(type); }
Order order_of(DType type) { return trellis_bits(type) ? Order::kStriped : Order::kPlain; }

struct PlanarBlock {
  const PlanarForm form;
  size_t bytes, scale_at, codes_at, residual_at;  // of a wire block
  bool halves;  // byte j holds codes j (low) and j + dims / 2; otherwise codes follow each other
  explicit PlanarBlock(DType type)
      : form(planar_form(type)),
        bytes(size_t(form.bits * form.dims) / 8 + 2 + size_t(form.residual)),
        scale_at(type == DType::qjl1_256 ? 32 : 0),
        codes_at(type == DType::qjl1_256 ? 0 : 2),
        residual_at(bytes - size_t(form.residual)),
        halves(type == DType::tbq4_0) {}
  // The place of code i among codes that follow each other.
  int place(int i) const { return halves ? i % (form.dims / 2) * 2 + i / (form.dims / 2) : i; }
  size_t scale_plane(KvSide side, int head_dim, int b, int token) const {
    return side == KvSide::kKey ? form.key_scale(head_dim, b, token) : form.value_scale(head_dim, b, token);
  }
};

void pack_planar(DType type, KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region) {
  const PlanarBlock block(type);
  const PlanarForm& form = block.form;
  const int n = form.n_blocks(head_dim), dims = n * form.dims;
  uint8_t codes[kMostCodes]{}, stream[kMaxHeadDim]{};
  with_bits(form.bits, [&](auto bits) {
    for (int b = 0; b < n; ++b) {
      get_stream<bits>(wire + size_t(b) * block.bytes + block.codes_at, form.dims, stream);
      for (int i = 0; i < form.dims; ++i) codes[b * form.dims + i] = stream[block.place(i)];
    }
    put_codes<bits>(side, Order::kPlain, dims, codes, token, region);
  });
  for (int b = 0; b < n; ++b, wire += block.bytes) {
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
  uint8_t codes[kMostCodes], stream[kMaxHeadDim];
  with_bits(form.bits, [&](auto bits) {
    get_codes<bits>(side, Order::kPlain, dims, region, token, codes);
    for (int b = 0; b < n; ++b) {
      for (int i = 0; i < form.dims; ++i) stream[block.place(i)] = codes[b * form.dims + i];
      put_stream<bits>(stream, form.dims, wire + size_t(b) * block.bytes + block.codes_at);
    }
  });
  for (int b = 0; b < n; ++b, wire += block.bytes) {
    std::memcpy(wire + block.scale_at, region + block.scale_plane(side, head_dim, b, token), 2);
    std::memcpy(wire + block.residual_at,
                region + form.residuals(head_dim, token) + size_t(b * form.residual), size_t(form.residual));
  }
}

template <typename Move>
void walk(DType type, KvSide side, int head_dim, int token, const Move& move) {
  switch (plain_bytes(type)) {
    case 4:
      return walk_plain<4>(side, head_dim, token, move);
    case 2:
      return walk_plain<2>(side, head_dim, token, move);
  }
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
  if (const int bits = plane_bits(type))
    return pack_head_wide(bits, order_of(type), side, head_dim, wire, token, region);
  if (type == DType::tbq3_tcq) return pack_tcq(side, head_dim, wire, token, region);
  if (planar_form(type).bits) return pack_planar(type, side, head_dim, wire, token, region);
  walk(type, side, head_dim, token,
       [&](size_t at, size_t from, auto bytes) { std::memcpy(region + at, wire + from, bytes); });
}

void unpack_row(DType type, KvSide side, int head_dim, const std::byte* region, int token, std::byte* wire) {
  if (const int bits = plane_bits(type))
    return unpack_head_wide(bits, order_of(type), side, head_dim, region, token, wire);
  if (type == DType::tbq3_tcq) return unpack_tcq(side, head_dim, region, token, wire);
  if (planar_form(type).bits) return unpack_planar(type, side, head_dim, region, token, wire);
  walk(type, side, head_dim, token,
       [&](size_t at, size_t from, auto bytes) { std::memcpy(wire + from, region + at, bytes); });
}

}  // namespace kvasir::cpu
