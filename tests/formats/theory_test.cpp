// Each codec's error on unit Gaussian values against the double-precision codecs of theory.h and the column
// of list.def.
#include "formats/theory.h"

#include <gtest/gtest.h>

#include "formats/format.h"

namespace kvasir::formats {
namespace {

constexpr uint64_t kSeed = 20260101;

double codec_nmse(const Format& format, const std::vector<double>& x) {
  std::vector<float> in(x.begin(), x.end()), out(x.size());
  std::vector<std::byte> bytes(format.row_bytes(int64_t(x.size())));
  format.encode(in.data(), bytes.data(), int64_t(x.size()));
  format.decode(bytes.data(), out.data(), int64_t(x.size()));
  double error = 0, energy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (double(in[i]) - out[i]) * (double(in[i]) - out[i]);
    energy += double(in[i]) * in[i];
  }
  return error / energy;
}

class Theory : public testing::TestWithParam<Format> {};

TEST_P(Theory, CodecReachesTheTabledValue) {
  const Format& format = GetParam();
  const double found = codec_nmse(format, theory::gaussians(kSeed + 1, 1 << 18));
  EXPECT_LE(found, format.theory_nmse * 1.02);
  EXPECT_GE(found, format.theory_nmse * 0.98) << "better than the theory: the table is wrong";
}

TEST_P(Theory, TabledValueIsTheDoublePrecisionOne) {
  const Format& format = GetParam();
  const double expected = theory::nmse(std::string(format.name), theory::gaussians(kSeed, 1 << 15), 12);
  EXPECT_NEAR(format.theory_nmse, expected, expected * 0.02);
}

// How the column of list.def was made; about ten minutes: --gtest_also_run_disabled_tests.
TEST_P(Theory, DISABLED_FullRun) {
  const Format& format = GetParam();
  const auto x = theory::gaussians(kSeed, 1 << 21);
  const double value = theory::nmse(std::string(format.name), x, 24);
  const double codec = codec_nmse(format, x);
  std::printf("%-7s theory %.5g codec %.5g (%+.2f %%)\n", std::string(format.name).c_str(), value, codec,
              value > 0 ? 100 * (codec / value - 1) : 0);
  EXPECT_NEAR(format.theory_nmse, value, value * 0.002);
}

INSTANTIATE_TEST_SUITE_P(All, Theory, testing::ValuesIn(theory::block_formats()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kvasir::formats
