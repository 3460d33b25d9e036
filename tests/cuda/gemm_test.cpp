// Products of many rows, called by their launcher: several matrices and gated pairs in one launch, shared out
// in every way, against double sums.
#include "cuda/fixture.h"
#ifdef KVASIR_HAVE_CUDA
#include <cuda_runtime_api.h>

#include <deque>
#include <random>

#include "backends/cuda/kernels/gemm/gemm.h"
#include "backends/cuda/runtime/device.h"
#include "backends/cuda/runtime/weights.h"

namespace kvasir::test {
namespace {

using namespace kvasir::cuda;

constexpr int kIn = 768, kRows = 150, kStride = 320;

// Three products in one launch, of rows `first_row` and more of their matrices.
class Rig {
 public:
  Rig(DType type, int first_row) : type_(type), first_row_(first_row) {
    x_ = floats(size_t(kRows) * kIn, 3);
    half_ = Memory(size_t(kIn) * size_t(padded_gemm_rows(kRows)) * 2, Place::kDevice, "rows");
    scale_ = Memory(kRows * sizeof(float), Place::kDevice, "scales");
    shares_ = Memory(gemm_share_bytes(), Place::kDevice, "shares");
    check(cudaMemset(half_.as(), 0, half_.size()), "clearing");
    check(cudaMemset(shares_.as(), 0, shares_.size()), "clearing");
    gemm_rows({nullptr, false}, upload(x_), kIn, kRows, false, half_.as<uint16_t>(), scale_.as<float>());
    args_.x = half_.as<uint16_t>(), args_.x_scale = scale_.as<float>(), args_.shares = shares_.as<uint8_t>();
    args_.n_rows = kRows, args_.n_in = kIn;
    args_.n_parts = 3;
    // Outputs in fours, with a factor and an addend; in twos; a pair.
    add(0, 300, 300, false);
    args_.parts[0].mul = upload(mul_ = floats(size_t(kRows) * kStride, 1));
    args_.parts[0].mul_stride = kStride;
    args_.parts[0].residual = upload(residual_ = floats(size_t(kRows) * 300, 1));
    add(1, 130, 130, false);
    args_.parts[1].softcap = 2;
    add(2, 200, 200, true);
    args_.parts[2].gelu = true;
    for (size_t w = 0; w < small_.tables.size(); ++w) {
      graph::Op op;
      op.kind = graph::OpKind::matmul;
      op.w[0] = graph::WeightId(w);
      small_.graph.ops.push_back(op);
    }
    weights_ = upload_weights(small_.graph, nullptr, nullptr, nullptr);
    for (int p = 0; p < 3; ++p) args_.parts[p].w = weights_.matrices[size_t(p)];
    args_.parts[2].w2 = weights_.matrices[3];
  }
  bool expands() const { return gemm_expands(args_.parts[0].w, false); }

  std::vector<float> run(GemmPlan plan) {
    args_.plan = plan;
    for (const Memory& out : out_) check(cudaMemset(out.as(), 0xff, out.size()), "clearing");
    gemm([] { return Launch{nullptr, false}; }, args_);
    check(cudaDeviceSynchronize(), "multiplying");
    std::vector<float> all;
    for (const Memory& out : out_) {
      std::vector<float> y(out.size() / sizeof(float));
      check(cudaMemcpy(y.data(), out.as(), out.size(), cudaMemcpyDeviceToHost), "reading");
      all.insert(all.end(), y.begin(), y.end());
    }
    return all;
  }

  std::vector<double> expected() const {
    std::vector<double> all;
    for (int p = 0; p < 3; ++p)
      for (int r = 0; r < kRows; ++r)
        for (int o = 0; o < args_.parts[p].n_out; ++o) {
          double y = dot(r, p, o);
          if (p == 0) y = y * double(mul_[size_t(r * kStride + o)]) + double(residual_[size_t(r * 300 + o)]);
          if (p == 1) y = 2 * std::tanh(y / 2);
          if (p == 2) y = y / (1 + std::exp(-2 * 0.7978845608 * (y + 0.044715 * y * y * y))) * dot(r, 3, o);
          all.push_back(y);
        }
    return all;
  }

 private:
  std::vector<float> floats(size_t n, float spread) {
    std::normal_distribution<float> normal(0, spread);
    std::vector<float> out(n);
    for (float& v : out) v = normal(random_);
    return out;
  }
  template <typename T>
  const T* upload(const std::vector<T>& from) {
    memory_.emplace_back(from.size() * sizeof(T), Place::kDevice, "data");
    check(cudaMemcpy(memory_.back().as(), from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice),
          "filling");
    return memory_.back().as<T>();
  }
  void add_matrix(int n_out) {
    const uint32_t seed = uint32_t(small_.tables.size());
    small_.add(make_table(std::to_string(seed), type_, kIn, n_out + first_row_, seed, 0.03f));
  }
  void add(int p, int n_out, int stride, bool pair) {
    GemmPart& part = args_.parts[p];
    add_matrix(n_out);
    if (pair) add_matrix(n_out);
    out_.emplace_back(size_t(kRows) * size_t(stride) * sizeof(float), Place::kDevice, "results");
    part.out = out_.back().as<float>();
    part.first_row = first_row_;
    part.n_out = n_out, part.out_stride = stride;
  }
  double dot(int r, int w, int o) const {
    const float* row = small_.tables[size_t(w)]->values.data() + size_t(first_row_ + o) * kIn;
    double sum = 0;
    for (int i = 0; i < kIn; ++i) sum += double(x_[size_t(r * kIn + i)]) * double(row[i]);
    return sum;
  }

  DType type_;
  int first_row_;
  std::mt19937 random_{7};
  std::deque<Memory> memory_, out_;
  Memory half_, scale_, shares_;
  std::vector<float> x_, mul_, residual_;
  SmallGraph small_;
  DeviceWeights weights_;
  GemmArgs args_;
};

void expect_sums(DType type, int first_row, const std::vector<GemmPlan>& plans) {
  Rig rig(type, first_row);
  ASSERT_FALSE(rig.expands()) << formats::require(type).name;
  const std::vector<double> expected = rig.expected();
  for (const GemmPlan& plan : plans) {
    const std::vector<float> y = rig.run(plan);
    EXPECT_LE(nmse(y, expected), 2e-7) << formats::require(type).name << " from row " << first_row << ", "
                                       << plan.rows << " rows, " << plan.steps << " steps";
    EXPECT_EQ(0, std::memcmp(y.data(), rig.run(plan).data(), y.size() * sizeof(float)))
        << formats::require(type).name << ", " << plan.rows << " rows, " << plan.steps
        << " steps: not the same bits again";
  }
}

TEST(CudaGemm, PartsSharedOutInEveryWay) {
  KVASIR_NEEDS_CUDA();
  std::vector<GemmPlan> plans{{}};
  for (int rows : {64, 128, 256})
    for (int steps : {1, 3, 5, 6, 12, 17, 24, 36, 1000}) plans.push_back({rows, steps});
  expect_sums(DType::f16, 0, plans);
}

TEST(CudaGemm, EveryFormFromAnyRow) {
  KVASIR_NEEDS_CUDA();
  using enum DType;
  for (DType type : {f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, iq4_nl, iq4_xs})
    for (int first_row : {0, 37})
      expect_sums(type, first_row, {{}, {64, 5}, {64, 1000}, {128, 1}, {128, 17}, {256, 12}});
}

}  // namespace
}  // namespace kvasir::test
#else
TEST(CudaGemm, NeedsABuildWithCuda) { GTEST_SKIP() << kvasir::test::no_cuda(); }
#endif
