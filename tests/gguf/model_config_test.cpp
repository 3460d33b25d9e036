// Hyper-parameters from metadata: the embedded model, defaults, per-layer arrays, contradictions.
#include "gguf/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>

#include "base/error.h"
#include "gguf/bytes.h"
#include "gguf/writer.h"
#include "text/gguf_vocabulary.h"

namespace kvasir::gguf {
namespace {

using test::TempFolder;
using Edit = std::function<void(Writer&)>;

Shape shape(std::initializer_list<int64_t> ne) {
  Shape out;
  out.n_dims = int(ne.size());
  std::copy(ne.begin(), ne.end(), out.ne.begin());
  return out;
}

// Writes a header with these keys and tensors, and reads it as a model.
ModelConfig read(const Edit& fill) {
  const TempFolder folder;
  const std::string path = folder.file("case.gguf");
  Writer writer(path);
  fill(writer);
  writer.finish_header_only();
  return read_model_config(*File::open(path));
}

std::string refusal(const Edit& fill, ErrorCode code) {
  try {
    read(fill);
  } catch (const Error& error) {
    EXPECT_EQ(int(error.code()), int(code)) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

// Gemma 3 with `n_layer` layers, 2 heads of head_dim; `more` adds keys.
Edit gemma3(
    int n_layer, int head_dim, const Edit& more = [](Writer&) {}) {
  return [=](Writer& w) {
    w.add_string("general.architecture", "gemma3");
    w.add_u32("gemma3.block_count", uint32_t(n_layer));
    w.add_u32("gemma3.context_length", 4096);
    w.add_u32("gemma3.embedding_length", 336);
    w.add_u32("gemma3.feed_forward_length", 512);
    w.add_u32("gemma3.attention.head_count", 2);
    w.add_u32("gemma3.attention.head_count_kv", 1);
    w.add_u32("gemma3.attention.key_length", uint32_t(head_dim));
    w.add_u32("gemma3.attention.value_length", uint32_t(head_dim));
    w.add_f32("gemma3.rope.freq_base", 1e6f);
    more(w);
    w.add_tensor("token_embd.weight", DType::f32, shape({336, 1000}));
  };
}

// Gemma 4, 6 layers, global ones third and last, two shared; `skip` leaves keys out so that a case can write
// its own.
Edit gemma4(const Edit& more, std::string skip = {}, std::vector<std::string> without_v = {}) {
  return [=](Writer& w) {
    const auto key = [&](std::string_view name) { return skip != name; };
    w.add_string("general.architecture", "gemma4");
    w.add_string("general.name", "case");
    w.add_u32("gemma4.block_count", 6);
    w.add_u32("gemma4.context_length", 4096);
    w.add_u32("gemma4.embedding_length", 256);
    if (key("ff"))
      w.add_i32_array("gemma4.feed_forward_length", std::vector<int32_t>{512, 512, 512, 512, 1024, 1024});
    w.add_u32("gemma4.attention.head_count", 4);
    if (key("kv")) w.add_i32_array("gemma4.attention.head_count_kv", std::vector<int32_t>{2, 2, 1, 1, 1, 1});
    w.add_u32("gemma4.attention.key_length", 512);
    w.add_u32("gemma4.attention.value_length", 512);
    w.add_u32("gemma4.attention.key_length_swa", 256);
    if (key("value_swa")) w.add_u32("gemma4.attention.value_length_swa", 256);
    if (key("window")) w.add_u32("gemma4.attention.sliding_window", 512);
    if (key("pattern"))
      w.add_bool_array("gemma4.attention.sliding_window_pattern", std::vector<uint8_t>{1, 1, 1, 0, 1, 0});
    w.add_f32("gemma4.rope.freq_base", 1e6f);
    w.add_f32("gemma4.rope.freq_base_swa", 1e4f);
    if (key("shared")) w.add_u32("gemma4.attention.shared_kv_layers", 2);
    more(w);
    w.add_tensor("token_embd.weight", DType::f32, shape({256, 1000}));
    w.add_tensor("rope_freqs.weight", DType::f32, shape({256}));
    for (int il = 0; il < 6; ++il) {
      const std::string name = fmt::format("blk.{}.attn_v.weight", il);
      if (std::ranges::find(without_v, name) == without_v.end())
        w.add_tensor(name, DType::f32, shape({256, 256}));
    }
  };
}

const Edit kNothing = [](Writer&) {};

TEST(ModelConfig, EmbeddedModel) {
  const auto file = File::open(KVASIR_SOURCE_DIR "/models/tiny-gemma4-f16.gguf");
  const ModelConfig config = read_model_config(*file);
  EXPECT_EQ(config.arch, "gemma4");
  EXPECT_EQ(config.n_layer, 10);
  EXPECT_EQ(config.n_embd, 256);
  EXPECT_EQ(config.n_vocab, 4096);
  EXPECT_EQ(config.n_ctx_train, 8192);
  EXPECT_EQ(config.ple_dim, 32);
  EXPECT_EQ(config.logit_softcap, 30.0f);
  EXPECT_EQ(config.attn_scale, 1.0f);
  EXPECT_TRUE(config.v_norm);
  EXPECT_NEAR(config.rms_eps, 1e-6, 1e-12);
  ASSERT_EQ(config.layers.size(), 10u);
  for (int il = 0; il < 10; ++il) {
    const LayerConfig& layer = config.layers[size_t(il)];
    const bool global = il % 5 == 4;
    EXPECT_EQ(layer.sliding, !global);
    EXPECT_EQ(layer.window, global ? 0 : 512);
    EXPECT_EQ(layer.head_dim, global ? 512 : 256);
    EXPECT_EQ(layer.n_rot, layer.head_dim);
    EXPECT_EQ(layer.n_head, 4);
    EXPECT_EQ(layer.n_kv, 1);
    EXPECT_EQ(layer.n_ff, il < 5 ? 512 : 1024);
    EXPECT_EQ(layer.kv_donor, il < 5 ? -1 : global ? 4 : 3);
    EXPECT_FALSE(layer.k_is_v);
    EXPECT_EQ(layer.rope_base, global ? 1e6f : 1e4f);
    EXPECT_EQ(layer.rope_scale, 1.0f);
    EXPECT_EQ(layer.rope_factors, global);
  }
}

TEST(ModelConfig, RealGemma3) {
  const std::string path = text::gemma3_270m_path();
  if (path.empty()) GTEST_SKIP() << "no Gemma 3 270M file";
  const ModelConfig config = read_model_config(*File::open(path));
  EXPECT_EQ(config.arch, "gemma3");
  EXPECT_EQ(config.n_embd, 640);
  EXPECT_EQ(config.n_vocab, 262144);
  EXPECT_EQ(config.n_ctx_train, 32768);
  EXPECT_EQ(config.attn_scale, 1.0f / 16);
  ASSERT_EQ(config.layers.size(), 18u);
  for (int il = 0; il < 18; ++il) {
    const LayerConfig& layer = config.layers[size_t(il)];
    EXPECT_EQ(layer.window, il % 6 == 5 ? 0 : 512);
    EXPECT_EQ(layer.rope_base, il % 6 == 5 ? 1e6f : 1e4f);
    EXPECT_EQ(layer.head_dim, 256);
    EXPECT_EQ(layer.n_ff, 2048);
    EXPECT_EQ(layer.kv_donor, -1);
  }
}

TEST(ModelConfig, Gemma3Defaults) {
  const ModelConfig config =
      read(gemma3(13, 256, [](Writer& w) { w.add_u32("gemma3.attention.sliding_window", 512); }));
  EXPECT_EQ(config.name, "case");
  EXPECT_EQ(config.logit_softcap, 0.0f);
  EXPECT_FALSE(config.v_norm);
  EXPECT_EQ(config.attn_scale, 1.0f / 16);
  for (int il = 0; il < 13; ++il) {
    const LayerConfig& layer = config.layers[size_t(il)];
    EXPECT_EQ(layer.sliding, il != 5 && il != 11) << "period 6; the last layer need not be global";
    EXPECT_EQ(layer.rope_base, layer.sliding ? 1e4f : 1e6f);
    EXPECT_EQ(layer.n_rot, 256);
    EXPECT_FALSE(layer.rope_factors);
  }
}

TEST(ModelConfig, Gemma3WithoutWindowIsGlobal) {
  for (const LayerConfig& layer : read(gemma3(7, 256)).layers) {
    EXPECT_FALSE(layer.sliding);
    EXPECT_EQ(layer.rope_base, 1e6f);
  }
}

TEST(ModelConfig, Gemma3PatternPeriodFromTheFile) {
  const ModelConfig config = read(gemma3(4, 256, [](Writer& w) {
    w.add_u32("gemma3.attention.sliding_window", 64);
    w.add_u32("gemma3.attention.sliding_window_pattern", 2);
  }));
  EXPECT_TRUE(config.layers[0].sliding);
  EXPECT_FALSE(config.layers[1].sliding);
  EXPECT_FALSE(config.layers[3].sliding);
}

TEST(ModelConfig, LinearScalingTouchesGlobalLayersOnly) {
  const ModelConfig config = read(gemma3(6, 256, [](Writer& w) {
    w.add_u32("gemma3.attention.sliding_window", 64);
    w.add_string("gemma3.rope.scaling.type", "linear");
    w.add_f32("gemma3.rope.scaling.factor", 8);
  }));
  EXPECT_EQ(config.layers[0].rope_scale, 1.0f);
  EXPECT_EQ(config.layers[5].rope_scale, 0.125f);
}

TEST(ModelConfig, QueryScaleOf27B) {
  EXPECT_FLOAT_EQ(read(gemma3(62, 256)).attn_scale, 1.0f / 16) << "not a matter of the layer count";
  EXPECT_FLOAT_EQ(read(gemma3(62, 128)).attn_scale, 1.0f / std::sqrt(168.0f));
  EXPECT_FLOAT_EQ(
      read(gemma3(6, 128, [](Writer& w) { w.add_f32("gemma3.attention.scale", 0.5f); })).attn_scale, 0.5f);
}

TEST(ModelConfig, Gemma4ArraysAndDonors) {
  const ModelConfig config = read(gemma4(kNothing, {}, {"blk.3.attn_v.weight", "blk.4.attn_v.weight"}));
  EXPECT_EQ(config.logit_softcap, 30.0f) << "a missing key means 30 in gemma4";
  EXPECT_EQ(config.ple_dim, 0);
  const int n_kv[] = {2, 2, 1, 1, 1, 1}, donor[] = {-1, -1, -1, -1, 2, 3};
  for (int il = 0; il < 6; ++il) {
    EXPECT_EQ(config.layers[size_t(il)].n_kv, n_kv[il]);
    EXPECT_EQ(config.layers[size_t(il)].n_ff, il < 4 ? 512 : 1024);
    EXPECT_EQ(config.layers[size_t(il)].kv_donor, donor[il]);
    EXPECT_EQ(config.layers[size_t(il)].k_is_v, il == 3)
        << "an owning layer without attn_v; layer 4 owns nothing";
  }
}

TEST(ModelConfig, PatternMayBeIntegers) {
  const ModelConfig config = read(gemma4(
      [](Writer& w) {
        w.add_i32_array("gemma4.attention.sliding_window_pattern", std::vector<int32_t>{1, 1, 1, 0, 1, 0});
      },
      "pattern"));
  EXPECT_TRUE(config.layers[0].sliding);
  EXPECT_FALSE(config.layers[3].sliding);
}

TEST(ModelConfig, Refusals) {
  const auto expect = [](const char* fragment, ErrorCode code, const Edit& fill) {
    const std::string message = refusal(fill, code);
    EXPECT_NE(message.find(fragment), std::string::npos) << message;
    EXPECT_NE(message.find("case.gguf"), std::string::npos) << message;
  };
  const auto bad = ErrorCode::kBadFile, refused = ErrorCode::kRefused;
  expect("'general.architecture' is missing", bad, kNothing);
  expect("supported: gemma3, gemma4", refused,
         [](Writer& w) { w.add_string("general.architecture", "llama"); });
  expect("mixture of experts", refused, gemma4([](Writer& w) { w.add_u32("gemma4.expert_count", 128); }));
  expect("'gemma3.block_count' is missing", bad,
         [](Writer& w) { w.add_string("general.architecture", "gemma3"); });
  expect("'gemma3.block_count' is 0", bad, gemma3(0, 256));
  expect("has 3 entries; the model has 6 layers", bad,
         gemma4(
             [](Writer& w) {
               w.add_i32_array("gemma4.attention.head_count_kv", std::vector<int32_t>{1, 1, 1});
             },
             "kv"));
  expect("'gemma4.feed_forward_length' is -4", bad,
         gemma4([](Writer& w) { w.add_i32("gemma4.feed_forward_length", -4); }, "ff"));
  expect("4 query heads over 3 KV heads", bad,
         gemma4([](Writer& w) { w.add_u32("gemma4.attention.head_count_kv", 3); }, "kv"));
  expect("'gemma4.attention.sliding_window_pattern' is missing", bad, gemma4(kNothing, "pattern"));
  expect("holds string", bad,
         gemma4([](Writer& w) { w.add_string("gemma4.attention.sliding_window", "x"); }, "window"));
  expect("has no earlier layer of its kind", bad,
         gemma4([](Writer& w) { w.add_u32("gemma4.attention.shared_kv_layers", 3); }, "shared"));
  expect("would share with layer", bad,
         gemma4([](Writer& w) { w.add_u32("gemma4.attention.shared_kv_layers", 1); }, "shared"));
  expect("unequal head sizes", refused,
         gemma4([](Writer& w) { w.add_u32("gemma4.attention.value_length_swa", 128); }, "value_swa"));
  expect("supported: none, linear", refused,
         gemma3(6, 256, [](Writer& w) { w.add_string("gemma3.rope.scaling.type", "yarn"); }));
  expect("'gemma3.rope.scaling.factor' is 0", bad, gemma3(6, 256, [](Writer& w) {
           w.add_string("gemma3.rope.scaling.type", "linear");
           w.add_f32("gemma3.rope.scaling.factor", 0);
         }));
  expect("'gemma3.attention.layer_norm_rms_epsilon' is nan", bad,
         gemma3(6, 256, [](Writer& w) { w.add_f32("gemma3.attention.layer_norm_rms_epsilon", NAN); }));
  expect("'gemma4.final_logit_softcapping' is -1", bad,
         gemma4([](Writer& w) { w.add_f32("gemma4.final_logit_softcapping", -1); }));
}

}  // namespace
}  // namespace kvasir::gguf
