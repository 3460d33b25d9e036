// Synthetic files: geometries against published figures, type mixes against a real file's, content,
// vocabulary.
#include "gguf/synth.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>

#include "base/error.h"
#include "formats/format.h"
#include "gguf/bytes.h"
#include "gguf/file.h"
#include "gguf/model_config.h"
#include "gguf/recipe.h"
#include "text/gguf_vocabulary.h"
#include "text/tokenizer.h"

namespace kvasir::gguf {
namespace {

using test::TempFolder;

std::map<std::string, DType> types_of(std::string_view geometry, std::string_view type) {
  std::map<std::string, DType> out;
  for (const SynthTensor& tensor : synth_tensors(*find_geometry(geometry), type))
    out[tensor.name] = tensor.type;
  return out;
}

TEST(Geometries, PublishedSizes) {
  const auto billions = [](const char* name) { return double(n_params(*find_geometry(name))) / 1e9; };
  EXPECT_NEAR(billions("gemma4-e2b"), 4.63, 0.005);
  EXPECT_NEAR(billions("gemma4-31b"), 30.70, 0.005);
  EXPECT_NEAR(billions("gemma3-270m"), 0.2681, 0.00005);
  EXPECT_NEAR(billions("gemma3-27b"), 27.0, 0.1);
  EXPECT_NEAR(billions("gemma4-26b-a4b"), 25.2, 0.5);
  EXPECT_NEAR(billions("tiny"), 0.0155989, 0.0000001);
  EXPECT_NEAR(double(synth_bytes(*find_geometry("gemma4-e2b"), "q8_0")) / 1e9, 4.93, 0.01);
  EXPECT_NEAR(double(synth_bytes(*find_geometry("gemma4-e2b"), "q4_k_m")) / 1e9, 3.40, 0.01);
  EXPECT_NEAR(double(synth_bytes(*find_geometry("gemma4-31b"), "q4_k_m")) / 1e9, 18.67, 0.02);
  EXPECT_EQ(synth_tensors(*find_geometry("gemma3-270m"), "q4_k").size(), 236u);
}

TEST(Geometries, HeadersReadAsTheModelsTheyName) {
  const TempFolder folder;
  for (const Geometry& g : geometries()) {
    const std::string path = folder.file(g.name);
    synthesize(g, path, {.type = "q4_k", .header_only = true});
    const auto file = File::open(path);
    if (g.n_expert > 0) {
      EXPECT_THROW(read_model_config(*file), Error) << "experts are refused by name";
      continue;
    }
    const ModelConfig config = read_model_config(*file);
    EXPECT_EQ(config.arch, g.arch);
    EXPECT_EQ(config.n_layer, g.n_layer);
    EXPECT_EQ(config.n_embd, g.n_embd);
    EXPECT_EQ(config.n_vocab, g.n_vocab);
    EXPECT_EQ(config.ple_dim, g.ple_dim);
    EXPECT_EQ(config.logit_softcap, g.gemma4() ? 30.0f : 0.0f);
    for (int il = 0; il < g.n_layer; ++il) {
      const LayerConfig& layer = config.layers[size_t(il)];
      EXPECT_EQ(layer.sliding, !g.global(il)) << g.name << " layer " << il;
      EXPECT_EQ(layer.window, g.global(il) ? 0 : g.window);
      EXPECT_EQ(layer.head_dim, g.head_dim(il));
      EXPECT_EQ(layer.n_kv, g.n_kv(il));
      EXPECT_EQ(layer.n_ff, g.ff(il));
      EXPECT_EQ(layer.kv_donor >= 0, g.shared(il));
      EXPECT_EQ(layer.k_is_v, g.k_is_v && g.global(il));
      EXPECT_EQ(layer.rope_scale, g.global(il) ? 1 / g.global_rope_factor : 1.0f);
    }
  }
}

TEST(Geometries, DonorsOfE2BAndE4B) {
  const TempFolder folder;
  const struct {
    const char* name;
    int sliding, global;
  } rows[] = {{"gemma4-e2b", 13, 14}, {"gemma4-e4b", 22, 23}};
  for (const auto& row : rows) {
    const std::string path = folder.file(row.name);
    synthesize(*find_geometry(row.name), path, {.header_only = true});
    for (const LayerConfig& layer : read_model_config(*File::open(path)).layers)
      if (layer.kv_donor >= 0) {
        EXPECT_EQ(layer.kv_donor, layer.sliding ? row.sliding : row.global) << row.name;
      }
  }
}

TEST(Recipes, Q4KMOfGemma3_270MIsThatOfThePublishedFile) {
  const auto types = types_of("gemma3-270m", "q4_k");
  const std::set<int> better = {0, 1, 4, 7, 10, 13, 15, 16, 17};
  EXPECT_EQ(types.at("token_embd.weight"), DType::q8_0);
  for (int il = 0; il < 18; ++il) {
    const auto type = [&](const char* name) { return types.at(fmt::format("blk.{}.{}.weight", il, name)); };
    EXPECT_EQ(type("attn_q"), DType::q5_0);
    EXPECT_EQ(type("attn_k"), DType::q5_0);
    EXPECT_EQ(type("attn_v"), better.count(il) ? DType::q8_0 : DType::q5_0) << il;
    EXPECT_EQ(type("attn_output"), DType::q4_k);
    EXPECT_EQ(type("ffn_gate"), DType::q5_0);
    EXPECT_EQ(type("ffn_down"), better.count(il) ? DType::q6_k : DType::q4_k) << il;
    EXPECT_EQ(type("attn_norm"), DType::f32);
  }
}

TEST(Recipes, RealFileHasTheSameTypes) {
  const std::string path = text::gemma3_270m_path();
  if (path.empty()) GTEST_SKIP() << "no Gemma 3 270M file";
  const auto types = types_of("gemma3-270m", "q4_k_m");
  const auto file = File::open(path);
  ASSERT_EQ(file->tensors().size(), types.size());
  for (const TensorInfo& tensor : file->tensors())
    EXPECT_EQ(types.at(std::string(tensor.name)), tensor.type) << tensor.name;
}

TEST(Recipes, Q4KMOfGemma4) {
  const auto e2b = types_of("gemma4-e2b", "q4_k");
  EXPECT_EQ(e2b.at("token_embd.weight"), DType::q6_k);
  EXPECT_EQ(e2b.at("per_layer_token_embd.weight"), DType::q6_k);
  EXPECT_EQ(e2b.at("per_layer_model_proj.weight"), DType::bf16);
  EXPECT_EQ(e2b.at("blk.0.inp_gate.weight"), DType::q4_k);
  EXPECT_EQ(e2b.count("blk.15.attn_v.weight"), 0u) << "shared layers have no values of their own";
  EXPECT_EQ(e2b.at("rope_freqs.weight"), DType::f32);
  // 12B: global layers have no attn_v, so the count runs over 40 tensors: the sixth (layer 6) is index 5,
  // not 6.
  const auto b12 = types_of("gemma4-12b", "q4_k");
  EXPECT_EQ(b12.count("blk.5.attn_v.weight"), 0u);
  EXPECT_EQ(b12.at("blk.4.attn_v.weight"), DType::q6_k);
  EXPECT_EQ(b12.at("blk.6.attn_v.weight"), DType::q4_k);
  EXPECT_EQ(b12.at("blk.8.attn_v.weight"), DType::q6_k);
  // 26B: rows of 2112 and 704 are not whole superblocks; the router stays in f32.
  const auto moe = types_of("gemma4-26b-a4b", "q4_k");
  EXPECT_EQ(moe.at("blk.0.ffn_down.weight"), DType::q8_0);
  EXPECT_EQ(moe.at("blk.4.ffn_down_exps.weight"), DType::q5_0);
  EXPECT_EQ(moe.at("blk.0.ffn_gate_up_exps.weight"), DType::q4_k);
  EXPECT_EQ(moe.at("blk.0.ffn_gate_inp.weight"), DType::f32);
}

TEST(Recipes, EveryRecipeMakesEveryGeometry) {
  for (const Recipe& recipe : recipes()) {
    EXPECT_EQ(find_recipe(recipe.name), &recipe);
    if (!recipe.alias.empty()) {
      EXPECT_EQ(find_recipe(recipe.alias), &recipe);
    }
    for (const Geometry& g : geometries())
      for (const SynthTensor& tensor : synth_tensors(g, recipe.name))
        EXPECT_EQ(tensor.shape.ne[0] % formats::require(tensor.type).block, 0)
            << recipe.name << " " << tensor.name;
  }
  EXPECT_EQ(find_recipe(""), nullptr);
  try {
    synth_tensors(*find_geometry("tiny"), "q9");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage);
    EXPECT_NE(std::string(error.what()).find("q4_k_m"), std::string::npos);
  }
}

std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Synth, TinyFilesOfEveryRecipe) {
  const TempFolder folder;
  const Geometry& g = *find_geometry("tiny");
  for (const Recipe& recipe : recipes()) {
    const std::string path = folder.file("tiny.gguf");
    synthesize(g, path, {.type = std::string(recipe.name)});
    const auto file = File::open(path);
    EXPECT_EQ(file->integer("general.file_type"), recipe.file_type);
    uint64_t bytes = 0;
    for (const TensorInfo& tensor : file->tensors()) bytes += tensor.data.size();
    EXPECT_EQ(bytes, synth_bytes(g, recipe.name));
    const TensorInfo& gate = file->require_tensor("blk.3.ffn_gate.weight");
    std::vector<float> values(size_t(gate.shape.count()));
    formats::require(gate.type).decode(gate.data.data(), values.data(), gate.shape.count());
    double sum = 0, squares = 0;
    for (float v : values) sum += v, squares += double(v) * v;
    EXPECT_NEAR(std::sqrt(squares / double(values.size())), 0.02, 0.001) << recipe.name;
    EXPECT_NEAR(sum / double(values.size()), 0, 0.0005) << recipe.name;
  }
}

