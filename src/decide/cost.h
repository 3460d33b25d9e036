// What a step costs on one machine: figures that `kvasir devices --measure` took there, and the time of an op
// from them. Nothing is assumed: a figure that is missing is named instead of a prediction.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decide/geometry.h"

namespace kvasir::decide {

inline constexpr int kMachineSchema = 1;
inline constexpr int kPromptRows = 256;  // of the measurements that stand for prompts

struct WeightCost {
  DType type{};
  double gb_per_s = 0;     // 1e9 bytes/s of weights, one row
  double prompt_gops = 0;  // 1e9 operations/s, kPromptRows rows (a device: a micro-batch); 0: not measured
  // What a product takes beside its bytes; and in a prompt beside its operations (a device). 0: not measured.
  double product_us = 0, prompt_product_us = 0;
};

struct AttentionCost {
  DType k{}, v{};
  int head_dim = 0;
  int heads_each = 0;     // query heads a KV head
  double ns_per_key = 0;  // one stored token of one KV head, one query row, all threads together
  double prompt_ns = 0;   // the same in a prompt, a row of it; 0: not measured
  double append_ns = 0;   // keys and values of one row of one KV head, encoded and stored
  // A device: what a layer's heads, cache write and attention take beside their keys, where a row sees at
  // most kNearKeys, in windows beyond that, and in global layers beyond that; and in a prompt. 0: not
  // measured.
  double start_us = 0, window_start_us = 0, far_start_us = 0, prompt_start_us = 0;
};
inline constexpr int kNearKeys = 512;  // up to which devices have a launch for all of it

struct MachineTable {
  int schema = kMachineSchema;
  std::string backend, device, isa, kernel_hash;
  std::string date;  // UTC
  int threads = 0;
  double load = 0;            // one-minute load average
  double foreign = 0;         // share of the machine that other programs used meanwhile
  uint64_t memory_bytes = 0;  // of the device
  double read_gb_per_s = 0, int8_gops = 0, f32_gflops = 0;
  double op_us = 0;     // an op of no work inside a step; a device: a norm of one row
  double value_ns = 0;  // a value that a norm passes, of many rows; 0: not measured
  std::vector<WeightCost> weights;
  std::vector<AttentionCost> attention;

  // Steps are chains of launches, whose starts were measured with what they start.
  bool has_launches() const;
};

inline constexpr double kContended = 0.10;  // `foreign` above this: the figures are of a busy machine

std::string to_json(const MachineTable& table);
// Throws Error{kBadFile} "NAME: field ...".
MachineTable machine_from_json(std::string_view text, std::string_view name);
std::string machine_name(std::string_view backend, std::string_view device, int threads);  // file name

// ns a stored token of one KV head; nullopt when neither the pair nor its types alone were measured at this
// head size. Between and beyond the measured heads_each along a line.
std::optional<double> attention_ns(const MachineTable& table, DType k, DType v, int head_dim,
                                   double heads_each,
                                   double AttentionCost::*figure = &AttentionCost::ns_per_key);

struct StepCost {
  double weights = 0, attention = 0, starts = 0;  // seconds
  double rest = 0;                                // of a prompt: norms, activations, storing rows
  double total() const { return weights + attention + starts + rest; }
};
struct Prediction {
  std::optional<StepCost> cost;
  std::string missing;  // which figure, when there is no cost
};
// A decode step of one row with `n_visible` tokens stored.
Prediction predict_step(const MachineTable& table, const ModelGeometry& geometry, const KvTypes& types,
                        int n_visible);

// A whole prompt of `n_prompt` rows behind `depth` stored tokens, in steps of `n_ubatch` rows, up to the
// logits of its last row.
Prediction predict_prompt(const MachineTable& table, const ModelGeometry& geometry, const KvTypes& types,
                          int n_prompt, int depth, int n_ubatch);

}  // namespace kvasir::decide
