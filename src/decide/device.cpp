#include "decide/device.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "formats/format.h"

namespace kvasir::decide {
namespace {

struct Gate {
  std::string_view row, next;
};
constexpr Gate kGates[] = {
    {"cpu", "run on any x86-64 or aarch64 Linux: kvasir verify --backend cpu"},
    {"cuda",
     "an NVIDIA GPU of compute capability 8.0 or later with CUDA 13: cmake -S . -B build "
     "-DKVASIR_CUDA=ON && "
     "cmake --build build && build/kvasir verify --backend cuda"},
    {"vulkan",
     "a desktop GPU with a Vulkan 1.2 driver (not llvmpipe or SwiftShader) and a build with that backend: "
     "kvasir "
     "verify --backend vulkan"},
    {"vulkan-mali",
     "a phone or board with an Arm Mali GPU and a build with the Vulkan backend: kvasir verify --backend "
     "vulkan (the "
     "twenty repeats decide about flash attention)"},
    {"metal", "a Mac with Apple silicon and a build with that backend: kvasir verify --backend metal"}};

bool pair_check(const CheckResult& check) {
  return check.group == "fused" && check.head_dim > 0 && !check.k.empty() && !check.v.empty();
}

}  // namespace

std::vector<std::string_view> row_names() { return {"cpu", "cuda", "vulkan", "vulkan-mali", "metal", "npu"}; }

std::string gate_of(std::string_view row) {
  const auto found = std::ranges::find(kGates, row, &Gate::row);
  if (found == std::end(kGates)) return "";
  return std::string(found->next) + "; docs/hardware-gates.md says what to send";
}

const Proof::Pair* Proof::find(DType k, DType v, int head_dim, bool flash) const {
  const auto found = std::ranges::find_if(pairs, [&](const Pair& p) {
    return p.k == k && p.v == v && p.head_dim == head_dim && p.flash == flash;
  });
  return found == pairs.end() ? nullptr : &*found;
}

Proof summarise(const Evidence& record, const std::optional<Here>& here) {
  Proof proof;
  proof.backend = record.backend;
  proof.device = record.device;
  proof.date = record.date;
  proof.kernel_hash = record.kernel_hash;
  proof.record = record_name(record);
  proof.passed = record.passed();
  proof.total = record.passed() + record.failed();
  const Here own{record.kernel_hash, record.device, record.device_uuid};
  const Here& at = here ? *here : own;
  const std::vector<std::string> against = doubts(record, at);
  proof.valid = against.empty();
  proof.against = fmt::format("{}", fmt::join(against, "; "));
  proof.diagnostic = !record.recordable && record.kernel_hash == at.kernel_hash &&
                     record.device == at.device && record.device_uuid == at.device_uuid;
  std::map<std::tuple<std::string, std::string, int, bool>, std::pair<bool, std::string>> seen;
  for (const CheckResult& check : record.checks) {
    const bool passed = check.verdict == Verdict::kPassed;
    if (passed && check.bound > 0 && check.figure / check.bound > proof.worst) {
      proof.worst = check.figure / check.bound;
      proof.worst_check = fmt::format("{} {}", check.group, check.name);
    }
    if (passed && check.group == "end_to_end" && check.name.starts_with("20 repeats")) proof.repeats = true;
    if (!pair_check(check) || check.verdict == Verdict::kNotApplicable) continue;
    const bool flash = check.variant.find(".flash.") != check.variant.npos;
    auto& entry =
        seen.try_emplace({check.k, check.v, check.head_dim, flash}, true, check.variant).first->second;
    entry.first &= passed;
  }
  for (const auto& [key, value] : seen) {
    const formats::Format *k = formats::find(std::get<0>(key)), *v = formats::find(std::get<1>(key));
    if (k && v)
      (value.first ? proof.pairs : proof.wrong)
          .push_back({k->type, v->type, std::get<2>(key), std::get<3>(key), value.second});
  }
  return proof;
}

Device device_of(const Evidence& record) {
  Device d;
  const bool mali = record.backend == "vulkan" && record.device.find("Mali") != record.device.npos;
  d.row = mali ? "vulkan-mali" : record.backend;
  d.backend = record.backend;
  d.device = record.device;
  d.isa = record.isa;
  d.built = d.present = true;
  d.host = record.backend == "cpu";
  const auto add = [](auto& list, auto value) {
    if (std::ranges::find(list, value) == list.end()) list.push_back(value);
  };
  for (const CheckResult& check : record.checks) {
    if (check.verdict != Verdict::kPassed) continue;
    if (pair_check(check)) {
      add(d.head_dims, check.head_dim);
      for (const std::string& name : {check.k, check.v})
        if (const formats::Format* format = formats::find(name)) add(d.kv_types, format->type);
    }
    if (check.group == "weights")
      for (const formats::Format& format : formats::all())
        if (format.has_role(formats::kWeights) && check.name.starts_with(std::string(format.name) + " "))
          add(d.weight_types, format.type);
  }
  std::ranges::sort(d.head_dims);
  return d;
}

}  // namespace kvasir::decide
