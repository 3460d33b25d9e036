// What this program was built from.
#pragma once
#include <string>
#include <string_view>

namespace kvasir::app {

std::string commit();  // "5ea0205", "unknown" outside a repository
// SHA-256 over a backend's kernels, compiler and flags; empty for a backend that is not in this program.
std::string kernel_hash(std::string_view backend = "cpu");
std::string compiler_text(std::string_view backend);

}  // namespace kvasir::app
