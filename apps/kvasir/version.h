// What this program was built from.
#pragma once
#include <string>

namespace kvasir::app {

std::string commit();  // "5ea0205", "unknown" outside a repository
std::string
kernel_hash();  // SHA-256 over kernels, compiler and flags; "unknown" when the build did not make it

}  // namespace kvasir::app
