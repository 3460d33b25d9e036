// What earlier commands left in the cache folder for decisions: records of verify, measured costs, measured
// quality.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "decide/cost.h"
#include "decide/device.h"
#include "decide/quality.h"
#include "decide/speed.h"

namespace kvasir::app {

// ${XDG_CACHE_HOME:-~/.cache}/kvasir; empty when neither variable is set.
std::string cache_folder();
std::string evidence_folder();

// nullopt when there is none; a file that cannot be read is said on stderr and counts as none, and so do
// costs that other kernels than this program's were measured at.
std::optional<decide::MachineTable> stored_machine(const std::string& backend, const std::string& device,
                                                   int threads);
std::optional<decide::QualityTable> stored_quality(const std::string& fingerprint);
// The rows that this program's kernels were measured at: what decisions count.
std::optional<decide::QualityTable> current_quality(const std::string& fingerprint);
std::optional<decide::SpeedTable> stored_speed(const std::string& fingerprint);
// These replace what is there and return the path; empty when there is no cache folder. Throw Error{kFailed}.
std::string store_machine(const decide::MachineTable& table);
std::string store_quality(const decide::QualityTable& table);
std::string store_speed(const decide::SpeedTable& table);

// The record of these kernels on this device, if one is stored. `tcq_table`: hash of the table of tbq3_tcq
// that it was made with; empty: Kvasir's own.
std::optional<decide::Evidence> stored_record(const std::string& backend, const decide::Here& here,
                                              const std::string& tcq_table = "");

// Whole files. read_file throws Error{kBadFile}; write_file writes beside and renames, throws Error{kFailed}.
std::string read_file(const std::string& path);
void write_file(const std::string& path, const std::string& text);

}  // namespace kvasir::app
