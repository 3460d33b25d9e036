#include "backends/cpu/kernels/attention/kv_page.h"

#include <cstring>

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

template <typename Move>
void walk(DType type, KvSide side, int head_dim, int token, const Move& move) {
  if (const int size = plain_bytes(type)) return walk_plain(size, side, head_dim, token, move);
  walk_blocks(block_form(type), side, head_dim, token, move);
}

}  // namespace

KvPage::KvPage(DType k, DType v, int head_dim)
    : key_row(formats::require(k).row_bytes(head_dim)), value_row(formats::require(v).row_bytes(head_dim)) {}

bool kv_page_knows(DType type) { return plain_bytes(type) != 0 || block_form(type).codes != 0; }

void pack_row(DType type, KvSide side, int head_dim, const std::byte* wire, int token, std::byte* region) {
  walk(type, side, head_dim, token,
       [&](size_t at, size_t from, size_t bytes) { std::memcpy(region + at, wire + from, bytes); });
}

void unpack_row(DType type, KvSide side, int head_dim, const std::byte* region, int token, std::byte* wire) {
  walk(type, side, head_dim, token,
       [&](size_t at, size_t from, size_t bytes) { std::memcpy(wire + from, region + at, bytes); });
}

}  // namespace kvasir::cpu
