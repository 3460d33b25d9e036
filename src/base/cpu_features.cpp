#include "base/cpu_features.h"

#include <sched.h>

#include <fstream>
#include <iterator>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace kvasir {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return "generic";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
  }
  return "unknown";
}

std::optional<Isa> find_isa(std::string_view name) {
  for (Isa isa : {Isa::kGeneric, Isa::kAvx2, Isa::kAvx512, Isa::kNeon})
    if (name == isa_name(isa)) return isa;
  return std::nullopt;
}

bool cpu_supports(Isa isa) {
  switch (isa) {
    case Isa::kGeneric:
      return true;
#if defined(__x86_64__)
    case Isa::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
             __builtin_cpu_supports("f16c");
    case Isa::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
             __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("gfni");
#elif defined(__aarch64__)
    case Isa::kNeon:
      return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#endif
    default:
      return false;
  }
}

Isa best_isa() {
  for (Isa isa : {Isa::kAvx512, Isa::kAvx2, Isa::kNeon})
    if (cpu_supports(isa)) return isa;
  return Isa::kGeneric;
}

namespace {

// The first value of a field of /proc/cpuinfo; empty: none.
std::string cpuinfo(const std::string& field) {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(':');
    if (colon == line.npos || line.substr(0, line.find_last_not_of(" \t:", colon) + 1) != field) continue;
    return colon + 2 < line.size() ? line.substr(colon + 2) : "";
  }
  return "";
}

}  // namespace

std::string cpu_name() {
  const std::string name = cpuinfo("model name");
  return name.empty() ? "unknown CPU" : name;
}

std::string cpu_identity() {
  std::string text;
  const auto add = [&](const char* word, const char* field) {
    const std::string value = cpuinfo(field);
    if (!value.empty()) text += (text.empty() ? "" : " ") + std::string(word) + value;
  };
  add("", "vendor_id");
  add("family ", "cpu family");
  add("model ", "model");
  add("stepping ", "stepping");
  add("implementer ", "CPU implementer");
  add("part ", "CPU part");
  add("variant ", "CPU variant");
  add("revision ", "CPU revision");
  return text;
}

std::string cpu_feature_list() {
  std::string list;
#if defined(__x86_64__)
#define KVASIR_FEATURE(name) \
  if (__builtin_cpu_supports(name)) list += list.empty() ? name : " " name
  KVASIR_FEATURE("avx2");
  KVASIR_FEATURE("fma");
  KVASIR_FEATURE("f16c");
  KVASIR_FEATURE("avxvnni");
  KVASIR_FEATURE("avx512f");
  KVASIR_FEATURE("avx512bw");
  KVASIR_FEATURE("avx512vnni");
  KVASIR_FEATURE("avx512vbmi");
  KVASIR_FEATURE("avx512vbmi2");
  KVASIR_FEATURE("gfni");
  KVASIR_FEATURE("avx512bf16");
  KVASIR_FEATURE("avx512fp16");
#undef KVASIR_FEATURE
#elif defined(__aarch64__)
  const unsigned long hwcap = getauxval(AT_HWCAP);
  const unsigned long hwcap2 = getauxval(AT_HWCAP2);
  list = "neon";
  if (hwcap & HWCAP_ASIMDDP) list += " dotprod";
  if (hwcap & HWCAP_ASIMDHP) list += " fp16";
  if (hwcap2 & HWCAP2_I8MM) list += " i8mm";
#endif
  return list;
}

int cpu_count() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  const int n = CPU_COUNT(&set);
  return n > 0 ? n : 1;
}

}  // namespace kvasir
