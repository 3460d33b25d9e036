// Which kernels and cache types a model gets on each kind of backend. A pure function of geometry, device,
// memory, records, measured costs and measured quality: rules.def lists every rule; nothing here reads a file
// or a clock.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "decide/cost.h"
#include "decide/device.h"
#include "decide/geometry.h"
#include "decide/memory_fit.h"
#include "decide/quality.h"

namespace kvasir::decide {

enum class Choice { kKeepStock, kCompressed, kNotApplicable };
enum class Status { kProved, kDiagnostic, kUnverified, kHardwareGated, kRefused, kNotApplicable };
std::string_view choice_name(Choice choice);  // "keep-stock"
std::string_view status_name(Status status);  // "hardware-gated"

enum class FlashWish { kAuto, kOn, kOff };

inline constexpr double kDefaultKlMax = 0.01;    // nats, mean
inline constexpr double kDefaultMinGain = 0.05;  // of step time: what repeats of a measurement differ by

struct Request {
  int n_ctx = 0;                    // 0: what the model was trained with, or what fits of it
  int n_ubatch = 0;                 // rows of a step; 0: what suits the device (memory_fit.h)
  std::optional<uint64_t> memory;   // budget instead of the device's
  std::optional<uint64_t> reserve;  // instead of the default
  double kl_max = kDefaultKlMax, min_gain = kDefaultMinGain;
  bool prefer_exact = false;      // f16 when that costs no context
  bool allow_unverified = false;  // compressed types without a record
  FlashWish flash = FlashWish::kAuto;
  std::string model = "MODEL";  // as the commands shown name it
};

// A pair of types that was considered.
struct Candidate {
  KvTypes types;
  bool exact = false;  // f32, f16, bf16 and q8_0 only: needs no measured quality
  uint64_t bytes_per_token = 0, kv_bytes = 0;
  uint64_t need = 0;  // weights, cache and scratch at the context
  int ctx_fits = 0;   // largest context within the budget; the model's own when the memory is unknown
  bool fits = false;  // the context asked for
  std::optional<StepCost> cost;    // of a step that generates behind the context
  std::optional<StepCost> prompt;  // of a prompt that fills the context
  std::string cost_missing;
  std::optional<QualityRow> quality;
  bool proved = false;
  std::string unproved;     // what the record lacks
  bool needs_full = false;  // a pair that only `kvasir verify --full` checks
  double gain = 0;          // of tokens/s over stock
  std::string rule;         // id of the rule that excludes it; empty: allowed
  std::string why;
  bool allowed() const { return rule.empty(); }
};

struct ClassChoice {
  std::string name;  // "sliding", "global"
  int head_dim = 0;
  DType k{}, v{};
  std::string flash;    // "on", "off", "auto" (not run here)
  std::string variant;  // kernel; empty: not known
};

struct Row {
  std::string backend;
  std::string device;
  Choice choice = Choice::kKeepStock;
  Status status = Status::kUnverified;
  std::string rule;  // id of the rule that settled the status
  KvTypes types;
  std::vector<ClassChoice> classes;
  std::string fa_256, fa_512;   // "on", "off", "auto"; empty: no such head
  int n_ctx = 0, n_ubatch = 0;  // positions, rows a step
  uint64_t budget = 0;          // 0: unknown
  uint64_t bytes_per_token = 0;
  std::optional<int> ctx_fits;
  std::optional<MemoryNeed> need;
  std::optional<double> predicted_tps;         // generating, n_ctx tokens stored
  std::optional<double> predicted_prompt_tps;  // reading a prompt of n_ctx tokens
  std::optional<StepCost> cost;
  uint64_t padded_v_bytes = 0;  // of the cache (geometry.h)
  std::optional<double> kl;
  std::optional<Proof> proof;  // that counts here, or that is shown beside a gated row
  std::string reason;
  std::string next;      // a command, or empty
  std::string evidence;  // file name of the record that counts; empty: none
  std::vector<Candidate> candidates;
  bool no_memory = false;  // refused because nothing fits
};

struct RowInputs {
  Device device;
  std::optional<Proof> proof;   // of this backend's device, valid or not
  std::optional<Proof> beside;  // of another device: shown, never counted
  std::optional<MachineTable> machine;
};

// Whether flash attention runs on the row's device by its policies alone, whatever the model; and why not.
struct FlashState {
  bool on = true;
  std::string reason;
};
FlashState decide_flash(const RowInputs& inputs, FlashWish wish);

Row decide_row(const ModelGeometry& geometry, const QualityTable* quality, const Request& request,
               const RowInputs& inputs);

// Every rule, for docs and tests.
struct Rule {
  std::string_view id, kind, what;
};
std::vector<Rule> rules();

}  // namespace kvasir::decide
