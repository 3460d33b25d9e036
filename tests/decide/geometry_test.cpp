// Geometry from a file equals the published one, and KV bytes equal what the allocator takes, to the byte.
#include "decide/geometry.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "decide/quality.h"
#include "engine/kv_cache.h"
#include "engine/session.h"
#include "formats/format.h"
#include "gguf/synth.h"
#include "graph/kv_layout.h"

namespace kvasir::decide {
namespace {

// Counts what is asked for and gives no memory.
class Counter : public backends::Backend {
 public:
  uint64_t bytes = 0;
  backends::Caps caps() const override { return {}; }
  std::byte* alloc(size_t n) override {
    bytes += n;
    return nullptr;
  }
  void free(std::byte*) override {}
  void copy(std::byte*, const std::byte*, size_t) override {}
  void upload(const graph::Graph&, const backends::DropSource&, const std::function<void(float)>&) override {}
  std::unique_ptr<backends::Executable> compile(const graph::Graph&, const backends::Decisions&,
                                                const backends::KvBuffers&, int) override {
    return nullptr;
  }
};

std::vector<DType> types(formats::Role role) {
  std::vector<DType> list;
  for (const formats::Format& format : formats::all())
    if (format.has_role(role)) list.push_back(format.type);
  return list;
}

TEST(Geometry, KvBytesAreTheAllocatorsForEveryGeometryAndPair) {
  for (const gguf::Geometry& known : gguf::geometries()) {
    const ModelGeometry g = published_geometry(known);
    for (const DType k : types(formats::kKeys))
      for (const DType v : types(formats::kValues)) {
        const KvTypes pair{k, v, DType::q8_0, DType::f16};
        if (!shape_problem(g, pair).empty()) continue;
        for (const int n_ctx : {1, 64, 500, 4097, 131072}) {
          Counter counter;
          engine::SessionOptions options;
          options.kv = {k, v, DType::q8_0, DType::f16};
          const auto specs = engine::cache_specs(g.caches, options);
          const engine::KvCache cache(counter, specs, n_ctx, std::min(512, n_ctx), 1);
          ASSERT_EQ(kv_bytes(g, pair, n_ctx, 512), counter.bytes)
              << g.name << " " << types_text(pair) << " " << n_ctx;
          ASSERT_EQ(counter.bytes, cache.bytes());
        }
      }
  }
}

TEST(Geometry, E2bAddsWhatItsThreeGlobalLayersStore) {
  const ModelGeometry g = published_geometry(*gguf::find_geometry("gemma4-e2b"));
  const auto per_token = [&](DType type) { return kv_bytes_per_token(g, {type, type, {}, {}}); };
  EXPECT_EQ(per_token(DType::q8_0), 3264u);
  EXPECT_EQ(per_token(DType::f16), 6144u);
  EXPECT_EQ(per_token(DType::tbq4_0), 1728u);
  EXPECT_EQ(per_token(DType::tbq3_0), 1344u);
  // The window's share does not grow: 32k and 128k differ by the global layers only.
  const KvTypes q8{DType::q8_0, DType::q8_0, {}, {}};
  EXPECT_EQ(kv_bytes(g, q8, 131072, 512) - kv_bytes(g, q8, 32768, 512), uint64_t(131072 - 32768) * 3264);
  ASSERT_EQ(g.classes.size(), 2u);
  EXPECT_EQ(g.classes[0].name, "sliding");
  EXPECT_EQ(g.classes[0].layers, 28);
  EXPECT_EQ(g.classes[0].owned, 12);
  EXPECT_EQ(g.classes[1].layers, 7);
  EXPECT_EQ(g.classes[1].owned, 3);
  EXPECT_EQ(g.classes[1].head_dim, 512);
}

TEST(Geometry, OfAFileIsThePublishedOne) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("kvasir-geometry-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  for (const char* name : {"tiny", "gemma4-e2b", "gemma4-31b"}) {  // shared caches, a per-layer table, K = V
    const gguf::Geometry& known = *gguf::find_geometry(name);
    const std::string path = (folder / (std::string(known.name) + ".gguf")).string();
    gguf::SynthOptions options;
    options.type = "q4_k";
    options.header_only = true;
    gguf::synthesize(known, path, options);
    const ModelGeometry file = read_geometry(*gguf::File::open(path)),
                        table = published_geometry(known, "q4_k");
    EXPECT_EQ(file.file_bytes, table.file_bytes) << known.name;
    EXPECT_EQ(file.table_bytes, table.table_bytes) << known.name;
    EXPECT_EQ(file.step_bytes(), table.step_bytes()) << known.name;
    EXPECT_EQ(file.n_ff, table.n_ff) << known.name;
    EXPECT_EQ(match_geometry(file), known.name);
    const KvTypes pair{DType::tbq4_0, DType::q8_0, {}, {}};
    EXPECT_EQ(kv_bytes(file, pair, 8192, 512), kv_bytes(table, pair, 8192, 512)) << known.name;
    EXPECT_EQ(file.fingerprint.size(), 32u);
  }
  std::filesystem::remove_all(folder);
}

TEST(Geometry, StepBytesAreTheEngines) {
  engine::LoadOptions options;
  options.path = KVASIR_SOURCE_DIR "/models/tiny-gemma4-q8_0.gguf";
  options.load_weights = false;
  const auto model = engine::Model::load(options);
  const ModelGeometry g = read_geometry(model->file());
  EXPECT_EQ(g.step_bytes(), model->step_weight_bytes());
  EXPECT_EQ(g.file_bytes, model->weight_bytes());
  EXPECT_NEAR(double(g.n_ops()), double(model->graph().ops.size()), 0.1 * double(g.n_ops()));
}

TEST(Geometry, PromptRowsPassTheLayersBeforeTheLastOwner) {
  engine::LoadOptions options;
  options.path = KVASIR_SOURCE_DIR "/models/tiny-gemma4-q8_0.gguf";
  options.load_weights = false;
  const auto model = engine::Model::load(options);
  const auto operations = [](const ModelGeometry& g) {
    double values = 0;
    for (const StepWeights& part : g.step) values += 2 * double(part.prompt_values);
    return values;
  };
  EXPECT_NEAR(operations(read_geometry(model->file())), model->prompt_row_flops(),
              0.02 * model->prompt_row_flops());
  const ModelGeometry e2b = published_geometry(*gguf::find_geometry("gemma4-e2b"));
  EXPECT_EQ(e2b.prompt_layers, 15);
  EXPECT_EQ(e2b.classes[0].prompt_layers + e2b.classes[1].prompt_layers, 14);  // the 15th selects its rows
  const ModelGeometry dense = published_geometry(*gguf::find_geometry("gemma4-31b"));
  EXPECT_EQ(dense.prompt_layers, 60);
}

// A cache whose values are as wide as another layer's heads is what padding is; nothing else is called that.
TEST(Geometry, PaddedValuesAreCountedFromTheLayout) {
  const ModelGeometry g = published_geometry(*gguf::find_geometry("gemma4-e2b"));
  for (const DType type : {DType::f16, DType::q8_0, DType::tbq4_h, DType::tbq3_0}) {
    std::vector<graph::KvSpec> specs = typed_caches(g, {type, type, {}, {}});
    EXPECT_EQ(padded_v_bytes(g.head_dims, specs, 8192, 512), 0u);
    const auto sliding = std::ranges::find_if(specs, [](const graph::KvSpec& s) { return s.window > 0; });
    ASSERT_EQ(sliding->head_dim, 256);
    const uint64_t own = graph::kv_total_bytes({&*sliding, 1}, 8192, 512, 1);
    sliding->head_dim = 512;  // planted
    const uint64_t wide = graph::kv_total_bytes({&*sliding, 1}, 8192, 512, 1);
    // Keys and values are of one type here: values are half of what was added.
    EXPECT_EQ(padded_v_bytes(g.head_dims, specs, 8192, 512), (wide - own) / 2);
    EXPECT_GT(wide, own);
  }
}

TEST(Geometry, FingerprintFollowsTheWeights) {
  const auto f16 = gguf::File::open(KVASIR_SOURCE_DIR "/models/tiny-gemma4-f16.gguf");
  const auto q8 = gguf::File::open(KVASIR_SOURCE_DIR "/models/tiny-gemma4-q8_0.gguf");
  EXPECT_EQ(fingerprint(*f16), fingerprint(*gguf::File::open(f16->path())));
  EXPECT_NE(fingerprint(*f16), fingerprint(*q8));
}

}  // namespace
}  // namespace kvasir::decide