TEST(Synth, SeedDecidesTheContentAndPagesDiffer) {
  const TempFolder folder;
  const Geometry& g = *find_geometry("tiny");
  synthesize(g, folder.file("a"), {.seed = 1});
  synthesize(g, folder.file("b"), {.seed = 1});
  synthesize(g, folder.file("c"), {.seed = 2});
  const std::string a = slurp(folder.file("a"));
  EXPECT_EQ(a, slurp(folder.file("b")));
  EXPECT_NE(a, slurp(folder.file("c")));
  std::set<std::string> pages;
  for (size_t at = 0; at + 4096 <= a.size(); at += 4096) pages.insert(a.substr(at, 4096));
  EXPECT_GT(double(pages.size()), 0.95 * double(a.size() / 4096));
}

TEST(Synth, NormsAreInATrainedModelsRange) {
  const TempFolder folder;
  synthesize(*find_geometry("tiny"), folder.file("a"), {});
  const auto file = File::open(folder.file("a"));
  const auto first = [&](const char* name) {
    float value;
    std::memcpy(&value, file->require_tensor(name).data.data(), 4);
    return value;
  };
  EXPECT_NEAR(first("blk.0.attn_norm.weight"), 1, 0.11);
  EXPECT_NEAR(first("blk.0.attn_q_norm.weight"), 0.25, 0.03);
  EXPECT_NEAR(first("blk.0.layer_output_scale.weight"), 0.9, 0.1);
  const TensorInfo& factors = file->require_tensor("rope_freqs.weight");
  std::vector<float> values(256);
  std::memcpy(values.data(), factors.data.data(), factors.data.size());
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(values[i], i < 64 ? 1.0f : 1e30f);
}

