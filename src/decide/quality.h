// What cache types cost a model: KL divergences that `perplexity --kl` measured on it, one file a model.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "decide/geometry.h"

namespace kvasir::decide {

inline constexpr int kQualitySchema = 1;
inline constexpr int64_t kMinScored = 1000;  // fewer scored tokens say nothing about a mean

struct QualityRow {
  KvTypes types;
  int n_ctx = 0;
  int64_t n_tokens = 0;                                 // scored
  double mean = 0, median = 0, p999 = 0, same_top = 0;  // KL from an f16 cache, nats
  double floor = 0;                                     // mean KL of f16 from f32
  double ppl = 0, exact_share = 0;
  bool decode = false;  // through the kernels of generation
  std::string kernel_hash, date;
};

struct QualityTable {
  int schema = kQualitySchema;
  std::string fingerprint;  // of the model file
  std::string model;        // "gemma3 268M q4_k_m"
  std::string geometry;     // name of the published geometry with this shape; empty: none
  std::string weights;      // recipe of the file; empty: a mix of its own
  std::vector<QualityRow> rows;
};

std::string to_json(const QualityTable& table);
// Throws Error{kBadFile}.
QualityTable quality_from_json(std::string_view text, std::string_view name);
// Replaces the row of the same types, window and way of reading, unless the same kernels were measured on
// more tokens there.
void add_row(QualityTable& table, const QualityRow& row);
// The largest mean among the rows of these types with kMinScored tokens or more, whatever their window; with
// none, the row of most tokens; nullptr: not measured.
const QualityRow* find_quality(const QualityTable& table, const KvTypes& types);

// Name of the published geometry with the same classes, widths and vocabulary; empty: none.
std::string match_geometry(const ModelGeometry& geometry);

}  // namespace kvasir::decide
