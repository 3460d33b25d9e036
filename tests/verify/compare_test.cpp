// The comparison that every check rests on: what it must notice.
#include "verify/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace kvasir::verify {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

TEST(Compare, EachElementHasItsOwnBound) {
  const std::vector<float> got = {1.0f, 2.5f};
  const std::vector<double> want = {1.25, 2.0};
  const std::vector<double> loose = {0.25, 0.5}, tight = {0.25, 0.4};
  EXPECT_TRUE(compare(got, want, loose).within());
  const Comparison c = compare(got, want, tight);
  EXPECT_FALSE(c.within());
  EXPECT_EQ(c.over, 1u);
  EXPECT_DOUBLE_EQ(c.figure, 0.5);
  EXPECT_DOUBLE_EQ(c.bound, 0.4);
  EXPECT_DOUBLE_EQ(c.max_diff, 0.5);
}

TEST(Compare, ABoundOfZeroAsksForEquality) {
  const std::vector<float> got = {1.0f, 2.0f};
  const double zero[] = {0.0};
  EXPECT_TRUE(compare(got, std::vector<double>{1, 2}, zero).within());
  EXPECT_FALSE(compare(got, std::vector<double>{1, 2.0000001}, zero).within());
}

TEST(Compare, NanAndInfinityMustBeInTheSamePlaces) {
  const double bound[] = {1e9};
  EXPECT_TRUE(compare(std::vector<float>{1, kNan, kInf}, std::vector<double>{1, kNan, kInf}, bound).within());
  EXPECT_FALSE(compare(std::vector<float>{1, kNan}, std::vector<double>{1, 1}, bound).within());
  EXPECT_FALSE(compare(std::vector<float>{1, 1}, std::vector<double>{1, kNan}, bound).within());
  EXPECT_FALSE(compare(std::vector<float>{kInf}, std::vector<double>{-kInf}, bound).within());
  EXPECT_FALSE(compare(std::vector<float>{1}, std::vector<double>{1}, std::vector<double>{kNan}).within());
}

TEST(Compare, NothingIsNoProof) {
  const double bound[] = {1};
  EXPECT_FALSE(compare({}, {}, bound).within());
  EXPECT_FALSE(compare(std::vector<float>{1}, std::vector<double>{1, 2}, bound).within());
}

TEST(Compare, ManySmallErrorsTogetherAreOne) {
  const double bound[] = {1.0};
  const std::vector<double> want(100, 5.0);
  EXPECT_TRUE(compare(std::vector<float>(100, 5.3f), want, bound).within());
  const Comparison c = compare(std::vector<float>(100, 5.4f), want, bound);  // each within its bound
  EXPECT_EQ(c.over, 0u);
  EXPECT_FALSE(c.within());
}

TEST(Compare, CosineAndNmse) {
  const double bound[] = {10};
  const Comparison same = compare(std::vector<float>{2, 0}, std::vector<double>{1, 0}, bound);
  EXPECT_NEAR(same.cosine, 0, 1e-12);
  EXPECT_NEAR(same.nmse, 1, 1e-12);
  EXPECT_NEAR(compare(std::vector<float>{0, 1}, std::vector<double>{1, 0}, bound).cosine, 1, 1e-12);
}

TEST(Compare, AddingKeepsTheWorst) {
  const double bound[] = {1};
  Comparison whole;
  add(whole, compare(std::vector<float>{1.5f}, std::vector<double>{1}, bound));
  add(whole, compare(std::vector<float>{3.5f}, std::vector<double>{1}, bound));
  add(whole, compare(std::vector<float>{1.0f}, std::vector<double>{1}, bound));
  EXPECT_EQ(whole.n, 3u);
  EXPECT_EQ(whole.over, 1u);
  EXPECT_DOUBLE_EQ(whole.figure, 2.5);
  EXPECT_FALSE(whole.within());
}

}  // namespace
}  // namespace kvasir::verify
