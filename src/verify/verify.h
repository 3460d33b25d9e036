// Runs the checks of one backend through the product's own library and graph route.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backends/backend.h"
#include "decide/evidence.h"
#include "formats/tcq_table.h"

namespace kvasir::verify {

struct Group {
  std::string_view name;
  std::string_view what;  // one line
};
// In the order they run.
std::span<const Group> groups();

struct Options {
  std::string backend = "cpu";
  std::string isa;                  // a slower row of CPU kernels; empty: the best
  std::vector<std::string> groups;  // empty: all
  std::vector<int> head_dims;       // empty: 64 128 256 512
  bool full = false;                // every pair of types in every shape
  int n_threads = 1;
  std::string model;  // tiny-gemma4, for end_to_end
  // The table of tbq3_tcq wherever it is checked; null: Kvasir's own. A record of it proves no other.
  std::shared_ptr<const formats::TcqTable> tcq{};
  // Another way to get the backend, for tests that plant faults; no record may be made then. Null: the
  // registry.
  std::function<std::unique_ptr<backends::Backend>(int n_threads)> create;
  // Called before and after each group: its name, and what it found so far.
  std::function<void(std::string_view group)> on_start;
  std::function<void(std::string_view group, std::span<const decide::CheckResult>, double seconds)> on_group;
};

struct Outcome {
  std::vector<decide::CheckResult> checks;
  std::string device, isa;
  double seconds = 0;
  std::vector<std::string> doubts;  // why no record may be made of it: a part only, an emulator
};

// Throws Error{kUsage} for an unknown group or head size, Error{kNoDevice} for a backend that is not there. A
// check that throws has failed, with the message as its reason.
Outcome run(const Options& options);

// What emulates this CPU ("QEMU"), or empty on real hardware.
std::string emulator();

}  // namespace kvasir::verify
