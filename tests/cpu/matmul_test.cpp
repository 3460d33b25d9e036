// Every row of the matmul list against a double-precision product of the scalar codec's values, and bit for
// bit against the generic row, alone and in batches. Memory that must not be read is poisoned with NaN.
#include "backends/cpu/kernels/matmul/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "backends/cpu/kernels/matmul/activation.h"
#include "formats/format.h"

namespace kvasir::cpu {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
DType type_of(const MatmulVariant& v) {
  const std::string_view name = matmul_name(v);
  return formats::find(name.substr(0, name.find('.')))->type;
}

// Random blocks of any bit pattern whose values are finite and of a useful size.
std::vector<std::byte> random_rows(const formats::Format& format, int64_t n_values, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> rows(format.row_bytes(n_values));
  std::vector<float> values(format.block);
  for (size_t at = 0; at < rows.size(); at += format.block_bytes) {
    float largest;
    do {
      for (size_t i = 0; i < format.block_bytes; ++i) rows[at + i] = std::byte(rng());
      format.decode(rows.data() + at, values.data(), format.block);
      largest = 0;
      for (float value : values)
        largest = std::isfinite(value) ? std::fmax(largest, std::fabs(value)) : 1e30f;
    } while (largest < 0.02f || largest > 4.0f);
  }
  return rows;
}

struct Problem {
  const formats::Format& format;
  int64_t n_in, n_out, stride;
  int n_rows;
  std::vector<std::byte> rows;
  std::vector<float> weights, x;

  Problem(DType type, int64_t n_in, int64_t n_out, int n_rows)
      : format(formats::require(type)), n_in(n_in), n_out(n_out), stride(n_in + 7), n_rows(n_rows) {
    rows = random_rows(format, n_in * n_out, 7);
    weights.resize(n_in * n_out);
    format.decode(rows.data(), weights.data(), n_in * n_out);
    std::mt19937 rng(11);
    std::normal_distribution<float> normal;
    x.assign(stride * n_rows, kNaN);
    for (int r = 0; r < n_rows; ++r)
      for (int64_t k = 0; k < n_in; ++k) x[r * stride + k] = normal(rng) * (k % 97 == 5 ? 20.0f : 1.0f);
    if (n_rows > 3)  // a row of zeros and a tiny one
      for (int64_t k = 0; k < n_in; ++k) x[2 * stride + k] = 0, x[3 * stride + k] *= 1e-37f;
  }

  PackedMatrix pack(const MatmulVariant& variant) const {
    PackedMatrix w;
    w.variant = &variant, w.type = format.type, w.n_in = n_in, w.n_out = n_out;
    w.data = AlignedBuffer(packed_bytes(variant, n_in, n_out));
    std::memset(w.data.data(), 0xff, w.data.size());
    pack_panels(variant, rows.data(), n_in, n_out, 0, w.n_panels(), w.data.data());
    return w;
  }
};

// Activations in the form of `variant`, with poison around them.
struct Prepared {
  std::vector<std::byte> packed;
  Activations view;

