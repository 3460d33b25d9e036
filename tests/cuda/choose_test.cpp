// Candidates chosen on the device against a sort on the host: rows of every length, ties, and values that are
// no numbers.
#include "cuda/fixture.h"
#ifdef KVASIR_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "backends/cuda/kernels/choose/choose.h"

namespace kvasir::test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();

const auto kAlone = [] { return cuda::Launch{nullptr, false}; };

std::vector<int32_t> best_on_host(const std::vector<float>& logits, int n) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = int32_t(i);
  std::ranges::stable_sort(order, [&](int32_t a, int32_t b) {
    const float x = logits[size_t(a)], y = logits[size_t(b)];
    return std::isnan(x) ? false : std::isnan(y) ? true : x > y;
  });
  order.resize(std::min(size_t(n), order.size()));
  return order;
}

void expect_best(const std::vector<float>& logits, int n, const std::string& what) {
  const int count = int(logits.size());
  const size_t scratch = size_t(cuda::choose_scratch(count));
  float* row = nullptr;
  uint64_t* keys = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&row), logits.size() * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&keys), (cuda::kMaxChosen + scratch) * sizeof(uint64_t)), cudaSuccess);
  cudaMemcpy(row, logits.data(), logits.size() * sizeof(float), cudaMemcpyHostToDevice);
  cuda::choose_best(kAlone, row, count, n, keys + cuda::kMaxChosen, keys);
  const std::vector<int32_t> expected = best_on_host(logits, n);
  std::vector<uint64_t> got(expected.size());
  ASSERT_EQ(cudaMemcpy(got.data(), keys, got.size() * sizeof(uint64_t), cudaMemcpyDeviceToHost),
            cudaSuccess);
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(cuda::key_token(got[i]), expected[i])
        << what << ": " << count << " logits, " << i << " of " << n;
    const float a = cuda::key_logit(got[i]), b = logits[size_t(expected[i])];
    EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << what;
  }
  cudaFree(row);
  cudaFree(keys);
}

TEST(CudaChoose, RowsOfEveryLength) {
  KVASIR_NEEDS_CUDA();
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 5);
  for (int count : {1, 2, 63, 127, 128, 129, 2047, 2048, 2049, 4095, 4097, 50000, 262144})
    for (int n : {1, 40, 128}) {
      std::vector<float> logits;
      for (int i = 0; i < count; ++i) logits.push_back(normal(random));
      expect_best(logits, n, "random");
    }
}

TEST(CudaChoose, TiesGoToTheLowerToken) {
  KVASIR_NEEDS_CUDA();
  std::mt19937 random(4);
  for (int count : {5, 2048, 2050, 70000}) {
    expect_best(std::vector<float>(size_t(count), -3.5f), 128, "all alike");
    std::vector<float> few, zeros;
    for (int i = 0; i < count; ++i) {
      few.push_back(float(int(random() % 3)));
      zeros.push_back(random() % 2 ? 0.0f : -0.0f);
    }
    expect_best(few, 128, "three values");
    expect_best(zeros, 128, "both zeros");
  }
}

TEST(CudaChoose, NoNumberIsWorseThanAny) {
  KVASIR_NEEDS_CUDA();
  std::mt19937 random(5);
  for (int count : {3, 200, 2048, 9000}) {
    expect_best(std::vector<float>(size_t(count), kNaN), 128, "no numbers");
    std::vector<float> mixed, infinite;
    for (int i = 0; i < count; ++i) {
      mixed.push_back(random() % 8 ? kNaN : float(int(random() % 100)) - 50);
      infinite.push_back(random() % 3 ? (random() % 2 ? kInf : -kInf) : random() % 2 ? kNaN : 1e38f);
    }
    expect_best(mixed, 128, "few numbers");
    expect_best(infinite, 128, "infinities");
    expect_best(mixed, 1, "few numbers");
  }
}

TEST(CudaChoose, DrawsAreTheHosts) {
  KVASIR_NEEDS_CUDA();
  std::mt19937_64 random(6);
  std::normal_distribution<float> normal(0, 3);
  constexpr int kCount = 5000;
  float* row = nullptr;
  uint64_t* keys = nullptr;  // the best, scratch, the random number
  const size_t at = size_t(cuda::kMaxChosen + cuda::choose_scratch(kCount));
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&row), kCount * sizeof(float)), cudaSuccess);
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&keys), (at + 1) * sizeof(uint64_t)), cudaSuccess);
  for (int n : {1, 2, 31, 64, 128})
    for (int i = 0; i < 100; ++i) {
      const int count = i % 2 ? kCount : 200;
      std::vector<float> logits;
      for (int c = 0; c < count; ++c) logits.push_back(i == 0 ? kNaN : i == 1 ? -kInf : i == 2 ? 1.5f : normal(random));
      const graph::Choice choice{n, i % 2 ? 0.6f : 1.7f, i % 3 ? 1.0f : 0.8f, i % 5 ? 0.0f : 0.1f, random()};
      cudaMemcpy(row, logits.data(), logits.size() * sizeof(float), cudaMemcpyHostToDevice);
      cudaMemcpy(keys + at, &choice.random, sizeof(uint64_t), cudaMemcpyHostToDevice);
      cuda::choose_best(kAlone, row, count, n, keys + cuda::kMaxChosen, keys, {choice, keys + at});
      uint64_t drawn = 0;
      ASSERT_EQ(cudaMemcpy(&drawn, keys + at, sizeof(drawn), cudaMemcpyDeviceToHost), cudaSuccess);
      const std::vector<int32_t> best = best_on_host(logits, n);
      const auto weight = [&](double temperature) {
        return [&, temperature](int c) {
          return graph::choice_weight(logits[size_t(best[size_t(c)])], logits[size_t(best[0])], temperature);
        };
      };
      const int expected = graph::choose_candidate(choice, n, weight(1), weight(double(choice.temperature)));
      ASSERT_EQ(cuda::key_token(drawn), best[size_t(expected)]) << n << " candidates, draw " << i;
    }
  cudaFree(row);
  cudaFree(keys);
}

}  // namespace
}  // namespace kvasir::test
#else
TEST(CudaChoose, NeedsABuildWithCuda) { GTEST_SKIP() << kvasir::test::no_cuda(); }
#endif