TEST(Synth, VocabulariesLoadAndEncode) {
  const TempFolder folder;
  for (const char* name : {"tiny", "gemma3-270m", "gemma4-e2b"}) {
    const std::string path = folder.file(name);
    synthesize(*find_geometry(name), path, {.header_only = true});
    const text::FileVocabulary vocabulary = text::load_vocabulary(path);
    const auto tokenizer = text::Tokenizer::create(vocabulary.vocabulary);
    EXPECT_EQ(tokenizer->size(), find_geometry(name)->n_vocab);
    EXPECT_TRUE(tokenizer->add_bos());
    const std::string text = "The  tea stain\n\n\n on it, 42 \xc3\xa9!";
    const auto ids = tokenizer->encode(text, false);
    EXPECT_LT(ids.size(), text.size()) << "pieces are merged";
    EXPECT_EQ(tokenizer->decode(ids), text) << name;
    EXPECT_EQ(tokenizer->encode("\n\n\n", false).size(), 1u);
    const bool gemma4 = find_geometry(name)->gemma4();
    EXPECT_EQ(tokenizer->find(gemma4 ? "<|turn>" : "<start_of_turn>"), 105);
    EXPECT_EQ(tokenizer->find(gemma4 ? "<turn|>" : "<end_of_turn>"), 106);
    EXPECT_TRUE(tokenizer->is_end(106));
  }
}

TEST(Synth, ADiskErrorLeavesNothing) {
  EXPECT_THROW(synthesize(*find_geometry("tiny"), "/no/such/folder/x.gguf", {}), Error);
}

}  // namespace
}  // namespace kvasir::gguf
