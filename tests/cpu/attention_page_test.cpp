// The page layout and what append writes into it.
#include <bit>

#include "backends/cpu/kernels/attention/kv_page.h"
#include "backends/cpu/kernels/attention/page_codec.h"
#include "cpu/attention_fixture.h"

namespace kvasir::cpu::test {
namespace {

std::vector<DType> page_types() {
  std::vector<DType> out;
  for (const auto& format : formats::all())
    if (kv_page_knows(format.type)) out.push_back(format.type);
  return out;
}

// Every byte of a region (every bit, for types whose codes lie in planes) belongs to exactly one row: packing 64 rows is a
// permutation.
TEST(KvPage, PackingIsAPermutationWithAnExactInverse) {
  std::mt19937 random(3);
  for (DType type : page_types())
    for (int head_dim : {64, 128, 256, 512})
      for (KvSide side : {KvSide::kKey, KvSide::kValue}) {
        if (!formats::require(type).takes(head_dim)) continue;
        const size_t row = formats::require(type).row_bytes(head_dim);
        std::vector<std::byte> wire(row * 64), region(row * 64, std::byte(0)), back(row);
        for (auto& b : wire) b = std::byte(random());
        for (int t = 0; t < 64; ++t) pack_row(type, side, head_dim, wire.data() + row * t, t, region.data());
        for (int t = 0; t < 64; ++t) {
          unpack_row(type, side, head_dim, region.data(), t, back.data());
          EXPECT_EQ(0, std::memcmp(back.data(), wire.data() + row * t, row));
        }
        if (formats::require(type).head_wide() || formats::require(type).trellis || planar_form(type).bits) {
          const auto ones = [](const std::vector<std::byte>& bytes) {
            return std::accumulate(bytes.begin(), bytes.end(), 0,
                                   [](int sum, std::byte b) { return sum + std::popcount(uint8_t(b)); });
          };
          EXPECT_EQ(ones(wire), ones(region));
          continue;
        }
        std::sort(wire.begin(), wire.end());
        std::sort(region.begin(), region.end());
        EXPECT_EQ(wire, region);
      }
}

TEST(KvPage, RegionsFillThePage) {
  for (DType k : page_types())
    for (DType v : page_types())
      for (int n_kv : {1, 3}) {
        const KvPage page(k, v, 128);
        EXPECT_EQ(page.head_bytes() * n_kv, graph::kv_page_bytes({0, 128, n_kv, 0, k, v}));
        EXPECT_EQ(page.value_offset(n_kv - 1) + 64 * page.value_row, page.head_bytes() * n_kv);
      }
}

// Wire bytes of one row: what its exact page holds, through the scalar codec.
std::vector<std::byte> wire_row(const formats::Format& format, KvSide side, const float* x, int head_dim) {
  std::vector<float> row(x, x + head_dim);
  formats::to_basis(format.basis, side == KvSide::kKey ? formats::kKeys : formats::kValues, x, row.data(),
                    head_dim);
  if (format.open_page())
    for (float& value : row) value = f16_to_f32(f32_to_f16(value));
  std::vector<std::byte> wire(format.row_bytes(head_dim));
  format.encode(row.data(), wire.data(), head_dim);
  return wire;
}

// 70 tokens: a full page, and 6 rows that no encoded page has yet.
TEST(Append, StoresTheBitsOfTheScalarCodec) {
  for (const AttentionInfo& info : attention_variants()) {
    if (info.flash || info.k != info.v) continue;
    const Shape s{info.k, info.v, 2, 2, 128};
    const Cache cache(s, 70, 11, info.isa);
    const KvPage layout(s.k, s.v, s.head_dim);
    const auto& format = formats::require(s.k);
    std::vector<std::byte> got(layout.key_row);
    for (int t = 0; t < (format.open_page() ? 64 : 70); ++t)
      for (int h = 0; h < 2; ++h) {
        const std::byte* page = cache.pages.data() + size_t(cache.table[size_t(t / 64)]) * cache.page_bytes;
        unpack_row(s.k, KvSide::kKey, 128, page + layout.key_offset(h), t % 64, got.data());
        EXPECT_EQ(wire_row(format, KvSide::kKey, cache.k.data() + (size_t(t) * 2 + h) * 128, 128), got);
        unpack_row(s.v, KvSide::kValue, 128, page + layout.value_offset(h), t % 64, got.data());
        EXPECT_EQ(wire_row(format, KvSide::kValue, cache.v.data() + (size_t(t) * 2 + h) * 128, 128), got);
      }
  }
}

TEST(Append, KeepsRowsOfAnOpenPageAsF16) {
  for (const AttentionInfo& info : attention_variants()) {
    if (info.flash || info.k != info.v || !formats::require(info.k).open_page()) continue;
    if (!formats::require(info.k).takes(64)) continue;
    const Shape s{info.k, info.v, 2, 2, 64};
    const Cache cache(s, 70, 11, info.isa);
    const size_t side = 64 * 64 * sizeof(uint16_t);
    for (int t = 64; t < 70; ++t)
      for (int h = 0; h < 2; ++h) {
        const std::byte* head = cache.exact().page(cache.exact_table[1]) + size_t(h) * 2 * side;
        for (KvSide which : {KvSide::kKey, KvSide::kValue}) {
          const bool key = which == KvSide::kKey;
          std::vector<float> got(64), want(64);
          load_exact_row(which, 64, head + (key ? 0 : side), t - 64, got.data());
          const float* x = (key ? cache.k : cache.v).data() + (size_t(t) * 2 + h) * 64;
          formats::to_basis(formats::require(info.k).basis, key ? formats::kKeys : formats::kValues, x,
                            want.data(), 64);
          for (float& value : want) value = f16_to_f32(f32_to_f16(value));
          EXPECT_EQ(want, got);
        }
      }
  }
}

TEST(Append, ReportsTheFirstRowThatCannotBeStored) {
  for (const AttentionInfo& info : attention_variants()) {
    if (info.flash || !formats::require(info.k).takes(64) || !formats::require(info.v).takes(64)) continue;
    const Shape s{info.k, info.v, 2, 2, 64};
    Cache cache(s, 10, 11, info.isa);
    const auto poison = [&](std::vector<float>& x, int row, float value) {
      const float old = x[size_t(row) * 128 + 77];
      x[size_t(row) * 128 + 77] = value;
      const int found = cache.append(0, 10, info.isa);
      x[size_t(row) * 128 + 77] = old;
      return found;
    };
    EXPECT_EQ(poison(cache.k, 4, std::nanf("")), 4);
    EXPECT_EQ(poison(cache.v, 9, -INFINITY), 9);
    const auto overflow = [](DType type) { return type == DType::f16 || formats::require(type).open_page(); };
    EXPECT_EQ(poison(cache.k, 3, 1e9f), overflow(s.k) ? 3 : -1);
    EXPECT_EQ(poison(cache.v, 3, -1e9f), overflow(s.v) ? 3 : -1);
    if (s.k == DType::f16) {
      EXPECT_EQ(poison(cache.k, 2, 65504.0f), -1);
      EXPECT_EQ(poison(cache.k, 2, 65505.0f), 2);
    }
    EXPECT_EQ(cache.append(0, 10, info.isa), -1);
  }
}

}  // namespace
}  // namespace kvasir::cpu::test
