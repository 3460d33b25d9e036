#include "formats/format.h"

#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "base/error.h"
#include "base/wide.h"
#include "formats/rounding.h"

#define KVASIR_FORMAT_INCLUDES
#include "formats/list.def"
#undef KVASIR_FORMAT_INCLUDES

namespace kvasir::formats {
namespace {

// Blocks of one value are plain IEEE types: what they store is the value itself, so nothing is tamed.
template <typename Block>
constexpr bool kPlain = Block::kValues == 1;

// Blocks are copied in and out: rows have no alignment promise.
template <typename Block>
void decode_row(const std::byte* blocks, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += Block::kValues, blocks += sizeof(Block)) {
    Block block;
    std::memcpy(&block, blocks, sizeof(Block));
    decode_block(block, out + i);
  }
}

template <>
void decode_row<BlockF32>(const std::byte* blocks, float* out, int64_t n) {
  std::memcpy(out, blocks, size_t(n) * sizeof(float));
}

// As f16_to_f32, without its branches: an exponent of 5 bits read as one of 8 is off by 112; infinities and
// NaN keep their mantissa.
KVASIR_WIDE void decode_f16_row(const std::byte* blocks, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    uint16_t half;
    std::memcpy(&half, blocks + 2 * i, sizeof half);
    const uint32_t magnitude = uint32_t(half & 0x7fff) << 13;
    const uint32_t value = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
    out[i] = std::bit_cast<float>(value | (magnitude >= 0x0f800000u ? 0x7f800000u : 0u) |
                                  uint32_t(half & 0x8000) << 16);
  }
}
template <>
void decode_row<BlockF16>(const std::byte* blocks, float* out, int64_t n) {
  decode_f16_row(blocks, out, n);
}

template <typename Block>
void encode_weighted_row(const float* x, const float* importance, std::byte* blocks, int64_t n) {
  for (int64_t i = 0; i < n; i += Block::kValues, blocks += sizeof(Block)) {
    Block block{};
    if constexpr (kPlain<Block>) {
      encode_block(x + i, nullptr, block);
    } else {
      float tamed[Block::kValues];
      for (int j = 0; j < Block::kValues; ++j) tamed[j] = tame(x[i + j]);
      encode_block(tamed, importance ? importance + i : nullptr, block);
    }
    std::memcpy(blocks, &block, sizeof(Block));
  }
}

template <typename Block>
void encode_row(const float* x, std::byte* blocks, int64_t n) {
  encode_weighted_row<Block>(x, nullptr, blocks, n);
}

template <typename Block>
constexpr bool kPublished = requires(const float* x, Block& block) {
  encode_published(x, block);
};

template <typename Block>
void encode_published_row(const float* x, std::byte* blocks, int64_t n) {
  for (int64_t i = 0; i < n; i += Block::kValues, blocks += sizeof(Block)) {
    Block block{};
    encode_published(x + i, block);
    std::memcpy(blocks, &block, sizeof(Block));
  }
}

// The table is data.
template <typename Block>
constexpr bool kHasTable = requires {
  Block::kTcqTable;
};

void decode_tcq_row(const TcqTable& table, const std::byte* blocks, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 128, blocks += sizeof(BlockTbq3Tcq)) {
    BlockTbq3Tcq block;
    std::memcpy(&block, blocks, sizeof block);
    decode_tcq(table, block, out + i);
  }
}

void encode_tcq_row(const TcqTable& table, const float* x, std::byte* blocks, int64_t n) {
  for (int64_t i = 0; i < n; i += 128, blocks += sizeof(BlockTbq3Tcq)) {
    float tamed[128];
    for (int j = 0; j < 128; ++j) tamed[j] = tame(x[i + j]);
    BlockTbq3Tcq block;
    encode_tcq(table, tamed, block);
    std::memcpy(blocks, &block, sizeof block);
  }
}

// A row of a head-wide type is one head: a scale follows its blocks.
template <typename Block>
constexpr bool kHeadWide = requires {
  Block::kBits;
};

template <typename Block>
void encode_head_weighted(const float* x, const float* /*importance*/, std::byte* row, int64_t n) {
  encode_head_tamed<Block::kBits>(x, int(n), row);
}

template <typename Block>
constexpr bool kTrellis = requires {
  Block::kTrellisBits;
};