  Prepared(const Problem& p, const MatmulVariant& variant, Isa isa, int first = 0, int count = -1) {
    if (count < 0) count = p.n_rows;
    view.form = activation_form(variant), view.n_rows = count, view.n_in = p.n_in, view.stride = p.stride;
    view.f32 = p.x.data() + first * p.stride;
    if (view.form != ActivationForm::kInt8) return;
    packed.assign(quantized_bytes(p.n_in, count), std::byte(0xff));
    quantize_rows(isa, view.f32, p.stride, p.n_in, count, 0, count / 2, packed.data());
    quantize_rows(isa, view.f32, p.stride, p.n_in, count, count / 2, count, packed.data());
    view.packed = packed.data();
  }
};

// y[row][n_panels * 32], rows taken `step` at a time.
std::vector<float> multiply(const PackedMatrix& w, const Activations& x, int step) {
  const int64_t width = w.n_panels() * kPanelRows;
  std::vector<float> y(x.n_rows * width, kNaN);
  for (int64_t panel = 0; panel < w.n_panels(); ++panel)
    for (int row = 0; row < x.n_rows; row += step) {
      const int n = std::min(step, x.n_rows - row);
      std::vector<float> acc((n + 1) * kPanelRows, kNaN);
      matmul_tile(w, x, panel, row, n, acc.data());
      for (int i = 0; i < n; ++i)
        std::memcpy(&y[(row + i) * width + panel * kPanelRows], &acc[i * kPanelRows],
                    kPanelRows * sizeof(float));
      for (int o = 0; o < kPanelRows; ++o)
        EXPECT_TRUE(std::isnan(acc[n * kPanelRows + o])) << "wrote past the tile";
    }
  return y;
}

bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

// What the kernel should give and the most it may be off, from the activations the kernel sees.
struct Expected {
  double value = 0, bound = 0;
};

Expected expect_float(const float* w, const float* x, int64_t n_in) {
  Expected e;
  double magnitude = 0;
  for (int64_t k = 0; k < n_in; ++k)
    e.value += double(w[k]) * x[k], magnitude += std::fabs(double(w[k]) * x[k]);
  e.bound = double(n_in + 1) * 0x1p-24 * magnitude;  // one rounding a step of the chain
  return e;
}

// Integer sums are exact. A block's value takes up to 5 float roundings of terms no larger than
// 32 * 127 * da * (|w| + |code part| + |min|), and enters a chain of n_blocks steps.
Expected expect_int8(const float* w, const Activations& x, int row) {
  Expected e;
  double magnitude = 0;
  const int64_t n_blocks = x.n_in / matmul::kBlock;
  for (int64_t b = 0; b < n_blocks; ++b) {
    const matmul::ActivationBlock block(x.packed + b * matmul::activation_stride(x.n_rows), x.n_rows);
    const int8_t* a = block.codes + row * matmul::kBlock;
    double largest = 0;
    for (int k = 0; k < 32; ++k) {
      e.value += double(w[b * 32 + k]) * a[k] * block.scale[row];
      largest = std::fmax(largest, std::fabs(w[b * 32 + k]));
    }
    magnitude += 4 * largest * 32 * 127 * block.scale[row];
  }
  e.bound = double(n_blocks + 6) * 0x1p-24 * magnitude;
  return e;
}

// Rounding activations moves y by at most sum_b da_b / 2 * sum_k |w|.
double quantisation_bound(const float* w, const Activations& x, int row) {
  double bound = 0;
  for (int64_t b = 0; b < x.n_in / matmul::kBlock; ++b) {
    const matmul::ActivationBlock block(x.packed + b * matmul::activation_stride(x.n_rows), x.n_rows);
    for (int k = 0; k < 32; ++k) bound += 0.5000001 * block.scale[row] * std::fabs(w[b * 32 + k]);
    bound += 32 * 4.0 * matmul::kTinyBlock;
  }
  return bound;
}

class MatmulVariantTest : public testing::TestWithParam<const MatmulVariant*> {};

void check_values(const MatmulVariant& variant, int64_t n_in, int64_t n_out, int n_rows) {
  const Problem p(type_of(variant), n_in, n_out, n_rows);
  const PackedMatrix w = p.pack(variant);
  const Prepared x(p, variant, best_isa());
  const std::vector<float> y = multiply(w, x.view, kMaxTileRows);
  const int64_t width = w.n_panels() * kPanelRows;
  for (int r = 0; r < n_rows; ++r) {
    for (int64_t o = 0; o < n_out; ++o) {
      const float* row = &p.weights[o * n_in];
      const Expected exact = expect_float(row, &p.x[r * p.stride], n_in);
      const bool int8 = x.view.form == ActivationForm::kInt8;
      const Expected e = int8 ? expect_int8(row, x.view, r) : exact;
      ASSERT_LE(std::fabs(y[r * width + o] - e.value), e.bound)
          << matmul_name(variant) << " row " << r << " out " << o;
      const double rounding = int8 ? quantisation_bound(row, x.view, r) : 0;
      ASSERT_LE(std::fabs(y[r * width + o] - exact.value), e.bound + rounding);
    }
    for (int64_t o = n_out; o < width; ++o) ASSERT_EQ(y[r * width + o], 0.0f) << "padding column " << o;
  }
}

TEST_P(MatmulVariantTest, MatchesDoublePrecision) {
  const bool k_type = formats::require(type_of(*GetParam())).block == 256;
  check_values(*GetParam(), k_type ? 512 : 160, 75, 9);
  check_values(*GetParam(), 256, 32, 1);
}

TEST_P(MatmulVariantTest, FloatTypesTakeAnyLength) {
  if (activation_form(*GetParam()) != ActivationForm::kF32) return;
  for (int64_t n_in : {1, 2, 3, 31, 33, 127}) check_values(*GetParam(), n_in, 33, 3);
}

TEST_P(MatmulVariantTest, RowBitsDoNotDependOnTheBatch) {
  const MatmulVariant& variant = *GetParam();
  const bool slow = std::string_view(matmul_name(variant)).ends_with(".generic");
  const int n_rows = slow ? 20 : kMaxTileRows;
  const Problem p(type_of(variant), slow ? 256 : 768, 40, n_rows);
  const PackedMatrix w = p.pack(variant);
  const Prepared x(p, variant, best_isa());
  const std::vector<float> whole = multiply(w, x.view, n_rows);
  for (int step : {1, 2, 3, 4, 5, 7, 13, 64}) {
    if (step >= n_rows) continue;
    const std::vector<float> split = multiply(w, x.view, step);
    ASSERT_TRUE(same_bits(whole.data(), split.data(), whole.size()))
        << matmul_name(variant) << " step " << step;
  }
  // Alone in its own buffer, as decode runs it.
  for (int row : {0, 1, n_rows / 2 + 3, n_rows - 1}) {
    const Prepared alone(p, variant, best_isa(), row, 1);
    const std::vector<float> y = multiply(w, alone.view, 1);
    ASSERT_TRUE(same_bits(&whole[row * y.size()], y.data(), y.size()))
        << matmul_name(variant) << " row " << row;
  }
}

TEST_P(MatmulVariantTest, SameBitsAsTheGenericRow) {
  const MatmulVariant& variant = *GetParam();
  const MatmulVariant* generic = find_matmul(type_of(variant), Isa::kGeneric);
  ASSERT_NE(generic, nullptr);
  const Problem p(type_of(variant), 768, 64, 6);
  const Prepared x(p, variant, best_isa());
  const std::vector<float> expected = multiply(p.pack(*generic), x.view, 6);
  for (int step : {1, 6}) {
    const std::vector<float> y = multiply(p.pack(variant), x.view, step);
    ASSERT_TRUE(same_bits(expected.data(), y.data(), y.size())) << matmul_name(variant);
  }
}

TEST_P(MatmulVariantTest, PackingIsIndependentOfTheSplit) {
  const MatmulVariant& variant = *GetParam();
  const Problem p(type_of(variant), 256, 100, 1);
  const PackedMatrix whole = p.pack(variant);
  std::vector<std::byte> parts(whole.data.size(), std::byte(0xff));
  for (int64_t panel : {2, 0, 3, 1})
    pack_panels(variant, p.rows.data(), 256, 100, panel, panel + 1, parts.data());
  EXPECT_EQ(std::memcmp(parts.data(), whole.data.data(), parts.size()), 0);
  EXPECT_EQ(whole.data.size(), p.format.row_bytes(256) * 128) << "packed bytes equal GGUF bytes";
}

INSTANTIATE_TEST_SUITE_P(All, MatmulVariantTest,
                         testing::ValuesIn(matmul_variants().begin(), matmul_variants().end()),
                         [](const auto& info) {
                           std::string name = matmul_name(*info.param);
                           for (char& c : name)
                             if (c == '.') c = '_';
                           return name;
                         });

TEST(Matmul, FindsTheBestRow) {
  EXPECT_STREQ(matmul_name(*find_matmul(DType::q8_0, Isa::kGeneric)), "q8_0.generic");
  for (const MatmulVariant* v : matmul_variants()) EXPECT_NE(find_matmul(type_of(*v), best_isa()), nullptr);
  EXPECT_EQ(find_matmul(DType(999), best_isa()), nullptr);
}

TEST(QuantizeRows, SameBitsOnEveryIsa) {
  const Problem p(DType::q8_0, 256, 1, 13);
  const MatmulVariant& any = *find_matmul(DType::q8_0, Isa::kGeneric);
  const Prepared generic(p, any, Isa::kGeneric);
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kNeon}) {
    if (!cpu_supports(isa)) continue;
    const Prepared x(p, any, isa);
    EXPECT_EQ(std::memcmp(x.packed.data(), generic.packed.data(), 13 * 60), 0) << isa_name(isa);
    EXPECT_EQ(x.packed, generic.packed) << isa_name(isa);
  }
}

