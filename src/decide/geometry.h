// What a decision needs to know of a model: layers by class, caches, weights. Read from a file's header or
// computed from a published geometry; never guessed from a name.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gguf/file.h"
#include "gguf/geometry.h"
#include "graph/graph.h"

namespace kvasir::decide {

struct LayerClass {
  std::string name;  // "sliding", "global"
  int layers = 0, owned = 0;
  int n_head = 0, n_kv = 0, head_dim = 0;
  int window = 0;  // 0: all
};

// Weights of one type that a decode step reads.
struct StepWeights {
  DType type{};
  uint64_t bytes = 0;
};

struct ModelGeometry {
  std::string name, arch;
  std::string fingerprint;  // of a file's header and samples of its data; empty for a published geometry
  int n_layer = 0, n_embd = 0, n_vocab = 0, n_ctx_train = 0;
  int ple_dim = 0;  // 0: no per-layer embedding
  int n_expert = 0, n_expert_used = 0;
  int n_ff = 0;  // widest
  std::vector<LayerClass> classes;
  std::vector<graph::KvSpec> caches;  // of the layers that own keys and values; types not set
  uint64_t file_bytes = 0;            // of all tensors
  uint64_t table_bytes = 0;  // the per-layer embedding: looked up row by row, stays in the file's mapping
  std::vector<StepWeights> step;  // by type

  uint64_t step_bytes() const;
  // Ops of one step, for the cost of starting each.
  int n_ops() const;
};

// Throws what gguf::read_model_config throws.
ModelGeometry read_geometry(const gguf::File& file);
// As a file that `synth` writes with weights of `type` has it. Throws Error{kUsage} for an unknown type.
ModelGeometry published_geometry(const gguf::Geometry& geometry, std::string_view type = "q8_0");

// SHA-256 over the header and 4 KiB from the middle of every tensor: the same weights give the same text, at
// once for a file of any size. 32 hex digits.
std::string fingerprint(const gguf::File& file);

// Types of the whole cache: one pair, and another for sliding layers when it differs.
struct KvTypes {
  DType k = DType::q8_0, v = DType::q8_0;
  std::optional<DType> k_sliding, v_sliding;

  DType k_of(bool sliding) const { return sliding ? k_sliding.value_or(k) : k; }
  DType v_of(bool sliding) const { return sliding ? v_sliding.value_or(v) : v; }
  bool operator==(const KvTypes& o) const {
    return k == o.k && v == o.v && k_of(true) == o.k_of(true) && v_of(true) == o.v_of(true);
  }
};
// "tbq4_ht/tbq3_ht, sliding tbq4_h/tbq3_h"
std::string types_text(const KvTypes& types);
// "-ctk tbq4_ht -ctv tbq3_ht --kv-swa tbq4_h:tbq3_h"
std::string types_flags(const KvTypes& types);

// Caches of `geometry` with these types.
std::vector<graph::KvSpec> typed_caches(const ModelGeometry& geometry, const KvTypes& types);
// Exactly what the allocator takes for one sequence; `n_ubatch` as the session clamps it (at most n_ctx).
uint64_t kv_bytes(const ModelGeometry& geometry, const KvTypes& types, int n_ctx, int n_ubatch);
uint64_t kv_bytes_per_token(const ModelGeometry& geometry, const KvTypes& types);
// Why these types cannot store this model's heads; empty: they can.
std::string shape_problem(const ModelGeometry& geometry, const KvTypes& types);

}  // namespace kvasir::decide
