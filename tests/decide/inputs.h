// Inputs of decisions for tests: a CPU that can do everything, a record that proves it, figures of a machine.
#pragma once
#include <string>
#include <vector>

#include "decide/decision.h"
#include "formats/format.h"

namespace kvasir::decide::test {

inline ModelGeometry geometry(const char* name, const char* type = "q8_0") {
  return published_geometry(*gguf::find_geometry(name), type);
}

inline KvTypes both(DType type) { return {type, type, {}, {}}; }

inline Device cpu() {
  Device d;
  d.row = d.backend = "cpu";
  d.device = "A CPU";
  d.isa = "avx512";
  d.built = d.present = d.host = true;
  d.memory_bytes = uint64_t(64) << 30;
  for (const formats::Format& format : formats::all()) {
    if (format.has_role(formats::kKeys)) d.kv_types.push_back(format.type);
    if (format.has_role(formats::kWeights)) d.weight_types.push_back(format.type);
  }
  d.head_dims = {64, 128, 256, 512};
  return d;
}

inline Proof proof(const Device& device) {
  Proof p;
  p.backend = device.backend;
  p.device = device.device;
  p.date = "2026-01-01T00:00:00Z";
  p.kernel_hash = std::string(64, 'a');
  p.record = "cpu-0.json";
  p.passed = p.total = 100;
  p.valid = p.repeats = true;
  for (const DType k : device.kv_types)
    for (const DType v : device.kv_types)
      for (const int head_dim : device.head_dims)
        for (const bool flash : {true, false}) p.pairs.push_back({k, v, head_dim, flash, "row.avx512"});
  return p;
}

// Attention costs what it reads at 20 GB/s, compressed types a third of that rate more.
inline MachineTable machine(const Device& device) {
  MachineTable t;
  t.backend = device.backend;
  t.device = device.device;
  t.isa = device.isa;
  t.threads = 2;
  t.read_gb_per_s = 24;
  t.int8_gops = 1200;
  t.op_us = 3;
  t.value_ns = 0.3;
  for (const DType type : device.weight_types) t.weights.push_back({type, 20, 600});
  for (const DType type : device.kv_types) {
    const formats::Format& format = formats::require(type);
    if (!format.has_role(formats::kValues)) continue;
    for (const int head_dim : device.head_dims)
      if (format.takes(head_dim))
        for (const int heads : {2, 8})
          t.attention.push_back({type, type, head_dim, heads, 2.0 * double(format.row_bytes(head_dim)) / 20,
                                 0.01 * heads * head_dim, 10.0 * head_dim});
  }
  return t;
}

inline RowInputs whole(const Device& device) { return {device, proof(device), {}, machine(device)}; }

inline QualityTable quality(std::vector<std::pair<KvTypes, double>> rows, int64_t n_tokens = 10000) {
  QualityTable table;
  for (const auto& [types, mean] : rows) {
    QualityRow row;
    row.types = types;
    row.mean = mean;
    row.n_tokens = n_tokens;
    table.rows.push_back(row);
  }
  return table;
}

}  // namespace kvasir::decide::test
