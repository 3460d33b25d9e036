// Published model geometries as data: the shapes of the Gemma 3 and Gemma 4 text decoders, by name. For synthetic files,
// benchmarks and decisions before a file is at hand. A real file's own keys always win over this table.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace kvasir::gguf {

struct Geometry {
  std::string_view name;
  std::string_view arch;
  int n_layer, n_embd, n_ff, n_head;
  int n_kv_sliding, n_kv_global;
  int head_dim_sliding, head_dim_global;
  int period;           // every period-th layer is global
  int window;
  int n_shared;         // last layers without a cache of their own
  int n_ff_shared;      // feed-forward width of those; 0: n_ff
  bool k_is_v;          // global layers have no value projection
  int ple_dim;
  int n_expert, n_expert_used, n_ff_expert;
  int n_ctx, n_vocab;
  float global_rope_factor;  // linear scaling of global layers; 1: none

  bool gemma4() const { return arch == "gemma4"; }
  bool global(int layer) const { return layer % period == period - 1; }
  bool shared(int layer) const { return layer >= n_layer - n_shared; }
  int head_dim(int layer) const { return global(layer) ? head_dim_global : head_dim_sliding; }
  int n_kv(int layer) const { return global(layer) ? n_kv_global : n_kv_sliding; }
  int ff(int layer) const { return shared(layer) && n_ff_shared > 0 ? n_ff_shared : n_ff; }
};

std::span<const Geometry> geometries();
const Geometry* find_geometry(std::string_view name);  // nullptr when unknown
std::string geometry_names();                          // "gemma4-e2b, gemma4-e4b, ..."

}  // namespace kvasir::gguf
