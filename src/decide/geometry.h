// What a decision needs to know of a model: layers by class, caches, weights. Read from a file's header or
// computed from a published geometry; never guessed from a name.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
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
  // Layers whose attention every row of a prompt needs: those before the last one that stores keys. The
  // others run for the rows whose logits are wanted.
  int prompt_layers = 0;
};

// Weights of one type that a decode step reads.
struct StepWeights {
  DType type{};
  uint64_t bytes = 0;
  uint64_t prompt_bytes = 0;   // of those, what every row of a prompt passes through
  uint64_t prompt_values = 0;  // their weights: two operations each and row
  // The two matrices of a gated pair are one product, and those of queries, keys and values.
  double products = 0, prompt_products = 0;
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
  std::vector<int> head_dims;         // of the layers, by index
  int prompt_layers = 0;              // every row of a prompt passes through these
  uint64_t file_bytes = 0;            // of all tensors
  uint64_t table_bytes = 0;  // the per-layer embedding: looked up row by row, stays in the file's mapping
  std::vector<StepWeights> step;  // by type

  uint64_t step_bytes() const;
  // Ops of one step, for the cost of starting each; and of the part that every row of a prompt passes
  // through.
  int n_ops() const;
  int n_prompt_ops() const;
  // Values that norms, rotary embedding, activations and per-layer inputs of those layers pass a row.
  uint64_t prompt_elementwise() const;
  // Of those, what norms and per-layer inputs pass, and in how many launches where heads and activations have
  // none of their own.
  uint64_t prompt_normed() const;
  int n_prompt_norms() const;
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
// What the allocator takes for `specs` beyond the rows of keys and of values as wide as the heads of the
// layer
// (`head_dims` by layer); 0 unless values are kept in rows of another layer's head size.
uint64_t padded_v_bytes(std::span<const int> head_dims, std::span<const graph::KvSpec> specs, int n_ctx,
                        int n_ubatch);
// Why these types cannot store this model's heads; empty: they can.
std::string shape_problem(const ModelGeometry& geometry, const KvTypes& types);

}  // namespace kvasir::decide
