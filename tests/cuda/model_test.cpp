// Whole synthetic models on CUDA against the CPU: every mix of weight types through the kernels of a one-row
// step, shifted contexts, and steps of several sequences.
#include <cstdio>
#include <filesystem>

#include "cuda/fixture.h"
#include "engine/session.h"
#include "gguf/synth.h"

namespace kvasir::test {
namespace {

using engine::Session;
using engine::Want;
using text::Token;

std::shared_ptr<engine::Model> synthetic(const std::string& type, const std::string& backend) {
  const std::string path =
      (std::filesystem::temp_directory_path() / ("kvasir-cuda-" + type + ".gguf")).string();
  gguf::SynthOptions options;
  options.type = type;
  gguf::synthesize(*gguf::find_geometry("tiny"), path, options);
  engine::LoadOptions load;
  load.path = path;
  load.backend = backend;
  auto model = engine::Model::load(load);
  std::filesystem::remove(path);  // the mapping stays
  return model;
}

engine::SessionOptions options(DType kv, int n_seq = 1) {
  engine::SessionOptions o;
  o.n_ctx = 512;
  o.n_ubatch = 128;
  o.n_seq = n_seq;
  o.kv.k = o.kv.v = kv;
  return o;
}

std::vector<Token> some_tokens(int n, int seed) {
  std::vector<Token> out;
  for (int i = 0; i < n; ++i) out.push_back(Token(5 + (i * 7919 + seed * 131) % 4000));
  return out;
}

std::vector<double> last_logits(Session& s, int seq, const std::vector<Token>& tokens) {
  std::vector<double> out;
  s.append(seq, tokens, Want::kLast, [&](int, std::span<const float> l) { out.assign(l.begin(), l.end()); });
  return out;
}

double difference(const std::vector<double>& got, const std::vector<double>& expected) {
  const std::vector<float> f(got.begin(), got.end());
  return nmse(f, expected);
}

TEST(CudaModel, OneRowStepsOfEveryWeightType) {
  KVASIR_NEEDS_CUDA();
  for (const char* type : {"f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q4_k",
                           "q5_k", "q6_k", "iq4_nl", "iq4_xs"}) {
    std::vector<double> logits[2];
    for (int b = 0; b < 2; ++b) {
      Session s(synthetic(type, b ? "cuda" : "cpu"), options(DType::f16));
      last_logits(s, 0, some_tokens(20, 1));
      // Rounding of int8 activations is amplified by chance: one step's figure says little.
      for (int i = 0; i < 60; ++i) {
        const std::vector<double> step = last_logits(s, 0, some_tokens(1, 2 + i));
        logits[b].insert(logits[b].end(), step.begin(), step.end());
      }
    }
    const double d = difference(logits[1], logits[0]);
    std::printf("%s: NMSE of the logits against the CPU %.2e\n", type, d);
    EXPECT_LE(d, 3e-3) << type;
  }
}

TEST(CudaModel, ShiftedContext) {
  KVASIR_NEEDS_CUDA();
  // f16 weights: no int8 activations, whose rounding (about 1e-3 here) would hide a wrong turn.
  for (DType kv : {DType::f16, DType::q8_0, DType::q5_0}) {
    std::vector<double> logits[2];
    for (int b = 0; b < 2; ++b) {
      Session s(synthetic("f16", b ? "cuda" : "cpu"), options(kv));
      last_logits(s, 0, some_tokens(300, 1));
      s.shift(0, 64, 64);
      last_logits(s, 0, some_tokens(40, 3));
      for (int i = 0; i < 3; ++i) logits[b] = last_logits(s, 0, some_tokens(1, 2 + i));
    }
    const double d = difference(logits[1], logits[0]);
    std::printf("shifted, %s: NMSE of the logits against the CPU %.2e\n",
                std::string(formats::require(kv).name).c_str(), d);
    EXPECT_LE(d, kv == DType::f16 ? 1e-4 : 1e-3);
  }
}

TEST(CudaModel, SeveralSequencesInAStep) {
  KVASIR_NEEDS_CUDA();
  const auto model = synthetic("f16", "cuda");
  for (DType kv : {DType::f16, DType::tbq3_h}) {
    Session s(model, options(kv, 3));
    std::vector<std::vector<double>> together(3), alone(3);
    for (int q = 0; q < 3; ++q) last_logits(s, q, some_tokens(60 + 7 * q, q));
    for (int step = 0; step < 8; ++step) {
      std::vector<Session::SeqToken> rows;
      for (int q = 0; q < 3; ++q) rows.push_back({q, some_tokens(1, 10 * step + q)[0]});
      s.append_each(rows,
                    [&](int i, std::span<const float> l) { together[size_t(i)].assign(l.begin(), l.end()); });
    }
    for (int q = 0; q < 3; ++q) {
      Session one(model, options(kv));
      last_logits(one, 0, some_tokens(60 + 7 * q, q));
      for (int step = 0; step < 8; ++step)
        alone[size_t(q)] = last_logits(one, 0, {some_tokens(1, 10 * step + q)[0]});
      const double d = difference(together[size_t(q)], alone[size_t(q)]);
      std::printf("sequence %d of 3, %s: NMSE against alone %.2e\n", q,
                  std::string(formats::require(kv).name).c_str(), d);
      // A value beside a midpoint may take the other 3-bit code when sums are rounded otherwise.
      EXPECT_LE(d, kv == DType::f16 ? 1e-4 : 1e-2) << "sequence " << q;
    }
  }
}

}  // namespace
}  // namespace kvasir::test
