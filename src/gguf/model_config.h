// A model's hyper-parameters, read from GGUF metadata only (never from a name or a layer count).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/file.h"

namespace kvasir::gguf {

struct LayerConfig {
  bool sliding = false;  // window attention
  int window = 0;        // keys visible to a query, itself included; 0 = all (global)
  int n_head = 0;
  int n_kv = 0;          // KV heads
  int head_dim = 0;      // of K and of V
  int n_ff = 0;
  int kv_donor = -1;     // layer whose K/V this layer reads; -1 = it owns its own
  bool k_is_v = false;   // values are the raw key projection (no attn_v tensor)
  float rope_base = 0;
  float rope_scale = 1;  // multiplies the position (linear scaling factor 8 -> 1/8)
  int n_rot = 0;
  bool rope_factors = false;  // divide angles by tensor rope_freqs.weight
};

struct ModelConfig {
  std::string arch;  // "gemma3", "gemma4"
  std::string name;  // general.name, or the file's stem
  int n_layer = 0, n_embd = 0, n_vocab = 0, n_ctx_train = 0;
  float rms_eps = 0;
  float logit_softcap = 0;  // 0 = none
  float attn_scale = 1;     // multiplies q.k
  int ple_dim = 0;          // per-layer embedding width, 0 = none
  int n_expert = 0, n_expert_used = 0;
  bool v_norm = false;      // weightless RMS norm on values (gemma4)
  std::vector<LayerConfig> layers;
};

// Throws Error{kRefused} for an architecture or feature that is not built (naming required / supported / missing), Error{kBadFile}
// for missing or contradictory keys.
ModelConfig read_model_config(const File& file);

}  // namespace kvasir::gguf
