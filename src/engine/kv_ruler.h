// The ruler on a model's own keys and values: what each cache type makes of the vectors that a text leaves in
// the cache.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/session.h"

namespace kvasir::engine {

struct KvRulerOptions {
  int n_ctx = 512;      // tokens a window
  int max_chunks = 4;   // windows; -1: the whole text
  int max_rows = 4096;  // vectors a group, evenly spread over tokens, layers and heads
  std::function<void(int window, int n_windows)> on_window;
};

struct KvRulerRow {
  DType type{};
  double bits_per_value = 0;
  double nmse = 0;       // mean of |x - y|^2 / |x|^2 over the vectors: each counts alike, whatever its norm
  double worst = 0;      // the largest
  double bits_lost = 0;  // bits_per_value - log2(1 / nmse) / 2; NaN for a type that is exact here
};

// Keys (after rope) or values of one class of layers.
struct KvRulerGroup {
  formats::Role side{};
  int window = 0;  // 0: global layers
  int head_dim = 0;
  int n_layers = 0;
  int64_t n_rows = 0;
  std::vector<KvRulerRow> rows;  // every type that this backend's cache can hold there, in list order
};

// Windows as perplexity() cuts them. Throws Error{kUsage} when the text has not one, Error{kRefused} on a
// backend whose pages cannot be read.
std::vector<KvRulerGroup> kv_ruler(const std::shared_ptr<Model>& model, std::span<const Token> tokens,
                                   const KvRulerOptions& options);

// What `format` makes of vectors of head_dim values each: through its basis and, for a type that encodes
// whole pages, f16.
KvRulerRow measure_rows(const formats::Format& format, formats::Role side, int head_dim,
                        std::span<const float> rows, int n_threads);

}  // namespace kvasir::engine
