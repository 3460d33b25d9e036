// Where a model could run, and what is proved there: capabilities and records arrive as data.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "decide/evidence.h"
#include "tensor/dtype.h"

namespace kvasir::decide {

struct Device {
  std::string row;      // "cpu" "cuda" "vulkan" "vulkan-mali" "metal" "npu"
  std::string backend;  // whose records count: "vulkan" for vulkan-mali
  std::string device, isa;
  bool built = false, present = false;
  std::string absent;         // why it is not built or not here
  bool host = false;          // its memory is everybody's, and look-up tables stay in the file's mapping
  uint64_t memory_bytes = 0;  // 0: unknown
  std::vector<DType> kv_types, weight_types;
  std::vector<int> head_dims;
  bool experts = false;  // routes experts
};

// The six rows of every decision, in order.
std::vector<std::string_view> row_names();
// The command and the hardware that would close a gated row.
std::string gate_of(std::string_view row);

// What a record says, ready for rules.
struct Proof {
  std::string backend, device, date, kernel_hash, record;  // record: its file name
  int passed = 0, total = 0;
  double worst = 0;  // largest share of a bound that a passed check used
  std::string worst_check;
  bool valid = false;       // recordable, and of this device and these kernels
  bool diagnostic = false;  // of this device and these kernels, but not recordable
  std::string against;      // what speaks against it
  bool repeats = false;     // twenty repeats gave one text
  struct Pair {
    DType k, v;
    int head_dim;
    bool flash;
    std::string variant;
  };
  std::vector<Pair> pairs;  // attention that passed; only when no check of the pair failed
  std::vector<Pair> wrong;  // attention of which a check failed

  const Pair* find(DType k, DType v, int head_dim, bool flash) const;
};
// `here`: the device and kernels it is held against; nullopt: its own (a record from elsewhere, as it was
// there).
Proof summarise(const Evidence& record, const std::optional<Here>& here);
// The device a record describes, with what its passed checks show it can do.
Device device_of(const Evidence& record);

}  // namespace kvasir::decide
