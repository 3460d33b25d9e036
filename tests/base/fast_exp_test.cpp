#include "base/fast_exp.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvasir {
namespace {

TEST(FastExp, RelativeErrorBelowItsBound) {
  double worst = 0;
  for (double x = -86.9; x < 87.9; x += 1.37e-4) {
    const float f = float(x);
    worst = std::max(worst, std::fabs(fast_exp(f) / std::exp(double(f)) - 1.0));
  }
  EXPECT_LT(worst, 3e-7);
}

TEST(FastExp, ClampsAndIsExactAtZero) {
  EXPECT_EQ(fast_exp(0.0f), 1.0f);
  EXPECT_GT(fast_exp(-1000.0f), 0.0f);
  EXPECT_LT(fast_exp(-1000.0f), 2e-38f);
  EXPECT_TRUE(std::isfinite(fast_exp(1000.0f)));
}

}  // namespace
}  // namespace kvasir
