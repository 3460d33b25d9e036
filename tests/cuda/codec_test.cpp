// The device's encoders, run on the host lane by lane, against the bytes of the scalar codecs. Needs no
// device and no vendor's compiler.
#include "backends/cuda/kernels/kv_forms/codec.cuh"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "backends/cuda/kernels/kv_forms/dtypes.h"
#include "backends/cuda/kernels/kv_forms/wire.h"
#include "formats/basis.h"
#include "formats/format.h"
#include "formats/tcq_table.h"

namespace kvasir::test {
namespace {

using cuda::KvForm;

std::vector<DType> encoded_types() {
  std::vector<DType> out;
  for (const formats::Format& format : formats::all())
    if (const auto form = cuda::kv_form(format.type); form && cuda::open_page(*form))
      out.push_back(format.type);
  return out;
}

cuda::KvTables host_tables(const formats::TcqTable& tcq) {
  return {formats::qjl_projection(), nullptr, tcq.level.data(), tcq.rounded.data(), tcq.step};
}

// 64 rows of f16 in the basis of the type: Gaussian, then rows that encoders must take care with.
std::vector<uint16_t> make_rows(int d, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<uint16_t> rows;
  for (int r = 0; r < cuda::kRegionRows; ++r) {
    const float spread = std::exp2(float(int(random() % 24) - 14));
    for (int i = 0; i < d; ++i) {
      float v = normal(random) * spread;
      if (r == 0) v = 0;
      if (r == 1) v = -0.0f;
      if (r == 2) v = i == d / 2 ? 300.0f : 0.0f;
      if (r == 3) v = i % 2 ? 1.0f : -1.0f;
      if (r == 4) v = 5.9604645e-8f * float(i % 5);  // the least f16s
      if (r == 5) v = i / 32 % 2 ? 0.0f : normal(random);
      if (r == 6) v = 400.0f;
      if (r == 7) v = i < 7 ? normal(random) * 100 : normal(random) * 0.001f;
      if (r == 8) v = i / 128 % 2 ? v : -0.0f;
      if (r == 9) v = float(int(random() % 9) - 4);  // many equals and ties
      rows.push_back(f32_to_f16(v));
    }
  }
  return rows;
}

void expect_scalar_bytes(DType type, int d, const formats::TcqTable* given, uint32_t seed) {
  const formats::Format& format = formats::require(type);
  const KvForm form = *cuda::kv_form(type);
  const cuda::KvTables tables = host_tables(given ? *given : formats::own_tcq_table());
  const std::vector<uint16_t> rows = make_rows(d, seed);
  std::vector<uint8_t> region(size_t(cuda::region_bytes(form, d)), 0xcc), wire(region.size());
  ASSERT_EQ(region.size(), 64 * format.row_bytes(d)) << format.name;
  const auto scratch = std::make_unique<cuda::TrellisScratch<512>>();
  for (int t = 0; t < cuda::kRegionRows; ++t)
    cuda::encode_row(form, cuda::Warp{}, rows.data() + t * d, d, tables, *scratch,
                     cuda::place_row(form, d, t, region.data()));
  cuda::region_to_wire(form, d, region.data(), wire.data());
  for (int t = 0; t < cuda::kRegionRows; ++t) {
    std::vector<float> x;
    for (int i = 0; i < d; ++i) x.push_back(f16_to_f32(rows[size_t(t * d + i)]));
    std::vector<std::byte> expected(format.row_bytes(d));
    format.encode_row(given, x.data(), expected.data(), d);
    EXPECT_EQ(0, std::memcmp(expected.data(), wire.data() + size_t(t) * expected.size(), expected.size()))
        << format.name << " head size " << d << " row " << t;
  }
  std::vector<uint8_t> back(region.size());
  cuda::wire_to_region(form, d, wire.data(), back.data());
  EXPECT_EQ(back, region) << format.name << ": wire rows to a region";
}

TEST(CudaCodec, RowsAreTheScalarCodecsBytes) {
  EXPECT_EQ(encoded_types().size(), 14u);
  for (DType type : encoded_types())
    for (int d : {64, 128, 256, 512})
      if (formats::require(type).takes(d))
        expect_scalar_bytes(type, d, nullptr, uint32_t(type) * 1000 + uint32_t(d));
}

// Predecessors that only turn a group's bits round: paths from two groups never meet, so a path that is
// traced in parts has to be walked again from its end.
template <int b>
void expect_path_of_turns(int d) {
  using W = cuda::WarpTrellis<b>;
  const auto scratch = std::make_unique<cuda::TrellisScratch<512>>();
  for (auto& step : scratch->from)
    for (int lane = 0; lane < 32; ++lane) {
      int picks = 0;
      for (int i = 0; i < W::kOwn; ++i) picks |= ((lane * W::kOwn + i) & (W::kBranches - 1)) << (4 * i);
      step[lane] = uint8_t(picks);
    }
  for (int state : {0, 1 << b, W::T::kStates / 3, W::T::kStates - 1}) {
    std::vector<uint8_t> path(static_cast<size_t>(d));
    int s = state;
    for (int t = d - 1; t >= 0; --t) {
      path[size_t(t)] = uint8_t(s & (W::kBranches - 1));
      s = W::back(s, scratch->from[t]);
    }
    EXPECT_EQ(W::trace(cuda::Warp{}, *scratch, state, d), s) << b << " bits, state " << state;
    EXPECT_EQ(std::vector<uint8_t>(scratch->code, scratch->code + d), path) << b << " bits, state " << state;
  }
}
TEST(CudaCodec, PathsThatNeverMeetAreWalkedFromTheEnd) {
  for (int d : {128, 256, 512}) {
    expect_path_of_turns<2>(d);
    expect_path_of_turns<3>(d);
    expect_path_of_turns<4>(d);
  }
}

TEST(CudaCodec, AGivenTableOfTbq3Tcq) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> levels;
  for (int i = 0; i < formats::kTcqStates; ++i) levels.push_back(normal(random) * 0.09f);
  const auto table = formats::make_tcq_table(levels, "test");
  for (int d : {128, 512}) expect_scalar_bytes(DType::tbq3_tcq, d, table.get(), 77);
}

TEST(CudaCodec, ScalesThatOverflowAreSeen) {
  const auto scratch = std::make_unique<cuda::TrellisScratch<512>>();
  const cuda::KvTables tables = host_tables(formats::own_tcq_table());
  for (DType type : encoded_types()) {
    const KvForm form = *cuda::kv_form(type);
    const int d = 128;
    for (float top : {500.0f, 3000.0f, 65504.0f}) {
      std::vector<uint16_t> row;
      std::vector<float> x;
      for (int i = 0; i < d; ++i) x.push_back(i % 2 ? top : -top), row.push_back(f32_to_f16(x.back()));
      // Levels next to 1 are below it in 3 and 4 bits; the scale of a block of 128 is its norm.
      const bool below_one =
          type == DType::tbq3_0 || type == DType::tbq4_0 || type == DType::tbq3_h || type == DType::tbq4_h;
      const bool is_norm = type == DType::q4_polar || type == DType::tbq3_tcq;
      const bool overflows = (below_one && top > 60000) || (is_norm && top > 6000);
      std::vector<uint8_t> region(size_t(cuda::region_bytes(form, d)));
      EXPECT_EQ(cuda::encode_row(form, cuda::Warp{}, row.data(), d, tables, *scratch,
                                 cuda::place_row(form, d, 0, region.data())),
                !overflows)
          << formats::require(type).name << " of " << top;
      if (!cuda::slow_to_encode(form) || type == DType::q4_polar) {
        EXPECT_EQ(cuda::encode_quick(form, cuda::Warp{}, row.data(), d, scratch->code, {}), !overflows);
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::test