template <typename Block>
constexpr Format make_format(DType type, std::string_view name, uint32_t roles, double theory) {
  Format format{};
  format.type = type;
  format.name = name;
  format.block = Block::kValues;
  format.block_bytes = sizeof(Block);
  format.roles = roles;
  format.theory_nmse = theory;
  if constexpr (requires { Block::kBasis; }) format.basis = Block::kBasis;
  if constexpr (kPublished<Block>) format.encode_published = encode_published_row<Block>;
  if constexpr (kHasTable<Block>) {
    format.trellis = true;
    format.decode_with = decode_tcq_row;
    format.encode_with = encode_tcq_row;
  }
  if constexpr (kHeadWide<Block>) {
    format.decode = [](const std::byte* row, float* out, int64_t n) {
      decode_head<Block::kBits>(row, int(n), out);
    };
    format.encode = [](const float* x, std::byte* row, int64_t n) {
      encode_head_tamed<Block::kBits>(x, int(n), row);
    };
    format.encode_weighted = encode_head_weighted<Block>;
    format.row_extra = kHeadScaleBytes;
    format.head_theory = [](int64_t n) { return head_codebook<Block::kBits>(int(n)).nmse; };
  } else if constexpr (kTrellis<Block>) {
    format.trellis = true;
    format.decode = [](const std::byte* row, float* out, int64_t n) {
      decode_trellis<Block::kTrellisBits>(row, int(n), out);
    };
    format.encode = [](const float* x, std::byte* row, int64_t n) {
      encode_trellis_tamed<Block::kTrellisBits>(x, int(n), row);
    };
    format.encode_weighted = [](const float* x, const float*, std::byte* row, int64_t n) {
      encode_trellis_tamed<Block::kTrellisBits>(x, int(n), row);
    };
    format.head_theory = [](int64_t n) {
      return trellis_table<Block::kTrellisBits>().nmse[n <= 64 ? 0 : n <= 128 ? 1 : n <= 256 ? 2 : 3];
    };
    format.row_extra = kHeadScaleBytes;
  } else {
    format.decode = decode_row<Block>;
    format.encode = encode_row<Block>;
    format.encode_weighted = encode_weighted_row<Block>;
  }
  return format;
}

constexpr Format kFormats[] = {
#define KVASIR_FORMAT(name, Block, roles, theory) make_format<Block>(DType::name, #name, roles, theory),
#include "formats/list.def"
#undef KVASIR_FORMAT
};

struct KnownId {
  uint32_t id;
  std::string_view name;
};

// GGUF type ids that other programs write and this build does not read: only for messages.
constexpr KnownId kForeign[] = {
    {9, "q8_1"},   {15, "q8_k"},  {16, "iq2_xxs"}, {17, "iq2_xs"}, {18, "iq3_xxs"}, {19, "iq1_s"},
    {21, "iq3_s"}, {22, "iq2_s"}, {24, "i8"},      {25, "i16"},    {26, "i32"},     {27, "i64"},
    {28, "f64"},   {29, "iq1_m"}, {34, "tq1_0"},   {35, "tq2_0"},  {39, "mxfp4"},
};

// Ids of Kvasir's own types. A public fork gives 44-50 to types of the same name but other bytes.
constexpr KnownId kOwn[] = {
    {44, "tbq3_0"},  {45, "tbq4_0"},  {46, "qjl1_256"}, {47, "q4_polar"}, {48, "tbq3_tcq"},
    {49, "tbq3_k"},  {50, "tbq4_k"},  {64, "tbq2_h"},   {65, "tbq3_h"},   {66, "tbq4_h"},
    {67, "tbq2_ht"}, {68, "tbq3_ht"}, {69, "tbq4_ht"},
};

std::string_view name_of(std::span<const KnownId> ids, uint32_t id) {
  for (const KnownId& known : ids)
    if (known.id == id) return known.name;
  return {};
}

}  // namespace

std::span<const Format> all() { return kFormats; }

const Format* find(DType type) {
  for (const Format& format : kFormats)
    if (format.type == type) return &format;
  return nullptr;
}

const Format* find(std::string_view name) {
  for (const Format& format : kFormats)
    if (format.name == name) return &format;
  return nullptr;
}

const Format& require(DType type) {
  if (const Format* format = find(type)) return *format;
  const uint32_t id = uint32_t(type);
  if (const auto name = own_name(type); !name.empty())
    fail(ErrorCode::kRefused,
         "type id {} is a Kvasir or fork type ({}) that is not readable from this file: only a file whose "
         "general.quantized_by is kvasir is read with it, and this build lacks it; known types: {}",
         id, name, names(kWeights));
  if (const auto name = name_of(kForeign, id); !name.empty())
    fail(ErrorCode::kRefused, "type id {} ({}) is not supported; known types: {}", id, name, names(kWeights));
  fail(ErrorCode::kRefused, "type id {} is unknown; known types: {}", id, names(kWeights));
}

const Format& require(std::string_view name, Role role) {
  const std::string_view use = role == kWeights ? "weights" : role == kKeys ? "keys" : "values";
  const Format* format = find(name);
  if (!format) fail(ErrorCode::kRefused, "unknown type '{}'; known for {}: {}", name, use, names(role));
  if (!format->has_role(role))
    fail(ErrorCode::kRefused, "type '{}' cannot hold {}; known for {}: {}", name, use, use, names(role));
  return *format;
}

std::string_view own_name(DType type) { return name_of(kOwn, uint32_t(type)); }

std::string names(Role role) {
  std::string out;
  for (const Format& format : kFormats) {
    if (!format.has_role(role)) continue;
    if (!out.empty()) out += ' ';
    out += format.name;
  }
  return out;
}

}  // namespace kvasir::formats
