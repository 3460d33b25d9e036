#include "decision_inputs.h"

#include <algorithm>

#include "backends/registry/registry.h"
#include "machine.h"
#include "options.h"
#include "store.h"
#include "version.h"

namespace kvasir::app {
namespace {

decide::Device device_from(const backends::Caps& caps) {
  decide::Device d;
  d.row = d.backend = caps.name;
  if (caps.name == "vulkan" && caps.device.find("Mali") != caps.device.npos) d.row = "vulkan-mali";
  d.device = caps.device;
  d.isa = caps.isa;
  d.built = d.present = true;
  d.host = caps.name == "cpu";
  d.memory_bytes = d.host ? std::min(memory_limit(), caps.memory_bytes) : caps.memory_bytes;
  d.kv_types = caps.kv_types;
  d.weight_types = caps.weight_types;
  d.head_dims = caps.head_dims;
  return d;
}

// The best of the stored records of another device.
std::optional<decide::Proof> record_elsewhere(const std::vector<decide::StoredRecord>& stored,
                                              const std::string& backend, bool mali) {
  std::optional<decide::Proof> best;
  for (const decide::StoredRecord& one : stored) {
    if (!one.record || one.record->backend != backend) continue;
    if (backend == "vulkan" && (one.record->device.find("Mali") != std::string::npos) != mali) continue;
    const decide::Proof proof = decide::summarise(*one.record, std::nullopt);
    if (!best || (proof.valid && !best->valid) || (proof.valid == best->valid && proof.date > best->date))
      best = proof;
  }
  return best;
}

// A record of this device made by other kernels: the reason why there is no valid one.
std::optional<decide::Proof> stale_record(const std::vector<decide::StoredRecord>& stored,
                                          const std::string& backend, const decide::Here& here) {
  std::optional<decide::Proof> best;
  for (const decide::StoredRecord& one : stored) {
    if (!one.record || one.record->backend != backend || one.record->device != here.device) continue;
    const decide::Proof proof = decide::summarise(*one.record, here);
    if (!best || proof.date > best->date) best = proof;
  }
  return best;
}

decide::Device absent_device(std::string_view row, const backends::BackendStatus& status) {
  decide::Device d;
  d.row = row;
  d.backend = status.name;
  d.built = !status.reason.starts_with("not built");
  d.absent = "backend '" + status.name + "': " + status.reason;
  return d;
}

}  // namespace

decide::Here here_of(const std::string& backend) {
  const backends::Caps& caps = backend_caps(backend);
  return {kernel_hash(backend), caps.device, caps.uuid};
}

decide::RowInputs live_row(const std::string& backend, int threads) {
  decide::RowInputs inputs;
  inputs.device = device_from(backend_caps(backend));
  const decide::Here here = here_of(backend);
  if (const auto record = stored_record(backend, here)) inputs.proof = decide::summarise(*record, here);
  inputs.machine = stored_machine(backend, here.device, backend == "cpu" ? threads : 0);
  return inputs;
}

std::vector<decide::RowInputs> row_inputs(int threads, bool all_records) {
  std::vector<decide::StoredRecord> stored;
  if (all_records && !evidence_folder().empty()) stored = decide::stored_records(evidence_folder());
  std::erase_if(stored, [](const auto& s) { return s.record && !s.record->tcq_table.empty(); });
  std::vector<decide::RowInputs> rows;
  const auto known = backends::known_backends();
  for (const std::string_view row : decide::row_names()) {
    decide::RowInputs inputs;
    if (row == "npu") {
      inputs.device.row = inputs.device.backend = "npu";
      rows.push_back(inputs);
      continue;
    }
    const bool mali = row == "vulkan-mali";
    const std::string backend = mali ? "vulkan" : std::string(row);
    const auto status = std::ranges::find(known, backend, &backends::BackendStatus::name);
    if (status->available) inputs = live_row(backend, threads);
    if (!status->available || inputs.device.row != row) {
      inputs = {};
      inputs.device = absent_device(row, *status);
      if (status->available)
        inputs.device.absent = mali ? "no Mali GPU here" : "the GPU here is a Mali: row vulkan-mali";
      inputs.device.built = inputs.device.built || status->available;
      inputs.beside = record_elsewhere(stored, backend, mali);
    } else if (!inputs.proof) {
      inputs.proof = stale_record(stored, backend, here_of(backend));
    }
    rows.push_back(inputs);
  }
  return rows;
}

}  // namespace kvasir::app
