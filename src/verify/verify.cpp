#include "verify/verify.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/error.h"
#include "verify/checks/context.h"

namespace kvasir::verify {
namespace {

struct Entry {
  Group group;
  void (*run)(Context&);
};

constexpr std::array<Entry, 8> kEntries{{
    {{"reference", "the scalar codecs against double precision"}, check_reference},
    {{"scores", "query times key of every key type"}, check_scores},
    {{"write", "rows as the cache stores them"}, check_write},
    {{"fused", "attention of every pair of types"}, check_fused},
    {{"fold", "the same bits however work is cut"}, check_fold},
    {{"dispatch", "the kernel asked for runs, the rest is refused"}, check_dispatch},
    {{"end_to_end", "tiny-gemma4 against another implementation"}, check_end_to_end},
    {{"weights", "matrices of every weight type, norms and rope of every instruction set"},
     [](Context& context) {
       check_weights(context);
       check_elementwise(context);
     }},
}};

constexpr std::array<Group, 8> kGroups = [] {
  std::array<Group, 8> groups{};
  for (size_t i = 0; i < groups.size(); ++i) groups[i] = kEntries[i].group;
  return groups;
}();

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void check_options(const Options& options) {
  for (const std::string& name : options.groups) {
    if (std::ranges::count(kGroups, name, &Group::name)) continue;
    std::string known;
    for (const Group& group : kGroups) known += (known.empty() ? "" : " ") + std::string(group.name);
    fail(ErrorCode::kUsage, "no group of checks '{}'; the groups are: {}", name, known);
  }
  for (const int d : options.head_dims)
    if (d != 64 && d != 128 && d != 256 && d != 512)
      fail(ErrorCode::kUsage, "head size {} is not checked; 64, 128, 256 and 512 are", d);
}

}  // namespace

std::span<const Group> groups() { return kGroups; }

std::string emulator() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  // A hypervisor runs our instructions on the CPU itself; QEMU's translator ("TCG") does not.
  if (__get_cpuid(1, &a, &b, &c, &d) && (c >> 31 & 1)) {
    __cpuid(0x40000000, a, b, c, d);
    std::string name;
    for (const unsigned word : {b, c, d})
      for (int i = 0; i < 4; ++i) name += char(word >> (8 * i) & 255);
    if (name == "TCGTCGTCGTCG") return "QEMU";
  }
#elif defined(__aarch64__)
  // Under a user-mode emulator this file is the host's, which on another architecture has no such line.
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("CPU implementer", 0) == 0) return "";
    if (line.rfind("vendor_id", 0) == 0) return "QEMU";
  }
#endif
  return "";
}

Outcome run(const Options& options) {
  check_options(options);
  Context context(options);
  Outcome outcome;
  outcome.device = context.caps().device;
  outcome.isa = context.caps().isa;
  const double start = now();
  for (const Entry& entry : kEntries) {
    if (!options.groups.empty() && !std::ranges::count(options.groups, entry.group.name)) continue;
    if (options.on_start) options.on_start(entry.group.name);
    const size_t before = context.results.size();
    const double began = now();
    entry.run(context);
    if (options.on_group)
      options.on_group(entry.group.name, std::span(context.results).subspan(before), now() - began);
  }
  outcome.seconds = now() - start;
  outcome.checks = std::move(context.results);
  if (!options.groups.empty()) outcome.doubts.push_back("only a part of the groups ran");
  if (!options.head_dims.empty()) outcome.doubts.push_back("only a part of the head sizes was checked");
  if (!options.isa.empty()) outcome.doubts.push_back("slower kernels than the device's best were asked for");
  if (options.create) outcome.doubts.push_back("the backend is a test's own");
  if (const std::string name = emulator(); !name.empty())
    outcome.doubts.push_back("the CPU is emulated by " + name);
  return outcome;
}

}  // namespace kvasir::verify