TEST(QuantizeRows, RoundsToNearestEven) {
  const Problem p(DType::q8_0, 64, 1, 8);
  const Prepared x(p, *find_matmul(DType::q8_0, Isa::kGeneric), best_isa());
  for (int b = 0; b < 2; ++b) {
    const matmul::ActivationBlock block(x.packed.data() + b * matmul::activation_stride(8), 8);
    for (int r = 0; r < 8; ++r) {
      int sum = 0;
      for (int k = 0; k < 32; ++k) {
        const double value = p.x[r * p.stride + b * 32 + k];
        const int code = block.codes[r * 32 + k];
        EXPECT_LE(std::abs(code), 127);
        EXPECT_LE(std::fabs(code * double(block.scale[r]) - value),
                  0.5000001 * block.scale[r] + matmul::kTinyBlock);
        sum += code;
      }
      EXPECT_EQ(block.start[r] - matmul::kMagicBits, -128 * sum);
      EXPECT_EQ(block.sum[r], float(sum));
      EXPECT_EQ(int64_t(block.start_half[r]) + block.start_half[8 + r] - matmul::kMagicBits, block.start[r]);
      EXPECT_EQ(block.sum_half[r] + block.sum_half[8 + r], block.sum[r]);
    }
  }
}

}  // namespace
}  // namespace kvasir::cpu
