// kl_of_logits against double precision, exact_share against counting, and what each cache type costs on a
// trained model.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/kl_divergence.h"
#include "engine/tiny.h"
#include "formats/format.h"

namespace kvasir::test {
namespace {

using engine::KlOptions;
using engine::KlResult;
using engine::Session;

double exact_kl(const std::vector<float>& p, const std::vector<float>& q) {
  const auto log_sum = [](const std::vector<float>& x) {
    const double top = *std::max_element(x.begin(), x.end());
    double sum = 0;
    for (float v : x) sum += std::exp(double(v) - top);
    return top + std::log(sum);
  };
  const double lp = log_sum(p), lq = log_sum(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i)
    kl += std::exp(double(p[i]) - lp) * ((double(p[i]) - lp) - (double(q[i]) - lq));
  return kl;
}

TEST(Kl, OfLogitsEqualsDoublePrecision) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (size_t n : {2u, 255u, 4096u, 262144u})
    for (float spread : {0.1f, 3.0f, 12.0f})
      for (float noise : {0.0f, 1e-3f, 0.1f, 2.0f}) {
        std::vector<float> p(n), q(n);
        for (size_t i = 0; i < n; ++i) {
          p[i] = spread * normal(random);
          q[i] = p[i] + noise * normal(random) + 5;
        }
        EXPECT_NEAR(engine::kl_of_logits(p, q), exact_kl(p, q), 1e-6 + 1e-5 * exact_kl(p, q))
            << n << " " << spread << " " << noise;
      }
}

TEST(Kl, ExactShareCountsWhatIsRead) {
  graph::Graph graph;
  graph::Op op;
  op.kind = graph::OpKind::attention;
  op.kv = 0;
  graph.ops = {op};
  graph::KvSpec spec{0, 64, 1, 0, DType::q8_0, DType::q8_0};
  EXPECT_DOUBLE_EQ(engine::exact_share(graph, {&spec, 1}, 0, 64), 1.0);
  EXPECT_DOUBLE_EQ(engine::exact_share(graph, {&spec, 1}, 200, 201),
                   9.0 / 201);  // 200 is the ninth token of its page
  spec.exact_first = 1;
  EXPECT_DOUBLE_EQ(engine::exact_share(graph, {&spec, 1}, 200, 201), 73.0 / 201);
  spec.exact_last = 2;
  EXPECT_DOUBLE_EQ(engine::exact_share(graph, {&spec, 1}, 200, 201), 1.0);
  spec = {0, 64, 1, 100, DType::q8_0, DType::f16};
  EXPECT_DOUBLE_EQ(engine::exact_share(graph, {&spec, 1}, 200, 201), (9.0 + 100) / 200);
}

KlResult measure(DType k, DType v, bool decode = false, bool flash = true) {
  const std::string text = read_file(model_path("val.txt"));
  auto model = tiny();
  auto ids = model->tokenizer().encode(std::string_view(text).substr(0, 6000), false);
  ids.insert(ids.begin(), model->tokenizer().bos());
  const auto session = [&](DType kt, DType vt) {
    auto options = session_options(kt, 512, 512);
    options.kv.v = vt;
    options.flash_attention = flash;
    return options;
  };
  Session tested(model, session(k, v)), reference(model, session(DType::f16, DType::f16)),
      floor(model, session(DType::f32, DType::f32));
  KlOptions options;
  options.n_ctx = 512;
  options.max_chunks = 1;
  options.decode = decode;
  return engine::kl_divergence(tested, reference, floor, ids, options);
}

// Each type at its own cost only: on every layer class, shared layers included, the divergence follows the
// type's error.
TEST(Kl, EveryTypeCostsWhatItsErrorSays) {
  for (DType type : tiny()->backend().caps().kv_types) {
    const formats::Format& format = formats::require(type);
    const DType values = format.has_role(formats::kValues) ? type : DType::f16;
    if (!format.takes(256)) continue;
    const KlResult result = measure(type, values);
    EXPECT_LE(result.kl.mean, 0.4 * format.theory(256) + 2e-6) << format.name;
    EXPECT_LE(result.noise_floor.mean, 1e-6);
    EXPECT_GE(result.kl.same_top, 1 - 1.5 * std::sqrt(format.theory(256)) - 0.004) << format.name;
  }
}

TEST(Kl, DecodeKernelsGiveTheFiguresOfPrefill) {
  for (DType type : {DType::q8_0, DType::tbq3_h}) {
    const KlResult prefill = measure(type, type), decode = measure(type, type, true);
    EXPECT_EQ(prefill.kl.mean, decode.kl.mean);
    EXPECT_EQ(prefill.kl.p999, decode.kl.p999);
    EXPECT_EQ(prefill.ppl.ppl, decode.ppl.ppl);
  }
}

}  // namespace
}  // namespace kvasir::test
